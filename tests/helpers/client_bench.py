"""Clients over the memory store in virtual time, and if wanted somebody who runs their jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import anyio.lowlevel

from drr.backend import open_backend
from drr.client import Client, Submission
from drr.model import Lane
from drr.worker import Worker
from tests.helpers.faults import Faults, FaultyBackend
from tests.helpers.hand import HandDispatcher
from tests.helpers.manual_clock import ManualClock

LANE = Lane("default", ("acme", "web"), 5)


class ClientBench:
    """A store, clients, and if wanted somebody who runs the jobs."""

    def __init__(self, namespace: str) -> None:
        self.clock = ManualClock()
        self.store = open_backend("memory://clients", namespace=namespace, clock=self.clock)
        self.faults = Faults()
        self.release = anyio.Event()

    def client(self, seed: int = 1, **settings: Any) -> Client:
        backend: Any = FaultyBackend(self.store.sibling(), self.faults)
        return Client(backend, clock=self.clock, rng=Random(seed), **settings)

    async def queued(self, lane: Lane = LANE) -> int:
        [length] = await self.store.lane_lengths([lane])
        return length

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """A dispatcher and a worker run jobs meanwhile; those named "hold" until `release` is set."""
        worker = Worker(self.store.sibling(), name="w1", slots=50, clock=self.clock, heartbeat_in_thread=False)

        @worker.task("echo")
        async def echo(what: Any = None) -> Any:
            return what

        @worker.task("fail")
        async def fail() -> None:
            raise ValueError("no such user")

        @worker.task("hold")
        async def hold() -> str:
            await self.release.wait()
            return "held"

        hand = HandDispatcher(self.store, self.clock)
        async with anyio.create_task_group() as group:
            group.start_soon(hand.serve)
            group.start_soon(worker.run)
            await self.clock.settle()
            try:
                yield
            finally:
                worker.stop()
                worker.stop()
                await self.clock.advance(10.0)
                group.cancel_scope.cancel()


class Outcome:
    """What awaiting something has come to, while time is moved by the test."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self.over = False


def awaiting(group: anyio.abc.TaskGroup, function: Any, *args: Any) -> Outcome:
    outcome = Outcome()

    async def run() -> None:
        try:
            outcome.value = await function(*args)
        except Exception as error:
            outcome.error = error
        outcome.over = True

    group.start_soon(run)
    return outcome


def jobs(count: int, **fields: Any) -> Iterator[Submission]:
    for number in range(count):
        yield Submission("echo", [number], **{"tenant": "acme/web", **fields})
