"""A naive model of one pool, for the state machine: lists and sums, every question answered by brute force.

It knows which jobs wait, which leases live, and from these which decisions are allowed. It does not know
credit: which of the allowed decisions is the fair one is for the checks of `tests.sim.bounds`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field

from drr.core.scheduler import Job
from drr.model import NodePolicy, Outcome, PoolPolicy, TenantPath
from tests.sim.record import resolved


@dataclass(slots=True)
class ModelLease:
    """A live lease and what it has been charged."""

    job: Job
    started: float
    charged: float
    excused: tuple[float, ...] = ()


@dataclass
class Model:
    """The pool as a table."""

    pool: PoolPolicy = field(default_factory=PoolPolicy)
    policies: dict[TenantPath, NodePolicy] = field(default_factory=dict)
    slots: int = 0
    withheld: int = 0
    waiting: dict[TenantPath, list[Job]] = field(default_factory=dict)
    leases: dict[Hashable, ModelLease] = field(default_factory=dict)
    settled: dict[TenantPath, float] = field(default_factory=dict)
    more: set[TenantPath] = field(default_factory=set)

    @property
    def free(self) -> int:
        """Slots that could take a job."""
        return max(0, self.slots - self.withheld - len(self.leases))

    def jobs(self) -> list[Job]:
        """Every waiting job."""
        return [job for jobs in self.waiting.values() for job in jobs]

    def running(self, node: TenantPath) -> int:
        """Live leases below ``node``."""
        return sum(lease.job.path[: len(node)] == node for lease in self.leases.values())

    def queued(self, node: TenantPath) -> int:
        """Waiting jobs below ``node``."""
        return sum(job.path[: len(node)] == node for job in self.jobs())

    def charged(self, node: TenantPath) -> float:
        """All that was charged below ``node``, settled and running."""
        return self.settled.get(node, 0.0) + self.charged_live(node)

    def charged_live(self, node: TenantPath) -> float:
        """What the live leases below ``node`` have been charged."""
        return sum(lease.charged for lease in self.leases.values() if lease.job.path[: len(node)] == node)

    def restart_totals(self) -> None:
        """Let totals begin again at 0, as they do in the memory of a new leader."""
        nodes = {node for lease in self.leases.values() for node in line(lease.job.path)}
        self.settled = {node: -self.charged_live(node) for node in nodes}

    def bounds(self, node: TenantPath) -> tuple[int, int, int]:
        """Floor, soft and hard cap of ``node`` as counts."""
        return resolved(self.policies.get(node, NodePolicy()), self.slots)

    # --- facts ---

    def offer(self, job: Job, *, front: bool) -> None:
        """Put a job behind, or in front of, the others of its priority."""
        jobs = self.waiting.setdefault(job.path, [])
        same = [i for i, other in enumerate(jobs) if other.priority == job.priority]
        before = [i for i, other in enumerate(jobs) if other.priority < job.priority]
        if same:
            jobs.insert(same[0] if front else same[-1] + 1, job)
        else:
            jobs.insert(before[-1] + 1 if before else 0, job)

    def start(self, job: Job, token: Hashable, now: float) -> None:
        """A waiting job became a lease, charged its estimate."""
        self.waiting[job.path].remove(job)
        self.leases[token] = ModelLease(job, now, job.estimate)

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> Job:
        """A lease ended; its first loss costs nothing."""
        lease = self.leases.pop(token)
        free = outcome in (Outcome.LOST, Outcome.RETURNED) and lease.job.losses == 0
        for node in line(lease.job.path):
            self.settled[node] = self.settled.get(node, 0.0) + (0.0 if free else held)
        return lease.job

    def accrue(self, now: float) -> set[Hashable]:
        """Charge overruns; return the tokens of those that had one."""
        late = {token for token, lease in self.leases.items() if now - lease.started > lease.charged}
        for token in late:
            self.leases[token].charged = now - self.leases[token].started
        return late

    # --- what may be decided ---

    def allowed(self) -> list[Job]:
        """Return the heads that may start now: below every hard cap, in the best lane of each level, reserve kept."""
        if not self.free:
            return []
        heads = [jobs[0] for jobs in self.waiting.values() if jobs]
        heads = [job for job in heads if all(self.running(n) < self.bounds(n)[2] for n in line(job.path))]
        if self.free <= self.pool.reserve:
            heads = [job for job in heads if all(self.running(n) < self.bounds(n)[1] for n in line(job.path))]
        return self._best((), heads)

    def _best(self, level: TenantPath, heads: list[Job]) -> list[Job]:
        depth = len(level) + 1
        children = {job.path[:depth] for job in heads if len(job.path) >= depth}
        if not children:
            return heads
        best = min(self.lane(child) for child in children)
        return [
            job
            for child in children
            if self.lane(child) == best
            for job in self._best(child, [job for job in heads if job.path[:depth] == child])
        ]

    def lane(self, node: TenantPath) -> int:
        """0: owed a floor, 1: under its soft cap, 2: borrowing."""
        running, (floor, soft, _) = self.running(node), self.bounds(node)
        return 0 if running < floor else 1 if running < soft else 2


def line(path: TenantPath) -> Iterator[TenantPath]:
    """Yield the nodes of ``path`` from the outermost tenant inwards."""
    for depth in range(1, len(path) + 1):
        yield path[:depth]
