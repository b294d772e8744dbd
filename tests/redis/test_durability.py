"""What real servers tell of how they keep their data, under each setting, and when they are not allowed to tell."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drr.backend import Backend, Survey, open_backend
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher
from drr.durability import Caution, Level
from drr.embedded import EmbeddedServer
from tests.cli.command import drr

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[Backend]:
    backend = open_backend(url, namespace="drr", clock=SystemClock())
    try:
        yield backend
    finally:
        await backend.close()


async def survey(url: str) -> Survey:
    async with opened(url) as backend:
        return await backend.survey()


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(f"{request.param}_server")  # skips where there is no such server
    return f"{request.param}-server"


@pytest.mark.parametrize(
    ("appendfsync", "directives", "level", "cautions"),
    [
        ("always", {}, Level.SYNCED, []),
        ("everysec", {"maxmemory": "100mb"}, Level.SECOND, []),
        ("no", {"maxmemory-policy": "allkeys-lru"}, Level.SYSTEM, []),
        (None, {}, Level.NOTHING, [Caution.KEEPS_NOTHING]),
        (None, {"save": "3600 1"}, Level.SNAPSHOTS, [Caution.SNAPSHOTS_ONLY]),
        ("always", {"maxmemory": "100mb", "maxmemory-policy": "volatile-lru"}, Level.SYNCED, [Caution.MAY_EVICT]),
        (
            None,
            {"maxmemory": "100mb", "maxmemory-policy": "allkeys-random"},
            Level.NOTHING,
            [Caution.KEEPS_NOTHING, Caution.MAY_EVICT],
        ),
    ],
)
async def test_each_setting_is_seen(
    binary: str, appendfsync: Any, directives: dict[str, str], level: Level, cautions: list[Caution]
) -> None:
    with EmbeddedServer(binary=binary, appendfsync=appendfsync, directives=directives) as server:
        found = await survey(server.url)
    assert (found.level, [remark.caution for remark in found.warnings], found.unknown) == (level, cautions, ())
    assert found.server.lower().startswith(binary.partition("-")[0])
    assert (found.supported, found.disk_fails, found.replicas, found.replicas_needed) == (True, False, 0, 0)


async def test_a_server_that_may_not_tell_is_unknown_and_no_error(binary: str) -> None:
    """A user without the rights, as on managed services: the dispatcher leads all the same."""
    with EmbeddedServer(binary=binary, appendfsync=None, port=0) as server:
        async with opened(server.url) as admin:
            link: Any = admin
            await link.link.call("ACL", "SETUSER", "drr", "on", ">secret", "~*", "&*", "+@all", "-info", "-config")
        url = server.url.replace("redis://", "redis://drr:secret@")
        assert await survey(url) == Survey()
        async with Dispatcher(url) as dispatcher:
            await dispatcher.wait_leading()
            health = dispatcher.health()
            assert (health.ready, health.durability, health.cautions) == (True, Level.UNKNOWN, ())


async def test_a_server_whose_config_command_is_gone_tells_by_info_what_it_can(binary: str) -> None:
    with EmbeddedServer(binary=binary, directives={"rename-command": 'CONFIG ""', "maxmemory": "100mb"}) as server:
        found = await survey(server.url)
    assert (found.append_only, found.fsync, found.level, found.unknown) == (True, None, Level.UNKNOWN, ("fsync",))
    assert (found.memory_limit, found.eviction, found.supported) == (100 * 1024**2, "noeviction", True)
    assert found.warnings == ()


async def test_the_leader_passes_it_on(binary: str) -> None:
    with EmbeddedServer(binary=binary, appendfsync=None) as server:
        async with Dispatcher(server.url) as dispatcher:
            await dispatcher.wait_leading()
            assert dispatcher.health().cautions == (Caution.KEEPS_NOTHING,)


def test_a_server_that_is_set_well_passes_the_strict_check_of_its_settings(binary: str) -> None:
    with EmbeddedServer(binary=binary, appendfsync="always") as good:
        assert "durability  ok: synced" in drr("health", good.url, "--strict").stdout
    with EmbeddedServer(binary=binary, appendfsync=None) as bad:
        assert "durability  FAILED (store_unsafe): nothing; " in drr("health", bad.url, "--strict").stdout
