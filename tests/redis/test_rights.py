"""The users of docs/examples/acl/users.acl on real servers: each does its whole work, and nothing of another's."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from redis import Redis

from drr.backend import Backend, EventKind, Request, RequestKind, Settlement
from drr.client import Client
from drr.dispatcher import Dispatcher
from drr.embedded import EmbeddedServer
from drr.errors import BackendError, BacklogFull, StoreNotPrepared
from drr.model import JobState, Quota, Settings
from drr.payload import pack_arguments
from drr.worker import Worker
from drr_backends.redis.library import function, library
from tests.contract.harness import LANE, OTHER, PATIENCE, Leader, completion, heads, job, submit, succeeded, worker
from tests.contract.test_audit import sweep
from tests.redis.harness import RedisHarness, every_operation
from tests.redis.page_worker import PageWorker

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

USERS = Path(__file__).parents[2] / "docs" / "examples" / "acl" / "users.acl"
NAMES = ("producer", "client", "worker", "dispatcher")
NAMESPACE = "drr"


class Users:
    """A server with the users of the file, each with a password; ``admin`` may do everything."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.server = server
        self.admin = RedisHarness(server.url, NAMESPACE)
        self._opened = [self.admin]

    def url(self, user: str) -> str:
        return self.server.url.replace("redis://", f"redis://drr-{user}:secret@")

    def store(self, user: str, namespace: str = NAMESPACE) -> RedisHarness:
        """Return what this user has of the namespace."""
        self._opened.append(RedisHarness(self.url(user), namespace))
        return self._opened[-1]

    async def denied(self) -> list[bytes]:
        """Return what was refused for want of a right so far."""
        return [dict(zip(e[::2], e[1::2], strict=True))[b"object"] for e in await self.admin.raw("ACL", "LOG")]

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(params=["valkey", "redis"])
async def users(request: pytest.FixtureRequest) -> AsyncIterator[Users]:
    request.getfixturevalue(f"{request.param}_server")  # skips where there is no such server
    binary = f"{request.param}-server"
    async with EmbeddedServer(binary=binary, port=0, directives={"include": str(USERS)}) as server:
        users = Users(server)
        for name in NAMES:
            await users.admin.raw("ACL", "SETUSER", f"drr-{name}", "on", ">secret")
        yield users
        await users.close()


async def test_nobody_can_log_in_before_a_password_is_set(redis_server: EmbeddedServer) -> None:
    async with EmbeddedServer(binary=redis_server.binary, port=0, directives={"include": str(USERS)}) as server:
        users = Users(server)
        for name in NAMES:
            with pytest.raises(BackendError, match="credentials"):
                await users.store(name).raw("PING")
        await users.close()


async def test_the_file_serves_as_an_acl_file_too(redis_server: EmbeddedServer) -> None:
    async with EmbeddedServer(binary=redis_server.binary, directives={"aclfile": str(USERS)}) as server:
        users = Users(server)
        assert set(await users.admin.raw("ACL", "USERS")) == {b"default", *(f"drr-{n}".encode() for n in NAMES)}
        await users.close()


# --- each does its whole work


async def test_a_dispatcher_worker_and_clients_do_their_work_with_their_own_users(users: Users) -> None:
    hand = Worker(users.url("worker"), name="w1", slots=2)

    @hand.task("double")
    async def double(number: int) -> int:
        return 2 * number

    with anyio.fail_after(PATIENCE):
        async with Dispatcher(users.url("dispatcher")) as dispatcher, anyio.create_task_group() as group:
            await dispatcher.wait_leading()
            group.start_soon(hand.run)
            for name in ("producer", "client"):
                async with Client(users.url(name)) as client:
                    handles = [await client.submit("double", [n], tenant="acme/web") for n in range(5)]
                    assert [await handle.result() for handle in handles] == [0, 2, 4, 6, 8]
            async with Client(users.url("client")) as client:
                late = await client.submit("double", [1], tenant="acme/web", delay=1000)
                await late.cancel()
                assert (await late.wait()).state is JobState.CANCELLED
            hand.stop()
    assert set(await users.denied()) <= {b"config|get"}  # which the dispatcher asks for and does without


async def test_a_dispatcher_can_do_everything_of_its_port(users: Users) -> None:
    """Among all operations, those of a client and a worker are done by their users."""
    dispatcher = users.store("dispatcher")
    everybody = _ByRole({name: users.store(name).handle for name in ("client", "worker")}, dispatcher.handle)
    await every_operation(everybody)
    assert await users.denied() == []
    assert {"client", "worker", "dispatcher"} == everybody.used


class _ByRole:
    """A backend of which each operation is done by the user whose it is."""

    OF_CLIENT = frozenset({"submit", "look_up", "replies", "read_status", "dead_letters"})
    OF_WORKER = frozenset(
        {"join", "heartbeat", "leave", "read_attempts", "pending_attempts", "report", "worker_record", "stops"}
    )

    def __init__(self, roles: dict[str, Backend], dispatcher: Backend) -> None:
        self._roles = {**roles, "dispatcher": dispatcher}
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        role = "client" if name in self.OF_CLIENT else "worker" if name in self.OF_WORKER else "dispatcher"
        self.used.add(role)
        return getattr(self._roles[role], name)


async def everything_a_client_does(client: Backend) -> None:
    """Whatever a client may ask for beside the ordinary, on a store with quotas."""
    later = time.time() + 1e6
    ids = await submit(client, job(key="k"), job(name="n"), job(due_at=later), job(OTHER))
    with pytest.raises(BacklogFull):
        await submit(client, *[job(OTHER)] * 5)
    assert await client.find(("acme", "web"), "n") == ids[1]
    assert len(await client.waiting([("acme",)])) == 1
    assert await client.progress(ids) == [None] * 4
    assert await client.changes() == []
    assert await client.usage("acme", 0, 10**6) == {}
    assert (await client.settings()).quotas
    for state in JobState:
        await client.list_jobs(("acme",), state)
    await client.request([Request(RequestKind.CANCEL, ids[0])])
    assert await client.look_up(ids) != [None] * 4
    assert await client.replies("me", "", 0) == ("", [])
    assert await client.lane_lengths([LANE, OTHER]) == [2, 1]
    assert (await client.read_status()).leader.token
    assert len(await client.dead_letters()) == 1
    assert await client.purge_dead([1]) == 1
    await client.release_calls("client")
    assert await client.calls("client")


async def bury_one(store: RedisHarness, leader: Leader) -> None:
    """Leave a dead letter in the namespace."""
    await submit(store.handle, job())
    (lease,) = await leader.dispatch(*await heads(store.handle))
    await leader.commit(settlements=[Settlement(lease, completion(), bury="poison")])


async def test_a_client_can_do_everything_of_its_port(users: Users) -> None:
    await users.admin.handle.prepare()
    leader = await Leader(users.admin.handle).take_over()
    await leader.commit(settings=Settings(quotas={OTHER.path: Quota(jobs=5, rate=1e6)}))
    await bury_one(users.admin, leader)
    await everything_a_client_does(users.store("client").handle)
    assert await users.denied() == []


async def test_a_dispatcher_can_set_right_what_contradicts_itself(users: Users) -> None:
    leader = await Leader(users.store("dispatcher").handle).take_over()
    await leader.backend.prepare()
    await submit(users.admin.handle, job(), job(), job(due_at=time.time() + 1e6), job(OTHER))
    (lease, _) = await leader.dispatch(*await heads(users.admin.handle))
    await users.admin.raw("ZREM", P + "due", (3).to_bytes(8, "big"))
    await users.admin.raw("SREM", P + "active", str(OTHER))
    await users.admin.raw("HINCRBY", P + "depth", "acme/web", 5)
    await users.admin.raw("XADD", P + "pool:default", "*", "token", "stray", "attempt", 1, "frame", "x")
    await users.admin.raw("HDEL", P + "leases", lease.token)
    whole = await sweep(leader)
    assert len(whole.found) >= 3
    await leader.backend.attend("d1", 5.0)
    assert await users.store("client").handle.attendance("d1") == 1
    assert await users.denied() == []


async def test_a_worker_can_do_everything_of_its_port(users: Users) -> None:
    await users.admin.handle.prepare()
    leader = await Leader(users.admin.handle).take_over()
    hand = users.store("worker").handle
    ids = await submit(users.admin.handle, job())
    await hand.join(worker())
    await hand.join(worker(incarnation="i2"), replacing="i1")
    await leader.dispatch(*await heads(users.admin.handle))
    (attempt,) = await hand.read_attempts("w1", "i2", "default", 1, 0.01)
    token = attempt.token  # type: ignore[union-attr]
    assert await hand.heartbeat(worker(incarnation="i2", held=(token,)))
    assert await hand.pending_attempts("w1", "i2", "default") == [attempt]
    assert await hand.read_attempts("w1", "i2", "new", 1, 0.01) == []  # makes the stream's group
    assert await hand.report_progress(token, ids[0], b"x")
    assert (await hand.stops("", 0))[1] == []
    assert (await hand.stops("0-0", 0.01))[1] == []
    assert await hand.worker_record("w1") is not None
    await hand.report([succeeded(token)])
    ((event,),) = [(await leader.receive()).events]
    assert event.kind is EventKind.SUCCEEDED  # type: ignore[union-attr]
    await hand.leave("w1", "i2")
    assert await users.denied() == []


# --- and nothing of another's

Commands: TypeAlias = tuple[tuple[Any, ...], ...]

NOBODY = (
    ("FLUSHALL",),
    ("FLUSHDB",),
    ("CONFIG", "GET", "requirepass"),
    ("CONFIG", "SET", "maxmemory", "1"),
    ("ACL", "LIST"),
    ("ACL", "SETUSER", "drr-client", "+@all"),
    ("KEYS", "*"),
    ("SHUTDOWN", "NOSAVE"),
    ("SAVE",),
    ("REPLICAOF", "NO", "ONE"),
    ("EVAL", "return 1", "0"),
    ("FUNCTION", "FLUSH"),
    ("FUNCTION", "DELETE", library().name),
    ("CLIENT", "LIST"),
    ("CLIENT", "KILL", "ID", "1"),
    ("MONITOR",),
    ("SELECT", "1"),
    ("PUBLISH", "channel", "text"),
    ("SET", "another", "x"),
    ("GET", "another"),
    ("RENAME", "drr:{drr}:leases", "drr:{drr}:events"),
)
P = "drr:{drr}:"
DISCARD = [P + key for key in ("leader", "leases", "dead", "graves", "graves:-", "position")]
BY_DISPATCHER_ALONE: Commands = (
    ("FUNCTION", "LOAD", "REPLACE", library().source),
    ("FUNCTION", "LIST"),
    ("SCAN", "0"),
    ("FCALL", function("elect"), 1, P + "leader", "1:x", "2:mine"),
    ("FCALL", function("write_status"), 2, P + "leader", P + "status", "1:x", "lies"),
    (
        "FCALL",
        function("discard_lease"),
        6,
        *DISCARD,
        "",
        "t",
        "",
    ),
    ("HSET", P + "leader", "token", "2:mine"),
    ("HSET", P + "leases", "t", "x"),
    ("HDEL", P + "leases", "t"),
    ("HSET", P + "nodes", "default:acme", "credit"),
    ("SET", P + "settings", "x"),
    ("HSET", P + "admission", "acme/web", "x"),
    ("HSET", P + "position", "events", "0-0"),
    ("HSET", P + "estimates", "e", "x"),
    ("LPUSH", P + "changes", "x"),
    ("LPUSH", P + "lane:default:acme:web:5", "x"),
    ("LTRIM", P + "lane:default:acme:web:5", 1, 0),
    ("SREM", P + "active", "default:acme:web:5"),
    ("XTRIM", P + "events", "MAXLEN", 0),
    ("XADD", P + "pool:default", "*", "token", "t"),
    ("XADD", P + "resigned", "*", "token", "t"),
    ("SET", P + "outcome:1~n", "x"),
    ("HSET", P + "usage:acme:1", "x", "1"),
    ("HSET", P + "schema", "number", "9"),
    ("DEL", P + "dead"),
)
BY_CLIENTS: Commands = (
    ("RPUSH", P + "lane:default:acme:web:5", "x"),
    ("INCRBY", P + "sequence", 1),
    ("HGETALL", P + "depth"),
    ("SADD", P + "active", "default:acme:web:5"),
    ("SET", P + "bucket:acme:web", "x"),
    ("FCALL_RO", function("peek"), 1, P + "lane:default:acme:web:5", 0, 1),
)
BY_CLIENT = (
    ("XADD", P + "requests", "*", "request", "x"),
    ("HDEL", P + "dead", "1"),
    ("FCALL", function("purge"), 3, P + "dead", P + "graves", P + "graves:acme", 1, 3),
    ("GET", P + "settings"),
)
BY_WORKER = (
    ("XADD", P + "events", "*", "events", "x"),
    ("HSET", P + "workers", "w9:held", "x"),
    ("SET", P + "progress:1~n", "x"),
    ("XREADGROUP", "GROUP", "workers", "w:i", "STREAMS", P + "pool:default", ">"),
)


def must_not(user: str) -> list[tuple[Any, ...]]:
    """Return what is not for this user."""
    denied = {
        "producer": (NOBODY, BY_DISPATCHER_ALONE, BY_WORKER, BY_CLIENT),
        "client": (NOBODY, BY_DISPATCHER_ALONE, BY_WORKER),
        "worker": (NOBODY, BY_DISPATCHER_ALONE, BY_CLIENTS, BY_CLIENT),
        "dispatcher": (NOBODY,),
    }
    return [command for group in denied[user] for command in group]


@pytest.mark.parametrize("user", NAMES)
async def test_a_user_can_do_nothing_that_is_not_its_own(users: Users, user: str) -> None:
    await users.admin.handle.prepare()
    await submit(users.admin.handle, job())
    before = await users.admin.dump()
    store = users.store(user)
    for command in must_not(user):
        with pytest.raises(BackendError) as refused:
            await store.raw(*command)
        assert "permission" in str(refused.value), (user, command, refused.value)
    assert await users.admin.dump() == before


async def test_each_of_those_is_possible_for_whom_it_is_meant(users: Users) -> None:
    """The control: what is refused above is refused for want of a right, not because it could never be."""
    await users.admin.handle.prepare()
    await users.admin.raw("XGROUP", "CREATE", P + "pool:default", "workers", "0", "MKSTREAM")
    meant: dict[str, Commands] = {
        "client": BY_CLIENTS + BY_CLIENT,
        "producer": BY_CLIENTS,
        "worker": BY_WORKER,
    }
    for user, commands in meant.items():
        for command in commands:
            await users.store(user).raw(*command)
    for command in BY_DISPATCHER_ALONE:
        with suppress(BackendError):  # of a lease that is none, a token that does not lead
            await users.store("dispatcher").raw(*command)
    assert await users.denied() == []


async def test_what_a_function_does_inside_needs_the_right_too(users: Users) -> None:
    """A client may name these keys to a function; removing a due time is still the dispatcher's."""
    await users.admin.handle.prepare()
    await users.admin.raw("ZADD", P + "due", 1, b"12345678")
    call = ("FCALL", function("due"), 2, P + "due", P + "delayed", "2", 10)
    with pytest.raises(BackendError, match=r"permission|can't access"):
        await users.store("client").raw(*call)
    assert await users.admin.raw("ZCARD", P + "due") == 1
    await users.store("dispatcher").raw(*call)
    assert await users.admin.raw("ZCARD", P + "due") == 0


async def test_a_worker_in_another_language_needs_no_more(users: Users) -> None:
    await users.admin.handle.prepare()
    leader = await Leader(users.admin.handle).take_over()
    with Redis.from_url(users.url("worker"), protocol=2) as connection:
        page = PageWorker(connection, NAMESPACE, "page")
        assert page.join() == ""
        await submit(users.admin.handle, job(payload=pack_arguments([20], {}), task="double"))
        await leader.dispatch(*await heads(users.admin.handle))
        assert page.work({"double": lambda number: 2 * number}) == 1
        page.leave()
    assert len((await leader.receive()).events) == 1


async def test_another_namespace_is_out_of_reach(users: Users) -> None:
    other = RedisHarness(users.server.url, "other")
    await other.handle.prepare()
    await submit(other.handle, job())
    for user in NAMES:
        with pytest.raises(BackendError, match="permission"):
            await submit(users.store(user, "other").handle, job())
    await other.close()


async def test_a_client_cannot_load_the_library(users: Users) -> None:
    for user in ("producer", "client"):
        with pytest.raises(StoreNotPrepared, match="drr init"):
            await submit(users.store(user).handle, job())
        with pytest.raises(BackendError, match="permission"):
            await users.store(user).handle.prepare()
