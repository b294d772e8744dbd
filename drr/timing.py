"""Waiting over an injected clock: the few shapes of it that clients and workers share.

Nothing here sleeps except through a `Clock`, so that a simulation owns every wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from drr.clock import Clock

BACKOFF_FIRST: Final = 0.05
BACKOFF_LONGEST: Final = 5.0


class Backoff:
    """How long to wait before the next try: doubling from 0.05 s to 5 s, each with full jitter in its upper half.

    The jitter keeps a thousand workers that lost one server from coming back at one instant.
    """

    def __init__(self, rng: random.Random, first: float = BACKOFF_FIRST, longest: float = BACKOFF_LONGEST) -> None:
        self._rng = rng
        self._first = first
        self._longest = longest
        self._next = first

    def next(self) -> float:
        """Return the seconds to wait now; the following answer is about twice as long."""
        seconds = self._next * (0.5 + self._rng.random() / 2)
        self._next = min(self._next * 2, self._longest)
        return seconds

    def reset(self) -> None:
        """Start over: the last try succeeded."""
        self._next = self._first


class Signal:
    """A flag that one task waits for and that any task of the same event loop may raise, again and again."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Raise the flag; the waiter, now or later, sees it once."""
        self._event.set()

    async def wait(self) -> None:
        """Return once the flag is up, and lower it."""
        await self._event.wait()
        self._event.clear()

    async def wait_for(self, clock: Clock, seconds: float) -> bool:
        """Like `wait`, for at most ``seconds``; return whether the flag went up."""
        if self._event.is_set():
            self._event.clear()
            return True
        return await run_within(clock, seconds, self.wait)


class Alarm(Signal):
    """A `Signal` that may also be raised from another thread. Create it on the loop that waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()

    def set(self) -> None:
        """Raise the flag from any thread. Does nothing once the waiter's loop is closed."""
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:
            # Closed loop: whoever waited is gone. The raiser is told by `closed` if it wants to know.
            return

    @property
    def closed(self) -> bool:
        """Whether the waiter's loop is gone."""
        return self._loop.is_closed()


async def run_within(clock: Clock, seconds: float, function: Callable[[], Awaitable[object]]) -> bool:
    """Await ``function()`` for at most ``seconds``, then cancel it; return whether it finished.

    What it raises is raised here as it is, not in a group.
    """
    finished = False
    error: Exception | None = None

    async def expire() -> None:
        await clock.sleep(seconds)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(expire)
        try:
            await function()
            finished = True
        except Exception as raised:
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    return finished
