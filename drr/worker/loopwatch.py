"""Watching from another thread whether an event loop still turns, and telling who holds it up.

The watcher asks the loop for a sign (`call_soon_threadsafe`) and looks, again and again, whether it came. A question
stays open while the loop is blocked, so the time is counted from the question: a block lasted at least so long.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable
from typing import Final

from drr.clock import Clock

log = logging.getLogger("drr.worker")

LOOKS_PER_LIMIT: Final = 4
"""Looks within the limit, so that a block which lasts a quarter longer than the limit is seen while it lasts."""


class LoopWatch:
    """Watches one event loop. Create it on that loop; `look` belongs to one other thread, the rest to any."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        limit: float,
        describe: Callable[[asyncio.Task[object]], str],
    ) -> None:
        """``limit``: seconds without a turn above which a block is counted and logged.

        ``describe`` says in words what a task is, from the watcher's thread.
        """
        self._loop = loop
        self._clock = clock
        self._limit = limit
        self._describe = describe
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self._answered_at: float | None = None
        self._warned_of = ""
        self.blocks = 0
        """Blocks above the limit, each counted when it passes the limit."""

    @property
    def interval(self) -> float:
        """Seconds between two looks, at most."""
        return self._limit / LOOKS_PER_LIMIT

    @property
    def blocked(self) -> float:
        """Seconds, at least, for which the loop has not turned; 0.0 if it owes no sign."""
        asked = self._asked_at
        if asked is None or self._answered_at is not None:
            return 0.0
        return max(0.0, self._clock.monotonic() - asked)

    def look(self) -> bool:
        """See whether the last question was answered, and ask the next; return whether a block was just counted.

        Raises `RuntimeError` if the loop is closed, whether that was before or after the last question.
        """
        if self._loop.is_closed():  # a question asked just before it closed is never answered, nor asked again
            raise RuntimeError("the event loop of the worker is closed")
        counted = self._asked_at is not None and self._judge(self._asked_at, self._answered_at)
        if self._asked_at is None or self._answered_at is not None:
            self._warned_of = ""
            self._answered_at = None
            self._asked_at = self._clock.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
        return counted

    def _answer(self) -> None:
        """Runs on the loop."""
        self._answered_at = self._clock.monotonic()

    def _judge(self, asked: float, answered: float | None) -> bool:
        """Log a block that passed the limit, and its end; return whether it is the first time for this block."""
        seconds = (self._clock.monotonic() if answered is None else answered) - asked
        counted = seconds > self._limit and not self._warned_of
        if counted:
            self.blocks += 1
            self._warned_of = "something that had ended when it was noticed" if answered is not None else self._who()
            log.warning(
                "the event loop has been blocked for %.1f s by %s; use a plain function for blocking work: "
                "it runs in a thread",
                seconds,
                self._warned_of,
            )
        if answered is not None and self._warned_of:
            log.warning("the event loop turns again, after %.1f s blocked by %s", seconds, self._warned_of)
        return counted

    def _who(self) -> str:
        """Return what the loop is running now and where in the code it is."""
        task = asyncio.current_task(self._loop)
        who = "unknown code" if task is None else self._describe(task)
        frame = sys._current_frames().get(self._thread)
        if frame is None:
            return who
        return f"{who}, in {frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno})"
