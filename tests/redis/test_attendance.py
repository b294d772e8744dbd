"""Signs of life of dispatchers on a real server: they expire, and are taken when memory is full."""

from __future__ import annotations

import pytest

from drr.embedded import EmbeddedServer
from drr.errors import StoreFull
from drr.model import JobSpec, Lane
from tests.redis.harness import RedisHarness

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


async def test_a_sign_of_life_expires(server: EmbeddedServer, fresh_namespace: str) -> None:
    store = RedisHarness(server.url, fresh_namespace)
    await store.handle.prepare()
    await store.handle.attend("d1", 60.0)
    assert 50_000 < await store.raw("PTTL", store.keys.attendance("d1")) <= 60_000
    await store.raw("SET", store.keys.attendance("d1"), "nonsense")
    assert await store.handle.attendance("d1") is None
    await store.close()


async def test_a_full_server_takes_signs_of_life_and_no_jobs() -> None:
    with EmbeddedServer() as server:
        store = RedisHarness(server.url, "full")
        await store.handle.prepare()
        await store.raw("CONFIG", "SET", "maxmemory", "100kb")
        with pytest.raises(StoreFull):
            await store.handle.submit("c", 1, [JobSpec(Lane("default", ("acme", "web")), "t", b"", 0.0)])
        await store.handle.attend("d1", 60.0)
        assert await store.handle.attendance("d1") == 1
        await store.close()
