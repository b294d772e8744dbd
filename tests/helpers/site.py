"""A memory store in virtual time, with workers and clients that do what a test says."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

from drr.backend import Attempt, Backend, Event, EventKind, StoredStatus, WorkerRecord
from drr.dispatcher import Dispatcher
from drr.model import JobSpec, Lane
from drr_backends.memory import MemoryBackend, open_memory
from tests.helpers.desk import ACME
from tests.helpers.manual_clock import ManualClock


class Site:
    """A memory store, a clock, and workers and clients that do what the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend: MemoryBackend = open_memory("memory://", "drr", self.clock)
        self._calls = count(1)
        self.records: dict[str, WorkerRecord] = {}
        self.held: dict[str, list[Attempt]] = {}

    @property
    def store(self) -> Any:
        return self.backend._store

    def dispatcher(self, backend: Backend | None = None, name: str = "d1", **options: Any) -> Dispatcher:
        return Dispatcher(backend or self.backend, clock=self.clock, name=name, rng=random.Random(name), **options)

    async def submit(self, lane: Lane = ACME, number: int = 1, **fields: Any) -> list[str]:
        spec = JobSpec(lane, "work", b"", self.clock.wall(), **{"estimate": 1.0, **fields})
        return await self.backend.submit("client", next(self._calls), [spec] * number)

    async def join(self, name: str = "w1", slots: int = 1, incarnation: str = "i1") -> None:
        replacing = self.records[name].incarnation if name in self.records else ""
        self.records[name] = WorkerRecord(name, incarnation, {"default": slots})
        self.held[name] = []
        await self.backend.join(self.records[name], replacing)

    async def beat(self, *names: str) -> None:
        for name in names:
            held = tuple(attempt.token for attempt in self.held[name])
            record = self.records[name]
            await self.backend.heartbeat(WorkerRecord(name, record.incarnation, record.slots, held))

    async def take(self, name: str = "w1", limit: int = 100) -> list[Attempt]:
        await self.clock.settle()
        found = await self.backend.read_attempts(name, self.records[name].incarnation, "default", limit, 0.0)
        attempts = [attempt for attempt in found if isinstance(attempt, Attempt)]
        self.held[name].extend(attempts)
        return attempts

    async def finish(
        self, attempt: Attempt, name: str = "w1", kind: EventKind = EventKind.SUCCEEDED, seconds: float = 1.0
    ) -> None:
        await self.backend.report([Event(attempt.token, kind, name, seconds)])
        if attempt in self.held[name]:
            self.held[name].remove(attempt)

    async def pass_time(self, seconds: float, *beating: str) -> None:
        """Let time pass, with a beat of the named workers every five seconds."""
        while seconds > 0:
            await self.clock.advance(min(5.0, seconds))
            seconds -= 5.0
            await self.beat(*beating)
        await self.clock.settle()

    async def status(self) -> StoredStatus:
        return await self.backend.read_status()


@asynccontextmanager
async def running(site: Site, **options: Any) -> AsyncIterator[Dispatcher]:
    async with site.dispatcher(**options) as dispatcher:
        await site.clock.settle()
        yield dispatcher
