"""A namespace on a real server, and what anybody with the right to its keys could do to it."""

from __future__ import annotations

from typing import Any

from drr.backend import Backend, Dispatch, Peek, Requeue, Settlement, Work
from drr.clock import SystemClock
from drr.model import Lane, NodePolicy, NodeState, PoolPolicy, Settings, Share
from drr_backends.redis import RedisBackend, open_redis
from tests.contract.harness import (
    LANE,
    OTHER,
    Harness,
    Leader,
    completion,
    header_of,
    heads,
    job,
    submit,
    succeeded,
    worker,
)


class RedisHarness(Harness):
    """A namespace on a server. ``raw`` sends any command."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__()
        self.url = url
        self.namespace = namespace
        self.handle = self.open()
        self.keys = self.handle.keys

    def connect(self) -> RedisBackend:
        return open_redis(self.url, self.namespace, SystemClock())

    def open(self) -> RedisBackend:
        handle = super().open()
        assert isinstance(handle, RedisBackend)
        return handle

    async def raw(self, *command: str | bytes | int | float) -> Any:
        """Send a command and return its raw reply."""
        return await self.handle.link.call(*command)

    async def plant_entry(self, lane: Lane, raw: bytes) -> None:
        if await self.raw("RPUSH", self.keys.lane(lane), raw) == 1:
            await self.raw("SADD", self.keys.active, str(lane))
            await self.raw("XADD", self.keys.wake, "*", "lane", str(lane), "head", raw[:4096])

    async def plant_event(self, raw: bytes) -> None:
        await self.raw("XADD", self.keys.events, "*", "events", raw)

    async def blocked(self) -> int:
        info = (await self.raw("INFO", "clients")).decode()
        return int(info.partition("blocked_clients:")[2].split()[0])

    async def dump(self) -> dict[bytes, Any]:
        """The content of every key of the namespace (not its encoding, which reads alone can change)."""
        return {name: await self._content(name) for name in sorted(await self.raw("KEYS", self.keys.prefix + "*"))}

    async def _content(self, name: bytes) -> Any:
        match await self.raw("TYPE", name):
            case b"string":
                return await self.raw("GET", name)
            case b"list":
                return await self.raw("LRANGE", name, 0, -1)
            case b"set":
                return sorted(await self.raw("SMEMBERS", name))
            case b"hash":
                flat = await self.raw("HGETALL", name)
                return dict(zip(flat[::2], flat[1::2], strict=True))
            case b"stream":
                groups = await self.raw("XINFO", "GROUPS", name)
                waiting = [
                    await self.raw("XPENDING", name, dict(zip(g[::2], g[1::2], strict=True))[b"name"]) for g in groups
                ]
                return await self.raw("XRANGE", name, "-", "+"), waiting
            case b"zset":
                return await self.raw("ZRANGE", name, 0, -1, "WITHSCORES")
            case other:
                raise AssertionError(f"{name!r} has the type {other!r}")

    async def pool_length(self, pool: str = "default") -> int:
        """How many entries a pool stream holds."""
        return int(await self.raw("XLEN", self.keys.pool(pool)))

    async def consumers(self, pool: str = "default") -> list[str]:
        """The names of a pool's consumers."""
        found = await self.raw("XINFO", "CONSUMERS", self.keys.pool(pool), "workers")
        return sorted(dict(zip(item[::2], item[1::2], strict=True))[b"name"].decode() for item in found)


SETTINGS = Settings(
    {"default": PoolPolicy(2.0, 30.0, 1, 0.5)},
    {"default": {("acme",): NodePolicy(2.0, 3, Share(0.5), 1, 12.0), ("acme", "web"): NodePolicy()}, "renders": {}},
)


async def every_operation(backend: Backend) -> None:
    """Use every operation of the port once, and check what it did."""
    await backend.prepare()
    leader = await Leader(backend).take_over()
    ids = await submit(backend, job(result_ttl=60.0, reply_to="me"), job(), job(), job(OTHER))
    assert [status.state.value for status in await backend.look_up(ids) if status] == ["queued"] * 4
    await backend.join(worker())
    facts = await leader.receive()
    assert {lane for lane, _ in facts.lanes} == {LANE, OTHER}
    assert facts.workers_changed
    leases = await leader.dispatch(*await heads(backend), *await heads(backend, OTHER))
    assert await backend.heartbeat(worker(held=tuple(lease.token for lease in leases)))
    assert len(await backend.read_attempts("w1", "i1", "default", 10, 0)) == 4
    assert len(await backend.pending_attempts("w1", "i1", "default")) == 4
    await backend.report([succeeded(lease.token) for lease in leases])
    assert len((await leader.receive()).events) == 4
    windows = await leader.commit(
        [Peek(LANE, 0, 10)],
        settlements=[Settlement(leases[0], completion()), Settlement(leases[1], completion(), bury="poison")],
        requeues=[Requeue(leases[2], 1, 1)],
        charges={leases[3].token: leases[3]},
        nodes={("default", ("acme",)): NodeState(1.5)},
        settings=SETTINGS,
        forget_workers={"w1": "i1"},
    )
    head = header_of(windows[0].entries[0])
    assert (head.job_id, head.attempts, windows[0].length) == (ids[2], 1, 1)
    assert (await backend.replies("me", "", 0))[1] == [ids[0]]
    assert [letter.reason for letter in await backend.dead_letters()] == ["poison"]
    assert await backend.lane_lengths([LANE, OTHER]) == [1, 0]
    assert await backend.workers() == []
    assert await backend.worker_record("w1") is None
    snapshot = await backend.load(leader.token)
    assert (snapshot.settings, len(snapshot.leases), snapshot.lanes) == (SETTINGS, 1, (LANE,))
    lease = leader.lease(head)
    await leader.commit(dispatches=[Dispatch(head, lease)])
    await backend.renew(leader.token)
    cursor = "entries"
    while cursor:
        page = await backend.audit(leader.token, ["default"], cursor)
        assert not page.repaired
        cursor = page.cursor
    assert not await backend.correct_waiting(leader.token, LANE.path, Work(99, 1.0), Work(1, 1.0))
    await backend.write_status(leader.token, b"status")
    assert (await backend.read_status()).blob == b"status"
    await backend.join(worker("w2"))
    await backend.leave("w2", "i1")
    await backend.resign(leader.token)
    assert await backend.await_resignation(0)
