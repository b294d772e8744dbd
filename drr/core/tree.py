"""The hierarchy: which child of each node is served next, and who is in no ring at all.

Rules of this file: no I/O, no clock. It knows nodes, lanes and rounds; of jobs it knows only a leaf's head.

Theory of operation
    Every inner node is a *level*: it shares what it is given among its children by deficit round robin,
    in three lanes, each a `Ring`: children owed a floor, children under their soft cap, and children that
    borrow. A child is in exactly one lane, or parked in none: when it has nothing below it that could
    start, or has as many running as its hard cap allows. A parked child costs nothing; the release of
    a slot or the arrival of a job calls `Tree.place`, which seats it, and its parents if they were
    parked with it, in the same step.

    `Tree.pick` goes down from the root. A node's *cost* is the estimate of the job that would start if the
    node were served now, so it asks the child whose turn it is, and so on to a leaf. Picking may end visits
    and begin others (rounds pass), but it commits to nothing else: asked again, it gives the same answer
    until something changes. So what a level would serve is known at any time without being stored.

Accounts
    A node has one credit for the middle and the borrowing lane. The middle ring's rounds are the level's
    rounds; the borrowing ring has rounds of its own, in which a node's mark starts at its arrival: what a
    borrower waits for is a turn among borrowers, and what it missed in the middle ring it earns on its
    return, up to its ceiling, like a parked node. The floor lane has an account of its own (`floor_seat`),
    since its dispatches need no credit and leave at most one ceiling of debt, so that the main account
    alone could not order them.

What must stay in step (checked by `drr.core.invariants`)
    node.lane       what `Tree.lane_for` says
    level.active    number of children in any lane
    level.clean     number of children that could start without borrowing at any level (with a reserve)
    node.queued     jobs known below, node.running leases below
"""

from __future__ import annotations

from itertools import count
from math import ceil

from drr.core.limits import resolve
from drr.core.node import BORROW, FLOOR, MIDDLE, PARKED, Node
from drr.core.registry import Registry
from drr.core.ring import EPSILON, NEWCOMER, Ring, Seat
from drr.model import NodePolicy, PoolPolicy


class Tree(Registry):
    """The nodes of one pool and the order in which they are served.

    ``visits`` counts the visits that ended without a start: the work that decisions cost beyond
    themselves. ``tracking``: a reserve is set, so nodes that could start without borrowing are told apart.
    ``restoring``: accounts are being put back after a takeover; no amnesty, no newcomers' turns, no rounds.
    """

    def __init__(self, pool: PoolPolicy) -> None:
        super().__init__(pool)
        self.tracking = pool.reserve > 0
        self.visits = 0
        self.stamps = count(1)

    # --- lanes ----------------------------------------------------------------------------------------

    @staticmethod
    def lane_for(node: Node) -> int:
        """Return the lane in which ``node`` belongs."""
        if (node.head is None and not node.active) or node.running >= node.hard:
            return PARKED
        if node.running < node.floor:
            return FLOOR
        return BORROW if node.running >= node.soft else MIDDLE

    def place(self, node: Node) -> None:
        """Seat or park ``node`` where it belongs now, and its ancestors as far as that concerns them."""
        while (parent := node.parent) is not None:
            lane, old = self.lane_for(node), node.lane
            if lane == old:
                return
            self.touch(node)
            if old != PARKED:
                self._unseat(node, parent)
            node.lane = lane
            if lane == PARKED:
                parent.active -= 1
                crossed = parent.active == 0
            else:
                if old == PARKED:
                    parent.active += 1
                self._seat(node, parent, old)
                crossed = old == PARKED and parent.active == 1
            if self.tracking:
                self._track(node)
            if not crossed:
                return
            node = parent

    def _unseat(self, node: Node, parent: Node) -> None:
        ring, seat = self.ring_of(node, parent)
        ring.remove(seat, clean=node.clean or not self.tracking)
        node.fresh = False
        if node.lane == BORROW:
            node.granted = node.middle_granted

    def _seat(self, node: Node, parent: Node, old: int) -> None:
        clean = node.clean or not self.tracking  # `_track` moves it next if that has changed
        newcomer = False
        if old == PARKED or node.lane == MIDDLE:
            newcomer = self._settle_return(node, parent, old)
        if node.lane == MIDDLE:
            node.fresh = newcomer
            parent.middle.add(node, NEWCOMER if newcomer else node.granted + 1, next(self.stamps), clean=clean)
        elif node.lane == BORROW:
            if parent.borrow is None:
                parent.borrow = Ring()
            node.middle_granted = node.granted
            node.granted = parent.borrow.round - 1
            parent.borrow.add(node, node.granted + 1, next(self.stamps), clean=clean)
        else:
            self._seat_for_floor(node, parent, clean=clean)

    def _settle_return(self, node: Node, parent: Node, old: int) -> bool:
        """Bring the account of a node that returns to the middle ring's clock up to its round.

        Returns whether the node is a newcomer, who goes before those that wait.
        """
        ring = parent.middle
        if self.restoring and node.restored and not node.drained:
            return False  # it waited at the takeover: its rounds are still due, and unclamped
        if old == PARKED and parent.active == 1 and not self.restoring:
            ring.voids += 1  # nobody waits at this level: all its debts are void
            self.touch(parent)
        ring.forgive(node)
        if ring.members and not self.restoring:
            self.advance(parent, ring, clean_only=False)  # who waits must not owe for what nobody wanted
        self.rejoin(node, ring)
        eligible = old == PARKED and not (self.restoring and node.restored)
        return eligible and self.is_newcomer(node, ring)

    def rejoin(self, node: Node, ring: Ring) -> None:
        """Account for the rounds that ``node`` was away.

        A drained node loses its credit after a gap of a round, and its debt is forgiven by a quantum a round. A
        parked one earns what it missed, up to its ceiling. Neither keeps more than it would have carried had it
        gone on waiting: there a visit lasts until the credit is below the next job's cost. Otherwise a tenant
        whose queue runs empty after every job would gain a quantum each time, and save it up for a busy hour.
        """
        missed = ring.round - 1 - node.granted
        if node.drained:
            if node.credit > 0.0:
                node.credit = min(node.credit, self._next_cost(node)) if missed < 0 else 0.0
            elif missed > 0:
                node.credit = min(0.0, node.credit + missed * node.quantum)
        else:
            if missed > 0 and node.credit < node.ceiling:
                node.credit = min(node.ceiling, node.credit + missed * node.quantum)
            if node.credit > node.ceiling:
                node.credit = min(node.credit, max(node.ceiling, self._next_cost(node)))
        if missed > 0:
            node.granted = ring.round - 1
        node.drained = False

    def _next_cost(self, node: Node) -> float:
        """Return the estimate of the job that would start if ``node`` were served now; 0 if there is none."""
        if node.head is not None:
            return node.head.estimate
        return self.pick(node, clean_only=False) if node.active else 0.0

    @staticmethod
    def is_newcomer(node: Node, ring: Ring) -> bool:
        """Return whether ``node`` is free of debt and was not served for a full round.

        Two rounds on: the rest of the round in which it was served, and one whole one.
        """
        return node.credit >= 0.0 and ring.round - node.served_round >= 2

    def _seat_for_floor(self, node: Node, parent: Node, *, clean: bool) -> None:
        ring, seat = parent.floors, node.make_floor_seat()
        if ring is None:
            ring = parent.floors = Ring()
        if not ring.members and not self.restoring:
            ring.voids += 1
            self.touch(parent)
        ring.forgive(seat)
        missed = ring.round - 1 - seat.granted
        if missed >= 0 and seat.credit > 0.0:
            seat.credit = 0.0
        if missed > 0:
            seat.credit = min(0.0, seat.credit + missed * seat.quantum)
            seat.granted = ring.round - 1
        ring.add(seat, seat.granted + 1, next(self.stamps), clean=clean)

    def ring_of(self, node: Node, parent: Node) -> tuple[Ring, Seat]:
        """Return the ring in which ``node`` is seated, and its seat there."""
        ring: Ring | None
        seat: Seat | None = node
        if node.lane == MIDDLE:
            ring = parent.middle
        elif node.lane == BORROW:
            ring = parent.borrow
        else:
            ring, seat = parent.floors, node.floor_seat
        assert ring is not None, "a seated node has a ring"
        assert seat is not None, "a seated node has a seat"
        return ring, seat

    def _track(self, node: Node) -> None:
        """Tell apart, upwards from ``node``, who can start something without borrowing on the way."""
        parent = node.parent
        while parent is not None:
            clean = node.lane in (FLOOR, MIDDLE) and (node.head is not None or node.clean_children > 0)
            if clean == node.clean:
                return
            before, node.clean = parent.clean_children, clean
            parent.clean_children += 1 if clean else -1
            if node.lane != PARKED:
                ring, seat = self.ring_of(node, parent)
                ring.move(seat, next(self.stamps), clean=clean)
            if bool(before) == bool(parent.clean_children):
                return
            node, parent = parent, parent.parent

    # --- order ----------------------------------------------------------------------------------------

    def pick(self, node: Node, clean_only: bool) -> float:
        """Choose the child of ``node`` that is served next, down to a leaf; return the job's estimate.

        The path can be followed by ``chosen``. Only for a level with an active (clean) child.
        """
        ring = node.floors
        if ring is not None and (ring.clean_members if clean_only else ring.members):
            return self.advance(node, ring, clean_only)
        ring = node.middle
        if ring.clean_members if clean_only else ring.members:
            return self.advance(node, ring, clean_only)
        ring = node.borrow
        assert ring is not None, "an active child is in a ring"
        return self.advance(node, ring, clean_only)

    def advance(self, node: Node, ring: Ring, clean_only: bool) -> float:
        """Let rounds pass in ``ring``, a lane of ``node``'s level, until the seat on top can afford its head."""
        solo = ring.solo
        if solo is not None:
            return self._advance_solo(node, ring, solo, clean_only)
        calendar = ring.clean
        while True:
            if ring.dirty.front:
                calendar = ring.first(clean_only=clean_only)
            front = calendar.front
            stamp, seat = front[0]
            if seat.stamp != stamp:
                calendar.drop_first()
                ring.stale -= 1
                continue
            turn = ring.round
            if seat.due > turn:
                ring.round = turn = seat.due
            if seat.granted < turn:
                ring.grant(seat, turn)
            child = seat.node
            head = child.head
            if head is not None:
                cost = head.estimate
            elif child.floors is None and child.middle.solo is not None:  # the usual way of `pick`, in short
                cost = self._advance_solo(child, child.middle, child.middle.solo, clean_only)
            else:
                cost = self.pick(child, clean_only)
            missing = cost - seat.credit - EPSILON
            if missing <= 0.0 or seat.fresh:
                node.chosen = child
                return cost
            self.visits += 1
            calendar.drop_first()
            seat.due = turn = seat.granted + (ceil(missing / seat.quantum) if missing > seat.quantum else 1)
            seat.stamp = stamp = next(self.stamps)
            calendar.append(turn, (stamp, seat))

    def _advance_solo(self, node: Node, ring: Ring, seat: Seat, clean_only: bool) -> float:
        """The same in a ring of one: its visits follow each other at once."""
        if seat.granted < ring.round:
            ring.grant(seat, ring.round)
        node.chosen = child = seat.node
        head = child.head
        cost = head.estimate if head is not None else self.pick(child, clean_only)
        missing = cost - seat.credit - EPSILON
        if missing > 0.0 and not seat.fresh:
            ring.round = seat.granted + (ceil(missing / seat.quantum) if missing > seat.quantum else 1)
            ring.turned = True
            ring.grant(seat, ring.round)
        return cost

    def settle_in(self, node: Node) -> None:
        """After a first job: take the newcomers' places from ``node`` and its ancestors that used theirs."""
        while (parent := node.parent) is not None:
            if node.lane == MIDDLE and not node.fresh:
                parent.middle.settle_in(node, next(self.stamps), clean=node.clean or not self.tracking)
            node = parent

    def hasten(self, node: Node) -> None:
        """After a change to the advantage of ``node``: bring it and its ancestors forward where they wait
        for a later round than they now need.
        """
        while (parent := node.parent) is not None:
            if node.lane != PARKED:
                ring, seat = self.ring_of(node, parent)
                if seat.due > ring.round + 1:
                    head = node.head
                    cost = head.estimate if head is not None else self.pick(node, clean_only=False)
                    ring.hasten(seat, cost, next(self.stamps), clean=node.clean or not self.tracking)
            node = parent

    # --- accounts -------------------------------------------------------------------------------------

    def charge(self, node: Node, parent: Node, amount: float) -> None:
        """Charge ``amount`` worker-seconds (negative: refund) to the main account of ``node``."""
        parent.middle.forgive(node)
        node.credit -= amount
        node.charged += amount

    def charge_floor(self, node: Node, parent: Node, amount: float, excused: float) -> float:
        """The same for a lease that a floor dispatched; ``excused`` is what was written off so far.

        Charges take the main account down to minus one ceiling; the rest is written off, and the next
        refund goes first against that. Returns the new ``excused``.
        """
        parent.middle.forgive(node)
        if parent.floors is not None and node.floor_seat is not None:
            parent.floors.forgive(node.floor_seat)
            node.floor_seat.credit -= amount
        node.charged += amount
        if amount >= 0.0:
            applied = min(amount, max(0.0, node.credit + node.ceiling))
            node.credit -= applied
            return excused + amount - applied
        returned = min(excused, -amount)
        node.credit += -amount - returned
        return excused - returned

    # --- changes of policy ----------------------------------------------------------------------------

    def catch_up(self, node: Node) -> None:
        """Credit ``node`` with the rounds so far at its present weight, before that changes."""
        parent = node.parent
        if parent is None:
            return
        if node.lane == MIDDLE:
            if node.granted < parent.middle.round - 1:
                parent.middle.grant(node, parent.middle.round - 1)
        elif node.lane == PARKED and not node.drained:
            self.rejoin(node, parent.middle)
        self.touch(node)

    def rebind(self, node: Node, policy: NodePolicy) -> None:
        """Change the policy of a live node; it binds at once, on the backlog too."""
        self.catch_up(node)
        self.bind(node, policy)
        self.place(node)
        self.hasten(node)

    def set_slots(self, slots: int) -> None:
        """Let caps and floors that are shares follow the live slots."""
        if slots == self.slots:
            return
        self.slots = slots
        for node in list(self.elastic.values()):
            node.set_bounds(resolve(node.policy, slots))
            self.place(node)
            self.hasten(node)

    def set_pool(self, pool: PoolPolicy) -> None:
        """Change quantum, ceiling and reserve for all nodes."""
        for node in self.nodes.values():
            self.catch_up(node)
        self.pool = pool
        for node in self.nodes.values():
            self.bind(node, node.policy)
        if self.tracking != (pool.reserve > 0):
            self._retrack(pool.reserve > 0)
        for node in list(self.nodes.values()):
            self.hasten(node)

    def _retrack(self, tracking: bool) -> None:
        seated = [node for node in self.nodes.values() if node.lane != PARKED and node.parent is not None]
        for node in seated:
            assert node.parent is not None
            ring, seat = self.ring_of(node, node.parent)
            if not node.clean and not self.tracking and tracking:
                ring.move(seat, next(self.stamps), clean=False)
            elif not node.clean and not tracking:
                ring.move(seat, next(self.stamps), clean=True)
            node.clean = False
        for node in self.nodes.values():
            node.clean_children = 0
        self.tracking = tracking
        if tracking:
            for node in sorted(seated, key=lambda node: -len(node.path)):
                self._track(node)
