"""Read-ahead: a bounded window of headers on every lane that holds jobs.

The store's backlog may be millions of jobs long; the dispatcher sees the first few headers of each lane. A
window is read again by a `Peek` that rides on a commit, once half of it has been used. How far it reaches
adapts to how many passes that took, since a pass is the time that an answer takes: it doubles when half
of it was used up at once, and halves when that took long. So memory follows active lanes and the rate of
dispatch, not the backlog; beyond `BUDGET` headers in all, windows are kept at `SPARE`.

Nobody can know that a lane is empty except by looking in the call that emptied it, since a submit to a lane
that holds jobs is not announced. So a window that has run dry stays open until the store has said "empty".
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple, TypeAlias

from drr.backend import ITEM_LIMIT, Malformed, Peek, Struck, Window
from drr.core.jobs import Job
from drr.dispatcher.deadlines import NEVER_EXPIRES, Deadlines
from drr.errors import CommitRefused
from drr.model import Completion, Header, Lane

UNKNOWN: Final = -1
FIRST: Final = 4
"""Headers in a new window."""
SPARE: Final = 2
"""Headers in a window after a load, and when memory is short."""
MANY: Final = 20_000
"""Active lanes from which on a load reads only the head of each: the sooner the first job starts."""
LARGEST: Final = 1000
QUICK: Final = 2
"""A window that was half used within so many passes is too small."""
SLOW: Final = 16
"""A window that took so many passes to be half used is too large."""
NEVER: Final = -1
BUDGET: Final = 100_000
"""Headers in memory beyond which windows no longer grow; a few hundred bytes each."""

_IDLE, _LOW, _DRY = range(3)


class Doomed(NamedTuple):
    """A job that waits and is not to start: it was cancelled or has expired. The next passes take it away."""

    header: Header
    completion: Completion


Entry: TypeAlias = Header | Malformed | Struck | Doomed
"""What a window holds. Only headers are offered to the core, and nothing that stands behind something else."""


class LaneWindow:
    """The first entries of one lane, in the lane's order.

    ``jobs``: what the core has been offered of them, from the head on. ``rest``: how many more the store
    holds behind the entries as of the last look, or `UNKNOWN`. ``read_at``: the number of the pass that read
    last. ``target``: entries that the next read fills it up to. ``expires``: no entry's deadline is earlier.
    ``wait_target``: seconds that a job of this tenant should wait at most, if its plan says so.
    """

    __slots__ = ("entries", "expires", "jobs", "lane", "read_at", "rest", "target", "wait_target", "wanted")

    def __init__(self, lane: Lane, target: int = FIRST) -> None:
        self.lane = lane
        self.entries: deque[Entry] = deque()
        self.jobs: list[Job] = []
        self.rest = UNKNOWN
        self.read_at = NEVER
        self.target = target
        self.wanted = _IDLE
        self.expires = NEVER_EXPIRES
        self.wait_target: float | None = None

    def adapt(self, number: int) -> None:
        """Let the window follow the rate at which it was used; ``number`` is that of the pass that reads now."""
        if self.read_at != NEVER:
            if number - self.read_at <= QUICK:
                self.target = min(LARGEST, max(self.target * 2, FIRST))
            elif number - self.read_at >= SLOW:
                self.target = max(FIRST, self.target // 2)
        self.read_at = number


class Windows:
    """All open windows, and which of them are to be read next: dry ones first, then first come first served."""

    def __init__(self, budget: int = BUDGET) -> None:
        self.by_lane: dict[Lane, LaneWindow] = {}
        self.headers = 0
        """Entries in all windows."""
        self.deadlines = Deadlines()
        self._budget = budget
        self._passes = 0
        self._dry: deque[LaneWindow] = deque()
        self._low: deque[LaneWindow] = deque()

    def open(self, lane: Lane, target: int = FIRST) -> LaneWindow:
        """Return the lane's new window, to be read at the next opportunity."""
        window = self.by_lane[lane] = LaneWindow(lane, target)
        self.want(window)
        return window

    def close(self, window: LaneWindow) -> None:
        """Forget a lane that the store says is empty."""
        del self.by_lane[window.lane]
        self.headers -= len(window.entries)
        window.wanted = _IDLE
        window.expires = NEVER_EXPIRES

    def use(self, window: LaneWindow) -> Entry:
        """Take the head off a window: it is dispatched or removed by this pass."""
        head = window.entries.popleft()
        self.headers -= 1
        if len(window.entries) * 2 <= window.target:
            self.want(window)
        return head

    def put_back(self, window: LaneWindow, header: Header) -> None:
        """Put a returned job at the head, as this pass does in the store."""
        window.entries.appendleft(header)
        self.headers += 1
        self._note_deadlines(window, (header,))

    def append(self, window: LaneWindow, entry: Header | Malformed) -> None:
        """Add an entry that the store is known to hold behind the others."""
        window.entries.append(entry)
        self.headers += 1
        self._note_deadlines(window, (entry,))

    def _note_deadlines(self, window: LaneWindow, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if isinstance(entry, Header) and entry.deadline is not None:
                self.deadlines.note(window, entry.deadline)

    def expired(self, wall: float) -> list[tuple[LaneWindow, list[int]]]:
        """Return where in which windows jobs stand whose deadlines have passed."""
        found = []
        for window in self.deadlines.due(wall):
            places: list[int] = []
            for place, entry in enumerate(window.entries):
                if isinstance(entry, Header) and entry.deadline is not None:
                    if entry.deadline <= wall:
                        places.append(place)
                    else:
                        self.deadlines.note(window, entry.deadline)
            if places:
                found.append((window, places))
        return found

    def want(self, window: LaneWindow) -> None:
        """Have a window read with the next requests."""
        urgency = _LOW if window.entries else _DRY
        if window.wanted < urgency:
            window.wanted = urgency
            (self._dry if urgency == _DRY else self._low).append(window)

    def requests(self, limit: int = ITEM_LIMIT) -> list[Peek]:
        """Return the reads of the next pass, of at most ``limit`` headers in all; to be answered before the next."""
        self._passes += 1
        peeks: list[Peek] = []
        for queue, urgency in ((self._dry, _DRY), (self._low, _LOW)):
            while queue and limit > 0:
                window = queue.popleft()
                if window.wanted != urgency:
                    continue  # closed, or it has run dry since and stands in the other queue
                window.wanted = _IDLE
                window.adapt(self._passes)
                held = len(window.entries)
                target = window.target if self.headers < self._budget else SPARE
                count = min(target - held, limit)
                if count > 0:
                    limit -= count
                    peeks.append(Peek(window.lane, held, count))
        return peeks

    def answer(self, reply: Window) -> LaneWindow | None:
        """Take over what the store said of a lane; ``None`` if its window was closed meanwhile.

        Raises `CommitRefused` if the answer contradicts what is held here.
        """
        window = self.by_lane.get(reply.lane)
        if window is None:
            return None
        held = len(window.entries)
        if reply.offset != held or reply.length < held or (reply.length > held and not reply.entries):
            raise CommitRefused(
                f"lane {reply.lane} holds {reply.length} jobs, {len(reply.entries)} of them after {reply.offset}; "
                f"the dispatcher's window on it holds {held}"
            )
        window.entries.extend(reply.entries)
        self.headers += len(reply.entries)
        self._note_deadlines(window, reply.entries)
        window.rest = max(0, reply.length - len(window.entries))
        return window
