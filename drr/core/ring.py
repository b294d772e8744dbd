"""One deficit round robin over the seats of a level, with the rounds kept as arithmetic.

Rules of this file: no I/O, no clock, no knowledge of tenants, jobs or caps. A ring orders seats.

Theory of operation
    Textbook deficit round robin (Shreedhar & Varghese, "Efficient Fair Queueing Using Deficit Round
    Robin", SIGCOMM 1995) walks a circular list: a visit grants ``quantum * weight`` and serves while the
    credit covers the head. Walking is wasted work when a head costs many quanta, so this ring never
    walks. It keeps for each seat the *round in which its credit will cover its head*:

        due round = granted + ceil((cost - credit) / quantum)

    and a heap of seats by (due round, order of arrival in that round). The next seat to be visited is on
    top; the ring's round jumps to the seat's due round; all rounds that the seat sat through are granted
    at once. That is the same schedule as the walk's, because a visit at which the head is not affordable
    changes nothing but the credit. Cost: O(log n) a visit, none for a round in which nobody can start.

    Grants of waiting seats are lazy: a seat's credit contains the quanta up to round ``granted``; those up
    to ``ring.round`` are its due. Whoever reads ``seat.credit`` of a waiting seat must bear that in mind.

    Newcomers stand in a round before all others, first in first out among themselves (the new-flow list
    of ``fq_codel``, Hoeiland-Joergensen et al., RFC 8290, section 4.2). With its first job a newcomer loses
    that place: it then stands before those that wait, but behind the newcomers that are still to come.

    A visit is in progress while a seat on top was granted the current round and its credit still covers
    its head; it ends when it does not, and the seat then moves to the round in which it will.
    A newcomer may interpose between two jobs of a visit; the visit resumes after it.

Stale entries
    A seat that leaves or moves stays in the heap as a stale entry (``seat.key`` differs); they are dropped
    when they surface, and swept when they outnumber the members. So memory is O(members), amortised.

A ring of one
    Most projects are alone in their organisation. A seat that joins an empty ring is kept in ``solo``, beside the
    heaps, until another joins: its rounds pass as they would, without a heap being touched.

Two heaps, one clock
    With a reserve some decisions may only use seats whose subtree can start without borrowing. Those are
    in ``heap``, the others in ``dirty``. A decision that may borrow compares the two tops. Without a
    reserve ``dirty`` is empty.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import ceil
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from drr.core.node import Node

SHIFT: Final = 64
"""Bits of a key below the round: room for the order of arrival."""
NEWCOMER: Final = -2
"""The round in which newcomers stand."""
EPSILON: Final = 1e-9
"""Worker-seconds by which a credit may miss a cost and still cover it: floating point, not policy."""
_ARRIVAL: Final = (1 << SHIFT) - 1
_SWEEP_AT: Final = 32


class Seat:
    """A place in a ring and the account that goes with it.

    ``credit`` in worker-seconds; it contains the quanta up to round ``granted``. ``quantum`` is the
    level's quantum times the node's weight. ``key`` is 0 while the seat is in no ring. ``fresh``: the next
    job may overdraw (a newcomer's first). ``void``: how many amnesties of its ring it has seen.
    """

    __slots__ = ("credit", "fresh", "granted", "key", "node", "quantum", "void")

    node: Node

    def __init__(self, quantum: float) -> None:
        self.credit = 0.0
        self.granted = 0
        self.quantum = quantum
        self.key = 0
        self.fresh = False
        self.void = 0


Entry: TypeAlias = tuple[int, Seat]


class Ring:
    """The seats of one lane of one level. ``round`` never goes back."""

    __slots__ = ("clean_members", "dirty", "heap", "members", "round", "solo", "stale", "turned", "voids")

    def __init__(self) -> None:
        self.round = 0
        self.voids = 0
        """Amnesties so far: a seat that has seen fewer has its debt forgiven when next looked at."""
        self.heap: list[Entry] = []
        self.dirty: list[Entry] = []
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
        seat.key = key = (turn << SHIFT) + stamp
        self.members += 1
        if clean:
            self.clean_members += 1
        if self.members == 1:
            self.solo = seat
            self.turned = False
            return
        if self.solo is not None:
            self._unfold(self.solo, clean=self.clean_members - clean > 0)
        heappush(self.heap if clean else self.dirty, (key, seat))

    def _unfold(self, seat: Seat, *, clean: bool) -> None:
        """Give the solo seat its place in a heap, in front: its visit is in progress."""
        self.solo = None
        if self.turned:
            seat.key = (self.round << SHIFT) + (seat.key & _ARRIVAL)
        heappush(self.heap if clean else self.dirty, (seat.key, seat))

    def remove(self, seat: Seat, *, clean: bool) -> None:
        """Take ``seat`` out; its account stays."""
        self.members -= 1
        if clean:
            self.clean_members -= 1
        if self.solo is seat:
            self.solo = None
            seat.key = 0
            return
        heap = self.heap if clean else self.dirty
        if heap[0][1] is seat and heap[0][0] == seat.key:
            heappop(heap)
            seat.key = 0
            return
        seat.key = 0
        self._note_stale()

    def move(self, seat: Seat, stamp: int, *, clean: bool) -> None:
        """Change between the heaps, to the tail of the same round (an entry's key is never used twice)."""
        turn = seat.key >> SHIFT
        self.remove(seat, clean=not clean)
        self.add(seat, turn, stamp, clean=clean)

    def settle_in(self, seat: Seat, stamp: int, *, clean: bool) -> None:
        """A newcomer has had its first job: its visit goes on in front of those that wait."""
        if self.solo is seat:
            self.turned = True
        elif seat.key >> SHIFT == NEWCOMER:
            self.remove(seat, clean=clean)
            # A place in a past round is in front of the present one, and behind other visits in progress.
            self.add(seat, seat.granted - 1, stamp, clean=clean)

    def hasten(self, seat: Seat, cost: float, stamp: int, *, clean: bool) -> bool:
        """Bring a waiting seat forward if its credit or its head has changed to its advantage.

        The opposite needs no step: a seat that cannot afford its head is put back when it is visited.
        """
        turn = max(seat.granted + self.rounds_for(seat, cost), self.round)
        if turn >= seat.key >> SHIFT or self.solo is seat:
            return False
        seat.key = (turn << SHIFT) + stamp
        heappush(self.heap if clean else self.dirty, (seat.key, seat))
        self._note_stale()
        return True

    @staticmethod
    def rounds_for(seat: Seat, cost: float) -> int:
        """Return after how many further grants the credit covers ``cost``; at least one."""
        missing = cost - seat.credit - EPSILON
        return ceil(missing / seat.quantum) if missing > seat.quantum else 1

    def top(self, *, clean_only: bool) -> list[Entry]:
        """Return the heap whose top is the next seat. Only for rings with dirty seats."""
        for heap in (self.heap, self.dirty):
            while heap and heap[0][1].key != heap[0][0]:
                heappop(heap)
                self.stale -= 1
        if clean_only or not self.dirty:
            return self.heap
        if not self.heap or self.dirty[0][0] < self.heap[0][0]:
            return self.dirty
        return self.heap

    def _note_stale(self) -> None:
        self.stale += 1
        if self.stale > self.members + _SWEEP_AT:
            for heap in (self.heap, self.dirty):
                heap[:] = [entry for entry in heap if entry[1].key == entry[0]]
                heapify(heap)
            self.stale = 0
