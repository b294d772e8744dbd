"""When jobs that wait in windows expire: a heap of windows by the earliest deadline in each.

By window and not by job, so that it does not grow with jobs that start long before their deadlines: a window's
``expires`` is a lower bound that is corrected when it is reached. Rules of this file: no I/O, no clock.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from drr.dispatcher.windows import LaneWindow

NEVER_EXPIRES: Final = float("inf")
STALE_KEPT: Final = 1000
"""Entries of the heap that may be out of date before it is made anew."""


class Deadlines:
    """Which windows are to be searched for expired jobs, by the leader's wall clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, LaneWindow]] = []
        self._numbers = count()
        self._live = 0
        """Windows in the heap when it was last made anew."""

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_at(self) -> float:
        """No job expires before this time."""
        return self._heap[0][0] if self._heap else NEVER_EXPIRES

    def note(self, window: LaneWindow, deadline: float) -> None:
        """A job with this deadline is in the window."""
        if deadline >= window.expires:
            return
        window.expires = deadline
        heappush(self._heap, (deadline, next(self._numbers), window))
        if len(self._heap) > 2 * self._live + STALE_KEPT:
            self._heap = [entry for entry in self._heap if entry[2].expires == entry[0]]
            heapify(self._heap)
            self._live = len(self._heap)

    def due(self, wall: float) -> list[LaneWindow]:
        """Take out the windows in which a deadline may have passed; what stays there is to be noted anew."""
        found = []
        while self._heap and self._heap[0][0] <= wall:
            deadline, _, window = heappop(self._heap)
            if window.expires == deadline:
                window.expires = NEVER_EXPIRES
                found.append(window)
        return found
