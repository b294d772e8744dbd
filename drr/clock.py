"""Injected time. Nothing in drr reads a clock except through one of these.

Two clocks exist because they answer different questions: the *monotonic* one decides who is alive and
how long an attempt held its slot, the *wall* clock dates things for people and for due times. A
simulation replaces both with one that moves only when every task waits.
"""

from __future__ import annotations

import time
from typing import Protocol

import anyio


class Clock(Protocol):
    """What the dispatcher, client and worker know of time."""

    def monotonic(self) -> float:
        """Return seconds from an arbitrary start; never goes back, never jumps with the wall clock."""
        ...

    def wall(self) -> float:
        """Return Unix seconds; may jump."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of monotonic time; cancellable."""
        ...


class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        """Return `time.monotonic`."""
        return time.monotonic()

    def wall(self) -> float:
        """Return `time.time`."""
        return time.time()

    async def sleep(self, seconds: float) -> None:
        """Sleep on the running event loop."""
        await anyio.sleep(seconds)
