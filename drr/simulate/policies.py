"""Who starts next: the core, and three simpler policies to compare it with. All run on the same engine.

A policy is told of arrivals and ends, and asked for starts. It never hears a job's true duration.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Mapping
from heapq import heappop, heappush
from itertools import count
from typing import Final, Protocol, TypeAlias

from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.model import NodePolicy, Outcome, PoolPolicy, TenantPath

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


class Task:
    """A job on its way through the simulation: what the world knows of it."""

    __slots__ = ("arrived", "charged", "duration", "estimate", "losses", "path", "serial", "token")

    def __init__(self, path: TenantPath, arrived: float, duration: float, estimate: float) -> None:
        self.path = path
        self.arrived = arrived
        self.duration = duration
        self.estimate = estimate
        self.charged = 0.0
        self.losses = 0
        self.token = 0
        self.serial = 0


class Policy(Protocol):
    """What the engine asks of a policy."""

    def set_slots(self, slots: int) -> None:
        """Live slots from now on."""
        ...

    def arrive(self, path: TenantPath, arrived: float, duration: float, estimate: float) -> None:
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

    def due(self, level: TenantPath) -> float | None:
        """Return what a waiting child of weight 1 was due so far, in worker-seconds from any start.

        ``None`` from a policy that has no such notion.
        """
        ...


class Drr:
    """The scheduler core."""

    def __init__(self, pool: PoolPolicy, policy_of: PolicyOf) -> None:
        self._scheduler = Scheduler(pool)
        self._nodes = self._scheduler.tree.nodes
        self._policy_of = policy_of
        self._known: set[TenantPath] = set()
        self._waiting: dict[TenantPath, Waiting] = {}
        self._offered: dict[TenantPath, int] = {}
        self._tokens = count(1)
        self._ended = 0

    @property
    def scheduler(self) -> Scheduler:
        """The core."""
        return self._scheduler

    def set_slots(self, slots: int) -> None:
        """Live slots from now on."""
        self._scheduler.set_slots(slots)

    def arrive(self, path: TenantPath, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        offered = self._offered.get(path)
        if offered is None:
            self._meet(path)
            offered = 0
        if offered >= AHEAD:
            waiting = self._waiting.get(path)
            if waiting is None:
                waiting = self._waiting[path] = Waiting()
            waiting.append(arrived, duration, estimate)
            return
        self._offered[path] = offered + 1
        self._offer(Task(path, arrived, duration, estimate))

    def _meet(self, path: TenantPath) -> None:
        for depth in range(1, len(path) + 1):
            node = path[:depth]
            if node not in self._known:
                self._known.add(node)
                policy = self._policy_of(node)
                if policy != _DEFAULTS:
                    self._scheduler.set_policy(node, policy)

    def _offer(self, task: Task, *, front: bool = False) -> None:
        token = next(self._tokens)
        self._scheduler.offer(Job(token, task.path, task.estimate, losses=task.losses, ref=task), front=front)

    def start(self, now: float) -> Task | None:
        """Take one decision of the core."""
        token = next(self._tokens)
        lease = self._scheduler.take(token, now)
        if lease is None:
            return None
        task: Task = lease.job.ref  # type: ignore[assignment]
        task.token = token
        path = task.path
        waiting = self._waiting.get(path)
        if waiting is None:
            self._offered[path] -= 1
            return task
        self._offer(Task(path, *waiting.popleft()))
        if not len(waiting):
            del self._waiting[path]
        return task

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        """Settle; a lost job is offered again at the head."""
        self._scheduler.settle(task.token, Outcome.LOST if lost else Outcome.SUCCEEDED, held)
        if lost:
            task.losses += 1
            self._offered[task.path] += 1
            self._offer(task, front=True)
        self._ended += 1
        if self._ended >= SWEEP_EVERY:
            self._ended = 0
            self._scheduler.sweep(SWEEP_EVERY)
            self._scheduler.touched()

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        """Charge overruns."""
        return [self._accrued(lease) for lease in self._scheduler.accrue(now)]

    def due(self, level: TenantPath) -> float | None:
        """Return the quanta of the level's rounds so far."""
        node = self._nodes.get(level)
        return node.middle.round * self._scheduler.pool.quantum if node is not None else 0.0

    @staticmethod
    def _accrued(lease: RunningLease) -> tuple[Task, float]:
        task: Task = lease.job.ref  # type: ignore[assignment]
        return task, lease.charged - task.charged


_DEFAULTS: Final = NodePolicy()


class _Simple:
    """What the policies without accounts share."""

    def set_slots(self, slots: int) -> None:
        """These know no caps, so nothing follows the slots."""

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        """A lost job waits again, in front of its kind."""
        if lost:
            task.losses += 1
            self._return(task)

    def _return(self, task: Task) -> None:
        raise NotImplementedError

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        """These charge nothing."""
        return []

    def due(self, level: TenantPath) -> float | None:
        """These know no rounds."""
        return None


class Fifo(_Simple):
    """One queue, first in first out."""

    def __init__(self) -> None:
        self._paths: deque[TenantPath] = deque()
        self._waiting = Waiting()
        self._returned: deque[Task] = deque()

    def arrive(self, path: TenantPath, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        self._paths.append(path)
        self._waiting.append(arrived, duration, estimate)

    def start(self, now: float) -> Task | None:
        """The oldest."""
        if self._returned:
            return self._returned.popleft()
        return Task(self._paths.popleft(), *self._waiting.popleft()) if self._paths else None

    def _return(self, task: Task) -> None:
        self._returned.appendleft(task)


class _ByOrganisation(_Simple):
    """A queue per organisation."""

    def __init__(self) -> None:
        self._queues: dict[str, Fifo] = {}
        self._counts: dict[str, int] = {}

    def arrive(self, path: TenantPath, arrived: float, duration: float, estimate: float) -> None:
        """A job waits."""
        queue = self._queues.get(path[0])
        if queue is None:
            queue = self._queues[path[0]] = Fifo()
        queue.arrive(path, arrived, duration, estimate)
        self._more(path[0])

    def _return(self, task: Task) -> None:
        self._queues[task.path[0]].end(task, 0.0, lost=True)
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
