"""A node of the tree: one class for every level, from an organisation to a project.

Rules of this file: data and its storing, no decisions; those are in `drr.core.tree`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from drr.core.limits import NO_BOUNDS, Bounds
from drr.core.ring import Ring, Seat
from drr.model import NodePolicy, NodeState, PoolPolicy, TenantPath

if TYPE_CHECKING:
    from drr.core.jobs import Job, Line

PARKED: Final = 0
FLOOR: Final = 1
MIDDLE: Final = 2
BORROW: Final = 3
LANE_NAMES: Final = ("parked", "floor", "under cap", "borrowing")

DEFAULT_POLICY: Final = NodePolicy()
NO_RING: Final = Ring()
"""Stands for the middle ring of a node without children; it has no members, ever."""


class _Hot(Seat):
    """The fields that every decision touches, laid out together: CPython puts a base class's slots first.

    With a million active tenants most of a decision's time goes into fetching nodes from memory.
    """

    __slots__ = (
        "active",
        "bounded",
        "charged",
        "chosen",
        "head",
        "lane",
        "leaf",
        "middle",
        "more",
        "parent",
        "queued",
        "running",
        "served_round",
        "starts",
        "touched",
    )


class Node(_Hot):
    """A tenant at some level; the root is the pool, a node without children a project.

    It is its own seat in the middle and borrowing rings of its parent's level. Fields by role:

    place       name, path, parent, children, lane, clean
    bounds      policy, soft, hard, floor, bounded (has any of them), ceiling (worker-seconds)
    counts      running, queued, more (leaves below of which the store holds more than was offered)
    account     credit, granted, void (from `Seat`), served_round, middle_granted (mark kept while borrowing)
    totals      charged, lost: worker-seconds; starts, losses: attempts
    level       middle, borrow, floors: rings; active, clean_children
    backlog     head: the job that starts next; tails: the last job of each priority (leaves only); lines: by the
                limits that jobs name, once one names any (`drr.core.lines`); then tails is empty
    """

    __slots__ = (
        "borrow",
        "ceiling",
        "children",
        "clean",
        "clean_children",
        "drained",
        "floor",
        "floor_seat",
        "floors",
        "hard",
        "idling",
        "lines",
        "losses",
        "lost",
        "middle_granted",
        "name",
        "path",
        "policy",
        "restored",
        "soft",
        "tails",
    )

    parent: Node | None
    chosen: Node

    def __init__(self, path: TenantPath, parent: Node | None, policy: NodePolicy, pool: PoolPolicy) -> None:
        super().__init__(pool.quantum * policy.weight)
        self.node = self
        self.path = path
        self.name = path[-1] if path else ""
        self.parent = parent
        self.children: dict[str, Node] = {}
        self.lane = PARKED
        self.leaf = False
        self.clean = False
        self.policy = policy
        self.ceiling = pool.ceiling if policy.ceiling is None else policy.ceiling
        self.set_bounds(NO_BOUNDS)
        self.running = 0
        self.queued = 0
        self.more = 0
        self.served_round = -2
        self.middle_granted = 0
        self.drained = True
        self.restored = False
        self.floor_seat: Seat | None = None
        self.charged = 0.0
        self.lost = 0.0
        self.starts = 0
        self.losses = 0
        self.active = 0
        self.clean_children = 0
        self.middle = NO_RING
        self.borrow: Ring | None = None
        self.floors: Ring | None = None
        self.tails: dict[int, Job] = {}
        self.head: Job | None = None
        self.lines: dict[tuple[str, ...], Line] | None = None
        self.touched = False
        self.idling = False

    def set_bounds(self, bounds: Bounds) -> None:
        """Take over resolved caps and floor."""
        self.soft, self.hard, self.floor = bounds
        self.bounded = bounds != NO_BOUNDS

    def state(self) -> NodeState:
        """Return what must be stored to continue this account elsewhere."""
        mark = self.middle_granted if self.lane == BORROW else self.granted
        floor = self.floor_seat
        middle, floors = self.middle, self.floors
        return NodeState(
            credit=self.credit,
            granted=mark,
            served_round=self.served_round,
            drained=self.queued == 0 and self.more == 0,
            void=self.void,
            floor_credit=floor.credit if floor else 0.0,
            floor_granted=floor.granted if floor else 0,
            floor_void=floor.void if floor else 0,
            round=middle.round,
            voids=middle.voids,
            floor_turn=floors.round if floors else 0,
            floor_voids=floors.voids if floors else 0,
        )

    def restore(self, state: NodeState) -> None:
        """Continue the account of ``state``. Only for a node that has not been used."""
        self.credit, self.granted, self.served_round = state.credit, state.granted, state.served_round
        self.drained, self.void, self.restored = state.drained, state.void, True
        if state.floor_credit or state.floor_granted or state.floor_void:
            seat = self.make_floor_seat()
            seat.credit, seat.granted, seat.void = state.floor_credit, state.floor_granted, state.floor_void
        if state.round or state.voids:
            self.middle = Ring()
            self.middle.round, self.middle.voids = state.round, state.voids
        if state.floor_turn or state.floor_voids:
            self.floors = Ring()
            self.floors.round, self.floors.voids = state.floor_turn, state.floor_voids
        if self.parent is not None:
            self._bring_forward(self.parent)

    def _bring_forward(self, level: Node) -> None:
        """Let the clocks of ``level`` show at least the rounds that this node was granted.

        Rounds may pass without a start (somebody joined), and then only the one who joined by them is stored.
        """
        level.middle.round = max(level.middle.round, self.granted)
        if self.floor_seat is not None:
            if level.floors is None:
                level.floors = Ring()
            level.floors.round = max(level.floors.round, self.floor_seat.granted)

    def make_floor_seat(self) -> Seat:
        """Return the account in the floor lane, which most nodes never need."""
        if self.floor_seat is None:
            self.floor_seat = Seat(self.quantum)
            self.floor_seat.node = self
        return self.floor_seat
