"""One deficit round robin over the seats of a level, with the rounds kept as arithmetic.

Rules of this file: no I/O, no clock, no knowledge of tenants, jobs or caps. A ring orders seats.

Theory of operation
    Textbook deficit round robin (Shreedhar & Varghese, "Efficient Fair Queueing Using Deficit Round
    Robin", SIGCOMM 1995) walks a circular list: a visit grants ``quantum * weight`` and serves while the
    credit covers the head. Walking is wasted work when a head costs many quanta, so this ring never
    walks. It keeps for each seat the *round in which its credit will cover its head*:

        due round = granted + ceil((cost - credit) / quantum)

    and a calendar of seats by due round, in order of arrival within one. The first seat of the first round
    is the next to be visited; the ring's round jumps to the seat's due round; all rounds that the seat sat
    through are granted at once. That is the same schedule as the walk's, because a visit at which the head is
    not affordable changes nothing but the credit. Cost: O(1) a visit where due rounds are shared, O(log r) in
    the number r of different ones, at most that of the seats; none for a round in which nobody can start.

    Grants of waiting seats are lazy: a seat's credit contains the quanta up to round ``granted``; those up
    to ``ring.round`` are its due. Whoever reads ``seat.credit`` of a waiting seat must bear that in mind.

    Newcomers stand in a round before all others, first in first out among themselves (the new-flow list
    of ``fq_codel``, Hoeiland-Joergensen et al., RFC 8290, section 4.2). With its first job a newcomer loses
    that place: it then stands before those that wait, but behind the newcomers that are still to come.

    A visit is in progress while the first seat was granted the current round and its credit still covers
    its head; it ends when it does not, and the seat then moves to the round in which it will.
    A newcomer may interpose between two jobs of a visit; the visit resumes after it.

Stale entries
    A seat that leaves or moves stays in the calendar as a stale entry (``seat.stamp`` differs); they are
    dropped when they surface, and swept when they outnumber the members. So memory is O(members), amortised.

A ring of one
    Most projects are alone in their organisation. A seat that joins an empty ring is kept in ``solo``, beside the
    calendars, until another joins: its rounds pass as they would, with no calendar at all.

Two calendars, one clock
    With a reserve some decisions may only use seats whose subtree can start without borrowing. Those are
    in ``clean``, the others in ``dirty``. A decision that may borrow compares the first seats of both.
    Without a reserve ``dirty`` is empty.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from drr.core.node import Node

NEWCOMER: Final = -2
"""The round in which newcomers stand; -1 is in front of round 0."""
EPSILON: Final = 1e-9
"""Worker-seconds by which a credit may miss a cost and still cover it: floating point, not policy."""
_SWEEP_AT: Final = 32


class Seat:
    """A place in a ring and the account that goes with it.

    ``credit`` in worker-seconds; it contains the quanta up to round ``granted``. ``quantum`` is the
    level's quantum times the node's weight. ``due``: the round in which it is visited next; ``stamp``: names its
    entry there, rising with every move, 0 while the seat is in no ring. ``fresh``: the next job may overdraw
    (a newcomer's first). ``void``: how many amnesties of its ring it has seen.
    """

    __slots__ = ("credit", "due", "fresh", "granted", "node", "quantum", "stamp", "void")

    node: Node

    def __init__(self, quantum: float) -> None:
        self.credit = 0.0
        self.granted = 0
        self.quantum = quantum
        self.due = 0
        self.stamp = 0
        self.fresh = False
        self.void = 0


Entry: TypeAlias = tuple[int, Seat]
_NO_ENTRIES: Final[deque[Entry]] = deque()


class Calendar:
    """Entries by round, first in first out within one. ``front`` holds those of the first round."""

    __slots__ = ("front", "rounds", "slips")

    def __init__(self) -> None:
        self.slips: dict[int, deque[Entry]] = {}
        self.rounds: list[int] = []
        self.front = _NO_ENTRIES

    def append(self, turn: int, entry: Entry) -> None:
        """Put ``entry`` at the tail of round ``turn``."""
        slip = self.slips.get(turn)
        if slip is None:
            slip = self.slips[turn] = deque()
            heappush(self.rounds, turn)
            if self.rounds[0] == turn:
                self.front = slip
        slip.append(entry)

    def drop_first(self) -> None:
        """Drop the first entry of all."""
        self.front.popleft()
        if not self.front:
            del self.slips[heappop(self.rounds)]
            self.front = self.slips[self.rounds[0]] if self.rounds else _NO_ENTRIES

    def drop_stale(self) -> int:
        """Drop stale entries from the front; return how many."""
        dropped = 0
        while self.front and self.front[0][1].stamp != self.front[0][0]:
            self.drop_first()
            dropped += 1
        return dropped

    def entries(self) -> list[tuple[int, Entry]]:
        """Return all entries with their rounds, in order, stale ones included."""
        return [(turn, entry) for turn in sorted(self.slips) for entry in self.slips[turn]]

    def sweep(self) -> None:
        """Drop all stale entries."""
        entries = self.entries()
        self.slips.clear()
        self.rounds.clear()
        self.front = _NO_ENTRIES
        for turn, entry in entries:
            if entry[1].stamp == entry[0]:
                self.append(turn, entry)


_NO_CALENDAR: Final = Calendar()
"""Stands for a calendar that was not needed yet; it is never written to."""


class Ring:
    """The seats of one lane of one level. ``round`` never goes back."""

    __slots__ = ("clean", "clean_members", "dirty", "members", "round", "solo", "stale", "turned", "voids")

    def __init__(self) -> None:
        self.round = 0
        self.voids = 0
        """Amnesties so far: a seat that has seen fewer has its debt forgiven when next looked at."""
        self.clean = _NO_CALENDAR
        self.dirty = _NO_CALENDAR
        self.solo: Seat | None = None
        self.turned = False
        """Whether the solo seat has been visited again since it came, and so lost a newcomer's place."""
        self.members = 0
        self.clean_members = 0
        self.stale = 0

    def grant(self, seat: Seat, turn: int) -> None:
        """Begin a visit: give the quanta of all rounds since the last one. Never clamped."""
        seat.credit += (turn - seat.granted) * seat.quantum
        seat.granted = turn

    def forgive(self, seat: Seat) -> None:
        """Cancel a debt that an amnesty has voided since the seat was last looked at."""
        if seat.void != self.voids:
            seat.void = self.voids
            if seat.credit < 0.0:
                seat.credit = 0.0

    def add(self, seat: Seat, turn: int, stamp: int, *, clean: bool) -> None:
        """Seat ``seat`` at the tail of round ``turn`` (or among the newcomers)."""
        seat.due = turn
        seat.stamp = stamp
        self.members += 1
        if clean:
            self.clean_members += 1
        if self.members == 1:
            self.solo = seat
            self.turned = False
            return
        if self.solo is not None:
            self._unfold(self.solo, clean=self.clean_members - clean > 0)
        self._calendar(clean=clean).append(turn, (stamp, seat))

    def _unfold(self, seat: Seat, *, clean: bool) -> None:
        """Give the solo seat its place in a calendar, in front: its visit is in progress."""
        self.solo = None
        if self.turned:
            seat.due = self.round
        self._calendar(clean=clean).append(seat.due, (seat.stamp, seat))

    def _calendar(self, *, clean: bool) -> Calendar:
        if clean:
            if self.clean is _NO_CALENDAR:
                self.clean = Calendar()
            return self.clean
        if self.dirty is _NO_CALENDAR:
            self.dirty = Calendar()
        return self.dirty

    def remove(self, seat: Seat, *, clean: bool) -> None:
        """Take ``seat`` out; its account stays."""
        self.members -= 1
        if clean:
            self.clean_members -= 1
        if self.solo is seat:
            self.solo = None
            seat.stamp = 0
            return
        calendar = self.clean if clean else self.dirty
        is_first = bool(calendar.front) and calendar.front[0][0] == seat.stamp
        seat.stamp = 0  # before a sweep may look at it
        if is_first:
            calendar.drop_first()
        else:
            self._note_stale()

    def move(self, seat: Seat, stamp: int, *, clean: bool) -> None:
        """Change between the calendars, to the tail of the same round."""
        self.remove(seat, clean=not clean)
        self.add(seat, seat.due, stamp, clean=clean)

    def settle_in(self, seat: Seat, stamp: int, *, clean: bool) -> None:
        """A newcomer has had its first job: its visit goes on in front of those that wait."""
        if self.solo is seat:
            self.turned = True
        elif seat.due == NEWCOMER:
            self.remove(seat, clean=clean)
            # A place in a past round is in front of the present one, and behind other visits in progress.
            self.add(seat, seat.granted - 1, stamp, clean=clean)

    def hasten(self, seat: Seat, cost: float, stamp: int, *, clean: bool) -> bool:
        """Bring a waiting seat forward if its credit or its head has changed to its advantage.

        The opposite needs no step: a seat that cannot afford its head is put back when it is visited.
        """
        turn = max(seat.granted + self.rounds_for(seat, cost), self.round)
        if turn >= seat.due or self.solo is seat:
            return False
        seat.due = turn
        seat.stamp = stamp
        self._calendar(clean=clean).append(turn, (stamp, seat))
        self._note_stale()
        return True

    @staticmethod
    def rounds_for(seat: Seat, cost: float) -> int:
        """Return after how many further grants the credit covers ``cost``; at least one."""
        missing = cost - seat.credit - EPSILON
        return ceil(missing / seat.quantum) if missing > seat.quantum else 1

    def first(self, *, clean_only: bool) -> Calendar:
        """Return the calendar whose first entry is the next seat's. Only for rings with dirty seats."""
        clean, dirty = self.clean, self.dirty
        self.stale -= clean.drop_stale() + dirty.drop_stale()
        if clean_only or not dirty.front:
            return clean
        if not clean.front:
            return dirty
        one, other = clean.front[0], dirty.front[0]
        return dirty if (other[1].due, other[0]) < (one[1].due, one[0]) else clean

    def _note_stale(self) -> None:
        self.stale += 1
        if self.stale > self.members + _SWEEP_AT:
            self.clean.sweep()
            self.dirty.sweep()
            self.stale = 0
