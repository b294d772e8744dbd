"""What waits, as far as it was read: the windows on the lanes, and the pools that they feed.

The one place where windows are opened, filled and closed, and the core's offers are kept in step with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from drr.backend import Burial, Drop, Malformed, Strike, Struck, Window
from drr.core.estimates import LearnedEstimate
from drr.core.shared import LimitBook
from drr.dispatcher.batch import Batch
from drr.dispatcher.counters import Counters
from drr.dispatcher.entitlement import Entitlement
from drr.dispatcher.pools import Pool
from drr.dispatcher.windows import MANY, SPARE, UNKNOWN, Doomed, LaneWindow, Windows
from drr.model import Completion, Header, Lane

log = logging.getLogger("drr.dispatcher")

REFUSALS_LOGGED: Final = 10
"""Lanes that are not served which are logged by name; the others are only counted."""


class Backlog:
    """Lanes and pools of one engine. ``depth``: names in a tenant path; lanes of another depth are not served."""

    def __init__(self, entitlement: Entitlement, depth: int, tally: Counters, trusting_from: float) -> None:
        """``trusting_from``: before this time an announced head is not taken at its word, its lane is read first."""
        self.windows = Windows()
        self.pools: dict[str, Pool] = {}
        self.entitlement = entitlement
        self.book = LimitBook(entitlement.limits)
        self.estimators: dict[str, LearnedEstimate] = {}
        """By pool; what was learned outlasts a pool that nobody uses for a while."""
        self.next_number: Callable[[], int] = count(1).__next__
        self._depth = depth
        self._tally = tally
        self._trusting_from = trusting_from
        self._refusals = 0
        self._loaded_upto = 0
        self._blocked: dict[LaneWindow, None] = {}
        """Windows that may have no job at their head, or hold doomed ones."""

    # --- pools ----------------------------------------------------------------------------------------

    def pool(self, name: str) -> Pool:
        """Return the pool of this name, made on first use."""
        pool = self.pools.get(name)
        if pool is None:
            estimator = self.estimator(name)
            pool = self.pools[name] = Pool(name, self.entitlement, self.next_number, self.book, estimator)
        return pool

    def estimator(self, name: str) -> LearnedEstimate:
        """Return what is learned in a pool."""
        estimator = self.estimators.get(name)
        if estimator is None:
            default = self.entitlement.pool(name).default_estimate
            estimator = self.estimators[name] = LearnedEstimate(default)
        return estimator

    def pools_in_turn(self, number: int) -> Iterator[Pool]:
        """Yield all pools, beginning with the ``number``-th: a full pass must not always favour the same one."""
        pools = list(self.pools.values())
        start = number % len(pools) if pools else 0
        yield from pools[start:]
        yield from pools[:start]

    def entitle(self, entitlement: Entitlement) -> None:
        """Change what tenants are entitled to; it binds at once, on what waits, too."""
        self.entitlement = entitlement
        self.book.set_limits(entitlement.limits)
        for name, estimator in self.estimators.items():
            estimator.default = entitlement.pool(name).default_estimate
        for pool in self.pools.values():
            pool.entitle(entitlement)
        for lane, window in self.windows.by_lane.items():
            window.wait_target = entitlement.wait_target(lane.path)

    # --- lanes ----------------------------------------------------------------------------------------

    def load(self, lanes: Sequence[Lane]) -> None:
        """Open the lanes that a snapshot names."""
        target = SPARE if len(lanes) < MANY else 1
        for lane in lanes:
            if self._fits(lane):
                self._open(lane, target)

    def loaded(self, replies: Sequence[Window]) -> None:
        """Take over the first answers after a load.

        A job that was announced before the load may be dispatched before its announcement is heard; by then
        it is no head. So announcements of jobs up to the highest number seen here are not trusted.
        """
        for reply in replies:
            for entry in reply.entries:
                if isinstance(entry, Header) and entry.sequence > self._loaded_upto:
                    self._loaded_upto = entry.sequence
        self.answer(replies)

    def answer(self, replies: Sequence[Window]) -> None:
        """Take over what the store said of some lanes."""
        for reply in replies:
            window = self.windows.answer(reply)
            if window is None:
                continue
            pool = self.pools[window.lane.pool]
            if window.entries:
                pool.refill(window)
                self.note_head(window)
            else:
                self.windows.close(window)
                pool.drop(window)

    def announced(self, lane: Lane, head: Header | Malformed, now: float) -> None:
        """A lane that was empty holds jobs."""
        window = self.windows.by_lane.get(lane)
        if window is not None:
            if window.rest == 0:
                window.rest = UNKNOWN
                self.pools[lane.pool].refill(window)  # what is less urgent waits for it to be read
            self.windows.want(window)
        elif self._fits(lane):
            window = self._open(lane)
            if isinstance(head, Header) and head.sequence > self._loaded_upto and now >= self._trusting_from:
                self.windows.append(window, head)
                self.pools[lane.pool].refill(window)

    def give_back(self, header: Header) -> None:
        """Put a job at the head of its lane, as the pass does in the store."""
        window = self.windows.by_lane.get(header.lane) or self._open(header.lane)
        self.windows.put_back(window, header)
        self.pools[header.lane.pool].give_back(window, header)

    # --- what stands in the way -----------------------------------------------------------------------

    def note_head(self, window: LaneWindow) -> None:
        """Remember a window whose head is no job, to be removed by the next pass."""
        if window.entries and not isinstance(window.entries[0], Header):
            self._blocked[window] = None

    def find(self, lane: Lane, sequence: int, nonce: str) -> tuple[LaneWindow, int, Header] | None:
        """Return where a job that may start stands in a window, if it does."""
        window = self.windows.by_lane.get(lane)
        if window is not None:
            for place, entry in enumerate(window.entries):
                if isinstance(entry, Header) and entry.sequence == sequence and entry.nonce == nonce:
                    return window, place, entry
        return None

    def is_doomed(self, lane: Lane, sequence: int) -> bool:
        """Whether a job stands in a window and was doomed already."""
        window = self.windows.by_lane.get(lane)
        return window is not None and any(
            isinstance(entry, Doomed) and entry.header.sequence == sequence for entry in window.entries
        )

    def doom(self, window: LaneWindow, place: int, completion: Completion) -> None:
        """See to it that the job at this place never starts; `clear` takes it away as soon as it may."""
        header = window.entries[place]
        assert isinstance(header, Header), "only a job can be doomed"
        self.pools[window.lane.pool].retract(window, place)
        window.entries[place] = Doomed(header, completion)
        self._blocked[window] = None

    def strike(self, header: Header, completion: Completion, batch: Batch) -> None:
        """Strike a job that waits beyond its lane's window.

        Its lane may have no window yet, because the announcement was not heard. It gets one, since the head that
        is announced may be the one that is struck: the lane must be read.
        """
        batch.strikes.append(Strike(header, completion))
        if header.lane not in self.windows.by_lane and self._fits(header.lane):
            self._open(header.lane)

    def clear(self, batch: Batch) -> None:
        """Take what is no job off the heads of lanes, and strike doomed jobs that stand behind others.

        What was given back in this pass stands before it. What exceeds a commit's limits is left for the next.
        """
        if not self._blocked:
            return
        suspects, self._blocked = self._blocked, {}
        buried: list[Burial] = []
        for window in suspects:
            if self.windows.by_lane.get(window.lane) is not window:
                continue
            while window.entries and not isinstance(window.entries[0], Header) and batch.room_for_removal:
                entry = self.windows.use(window)
                if isinstance(entry, Malformed):
                    buried.append(Burial(window.lane, entry.raw, entry.reason))
                    batch.removals.append(buried[-1])
                elif isinstance(entry, Doomed):
                    batch.removals.append(Drop(*entry))
                elif isinstance(entry, Struck):
                    batch.removals.append(entry)
            self._strike_doomed(window, batch)
            self.note_head(window)
            if window.entries:
                self.pools[window.lane.pool].refill(window)
        self._note_burials(buried)

    def _strike_doomed(self, window: LaneWindow, batch: Batch) -> None:
        for place, entry in enumerate(window.entries):
            if isinstance(entry, Doomed):
                if place == 0 or not batch.room_for_strike:
                    self._blocked[window] = None
                    return
                batch.strikes.append(Strike(*entry))
                window.entries[place] = Struck(window.lane, entry.header.sequence)

    def _note_burials(self, buried: Sequence[Burial]) -> None:
        if buried:
            self._tally.malformed += len(buried)
            first = buried[0]
            log.warning(
                "%d entries are no jobs and are buried (lane %s: %s ...)", len(buried), first.lane, first.reason
            )

    def _open(self, lane: Lane, target: int | None = None) -> LaneWindow:
        window = self.windows.open(lane) if target is None else self.windows.open(lane, target)
        window.wait_target = self.entitlement.wait_target(lane.path)
        self.pool(lane.pool).add(window)
        return window

    def _fits(self, lane: Lane) -> bool:
        if len(lane.path) == self._depth:
            return True
        self._tally.refused += 1
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED:
            log.error("lane %s is not served: tenant paths here have %d names", lane, self._depth)
        return False
