"""Nodes for people: what each has, what it got and why it waits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drr.core.node import LANE_NAMES, MIDDLE, PARKED, Node
from drr.model import TenantPath


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node for people: what it has, what it got and why it waits.

    ``credit`` includes the rounds that are due. ``charged`` and ``lost`` in worker-seconds since the
    scheduler was made; ``lost`` was refunded. ``lane``: "parked", "floor", "under cap" or "borrowing".
    """

    path: TenantPath
    weight: float
    queued: int
    running: int
    credit: float
    charged: float
    lost: float
    starts: int
    losses: int
    lane: str
    soft_cap: int
    hard_cap: int
    floor: int
    capped: bool


def walk(node: Node) -> Iterator[Node]:
    """Yield ``node`` and all below it, parents before children."""
    yield node
    for child in node.children.values():
        yield from walk(child)


def view_of(node: Node) -> NodeView:
    """Return what is said of ``node``."""
    credit = node.credit
    if node.parent is not None and node.lane == MIDDLE:
        credit += max(0, node.parent.middle.round - 1 - node.granted) * node.quantum
    waiting = node.head is not None or node.active > 0 or node.queued > 0
    return NodeView(
        path=node.path,
        weight=node.policy.weight,
        queued=node.queued,
        running=node.running,
        credit=credit,
        charged=node.charged,
        lost=node.lost,
        starts=node.starts,
        losses=node.losses,
        lane=LANE_NAMES[node.lane],
        soft_cap=node.soft,
        hard_cap=node.hard,
        floor=node.floor,
        capped=waiting and node.lane == PARKED and node.running >= node.hard,
    )
