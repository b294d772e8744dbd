"""Who starts next: the core, and three simpler policies to compare it with. All run on the same engine.

A policy is told of arrivals and ends, and asked for starts. It never hears a job's true duration.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.model import DEFAULT_PRIORITY, NodePolicy, Outcome, PoolPolicy, TenantPath

if TYPE_CHECKING:
    from drr.core.node import Node
    from drr.simulate.books import Book

AHEAD: Final = 2
"""Jobs of a project that the core is offered ahead of need: it decides between projects, not within one."""

SWEEP_EVERY: Final = 4096
"""Ends after which as many idle accounts are looked at, to be forgotten if they say nothing any more."""

PolicyOf: TypeAlias = Callable[[TenantPath], NodePolicy]


class Waiting:
    """Jobs of one project that wait, first in first out: 24 bytes each. ``estimate`` in worker-seconds."""

    __slots__ = ("_arrived", "_durations", "_estimates", "_head")

    def __init__(self) -> None:
        self._arrived = array("d")
        self._durations = array("d")
        self._estimates = array("d")
        self._head = 0

    def __len__(self) -> int:
        return len(self._arrived) - self._head

    def append(self, arrived: float, duration: float, estimate: float) -> None:
        """Add a job at the tail."""
        self._arrived.append(arrived)
        self._durations.append(duration)
        self._estimates.append(estimate)

    def popleft(self) -> tuple[float, float, float]:
        """Take the job at the head."""
        head = self._head
        found = self._arrived[head], self._durations[head], self._estimates[head]
        self._head = head = head + 1
        if head > 1024 and head * 2 > len(self._arrived):
            for column in (self._arrived, self._durations, self._estimates):
                del column[:head]
            self._head = 0
        return found


class Project:
    """A project as a policy knows it: whose it is, and what of its jobs waits outside the core."""

    __slots__ = ("book", "offered", "path", "queue")

    def __init__(self, path: TenantPath, book: Book) -> None:
        self.path = path
        self.book = book
        self.offered = 0
        """Jobs that the core has been offered and not started."""
        self.queue: Waiting | None = None
        """The others that wait, in the order in which they came."""


class Task(Job):
    """A job on its way through the simulation: the core's job, and what the world knows of it.

    ``serial``: names its running attempt, 0 while it has none. ``charged``: worker-seconds so far, at least the
    estimate once it has started.
    """

    __slots__ = ("arrived", "charged", "duration", "project", "serial", "started", "token")

    token: int
    started: float

    def __init__(
        self, number: int, project: Project, arrived: float, duration: float, estimate: float, losses: int = 0
    ) -> None:
        # Not by way of `Job`, which would check the estimate again: one is made for every job of a trace.
        self.id = number
        self.path = project.path
        self.estimate = estimate
        self.priority = DEFAULT_PRIORITY
        self.losses = losses
        self.ref = None
        self.limits = ()
        self.order = 0
        self.next = None
        self.taken = self.withdrawn = False
        self.project = project
        self.arrived = arrived
        self.duration = duration
        self.charged = 0.0
        self.serial = 0

    def again(self, number: int) -> Task:
        """Return the same job, to be tried again after a loss."""
        return Task(number, self.project, self.arrived, self.duration, self.estimate, self.losses + 1)


class Policy(Protocol):
    """What the engine asks of a policy."""

    def set_slots(self, slots: int) -> None:
        """Live slots from now on."""
        ...

    def arrive(self, project: Project, arrived: float, duration: float, estimate: float) -> None:
        """A job waits. ``duration`` is only carried along."""
        ...

    def start(self, now: float) -> Task | None:
        """Choose the job that starts now, if any may."""
        ...

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        """An attempt is over; if it was lost, its job waits again, in front."""
        ...

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        """Charge overruns; return the tasks and what was added."""
        ...

    def clock(self, level: TenantPath) -> Node | None:
        """Return the node whose rounds say what the children of a level were due, while any of them waits.

        ``None`` from a policy that has no such notion.
        """
        ...


class Drr:
    """The scheduler core."""

    def __init__(self, pool: PoolPolicy, policy_of: PolicyOf) -> None:
        self._scheduler = Scheduler(pool)
        self._take, self._offer, self._settle = self._scheduler.take, self._scheduler.offer, self._scheduler.settle
        self._nodes = self._scheduler.tree.nodes
        self._policy_of = policy_of
        self._known: set[TenantPath] = set()
        self._number = 0
        """Of the last job or attempt: ids and tokens are drawn from one sequence."""
        self._ended = 0
        self._untouched = 0

    @property
    def scheduler(self) -> Scheduler:
        """The core."""
        return self._scheduler

    def set_slots(self, slots: int) -> None:
        """Live slots from now on."""
        self._scheduler.set_slots(slots)

    def arrive(self, project: Project, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        if project.offered < AHEAD:
            if not project.offered and project.path not in self._known:
                self._meet(project.path)
            project.offered += 1
            self._number = number = self._number + 1
            self._offer(Task(number, project, arrived, duration, estimate))
            return
        queue = project.queue
        if queue is None:
            queue = project.queue = Waiting()
        queue.append(arrived, duration, estimate)

    def _meet(self, path: TenantPath) -> None:
        for depth in range(1, len(path) + 1):
            node = path[:depth]
            if node not in self._known:
                self._known.add(node)
                policy = self._policy_of(node)
                if policy != _DEFAULTS:
                    self._scheduler.set_policy(node, policy)

    def start(self, now: float) -> Task | None:
        """Take one decision of the core."""
        self._number = number = self._number + 1
        lease = self._take(number, now)
        if lease is None:
            return None
        task: Task = lease.job  # type: ignore[assignment]
        task.token = number
        project = task.project
        queue = project.queue
        if queue is None:
            project.offered -= 1
            return task
        self._number = number = number + 1
        self._offer(Task(number, project, *queue.popleft()))
        if not queue:
            project.queue = None
        return task

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        """Settle; a lost job is offered again at the head."""
        self._settle(task.token, Outcome.LOST if lost else Outcome.SUCCEEDED, held)
        if lost:
            task.project.offered += 1
            self._number += 1
            self._offer(task.again(self._number), front=True)
        self._ended += 1
        if self._ended >= SWEEP_EVERY:
            self._ended = 0
            self._scheduler.sweep(SWEEP_EVERY)
            self._untouched += SWEEP_EVERY
            if self._untouched > 4 * len(self._nodes):  # it looks at all accounts that have changed
                self._untouched = 0
                self._scheduler.touched()

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        """Charge overruns."""
        return [self._accrued(lease) for lease in self._scheduler.accrue(now)]

    @staticmethod
    def _accrued(lease: RunningLease) -> tuple[Task, float]:
        task: Task = lease.job  # type: ignore[assignment]
        return task, lease.charged - task.charged

    def clock(self, level: TenantPath) -> Node | None:
        """Return the core's node."""
        return self._nodes[level]


_DEFAULTS: Final = NodePolicy()


class _Simple:
    """What the policies without accounts share."""

    def set_slots(self, slots: int) -> None:
        """These know no caps, so nothing follows the slots."""

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        """A lost job waits again, in front of its kind."""
        if lost:
            self.put_back(task.again(0))

    def put_back(self, task: Task) -> None:
        """A lost job waits, in front."""
        raise NotImplementedError

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        """These charge nothing."""
        return []

    def clock(self, level: TenantPath) -> Node | None:
        """These know no rounds."""
        return None


class Fifo(_Simple):
    """One queue, first in first out."""

    def __init__(self) -> None:
        self._projects: deque[Project] = deque()
        self._waiting = Waiting()
        self._returned: deque[Task] = deque()

    def arrive(self, project: Project, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        self._projects.append(project)
        self._waiting.append(arrived, duration, estimate)

    def start(self, now: float) -> Task | None:
        """The oldest."""
        if self._returned:
            return self._returned.popleft()
        return Task(0, self._projects.popleft(), *self._waiting.popleft()) if self._projects else None

    def put_back(self, task: Task) -> None:
        """A lost job waits, in front."""
        self._returned.appendleft(task)


class _ByOrganisation(_Simple):
    """A queue per organisation."""

    def __init__(self) -> None:
        self._queues: dict[str, Fifo] = {}
        self._counts: dict[str, int] = {}

    def arrive(self, project: Project, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        name = project.path[0]
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = Fifo()
        queue.arrive(project, arrived, duration, estimate)
        self._more(name)

    def put_back(self, task: Task) -> None:
        """A lost job waits, in front."""
        self._queues[task.path[0]].put_back(task)
        self._more(task.path[0])

    def _more(self, name: str) -> None:
        waiting = self._counts.get(name, 0)
        self._counts[name] = waiting + 1
        if not waiting:
            self._join(name)

    def _take(self, name: str, now: float) -> Task | None:
        self._counts[name] -= 1
        if self._counts[name]:
            self._join(name)
        return self._queues[name].start(now)

    def _join(self, name: str) -> None:
        raise NotImplementedError


class RoundRobin(_ByOrganisation):
    """A job of each organisation in turn, whatever it costs."""

    def __init__(self) -> None:
        super().__init__()
        self._turns: deque[str] = deque()

    def _join(self, name: str) -> None:
        self._turns.append(name)

    def start(self, now: float) -> Task | None:
        """The oldest job of the organisation whose turn it is."""
        return self._take(self._turns.popleft(), now) if self._turns else None


class LeastRecentlyServed(_ByOrganisation):
    """The organisation whose last start is longest ago; one that never started goes first."""

    def __init__(self) -> None:
        super().__init__()
        self._served: dict[str, int] = {}
        self._heap: list[tuple[int, int, str]] = []
        self._numbers = count(1)

    def _join(self, name: str) -> None:
        heappush(self._heap, (self._served.get(name, 0), next(self._numbers), name))

    def start(self, now: float) -> Task | None:
        """The oldest job of that organisation."""
        if not self._heap:
            return None
        name = heappop(self._heap)[2]
        self._served[name] = next(self._numbers)
        return self._take(name, now)


BASELINES: Final[Mapping[str, Callable[[], Policy]]] = {
    "fifo": Fifo,
    "round-robin": RoundRobin,
    "least-recently-served": LeastRecentlyServed,
}
POLICIES: Final = ("drr", *BASELINES)
"""Names of all policies."""


def make_policy(name: str, pool: PoolPolicy, policy_of: PolicyOf) -> Policy:
    """Return a new policy by name. Weights, caps and floors are the core's; the others know none."""
    return Drr(pool, policy_of) if name == "drr" else BASELINES[name]()
