"""What happened when: time windows for charts, and Jain's index over them."""

from __future__ import annotations

from typing import Final

from drr.simulate.books import Book
from drr.simulate.results import TimeWindow, Usage

MOST: Final = 400
"""Windows kept; beyond that, neighbours are merged and the windows become twice as long."""

LOOKS_PER_START: Final = 2
LOOKS_FREE: Final = 200_000
FEWEST: Final = 20
"""A window's end looks at each organisation that waits or runs. Where these are many and the starts are few, windows
become longer, but not until there are so many."""


class WindowLog:
    """Closes windows as time passes; keeps a bounded number of them, and its cost in proportion to the starts."""

    def __init__(self, length: float) -> None:
        self._length = length
        self.waiting: dict[Book, None] = {}
        """Organisations that have jobs waiting."""
        self._looked_at = 0
        self._start = 0.0
        self.end = length
        """When the present window is to be closed."""
        self.listed: list[Book] = []
        """Organisations that started or ran a job in the present window."""
        self._windows: list[TimeWindow] = []
        self._jain_sum = 0.0
        self._jain_windows = 0

    def close_until(self, now: float, root: Book, slots: int, starts: int) -> None:
        """Close all windows that end by ``now``; the counts are as they were until then. ``starts``: so far."""
        while self.end <= now:
            if not self.listed and not root.running and not root.waiting:
                # Nothing happens for long: one window for all of it, a whole number of lengths.
                self.end += self._length * int((now - self.end) / self._length)
            self._close(self.end, root, slots)
            self._start = self.end
            self.end = self._start + self._length
        if len(self._windows) > MOST:
            self._halve()
        elif self._looked_at > LOOKS_PER_START * starts + LOOKS_FREE and len(self._windows) > FEWEST:
            self._looked_at = 0
            self._halve()

    def finish(self, now: float, root: Book, slots: int) -> tuple[list[TimeWindow], float]:
        """Close what is left; return the windows and the mean of Jain's index (1 without any)."""
        if now > self._start:
            self._close(now, root, slots)
        return self._windows, self._jain_sum / self._jain_windows if self._jain_windows else 1.0

    def _close(self, at: float, root: Book, slots: int) -> None:
        length = at - self._start
        waited = [book for book in self.waiting if book.waiting_since <= self._start]
        shares = [(book.worker_seconds(at) - book.used_mark) / book.weight for book in waited]
        usage: dict[str, Usage] = {}
        total = 0.0
        concerned, self.listed = self.listed, []
        self._looked_at += len(self.waiting) + len(concerned)
        for book in concerned:
            seconds = book.worker_seconds(at)
            used, book.used_mark = seconds - book.used_mark, seconds
            if book.running:
                self.listed.append(book)
            else:
                book.listed = False
            if used > 1e-9 * length or book.starts:
                usage[book.path[0]] = Usage(used, book.starts, book.wait_sum, book.wait_max)
            total += used
            book.wait_sum = book.wait_max = 0.0
            book.starts = 0
        squares = sum(share * share for share in shares)
        if len(shares) >= 2 and squares > 0.0:
            self._jain_sum += sum(shares) ** 2 / (len(shares) * squares)
            self._jain_windows += 1
        utilisation = total / (slots * length) if slots and length > 0.0 else 0.0
        self._windows.append(TimeWindow(self._start, at, utilisation, root.waiting, usage))

    def _halve(self) -> None:
        pairs = [self._windows[i : i + 2] for i in range(0, len(self._windows), 2)]
        self._windows = [_merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        self._length *= 2


def _merge(one: TimeWindow, other: TimeWindow) -> TimeWindow:
    usage = dict(one.usage)
    for name, more in other.usage.items():
        had = usage.get(name)
        usage[name] = more if had is None else Usage(
            had.worker_seconds + more.worker_seconds,
            had.starts + more.starts,
            had.wait_sum + more.wait_sum,
            max(had.wait_max, more.wait_max),
        )  # fmt: skip
    lengths = one.end - one.start, other.end - other.start
    utilisation = (one.utilisation * lengths[0] + other.utilisation * lengths[1]) / sum(lengths)
    return TimeWindow(one.start, other.end, utilisation, other.waiting, usage)


def windows_for(span: float, points: int = 100) -> float:
    """Return the length of a time window such that ``span`` has about ``points`` of them."""
    return max(span / points, 1e-3)
