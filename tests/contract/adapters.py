"""The adapters that the contract suite and the agreement test know, and what one may write into each by hand."""

from __future__ import annotations

from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.model import Lane
from drr_backends.memory import MemoryBackend, open_memory
from drr_backends.redis import RedisBackend, open_redis
from tests.contract.harness import Harness


class MemoryHarness(Harness):
    """A named store in memory."""

    def __init__(self, namespace: str) -> None:
        super().__init__()
        self._namespace = namespace
        self._handle = self.connect()

    def connect(self) -> MemoryBackend:
        return open_memory("memory://contract", self._namespace, SystemClock())

    async def plant_entry(self, lane: Lane, raw: bytes) -> None:
        await self._handle.plant_entry(lane, raw)

    async def plant_event(self, raw: bytes) -> None:
        await self._handle.plant_event(raw)

    async def blocked(self) -> int:
        return self._handle.blocked


class RedisHarness(Harness):
    """A namespace on a server, and what one may write there by hand."""

    def __init__(self, server: EmbeddedServer, namespace: str) -> None:
        super().__init__()
        self._server = server
        self._namespace = namespace
        self._raw = self.connect()
        self._opened.append(self._raw)

    def connect(self) -> RedisBackend:
        return open_redis(self._server.url, self._namespace, SystemClock())

    async def plant_entry(self, lane: Lane, raw: bytes) -> None:
        keys, link = self._raw.keys, self._raw.link
        if await link.call("RPUSH", keys.lane(lane), raw) == 1:
            await link.call("SADD", keys.active, str(lane))
            await link.call("XADD", keys.wake, "*", "lane", str(lane), "head", raw)

    async def plant_event(self, raw: bytes) -> None:
        await self._raw.link.call("XADD", self._raw.keys.events, "*", "events", raw)

    async def blocked(self) -> int:
        clients = (await self._raw.link.call("INFO", "clients")).decode()
        (line,) = [line for line in clients.splitlines() if line.startswith("blocked_clients:")]
        return int(line.partition(":")[2])
