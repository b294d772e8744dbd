"""Receiving news: one task that reads ahead of the passes, on a connection of its own.

It outlives the engines that it feeds. A blocking read is never cancelled on its account: when an engine is
dropped, the read in flight lapses or returns, and its answer is thrown away if it belongs to the old one.
"""

from __future__ import annotations

import logging
import random
from collections import deque
from typing import Final

from drr.backend import DispatcherPort, Facts, Position
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

    def __init__(self, backend: DispatcherPort, clock: Clock, wake: Signal, rng: random.Random) -> None:
        self._backend = backend
        self._clock = clock
        self._wake = wake
        self._backoff = Backoff(rng)
        self._batches: deque[Facts] = deque()
        self._position: Position | None = None
        self._generation = 0
        self._ready = Signal()

    def start(self, position: Position) -> None:
        """Read from ``position`` on, for a new engine."""
        self.stop()
        self._position = position
        self._ready.set()

    def stop(self) -> None:
        """Read no more, and forget what was read."""
        self._generation += 1
        self._position = None
        self._batches.clear()

    def take(self) -> list[Facts]:
        """Return the batches that have come, oldest first."""
        taken = list(self._batches)
        self._batches.clear()
        if taken:
            self._ready.set()
        return taken

    async def run(self) -> None:
        """Read for ever. Errors of the store are waited out: a read changes nothing and may be repeated."""
        while True:
            position, generation = self._position, self._generation
            if position is None or len(self._batches) >= AHEAD:
                await self._ready.wait()
                continue
            try:
                facts = await self._backend.receive(position, BLOCK)
            except BackendError as error:
                log.warning("news cannot be read (%s); trying again", error)
                await self._ready.wait_for(self._clock, self._backoff.next())
                continue
            self._backoff.reset()
            if generation != self._generation:
                continue
            if facts.position != position:
                self._position = facts.position
                self._batches.append(facts)
                self._wake.set()
