"""An event loop in virtual time: when every task waits, time goes to the next timer, at once.

Unlike a clock that a test winds by hand it owns *all* time: that of the injected clocks, of ``asyncio.sleep`` and of
anyio's deadlines. No thread, no socket, no wait of the machine: what runs here depends on the program alone, so a
seeded run repeats exactly.

anyio delivers a cancellation again and again, at each turn of the loop, to a task that waits for shielded children.
On a real loop time passes meanwhile. Here it would stand still for ever, so after `PATIENCE` turns at one instant the
next timer is due although tasks are ready.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

T = TypeVar("T")

PATIENCE: Final = 500
"""Turns of the loop at one instant after which time goes on."""
EPOCH: Final = 1.7e9
"""Unix time at the instant 0."""


class _Instant(selectors.SelectSelector):
    """Instead of waiting for files, moves the time of its loop."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("every task waits, and nothing will ever happen")
        if timeout > 0:
            self.loop.now += timeout
            self.loop.turns_at_instant = 0
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the top of this module."""

    def __init__(self) -> None:
        selector = _Instant()
        selector.loop = self
        self.now = 0.0
        self.turns_at_instant = 0
        super().__init__(selector)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self.now

    def _write_to_self(self) -> None:
        """Nobody has to be woken: there is one thread, and it never waits."""

    def _run_once(self) -> None:
        self.turns_at_instant += 1
        timers: list[asyncio.TimerHandle] = getattr(self, "_scheduled")  # noqa: B009
        if self.turns_at_instant > PATIENCE and timers:
            self.now = max(self.now, timers[0].when())
            self.turns_at_instant = 0
        super()._run_once()  # type: ignore[misc]


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
