"""A clock that moves only when a test says so, and then from one sleeper to the next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable


class ManualClock:
    """Monotonic time starts at 1,000 s, wall time at 1.7e9 s; both stand still but for `advance` and `run_until`."""

    def __init__(self) -> None:
        self._now = 1_000.0
        self._numbers = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + 1.7e9

    async def sleep(self, seconds: float) -> None:
        entry = (self._now + max(0.0, seconds), next(self._numbers), asyncio.Event())
        heapq.heappush(self._sleepers, entry)
        try:
            await entry[2].wait()
        finally:
            if entry in self._sleepers:
                self._sleepers.remove(entry)
                heapq.heapify(self._sleepers)

    async def settle(self) -> None:
        """Return when every other task waits for something that only time or another thread can bring."""
        ready = getattr(asyncio.get_running_loop(), "_ready")  # noqa: B009
        for _ in range(100_000):
            await asyncio.sleep(0)
            if not ready:
                return
        raise AssertionError("some task never comes to rest")

    async def advance(self, seconds: float) -> None:
        """Let time pass, waking each sleeper at its own moment."""
        end = self._now + seconds
        await self.settle()
        while self._sleepers and self._sleepers[0][0] <= end:
            await self._wake_next()
        self._now = end

    def jump(self, seconds: float) -> None:
        """Let time pass without a turn of the event loop, as when something blocks it."""
        self._now += seconds

    async def run_until(self, done: Callable[[], object], limit: float = 600.0) -> float:
        """Let time pass until ``done()``; return how much passed. Fails after ``limit`` seconds of it."""
        began = self._now
        await self.settle()
        while not done():
            assert self._sleepers, "nothing would ever happen again"
            assert self._sleepers[0][0] - began <= limit, f"not done after {limit} s of virtual time"
            await self._wake_next()
        return self._now - began

    async def _wake_next(self) -> None:
        due, _, event = heapq.heappop(self._sleepers)
        self._now = max(self._now, due)
        event.set()
        await self.settle()
