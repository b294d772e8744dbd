"""Receiving news: a task that reads ahead of the passes, on a connection of its own.

A blocking read is never cancelled on an engine's account. When an engine is dropped, its reader's read in
flight lapses by itself, its answer is thrown away, and its connection is used again; meanwhile the next
engine's reader reads on another one. It could not wait: what the dropped engine had read and not
committed must be read again, and nothing of that would wake the old read.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Final

import anyio

from drr.backend import Backend, Facts, Position
from drr.clock import Clock
from drr.errors import BackendError
from drr.timing import Backoff, Signal

log = logging.getLogger("drr.dispatcher")

BLOCK: Final = 2.0
"""Longest blocking read, in seconds."""
AHEAD: Final = 4
"""Batches that may wait for the passes; then reading pauses."""


class News:
    """Batches of facts from the store, in order, from a position on. ``wake`` is raised for each."""

    def __init__(self, backend: Backend, clock: Clock, wake: Signal, rng: random.Random) -> None:
        """``backend`` is only asked for siblings."""
        self._backend = backend
        self._clock = clock
        self._wake = wake
        self._rng = rng
        self._batches: deque[Facts] = deque()
        self._generation = 0
        self._start: Position | None = None
        self._room = Signal()
        self._started = Signal()
        self._idle: list[Backend] = []

    def start(self, position: Position) -> None:
        """Read from ``position`` on, for a new engine."""
        self.stop()
        self._start = position
        self._started.set()

    def stop(self) -> None:
        """Read no more, and forget what was read."""
        self._generation += 1
        self._start = None
        self._batches.clear()
        self._room.set()

    def take(self) -> list[Facts]:
        """Return the batches that have come, oldest first."""
        taken = list(self._batches)
        self._batches.clear()
        if taken:
            self._room.set()
        return taken

    async def run(self) -> None:
        """Serve for ever: one reader for each `start`."""
        async with anyio.create_task_group() as group:
            while True:
                await self._started.wait()
                position, self._start = self._start, None
                if position is not None:
                    backend = self._idle.pop() if self._idle else self._backend.sibling()
                    group.start_soon(self._read, backend, position, self._generation)

    async def _read(self, backend: Backend, position: Position, generation: int) -> None:
        """Read until the generation changes. Errors of the store are waited out: a read may be repeated."""
        backoff = Backoff(self._rng)
        try:
            while generation == self._generation:
                if len(self._batches) >= AHEAD:
                    await self._room.wait()
                    continue
                try:
                    facts = await backend.receive(position, BLOCK)
                except BackendError as error:
                    log.warning("news cannot be read (%s); trying again", error)
                    await self._clock.sleep(backoff.next())
                    continue
                backoff.reset()
                if facts.position != position and generation == self._generation:
                    position = facts.position
                    self._batches.append(facts)
                    self._wake.set()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await backend.close()
            raise
        self._idle.append(backend)

    async def close(self) -> None:
        """Close the connections that no reader has."""
        while self._idle:
            await self._idle.pop().close()
