"""Servers that are full, killed, clustered, unprepared, too old or not there."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from drr.backend import LeaderRecord, open_backend
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import (
    BackendError,
    InvalidValue,
    StoreFull,
    StoreNotPrepared,
    StoreUnavailable,
    StoreUnsupported,
)
from drr_backends.redis import open_redis
from drr_backends.redis.codec import decode_head, split_frame
from drr_backends.redis.library import Library, library
from drr_backends.redis.server import check_server
from tests.contract.harness import LANE, PATIENCE, Leader, heads, job, submit, succeeded, worker
from tests.redis.harness import RedisHarness, every_operation
from tests.redis.ports import free_ports

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

BINARIES = ["valkey-server", "redis-server"]


@asynccontextmanager
async def own_server(binary: str, **options: object) -> AsyncIterator[tuple[EmbeddedServer, RedisHarness]]:
    """A server of the test's own, and a prepared namespace on it."""
    async with EmbeddedServer(binary=binary, **options) as server:  # type: ignore[arg-type]
        store = RedisHarness(server.url, "own")
        yield server, store
        await store.close()


# --- memory


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_full_server_refuses_jobs_and_still_drains(binary: str) -> None:
    async with own_server(binary) as (_, store):
        backend = store.handle
        await backend.prepare()
        leader = await Leader(backend).take_over()
        await backend.join(worker())
        leases = await leader.start(*[job(result_ttl=60.0, reply_to="me") for _ in range(5)])
        await submit(backend, job(), job())
        before = await store.dump()
        await store.raw("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(StoreFull, match="out of memory"):
            await submit(backend, job())
        assert await store.dump() == before
        # Everything that frees memory, or keeps somebody alive, goes on.
        await backend.renew(leader.token)
        assert await backend.heartbeat(worker(held=("t",)))
        assert len(await backend.read_attempts("w1", "i1", "default", 10, 0)) == 5
        await backend.report([succeeded(lease.token, value=b"value") for lease in leases])
        assert len((await leader.receive()).events) == 5
        await leader.settle(*leases)
        await leader.dispatch(*await heads(backend))
        await backend.write_status(leader.token, b"full")
        await backend.leave("w1", "i1")
        await backend.resign(leader.token)
        assert await backend.elect("", "2:next")
        assert await backend.lane_lengths([LANE]) == [0]
        await store.raw("CONFIG", "SET", "maxmemory", 0)
        assert len(await submit(backend, job())) == 1


# --- crashes


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_killed_server_has_lost_nothing_that_it_acknowledged(binary: str) -> None:
    """With ``appendfsync always``. Clients submit and a leader commits until the server dies under them."""
    async with own_server(binary, appendfsync="always") as (server, store):
        await store.handle.prepare()
        leader = await Leader(store.handle).take_over()
        acknowledged: list[str] = []
        passes = 0

        async def produce(number: int) -> None:
            client = store.open()
            calls = itertools.count()

            async def submit_for_ever() -> None:
                while True:
                    acknowledged.extend(await client.submit(f"client-{number}", next(calls), [job(), job()]))

            with pytest.raises(StoreUnavailable):
                await submit_for_ever()

        async def lead() -> None:
            async def dispatch_for_ever() -> None:
                nonlocal passes
                while True:
                    found = await heads(store.handle)
                    await leader.dispatch(*found[:2])
                    passes = leader.passes

            with pytest.raises(StoreUnavailable):
                await dispatch_for_ever()

        async def kill() -> None:
            while passes < 20 or len(acknowledged) < 100:
                await anyio.lowlevel.checkpoint()
            server.kill()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                for number in range(3):
                    group.start_soon(produce, number)
                group.start_soon(lead)
                group.start_soon(kill)
        server.start()
        successor = store.open()
        assert (await successor.leader()).passes >= passes
        running = {lease.header.job_id for lease in (await successor.load(leader.token)).leases}
        frames = await store.raw("LRANGE", store.keys.lane(LANE), 0, -1)
        assert set(acknowledged) <= running | {decode_head(split_frame(frame)[0]).job_id for frame in frames}
        # The functions survived too.
        await submit(successor, job())


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_handle_works_again_when_the_server_is_back(binary: str) -> None:
    async with own_server(binary, appendfsync="always") as (server, store):
        await store.handle.prepare()
        ids = await submit(store.handle, job())
        assert await store.handle.replies("me", "", 0) == ("", [])
        server.kill()
        with pytest.raises(StoreUnavailable):
            await store.handle.lane_lengths([LANE])
        with pytest.raises(StoreUnavailable):
            await store.handle.replies("me", "", 0)
        server.start()
        assert [header.job_id for header in await heads(store.handle)] == ids
        assert await store.handle.replies("me", "", 0) == ("", [])


# --- a cluster


@pytest.mark.parametrize("binary", BINARIES)
async def test_every_operation_works_on_a_cluster_node(binary: str) -> None:
    """A cluster refuses calls whose keys lie in different slots: the namespace is one hash tag."""
    port, bus = free_ports(2)
    directives = {"cluster-enabled": "yes", "cluster-port": str(bus)}
    async with own_server(binary, port=port, directives=directives) as (_, store):
        await store.raw("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        with anyio.fail_after(PATIENCE):
            while b"cluster_state:ok" not in await store.raw("CLUSTER", "INFO"):
                await anyio.lowlevel.checkpoint()
        await every_operation(store.handle)
        slots = {await store.raw("CLUSTER", "KEYSLOT", name) for name in await store.raw("KEYS", "*")}
        assert len(slots) == 1


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_cluster_node_that_does_not_serve_the_namespace_says_so(binary: str) -> None:
    port, bus = free_ports(2)
    directives = {"cluster-enabled": "yes", "cluster-port": str(bus)}
    async with own_server(binary, port=port, directives=directives) as (_, store):
        with pytest.raises(StoreUnavailable, match="does not serve this namespace"):
            await store.handle.workers()


# --- the function library


@pytest.mark.parametrize("binary", BINARIES)
async def test_an_unprepared_store_says_what_to_run(binary: str) -> None:
    async with own_server(binary) as (_, store):
        with pytest.raises(StoreNotPrepared, match="drr init"):
            await submit(store.handle, job())
        with pytest.raises(StoreNotPrepared, match="drr init"):
            await store.handle.join(worker())
        assert await store.handle.leader() == LeaderRecord()
        assert await store.raw("DBSIZE") == 0
        await store.handle.prepare()
        assert len(await submit(store.handle, job())) == 1


@pytest.mark.parametrize("binary", BINARIES)
async def test_a_leader_loads_a_lost_library_again_by_itself(binary: str) -> None:
    async with own_server(binary) as (_, store):
        await store.handle.prepare()
        leader = await Leader(store.handle).take_over()
        await submit(store.handle, job())
        (head,) = await heads(store.handle)
        for step in (
            lambda: store.handle.renew(leader.token),
            lambda: heads(store.handle),
            lambda: leader.dispatch(head),
            lambda: store.handle.write_status(leader.token, b""),
            lambda: store.handle.resign(leader.token),
            lambda: store.handle.elect("", "2:next"),
        ):
            await store.raw("FUNCTION", "FLUSH", "SYNC")
            await step()
        assert [lease.header.job_id for lease in (await store.handle.load("2:next")).leases] == [head.job_id]


@pytest.mark.parametrize("binary", BINARIES)
async def test_two_versions_work_side_by_side(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with own_server(binary) as (_, store):
        await store.handle.prepare()
        (first,) = await submit(store.handle, job())
        old = library()
        new = Library("abcdef012345", old.source.replace(old.hash, "abcdef012345"))
        monkeypatch.setattr("drr_backends.redis.dispatcher.library", lambda: new)
        await store.handle.prepare()
        names = {item[1] for item in await store.raw("FUNCTION", "LIST")}
        assert names == {f"drr_{old.hash}".encode(), b"drr_abcdef012345"}
        assert await store.raw("HGET", store.keys.schema, "library") == b"abcdef012345"
        (second,) = await submit(store.handle, job())
        assert [header.job_id for header in await heads(store.handle)] == [first, second]


@pytest.mark.parametrize("binary", BINARIES)
async def test_many_dispatchers_can_prepare_at_once(binary: str) -> None:
    async with own_server(binary) as (_, store):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(store.open().prepare)
        assert len(await store.raw("FUNCTION", "LIST")) == 1


async def test_a_namespace_of_another_schema_is_refused(store: RedisHarness) -> None:
    await store.raw("HSET", store.keys.schema, "number", 99)
    with pytest.raises(StoreNotPrepared, match="schema 99"):
        await store.handle.prepare()


# --- versions and addresses


@pytest.mark.parametrize(
    ("info", "named"),
    [
        ("redis_version:6.2.14\r\n", "Redis 6.2.14"),
        ("redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:7.2.9\r\n", "Valkey 7.2.9"),
        ("nothing", "Redis unknown"),
    ],
)
def test_a_server_that_is_too_old_is_refused_with_both_versions(info: str, named: str) -> None:
    with pytest.raises(StoreUnsupported, match=r"Redis >= 7\.0 or Valkey >= 8\.0") as refused:
        check_server(info.encode())
    assert named in str(refused.value)


@pytest.mark.parametrize(
    "info", ["redis_version:7.0.0", "redis_version:10.1.0", "redis_version:7.2.4\nvalkey_version:8.0.1"]
)
def test_a_server_that_is_new_enough_is_accepted(info: str) -> None:
    check_server(info.encode())


async def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    (port,) = free_ports(1)
    backend = open_backend(f"redis://me:secret@127.0.0.1:{port}/0", namespace="n", clock=SystemClock())
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{port}") as refused:
        await backend.prepare()
    assert "secret" not in str(refused.value)
    await backend.close()


async def test_a_missing_socket_is_named() -> None:
    backend = open_redis("unix:///nowhere/server.sock", "n", SystemClock())
    with pytest.raises(StoreUnavailable, match=r"/nowhere/server\.sock"):
        await backend.leader()
    await backend.close()


@pytest.mark.parametrize(
    "url", ["redis://host:port/0", "redis://:secret@host:99999999/0", "redis://x?socket_timeout=no"]
)
def test_a_url_that_cannot_be_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(InvalidValue, match="store URL") as refused:
        open_redis(url, "n", SystemClock())
    assert "secret" not in str(refused.value)


async def test_a_server_that_never_answers_is_given_up() -> None:
    """A partition: the connection stands and nothing comes back."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()
        gone.set()

    gone = asyncio.Event()
    silent = await asyncio.start_server(swallow, "127.0.0.1", 0)
    backend = open_redis(f"redis://127.0.0.1:{silent.sockets[0].getsockname()[1]}", "n", SystemClock())
    backend.address.reply_timeout = 0.05
    with anyio.fail_after(PATIENCE):
        with pytest.raises(StoreUnavailable, match="did not answer in time"):
            await backend.leader()
        await backend.close()
        await gone.wait()
    silent.close()


# --- rights


@pytest.mark.parametrize("binary", BINARIES)
async def test_wrong_credentials_are_said_and_not_retried(binary: str) -> None:
    async with own_server(binary) as (server, store):
        await store.raw("ACL", "SETUSER", "someone", "on", ">right", "~*", "+@all")
        backend = open_redis(f"unix://someone:wrong@{server.socket_path}", "own", SystemClock())
        with pytest.raises(BackendError, match="credentials") as refused:
            await backend.leader()
        assert not isinstance(refused.value, StoreUnavailable)
        await backend.close()
