"""Stores behind Sentinels: every kind of connection finds the primary, and finds it again after a failover."""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import anyio
import anyio.lowlevel
import pytest

from drr.client import Client
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher
from drr.embedded import EmbeddedServer
from drr.errors import InvalidValue, NotReplicated, StoreUnavailable
from drr.model import JobStatus
from drr.worker import Worker
from drr_backends.redis import open_redis
from drr_backends.redis.link import Address
from drr_backends.redis.sentinel import EncryptedPrimaryConnection, PrimaryConnection
from tests.contract.harness import LANE, PATIENCE, Leader, job, submit, worker
from tests.redis.harness import RedisHarness, every_operation
from tests.redis.ports import free_ports
from tests.redis.sentinels import running_site

T = TypeVar("T")

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


@pytest.fixture(params=["valkey", "redis"])
def binary(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue(f"{request.param}_server")  # skips where there is no such server
    return f"{request.param}-server"


# --- failover


async def test_every_operation_and_every_reader_finds_the_new_primary(binary: str, tmp_path: Path) -> None:
    async with running_site(binary, tmp_path) as site:
        store = RedisHarness(site.url, "own")
        backend = store.handle
        await every_operation(backend)
        # Readers of each kind, each with a connection of its own to the primary that is going to die.
        leader = await Leader(backend).take_over()
        await leader.receive()
        assert await backend.stops("0-0", 0) == ("0-0", [])
        assert await backend.read_attempts("w1", "i1", "renders", 1, 0) == []
        assert await backend.replies("other", "", 0) == ("", [])
        assert await store.raw("WAIT", 1, 5000) == 1
        site.servers[0].kill()
        with anyio.fail_after(PATIENCE):
            for call in itertools.count():
                try:
                    await backend.submit("after", call, [job()])
                    break
                except StoreUnavailable:
                    await anyio.lowlevel.checkpoint()
        # Each reader loses its connection once and then asks again; the token still leads there.
        assert [lane for lane, _ in (await _once_more(leader.receive)).lanes] == [LANE]
        assert await _once_more(lambda: backend.stops("0-0", 0)) == ("0-0", [])
        assert await _once_more(lambda: backend.read_attempts("w1", "i1", "renders", 1, 0)) == []
        assert await _once_more(lambda: backend.replies("other", "", 0)) == ("", [])
        await backend.join(worker("w3"))
        assert await store.raw("CONFIG", "GET", "port") == [b"port", str(site.servers[1].port).encode()]
        await store.close()


async def _once_more(operation: Callable[[], Awaitable[T]]) -> T:
    """What a caller of the port does whose connection was lost."""
    with pytest.raises(StoreUnavailable):
        await operation()
    return await operation()


@pytest.mark.soak
async def test_jobs_flow_again_within_ten_seconds_of_the_primarys_death(binary: str, tmp_path: Path) -> None:
    """Dispatcher, worker and client recover by themselves; what a replica has acknowledged is not lost."""
    async with running_site(binary, tmp_path) as site:
        hand = Worker(site.url, name="w1", slots=4, lease=5.0)

        @hand.task("double")
        async def double(number: int) -> int:
            return 2 * number

        with anyio.fail_after(2 * PATIENCE):
            async with (
                Dispatcher(site.url, lease=5.0) as dispatcher,
                Client(site.url, patience=60.0) as client,
                anyio.create_task_group() as group,
            ):
                await dispatcher.wait_leading()
                group.start_soon(hand.run)
                before = [await client.submit("double", [n], tenant="acme/web") for n in range(50)]
                admin = RedisHarness(site.url, "drr")
                await admin.raw("INCR", "written")
                assert await admin.raw("WAIT", 1, 5000) == 1
                await admin.close()
                site.servers[0].kill()
                died = time.monotonic()
                after = await client.submit("double", [50], tenant="acme/web")
                assert await after.result() == 100
                gap = time.monotonic() - died
                print(f"{binary}: {gap:.1f} s from the primary's death to the next result")
                assert gap < 10.0
                assert [await handle.result() for handle in before] == [2 * n for n in range(50)]
                hand.stop()


@pytest.mark.soak
async def test_what_a_replica_acknowledged_survives_the_primary(binary: str, tmp_path: Path) -> None:
    """Clients submit until the primary dies under them; every submit that returned is there afterwards."""
    async with running_site(binary, tmp_path) as site:
        store = RedisHarness(site.url + "?replicas=1&replica_timeout=5", "own")
        await store.handle.prepare()
        acknowledged: list[str] = []
        doubtful = 0

        async def produce(client: str) -> None:
            nonlocal doubtful
            for call in itertools.count():
                try:
                    acknowledged.extend(await store.handle.submit(client, call, [job()]))
                except (StoreUnavailable, NotReplicated):
                    doubtful += 1
                    return

        async def kill() -> None:
            while len(acknowledged) < 500:
                await anyio.lowlevel.checkpoint()
            site.servers[0].kill()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(produce, f"client-{number}")
                group.start_soon(kill)
            found: list[JobStatus | None] | None = None
            while found is None:
                with suppress(StoreUnavailable):
                    found = await store.handle.look_up(acknowledged[:1000])
        print(f"{binary}: {len(acknowledged)} acknowledged, {doubtful} in doubt, {found.count(None)} lost")
        assert doubtful == 8
        assert None not in found
        await store.close()


# --- a server that has become a replica


async def test_a_demoted_server_is_a_lost_connection(binary: str) -> None:
    """Behind a name that moves, without Sentinels: the next call connects anew, and so do all idle connections."""
    async with EmbeddedServer(binary=binary, port=0) as other, EmbeddedServer(binary=binary, port=0) as server:
        store = RedisHarness(server.url, "own")
        await store.handle.prepare()
        await submit(store.handle, job())
        before = await store.raw("CLIENT", "ID")
        await store.raw("REPLICAOF", "127.0.0.1", other.port or 0)
        assert await store.raw("CLIENT", "ID") == before
        with pytest.raises(StoreUnavailable, match="takes no writes"):
            await submit(store.handle, job())
        assert await store.raw("CLIENT", "ID") != before
        await store.close()


async def test_a_server_that_is_no_primary_is_not_used_even_if_a_sentinel_says_so(
    binary: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with EmbeddedServer(binary=binary, port=0) as other, EmbeddedServer(binary=binary, port=0) as server:
        store = RedisHarness(server.url, "own")
        await store.handle.prepare()

        async def misled(self: object) -> tuple[str, int]:
            assert server.port is not None
            return "127.0.0.1", server.port

        monkeypatch.setattr("drr_backends.redis.sentinel.Sentinels.get_master_address", misled)
        behind = RedisHarness("redis+sentinel://nowhere/jobs", "own")
        assert len(await submit(behind.handle, job())) == 1
        await store.raw("REPLICAOF", "127.0.0.1", other.port or 0)
        with pytest.raises(StoreUnavailable, match=r"replica|not the primary"):
            await submit(behind.handle, job())
        with pytest.raises(StoreUnavailable, match="not the primary"):
            await behind.handle.lane_lengths([LANE])
        await behind.close()
        await store.close()


# --- Sentinels that do not answer, and URLs


async def test_sentinels_that_are_not_there_are_named() -> None:
    ports = free_ports(2)
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    backend = open_redis(f"redis+sentinel://me:secret@{hosts}/jobs?sentinel_password=hidden", "n", SystemClock())
    with pytest.raises(StoreUnavailable, match=f"service jobs of the Sentinels .*{ports[1]}.*(111|61)") as refused:
        await backend.leader()
    assert "secret" not in str(refused.value)
    assert "hidden" not in str(refused.value)
    await backend.close()


async def test_a_service_that_is_not_watched_is_named(valkey_server: EmbeddedServer, tmp_path: Path) -> None:
    async with running_site(str(valkey_server.binary), tmp_path) as site:
        backend = open_redis(site.url.replace("/jobs/", "/other/"), "n", SystemClock())
        with pytest.raises(StoreUnavailable, match=r"service other of the Sentinels .*not watched"):
            await backend.leader()
        await backend.close()
        # A Sentinel that is lost costs nothing but a moment.
        first = site.ports[0]
        site.ports[0] = free_ports(1)[0]
        backend = open_redis(site.url, "n", SystemClock())
        assert (await backend.leader()).token == ""
        await backend.close()
        assert first != site.ports[0]


def test_a_sentinel_url_says_all_there_is_to_say() -> None:
    address = Address(
        "redis+sentinel://me:sec%40ret@one,two:26380,[::1]:26381/my-jobs/3"
        "?sentinel_username=watcher&sentinel_password=word&tls=yes&client_name=billing"
    )
    connection = address.make_connection()
    assert isinstance(connection, EncryptedPrimaryConnection)
    assert (connection.db, connection.username, connection.password) == (3, "me", "sec@ret")
    assert connection.client_name == "billing"
    assert connection.retry.get_retries() == 0
    assert address.shown == "service my-jobs of the Sentinels one:26379, two:26380, ::1:26381"
    options = connection.connection_pool._options
    assert (options["username"], options["password"], options["ssl"]) == ("watcher", "word", True)
    plain = Address("redis+sentinel://one/jobs").make_connection()
    assert isinstance(plain, PrimaryConnection)
    assert not isinstance(plain, EncryptedPrimaryConnection)
    assert plain.connection_pool._options["password"] is None


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("redis+sentinel://:secret@one", "service"),
        ("redis+sentinel://:secret@one/jobs/x", "number of a database"),
        ("redis+sentinel://:secret@one:x/jobs", "store URL"),
        ("redis+sentinel://:secret@one,,two/jobs", "with commas"),
        ("redis+sentinel://:secret@one/jobs?tls=maybe", "yes or no"),
        ("redis+sentinel://:secret@one/jobs?host=two", "Sentinels tell"),
        ("redis+sentinel://:secret@one/jobs?socket_timeout=1", "socket_timeout"),
        ("redis+sentinel://:secret@one/jobs?sentinel_password=", "once, with a value"),
        ("redis://:secret@one?sentinel_password=secret", "sentinel_password"),
        ("redis://:secret@one/jobs", "number of a database"),
    ],
)
def test_a_sentinel_url_that_cannot_be_is_refused_without_the_password(url: str, named: str) -> None:
    with pytest.raises(InvalidValue, match="store URL") as refused:
        open_redis(url, "n", SystemClock())
    assert named in str(refused.value)
    assert "secret" not in str(refused.value)
