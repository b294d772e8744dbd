"""Jobs and leases as the core sees them, and a project's own order among its jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING

from drr.model import DEFAULT_PRIORITY, ESTIMATE_MAX, ESTIMATE_MIN, TenantPath, check_number

if TYPE_CHECKING:
    from drr.core.tree import Node


class Job:
    """A queued job.

    ``id`` is unique within its pool. ``estimate`` in worker-seconds, 1e-6 to 1e8. ``losses``: attempts that
    the platform lost so far; the first loss of a job is refunded. ``ref`` is the caller's.
    """

    __slots__ = ("estimate", "id", "losses", "path", "priority", "ref", "taken", "withdrawn")

    def __init__(
        self,
        id: Hashable,  # the field's own word for it
        path: TenantPath,
        estimate: float,
        priority: int = DEFAULT_PRIORITY,
        losses: int = 0,
        ref: object = None,
    ) -> None:
        if not ESTIMATE_MIN <= estimate <= ESTIMATE_MAX:
            check_number("estimate", estimate, ESTIMATE_MIN, ESTIMATE_MAX)
        self.id = id
        self.path = path
        self.estimate = estimate
        self.priority = priority
        self.losses = losses
        self.ref = ref
        self.taken = False
        self.withdrawn = False

    def __repr__(self) -> str:
        return f"Job({self.id!r}, {'/'.join(self.path)}, {self.estimate:g} ws)"


class RunningLease:
    """A live lease. ``started`` by the caller's monotonic clock; ``charged``: worker-seconds so far.

    ``written_off``: per level, innermost first, what the floor rule did not charge to the main account; -1
    where no floor was used; ``None`` if none was used anywhere.
    """

    __slots__ = ("charged", "job", "leaf", "started", "token", "written_off")

    def __init__(self, token: Hashable, job: Job, leaf: Node, started: float, charged: float) -> None:
        self.token = token
        self.job = job
        self.leaf = leaf
        self.started = started
        self.charged = charged
        self.written_off: list[float] | None = None

    @property
    def excused(self) -> tuple[float, ...]:
        """``written_off`` as it is stored: outermost level first, empty if no floor was used."""
        return tuple(reversed(self.written_off)) if self.written_off is not None else ()

    def __repr__(self) -> str:
        return f"RunningLease({self.token!r}, {self.job!r}, charged={self.charged:g})"


def push(leaf: Node, job: Job, *, front: bool) -> bool:
    """Queue ``job`` at the tail (or, for one that came back, the head) of its priority.

    Returns whether it is the leaf's head now.
    """
    lane = leaf.lanes.get(job.priority)
    if lane is None:
        lane = leaf.lanes[job.priority] = deque()
    if front:
        lane.appendleft(job)
    else:
        lane.append(job)
    head = leaf.head
    if head is None or job.priority < head.priority or (front and job.priority == head.priority):
        leaf.head = job
        return True
    return False


def pop(leaf: Node) -> Job:
    """Take the leaf's head off its backlog."""
    job = leaf.head
    assert job is not None, "only a leaf with a head is picked"
    job.taken = True
    lane = leaf.lanes[job.priority]
    lane.popleft()
    _advance(leaf, job.priority, lane)
    return job


def withdraw(leaf: Node, job: Job) -> bool:
    """Mark a queued job as gone. Returns whether the head has changed.

    It leaves the queue when it reaches the front, so that a withdrawal costs the same at any depth.
    """
    job.withdrawn = True
    lane = leaf.lanes[job.priority]
    if lane[0] is not job:
        return False
    lane.popleft()
    was_head = leaf.head is job
    _advance(leaf, job.priority, lane, keep_head=not was_head)
    return was_head


def _advance(leaf: Node, priority: int, lane: deque[Job], *, keep_head: bool = False) -> None:
    """Restore the rule that each lane exists only with a job that stands, at its front."""
    while lane and lane[0].withdrawn:
        lane.popleft()
    if not lane:
        del leaf.lanes[priority]
    if keep_head:
        return
    if lane:
        leaf.head = lane[0]
    else:
        leaf.head = leaf.lanes[min(leaf.lanes)][0] if leaf.lanes else None
