"""A state machine over shared limits: two pools, one book, and a naive model that answers by counting leases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from drr.core.invariants import check
from drr.core.scheduler import Job, Scheduler
from drr.core.shared import LimitBook
from drr.model import NodePolicy, Outcome, PoolPolicy, SharedLimit, TenantPath
from tests.sim.model import line
from tests.sim.record import resolved

LEAVES: list[TenantPath] = [
    ("acme", "a"),
    ("acme", "b"),
    ("globex", "a"),
    ("solo",),
    ("deep", "er", "x"),
    ("deep", "z"),
]
NODES: list[TenantPath] = [*LEAVES, ("acme",), ("deep",), ("deep", "er")]
NAMES = ("api", "db", "mail", "unlisted")
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

few = st.one_of(st.none(), st.integers(1, 3))
shared_limits = st.builds(
    SharedLimit,
    concurrency=few,
    rate=st.sampled_from([None, None, 0.5, 3.0]),
    burst=st.integers(1, 2),
    per_organisation=few,
    per_project=few,
)
books = st.fixed_dictionaries(dict.fromkeys(NAMES[:3], shared_limits))
named = st.sets(st.sampled_from(NAMES), max_size=4).map(lambda names: tuple(sorted(names)))
durations = st.sampled_from([0.0, 0.1, 1.0, 3.0, 20.0])
policies = st.builds(
    NodePolicy,
    weight=st.sampled_from([0.1, 1.0, 4.0]),
    hard_cap=st.sampled_from([None, 2, 3]),
    soft_cap=st.sampled_from([None, 1, 2]),
    floor=st.sampled_from([0, 1]),
)


@dataclass(eq=False)
class Side:
    """One pool: the core, and lists of what waits and runs."""

    core: Scheduler
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    slots: int = 0
    policies: dict[TenantPath, NodePolicy] = field(default_factory=dict)
    waiting: list[Job] = field(default_factory=list)
    running: dict[int, Job] = field(default_factory=dict)

    def below(self, node: TenantPath) -> int:
        return sum(job.path[: len(node)] == node for job in self.running.values())

    def capped(self, job: Job) -> bool:
        """Whether a cap, or the reserve, holds ``job`` up."""
        free = self.slots - len(self.running)
        bounds = {node: resolved(self.policies.get(node, NodePolicy()), self.slots) for node in line(job.path)}
        if any(self.below(node) >= hard for node, (_, _, hard) in bounds.items()):
            return True
        return free <= self.pool.reserve and any(self.below(node) >= soft for node, (_, soft, _) in bounds.items())

    def heads(self) -> Iterator[Job]:
        """Yield the first job of each set of limits of each project; ``waiting`` is kept in order."""
        seen = set()
        for job in self.waiting:
            if (job.path, job.limits) not in seen:
                seen.add((job.path, job.limits))
                yield job


class LimitsMachine(RuleBasedStateMachine):
    """Drives two schedulers with one book, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = iter(range(1_000_000))
        self.now = 0.0
        self.limits: dict[str, SharedLimit] = {}
        self.book = LimitBook()
        self.sides = [Side(Scheduler(limits=self.book)) for _ in range(2)]

    @initialize(limits=books, slots=st.integers(1, 6), reserve=st.sampled_from([0, 0, 1]))
    def begin(self, limits: dict[str, SharedLimit], slots: int, reserve: int) -> None:
        self.set_limits(limits)
        for side in self.sides:
            side.pool = PoolPolicy(reserve=reserve)
            side.core.set_pool(side.pool)
            self.set_slots(self.sides.index(side), slots)

    # --- facts ---

    @rule(
        pool=st.integers(0, 1),
        path=st.sampled_from(LEAVES),
        limits=named,
        priority=st.sampled_from([1, 5]),
        estimate=st.sampled_from([0.1, 1.0, 30.0]),
        count=st.integers(1, 4),
        front=st.booleans(),
    )
    def offer(
        self,
        pool: int,
        path: TenantPath,
        limits: tuple[str, ...],
        priority: int,
        estimate: float,
        count: int,
        front: bool,
    ) -> None:
        side = self.sides[pool]
        for _ in range(count):
            job = Job(next(self.numbers), path, estimate, priority, limits=limits)
            side.core.offer(job, front=front)
            places = [number for number, other in enumerate(side.waiting) if other.priority < priority + (not front)]
            side.waiting.insert(places[-1] + 1 if places else 0, job)

    @rule(data=st.data(), pool=st.integers(0, 1))
    def withdraw(self, data: st.DataObject, pool: int) -> None:
        side = self.sides[pool]
        if side.waiting:
            job = data.draw(st.sampled_from(side.waiting))
            assert side.core.withdraw(job.id) is job
            side.waiting.remove(job)

    @rule(data=st.data(), pool=st.integers(0, 1), outcome=st.sampled_from(Outcome), held=durations)
    def settle(self, data: st.DataObject, pool: int, outcome: Outcome, held: float) -> None:
        side = self.sides[pool]
        if side.running:
            token = data.draw(st.sampled_from(list(side.running)))
            side.core.settle(token, outcome, held)
            del side.running[token]

    @rule(seconds=durations)
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.book.advance(self.now)
        for side in self.sides:
            side.core.accrue(self.now)

    # --- settings ---

    @rule(limits=books)
    def set_limits(self, limits: dict[str, SharedLimit]) -> None:
        self.limits = limits
        self.book.set_limits(limits)

    @rule(pool=st.integers(0, 1), slots=st.integers(0, 6))
    def set_slots(self, pool: int, slots: int) -> None:
        self.sides[pool].slots = slots
        self.sides[pool].core.set_slots(slots)

    @rule(pool=st.integers(0, 1), path=st.sampled_from(NODES), policy=policies)
    def set_policy(self, pool: int, path: TenantPath, policy: NodePolicy) -> None:
        self.sides[pool].policies[path] = policy
        self.sides[pool].core.set_policy(path, policy)

    @rule(pool=st.integers(0, 1))
    def sweep(self, pool: int) -> None:
        self.sides[pool].core.sweep()

    @rule()
    def take_over(self) -> None:
        """A new leader: limits are held by the leases that it adopts."""
        self.book = LimitBook(self.limits)
        for side in self.sides:
            states = {path: state for path, state in side.core.touched().items() if state is not None}
            old, side.core = side.core, Scheduler(side.pool, side.policies, limits=self.book)
            side.core.restore(states)
            side.core.set_slots(side.slots)
            for token, job in side.running.items():
                lease = old.leases[token]
                job = side.running[token] = Job(job.id, job.path, job.estimate, job.priority, limits=job.limits)
                side.core.adopt(job, token, lease.started, lease.charged, lease.excused)
            side.waiting = [Job(j.id, j.path, j.estimate, j.priority, limits=j.limits) for j in side.waiting]
            for job in side.waiting:
                side.core.offer(job)

    # --- decisions ---

    def held(self, name: str, node: TenantPath = ()) -> int:
        """Leases of both pools that hold a limit."""
        jobs = [job for side in self.sides for job in side.running.values()]
        return sum(name in job.limits and job.path[: len(node)] == node for job in jobs)

    def hindered(self, job: Job, *, spare: int = 0) -> bool:
        """Whether a limit forbids ``job`` to start; ``spare`` units are kept back for somebody else."""
        for name in job.limits:
            limit = self.limits.get(name, SharedLimit())
            known = self.book.known.get(name)
            kept = spare if known is not None and known.claim is not None else 0
            if limit.concurrency is not None and self.held(name) >= limit.concurrency - kept:
                return True
            if limit.rate is not None and known is not None and known.tokens + 1e-6 < 1.0 + kept:
                return True
            if limit.per_organisation is not None and self.held(name, job.path[:1]) >= limit.per_organisation:
                return True
            if limit.per_project is not None and self.held(name, job.path) >= limit.per_project:
                return True
        return False

    @rule(pool=st.integers(0, 1), count=st.integers(1, 6))
    def take(self, pool: int, count: int) -> None:
        side = self.sides[pool]
        self.book.advance(self.now)
        for _ in range(count):
            token = next(self.numbers)
            heads = list(side.heads())
            allowed = [job for job in heads if not side.capped(job) and not self.hindered(job)]
            lease = side.core.take(token, self.now)
            if lease is None:
                if len(side.running) < side.slots:
                    claimant = self.book.claimant
                    forced = [
                        job
                        for job in allowed
                        if not self.hindered(job, spare=0 if claimant and claimant.head is job else 1)
                    ]
                    assert not forced, f"nothing was started, but {forced} may start"
                return
            job = lease.job
            assert len(side.running) < side.slots
            assert job in allowed, f"{job} was started, allowed are {allowed}"
            passed = [one for one in heads if one.path == job.path and not one.limits and one.priority < job.priority]
            assert not passed, f"{job} went before {passed} of its project"
            side.waiting.remove(job)
            side.running[token] = job

    # --- always ---

    @invariant()
    def all_is_in_step(self) -> None:
        for side in self.sides:
            check(side.core)
            assert (side.core.queued, side.core.running) == (len(side.waiting), len(side.running))
        for name in NAMES:
            assert self.book.running(name) == self.held(name)

    def teardown(self) -> None:
        """Nothing starves and nothing leaks: with slots and time, every waiting job starts."""
        for pool in range(2):
            self.set_slots(pool, 3)
        for _ in range(2 * sum(len(side.waiting) + len(side.running) for side in self.sides) + 1):
            self.now += 5.0
            for pool, side in enumerate(self.sides):
                self.take(pool, 6)
                for token in list(side.running):
                    side.core.settle(token, Outcome.SUCCEEDED, 1.0)
                    del side.running[token]
        for side in self.sides:
            assert not side.waiting, f"{side.waiting} never started"
            check(side.core)
        assert self.book.claimant is None
        assert all(limit.policy.rate is not None for limit in self.book.known.values()), "a limit is left over"


TestLimitsMachine = LimitsMachine.TestCase
TestLimitsMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, phases=PHASES)


@pytest.mark.soak
def test_limits_machine_at_length() -> None:
    """The same, for minutes."""
    run_state_machine_as_test(
        LimitsMachine,
        settings=settings(max_examples=3_000, stateful_step_count=80, deadline=None, phases=PHASES),
    )
