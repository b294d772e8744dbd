"""A state machine over all inputs of the core: after every step its invariants hold and a naive model agrees."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from drr.core.invariants import check
from drr.core.scheduler import Job, Scheduler
from drr.errors import DrrError, DuplicateJob, InvalidValue, UnknownLease
from drr.model import NodePolicy, NodeState, Outcome, PoolPolicy, Share, TenantPath
from tests.sim.model import Model

# Organisations with two projects, with one, a tenant without projects, and one more level.
LEAVES: list[TenantPath] = [
    ("acme", "a"),
    ("acme", "b"),
    ("globex", "a"),
    ("solo",),
    ("deep", "er", "x"),
    ("deep", "er", "y"),
    ("deep", "z"),
]
NODES: list[TenantPath] = [*LEAVES, ("acme",), ("globex",), ("deep",), ("deep", "er")]

# Explaining a failure takes minutes here and says little that the steps do not.
PHASES = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)

estimates = st.sampled_from([1e-6, 0.1, 0.5, 1.0, 1.5, 3.0, 10.0, 1000.0, 1e8])
durations = st.sampled_from([0.0, 0.01, 0.5, 1.0, 2.0, 7.0, 100.0])
priorities = st.sampled_from([0, 4, 5, 9])
caps = st.one_of(st.none(), st.integers(1, 4), st.sampled_from([Share(0.0), Share(0.2), Share(0.5), Share(1.0)]))
floors = st.one_of(st.just(0), st.integers(0, 3), st.sampled_from([Share(0.1), Share(0.5)]))
weights = st.sampled_from([0.001, 0.5, 1.0, 2.0, 100.0])
ceilings = st.sampled_from([None, 0.0, 1.0, 100.0])
pools = st.builds(
    PoolPolicy,
    quantum=st.sampled_from([0.001, 0.5, 1.0, 10.0]),
    ceiling=st.sampled_from([0.0, 2.0, 60.0]),
    reserve=st.sampled_from([0, 0, 1, 2]),
)


@st.composite
def policies(draw: st.DrawFn) -> NodePolicy:
    """A policy; combinations that contradict themselves are drawn again."""
    while True:
        try:
            return NodePolicy(draw(weights), draw(caps), draw(caps), draw(floors), draw(ceilings))
        except InvalidValue:
            continue


class CoreMachine(RuleBasedStateMachine):
    """Drives one scheduler and one model with the same facts."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.core = Scheduler()
        self.store: dict[TenantPath, NodeState] = {}
        self.now = 0.0
        self.numbers = iter(range(1_000_000))

    @initialize(pool=pools, slots=st.integers(0, 8))
    def begin(self, pool: PoolPolicy, slots: int) -> None:
        self.core.set_pool(pool)
        self.model.pool = pool
        self.set_slots(slots, 0)

    # --- jobs ---

    def new_job(self, path: TenantPath, estimate: float, priority: int, losses: int = 0) -> Job:
        return Job(next(self.numbers), path, estimate, priority, losses)

    @rule(path=st.sampled_from(LEAVES), estimate=estimates, priority=priorities, count=st.integers(1, 3))
    def offer(self, path: TenantPath, estimate: float, priority: int, count: int) -> None:
        for _ in range(count):
            job = self.new_job(path, estimate, priority)
            self.core.offer(job)
            self.model.offer(job, front=False)

    @rule(path=st.sampled_from(LEAVES), estimate=estimates, priority=priorities)
    def offer_in_front(self, path: TenantPath, estimate: float, priority: int) -> None:
        job = self.new_job(path, estimate, priority)
        self.core.offer(job, front=True)
        self.model.offer(job, front=True)

    @rule(data=st.data())
    @precondition(lambda self: self.model.jobs())
    def withdraw(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.model.jobs()))
        assert self.core.withdraw(job.id) is job
        self.model.waiting[job.path].remove(job)

    @rule(path=st.sampled_from(LEAVES), more=st.booleans())
    def expect(self, path: TenantPath, more: bool) -> None:
        self.core.expect(path, more)
        (self.model.more.add if more else self.model.more.discard)(path)

    # --- decisions ---

    @rule(count=st.integers(1, 4))
    def take(self, count: int) -> None:
        for _ in range(count):
            token = next(self.numbers)
            allowed = self.model.allowed()
            lease = self.core.take(token, self.now)
            if lease is None:
                assert not allowed, f"nothing was started, but {allowed} may start"
                return
            assert lease.job in allowed, f"{lease.job} was started, allowed are {allowed}"
            assert (lease.token, lease.started, lease.charged) == (token, self.now, lease.job.estimate)
            self.model.start(lease.job, token, self.now)

    @rule(data=st.data(), outcome=st.sampled_from(Outcome), held=durations, again=st.booleans())
    @precondition(lambda self: self.model.leases)
    def settle(self, data: st.DataObject, outcome: Outcome, held: float, again: bool) -> None:
        token = data.draw(st.sampled_from(list(self.model.leases)))
        lease = self.core.settle(token, outcome, held)
        job = self.model.settle(token, outcome, held)
        assert lease.job is job
        if again and outcome is not Outcome.SUCCEEDED:
            retry = self.new_job(job.path, job.estimate, job.priority, job.losses + outcome.platform_fault)
            self.core.offer(retry, front=True)
            self.model.offer(retry, front=True)

    @rule(seconds=durations)
    def accrue(self, seconds: float) -> None:
        self.now += seconds
        assert {lease.token for lease in self.core.accrue(self.now)} == self.model.accrue(self.now)

    # --- settings ---

    @rule(slots=st.integers(0, 8), withheld=st.integers(0, 2))
    def set_slots(self, slots: int, withheld: int) -> None:
        self.core.set_slots(slots, withheld)
        self.model.slots, self.model.withheld = slots, withheld

    @rule(path=st.sampled_from(NODES), policy=st.one_of(st.none(), policies()))
    def set_policy(self, path: TenantPath, policy: NodePolicy | None) -> None:
        self.core.set_policy(path, policy)
        self.model.policies[path] = policy or NodePolicy()

    @rule(pool=pools)
    def set_pool(self, pool: PoolPolicy) -> None:
        self.core.set_pool(pool)
        self.model.pool = pool

    @rule(limit=st.integers(0, 10))
    def sweep(self, limit: int) -> None:
        self.core.sweep(limit)
        for path in set(self.model.settled) - set(self.core.tree.nodes):
            assert not self.model.running(path), f"{path} was forgotten while it runs"
            del self.model.settled[path]

    # --- persistence ---

    def commit(self) -> None:
        for path, state in self.core.touched().items():
            if state is None:
                self.store.pop(path, None)
            else:
                self.store[path] = state

    @rule()
    def commits(self) -> None:
        self.commit()

    @rule()
    def take_over(self) -> None:
        """A new leader loads what was committed and goes on with every account as it was."""
        self.commit()
        before = {path: self.account(path) for path in self.core.tree.nodes if path}
        old, self.core = self.core, Scheduler(self.model.pool, self.model.policies)
        self.core.restore(self.store)
        self.core.set_slots(self.model.slots, self.model.withheld)
        for token, lease in self.model.leases.items():
            running = old.leases[token]
            job = Job(lease.job.id, lease.job.path, lease.job.estimate, lease.job.priority, lease.job.losses)
            lease.job = job
            self.core.adopt(job, token, lease.started, lease.charged, running.excused)
        for path, jobs in self.model.waiting.items():
            fresh = [Job(job.id, path, job.estimate, job.priority, job.losses) for job in jobs]
            self.model.waiting[path] = fresh
            for job in fresh:
                self.core.offer(job)
        for path in self.model.more:
            self.core.expect(path, True)
        for path in self.core.tree.nodes:
            assert path in before or not path, f"{path} came from nowhere"
            if path:
                self.same_account(path, before[path], self.account(path))
        self.model.restart_totals()

    def account(self, path: TenantPath) -> tuple[float, int, bool]:
        """Credit as it was in round 0 (whatever was granted meanwhile), the lane, and whether it says anything.

        A debt that an amnesty has voided counts as forgiven, whether or not that was noted yet. An account
        without debt or credit and without work says nothing.
        """
        node = self.core.tree.nodes[path]
        assert node.parent is not None
        state = node.state()
        credit = state.credit if state.void == node.parent.middle.voids else max(state.credit, 0.0)
        return credit - state.granted * node.quantum, node.lane, credit != 0.0 or node.queued > 0

    @staticmethod
    def same_account(path: TenantPath, old: tuple[float, int, bool], new: tuple[float, int, bool]) -> None:
        if old[2]:
            assert new[0] == pytest.approx(old[0], rel=1e-9, abs=1e-6), f"{path} continues with another credit"
        assert new[1:] == old[1:], f"{path} is in another lane"

    # --- refusals change nothing ---

    def refused(self, error: type[DrrError], call: Callable[[], object]) -> None:
        before = self.picture()
        with pytest.raises(error):
            call()
        assert self.picture() == before

    def picture(self) -> object:
        return (
            self.core.describe(),
            {path: (node.state(), node.due, node.lane, node.head) for path, node in self.core.tree.nodes.items()},
            {token: lease.charged for token, lease in self.core.leases.items()},
            self.core.free,
        )

    @rule(held=st.sampled_from([math.nan, math.inf, -1.0]), data=st.data())
    def illegal_steps(self, held: float, data: st.DataObject) -> None:
        core: Any = self.core
        self.refused(UnknownLease, lambda: core.settle("nobody's", Outcome.SUCCEEDED, 1.0))
        self.refused(InvalidValue, lambda: core.set_slots(-1))
        self.refused(InvalidValue, lambda: core.set_slots(1, -1))
        self.refused(InvalidValue, lambda: core.set_policy(("no such name!",), NodePolicy()))
        before = self.picture()
        assert core.withdraw("nobody's") is None
        if self.model.leases:
            token, lease = data.draw(st.sampled_from(list(self.model.leases.items())))
            assert core.withdraw(lease.job.id) is None, "a running job is not withdrawn"
            self.refused(InvalidValue, lambda: core.settle(token, Outcome.SUCCEEDED, held))
            self.refused(DuplicateJob, lambda: core.offer(Job(lease.job.id, lease.job.path, 1.0)))
            self.refused(InvalidValue, lambda: core.adopt(Job("new", lease.job.path, 1.0), token, 0.0, 1.0))
            if self.model.allowed():
                self.refused(InvalidValue, lambda: core.take(token, self.now))
        if self.model.jobs():
            job = data.draw(st.sampled_from(self.model.jobs()))
            self.refused(DuplicateJob, lambda: core.offer(Job(job.id, job.path, 1.0)))
            self.refused(DuplicateJob, lambda: core.adopt(job, "fresh", 0.0, 1.0))
            self.refused(InvalidValue, lambda: core.offer(Job("below", (*job.path, "child"), 1.0)))
            self.refused(InvalidValue, lambda: core.restore({}))
            if len(job.path) > 1:
                self.refused(InvalidValue, lambda: core.offer(Job("above", job.path[:-1], 1.0)))
                self.refused(InvalidValue, lambda: core.adopt(Job("above", job.path[:-1], 1.0), "fresh", 0.0, 1.0))
        assert self.picture() == before

    # --- always ---

    @invariant()
    def derived_facts_are_in_step(self) -> None:
        check(self.core)

    @invariant()
    def counts_are_the_model_s(self) -> None:
        model, core = self.model, self.core
        assert (core.slots, core.free) == (model.slots, model.free)
        assert (core.running, core.queued) == (len(model.leases), len(model.jobs()))
        for view in core.describe():
            assert (view.running, view.queued) == (model.running(view.path), model.queued(view.path))
            assert (view.floor, view.soft_cap, view.hard_cap) == model.bounds(view.path)
            if view.path:
                assert view.charged == pytest.approx(model.charged(view.path), rel=1e-9, abs=1e-3)

    def teardown(self) -> None:
        """Nothing starves: with slots and no limits in the way, every waiting job starts."""
        self.set_pool(PoolPolicy(quantum=0.001))
        self.set_slots(4, 0)
        for _ in range(len(self.model.jobs()) + len(self.model.leases) + 1):
            self.take(8)
            for token in list(self.model.leases):
                self.core.settle(token, Outcome.SUCCEEDED, 1.0)
                self.model.settle(token, Outcome.SUCCEEDED, 1.0)
        assert not self.core.queued
        assert not self.core.running
        check(self.core)


TestCoreMachine = CoreMachine.TestCase
TestCoreMachine.settings = settings(max_examples=80, stateful_step_count=40, deadline=None, phases=PHASES)


@pytest.mark.soak
def test_core_machine_at_length() -> None:
    """The same, for minutes."""
    run_state_machine_as_test(
        CoreMachine,
        settings=settings(max_examples=3_000, stateful_step_count=80, deadline=None, phases=PHASES),
    )


def test_a_takeover_knows_the_rounds_that_passed_without_a_start() -> None:
    """B joined in a round that only its own account tells of: the level's clock must not stand before it."""
    pool = PoolPolicy(quantum=0.001)
    old = Scheduler(pool)
    old.set_slots(1)
    old.offer(Job(1, ("acme", "a"), 0.001))
    assert old.take("t", 0.0) is not None
    old.offer(Job(2, ("acme", "a"), 0.1))
    store = old.touched()
    old.offer(Job(3, ("acme", "b"), 0.001))  # a's next job is a hundred rounds off: they pass here
    store.update(old.touched())
    new = Scheduler(pool)
    new.restore({path: state for path, state in store.items() if state is not None})
    new.set_slots(1)
    new.adopt(Job(1, ("acme", "a"), 0.001), "t", 0.0, 0.001)
    new.offer(Job(2, ("acme", "a"), 0.1))
    new.offer(Job(3, ("acme", "b"), 0.001))
    check(new)


def test_leaving_from_behind_leaves_no_entry_uncounted() -> None:
    """Tenants that leave while others stand before them leave stale entries, swept when they are many."""
    core = Scheduler()
    for number in range(100):
        core.offer(Job(number, (f"org{number}",), 1.0))
    for number in reversed(range(100)):
        core.withdraw(number)
        check(core)
