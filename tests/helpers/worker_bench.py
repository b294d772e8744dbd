"""A worker over the memory store in virtual time, with a dispatcher driven by hand.

Nothing here sleeps: time is a `ManualClock` and the heartbeat is a task.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import anyio.abc

from drr.backend import EventKind, WorkerRecord, open_backend
from drr.model import JobSpec, Lane
from drr.payload import pack_arguments
from drr.worker import Context, Worker
from tests.helpers.faults import Faults, FaultyBackend
from tests.helpers.hand import HandDispatcher
from tests.helpers.manual_clock import ManualClock

LANE = Lane("default", ("acme", "web"), 5)
LEASE = 30.0


class WorkerBench:
    """A store, a hand-driven dispatcher and workers, in virtual time."""

    def __init__(self, namespace: str) -> None:
        self.clock = ManualClock()
        self.store = open_backend("memory://bench", namespace=namespace, clock=self.clock)
        self.hand = HandDispatcher(self.store, self.clock)
        self.faults = Faults()
        self.failures: list[BaseException] = []
        self.started: list[str] = []
        self.release = anyio.Event()
        self._calls = 0

    def worker(self, **settings: Any) -> Worker:
        settings = {"name": "w1", "slots": 2, "lease": LEASE, "rng": Random(1), **settings}
        backend: Any = FaultyBackend(self.store.sibling(), self.faults)
        worker = Worker(backend, clock=self.clock, heartbeat_in_thread=False, **settings)

        @worker.task("note")
        async def note(context: Context, what: str) -> str:
            self.started.append(what)
            return what

        @worker.task("hold")
        async def hold(context: Context, what: str) -> str:
            self.started.append(what)
            await self.release.wait()
            return what

        return worker

    async def submit(self, task: str, *names: str, lane: Lane = LANE, **fields: Any) -> list[str]:
        self._calls += 1
        specs = [JobSpec(lane, task, pack_arguments([name], {}), 0.0, result_ttl=60.0, **fields) for name in names]
        return await self.store.submit("tests", self._calls, specs)

    async def record(self, name: str = "w1") -> WorkerRecord | None:
        return await self.store.worker_record(name)

    async def run(self, worker: Worker, **options: Any) -> None:
        try:
            await worker.run(**options)
        except Exception as error:
            self.failures.append(error)

    @asynccontextmanager
    async def running(self, worker: Worker) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.hand.serve)
            group.start_soon(self.run, worker)
            await self.clock.settle()
            try:
                yield group
            finally:
                worker.stop()
                worker.stop()
                await self.clock.advance(10.0)  # its goodbye is a wait of this clock
                group.cancel_scope.cancel()

    def kinds(self) -> list[tuple[str, EventKind]]:
        return [(event.token, event.kind) for event in self.hand.events]


async def states(bench: WorkerBench, ids: Sequence[str]) -> list[str]:
    return [status.state.value if status else "unknown" for status in await bench.store.look_up(ids)]
