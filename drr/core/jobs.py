"""Jobs and leases as the core sees them, and a project's own order among its jobs.

A backlog is one chain of jobs, by priority and then first in first out, with the last job of each priority
kept aside. Head and tails are all that is touched, at any depth, and a take fetches nothing but the job
and the one behind it: with a million tenants, objects fetched from memory are what a decision costs.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Protocol

from drr.model import DEFAULT_PRIORITY, ESTIMATE_MAX, ESTIMATE_MIN, TenantPath, check_number

if TYPE_CHECKING:
    from drr.core.node import Node
    from drr.core.shared import Limit


class Job:
    """A queued job.

    ``id`` is unique within its pool. ``estimate`` in worker-seconds, 1e-6 to 1e8. ``losses``: attempts that
    the platform lost so far; the first loss of a job is refunded. ``ref`` is the caller's. ``limits``: names of the
    shared limits that it holds while it runs, sorted. ``arrival``: its place among jobs of its priority that name
    other limits; 0 takes the order of the offers. It is kept as ``order``, where that must be known.
    """

    __slots__ = (
        "estimate",
        "id",
        "limits",
        "losses",
        "next",
        "order",
        "path",
        "priority",
        "ref",
        "taken",
        "withdrawn",
    )

    def __init__(
        self,
        id: Hashable,  # the field's own word for it
        path: TenantPath,
        estimate: float,
        priority: int = DEFAULT_PRIORITY,
        losses: int = 0,
        ref: object = None,
        *,
        limits: tuple[str, ...] = (),
        arrival: int = 0,
    ) -> None:
        if not ESTIMATE_MIN <= estimate <= ESTIMATE_MAX:
            check_number("estimate", estimate, ESTIMATE_MIN, ESTIMATE_MAX)
        self.id = id
        self.path = path
        self.estimate = estimate
        self.priority = priority
        self.losses = losses
        self.ref = ref
        self.limits = limits
        self.order = arrival
        self.next: Job | None = None  # in the backlog of its project
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
    def organisation(self) -> Node:
        """The outermost tenant of the job."""
        node = self.leaf
        while node.parent is not None and node.parent.parent is not None:
            node = node.parent
        return node

    @property
    def excused(self) -> tuple[float, ...]:
        """``written_off`` as it is stored: outermost level first, empty if no floor was used."""
        return tuple(reversed(self.written_off)) if self.written_off is not None else ()

    def __repr__(self) -> str:
        return f"RunningLease({self.token!r}, {self.job!r}, charged={self.charged:g})"


class Line:
    """Jobs of one project that name the same ``limits``. ``at``: the limit at which it waits, ``None`` if open."""

    __slots__ = ("at", "head", "leaf", "limits", "misses", "tails")

    def __init__(self, leaf: Node, limits: tuple[Limit, ...]) -> None:
        self.leaf = leaf
        self.limits = limits
        self.head: Job | None = None
        self.tails: dict[int, Job] = {}
        self.at: Limit | None = None
        self.misses = 0

    def __repr__(self) -> str:
        return f"Line({'/'.join(self.leaf.path)}: {', '.join(limit.name for limit in self.limits)})"


def urgency(line: Line) -> tuple[int, int]:
    """Return what orders lines of one project: the priority and the arrival of the first job."""
    head = line.head
    assert head is not None, "a line that waits has a job"
    return head.priority, head.order


class Backlog(Protocol):
    """What has a chain of jobs: a project, or one of its lines."""

    head: Job | None
    tails: dict[int, Job]


def push(leaf: Backlog, job: Job, *, front: bool) -> bool:
    """Queue ``job`` at the tail (or, for one that came back, the head) of its priority.

    Returns whether it is the leaf's head now.
    """
    tails, priority, head = leaf.tails, job.priority, leaf.head
    if head is None or priority < head.priority or (front and priority == head.priority):
        job.next = head
        leaf.head = job
        if priority not in tails:
            tails[priority] = job
        return True
    before = None if front else tails.get(priority)
    if before is None:
        # The last job of the next more urgent priority; there is one, since the head is more urgent.
        before = tails[max(urgent for urgent in tails if urgent < priority)]
        if priority not in tails:
            tails[priority] = job
    else:
        tails[priority] = job
    job.next = before.next
    before.next = job
    return False


def pop(leaf: Backlog) -> Job:
    """Take the leaf's head off its backlog."""
    job = leaf.head
    assert job is not None, "only a leaf with a head is picked"
    job.taken = True
    _drop_head(leaf, job)
    return job


def withdraw(leaf: Backlog, job: Job) -> bool:
    """Mark a queued job as gone. Returns whether the head has changed.

    It leaves the queue when it reaches the front, so that a withdrawal costs the same at any depth.
    """
    job.withdrawn = True
    if leaf.head is not job:
        return False
    _drop_head(leaf, job)
    return True


def _drop_head(leaf: Backlog, job: Job) -> None:
    """Make the next job that still stands the head; forget the tail of a priority that is used up."""
    while True:
        follower = job.next
        job.next = None
        if follower is None or follower.priority != job.priority:
            del leaf.tails[job.priority]
        if follower is None or not follower.withdrawn:
            leaf.head = follower
            return
        job = follower
