"""The engine and its books: by hand where a hand can, against a tiny reference, and with controls that must fail."""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from heapq import heapreplace

import pytest

from drr.errors import InvalidValue
from drr.model import NodePolicy, PoolPolicy, TenantPath
from drr.simulate.policies import POLICIES, Waiting
from drr.simulate.results import PolicyResult, TenantResult, Waits
from drr.simulate.run import Setup, simulate, slots_of, workers_for
from drr.simulate.trace import Arrival, Demand


class Listed:
    """A source with its jobs in a list."""

    def __init__(
        self,
        jobs: Sequence[tuple[float, float, str]],
        *,
        estimate: float | None = None,
        faults: Sequence[tuple[float, int]] = (),
    ) -> None:
        self.name = "listed"
        self.slots: Sequence[tuple[float, int]] = ()
        self.pool: str | None = None
        self.faults = faults
        self._jobs = [
            Arrival(at, seconds, seconds if estimate is None else estimate, path_of(tenant))
            for at, seconds, tenant in jobs
        ]

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._jobs)

    def demand(self) -> Demand:
        seconds = [job.duration for job in self._jobs]
        return Demand(len(seconds), sum(seconds), self._jobs[-1].at, max(seconds))


def path_of(tenant: str) -> TenantPath:
    organisation, _, project = tenant.partition("/")
    return organisation, project or "main"


def run(source: Listed, workers: int = 1, policy: str = "drr", **settings: object) -> PolicyResult:
    setup = Setup([(0.0, workers)], **settings)  # type: ignore[arg-type]
    return simulate(source, setup, [policy]).policies[policy]


def row(result: PolicyResult, tenant: str) -> TenantResult:
    path = tuple(tenant.split("/"))
    return next(row for row in result.tenants if row.path == path)


def some_trace(seed: int, jobs: int = 400, tenants: int = 8) -> Listed:
    rng = random.Random(seed)
    at, found = 0.0, []
    for _ in range(jobs):
        at += rng.expovariate(1.0)
        tenant = f"o{min(rng.randrange(tenants), rng.randrange(tenants))}/p{rng.randrange(2)}"
        found.append((at, rng.choice((0.1, 1.0, 5.0, 12.0)), tenant))
    return Listed(found)


def test_a_newcomer_waits_for_one_job_and_not_for_the_backlog() -> None:
    """By hand: a slot, jobs of 10 s of `a` at 0, one of `b` at 0.5; DRR starts it at 10, FIFO at 30."""
    source = Listed([(0.0, 10.0, "a"), (0.0, 10.0, "a"), (0.0, 10.0, "a"), (0.5, 1.0, "b")])
    fair, fifo = run(source), run(source, policy="fifo")
    assert row(fair, "b").wait_s.max == 9.5
    assert row(fifo, "b").wait_s.max == 29.5
    assert fair.makespan_s == fifo.makespan_s == 31.0
    assert fair.utilisation == fifo.utilisation == 1.0
    assert (fair.jobs, fair.starts, fair.unfinished) == (4, 4, 0)
    assert row(fair, "a").worker_seconds == 30.0
    assert row(fair, "a/main").jobs == 3


def test_fifo_waits_are_those_of_a_reference_in_six_lines() -> None:
    """First in first out over n slots needs no events: each job takes the slot that frees first."""
    for seed in range(5):
        source = some_trace(seed)
        free, waits = [0.0] * 3, []
        for job in source:
            start = max(free[0], job.at)
            waits.append(start - job.at)
            heapreplace(free, start + job.duration)
        result = run(source, workers=3, policy="fifo")
        found = Waits.of(array("d", waits))
        assert result.wait_s.max == pytest.approx(found.max)
        assert result.wait_s.p50 == pytest.approx(found.p50)
        assert result.wait_s.p99 == pytest.approx(found.p99)
        assert result.makespan_s == pytest.approx(max(free))


@pytest.mark.parametrize("policy", POLICIES)
def test_no_policy_loses_a_job_or_leaves_a_slot_idle(policy: str) -> None:
    """All jobs end, the worker-seconds are those of the trace, and no slot is free while a job waits."""
    for seed in range(5):
        source = some_trace(seed)
        result = run(source, workers=4, policy=policy)
        assert (result.jobs, result.unfinished) == (400, 0)
        assert result.idle_while_runnable_s == 0.0
        total = sum(tenant.worker_seconds for tenant in result.tenants if len(tenant.path) == 1)
        assert total == pytest.approx(source.demand().worker_seconds)


@pytest.mark.source
def test_an_idle_slot_is_noticed() -> None:
    """Negative control: a policy that starts nothing while jobs wait is found out, in seconds."""
    from drr.simulate.engine import Simulation
    from drr.simulate.policies import Fifo, Task

    class Lazy(Fifo):
        """Starts one job only every other time."""

        asked = 0

        def start(self, now: float) -> Task | None:
            self.asked += 1
            return super().start(now) if self.asked % 2 else None

    source = Listed([(0.0, 1.0, "a"), (0.0, 1.0, "a"), (0.0, 1.0, "a"), (5.0, 1.0, "a")])
    simulation = Simulation(
        source, Lazy(), PoolPolicy(), lambda _: NodePolicy(), [(0.0, 4)], accrues=False, window=1.0
    )
    assert simulation.run("lazy").idle_while_runnable_s > 0.0


def test_the_bound_holds_for_the_core_and_not_for_fifo() -> None:
    """Two tenants with backlogs throughout: drift within the bound; FIFO serves one before the other."""
    jobs = [(0.0, 1.0, "a")] * 400 + [(0.0, 1.0, "b")] * 400
    fair, fifo = run(Listed(jobs), workers=2), run(Listed(jobs), workers=2, policy="fifo")
    assert 0.0 < fair.drift_over_bound <= 1.0
    assert fifo.drift_over_bound > 10.0
    assert fair.jain == pytest.approx(1.0, abs=0.01)
    assert fifo.jain < 0.6
    assert fair.longest_run <= 2
    assert fifo.longest_run == 400


@pytest.mark.parametrize("factor", [0.1, 10.0])
def test_the_bound_holds_with_wrong_estimates(factor: float) -> None:
    """Estimates of a tenth and of ten times the duration."""
    jobs = [(0.0, 1.0, "a")] * 300 + [(0.0, 1.0, "b")] * 300
    assert run(Listed(jobs, estimate=factor), workers=3).drift_over_bound <= 1.0


def test_the_bound_holds_where_queues_run_empty_and_the_quantum_is_large() -> None:
    """Bursts with pauses, a quantum of many jobs: nobody saves quanta up in the pauses for the next burst."""
    rng = random.Random(3)
    jobs = []
    for second in range(600):
        for name in "abc":
            count = rng.choice((0, 1, 1, 2)) if second < 400 else 6
            jobs += [(float(second), 0.25, name)] * count
    result = run(Listed(jobs), workers=2, pool=PoolPolicy(quantum=20.0))
    assert result.drift_over_bound <= 1.0


def test_shares_follow_weights_while_both_wait() -> None:
    """Weights 1 and 3: shares and entitled shares of a quarter and three quarters."""
    jobs = [(0.0, 1.0, "a")] * 200 + [(0.0, 1.0, "b")] * 600
    weights = {("a",): NodePolicy(weight=1), ("b",): NodePolicy(weight=3)}
    result = run(Listed(jobs), workers=4, policy_of=lambda path: weights.get(path, NodePolicy()))
    for name, part in (("a", 0.25), ("b", 0.75)):
        assert row(result, name).share == pytest.approx(part, abs=0.02)
        assert row(result, name).entitled == pytest.approx(part, abs=0.02)


def test_time_at_a_cap_and_time_over_one_are_counted() -> None:
    """Three jobs of 10 s: hard cap 1, capped for 20 s; soft cap 1 with 3 slots, borrowing for 10 s."""
    jobs = [(0.0, 10.0, "a")] * 3
    hard = run(Listed(jobs), workers=3, policy_of=lambda p: NodePolicy(hard_cap=1 if p == ("a",) else None))
    assert row(hard, "a").capped_s == pytest.approx(20.0)
    assert hard.idle_while_runnable_s == 0.0, "a slot that may not be used is not idle"
    soft = run(Listed(jobs), workers=3, policy_of=lambda p: NodePolicy(soft_cap=1 if p == ("a",) else None))
    assert row(soft, "a").borrowing_s == pytest.approx(10.0)
    assert soft.makespan_s == 10.0


def test_a_lost_attempt_is_run_again_and_counted_as_worker_seconds() -> None:
    """By hand: the only slot fails at 4 s of a job of 10; nothing runs until it is back."""
    source = Listed([(0.0, 10.0, "a")], faults=[(4.0, 1)])
    setup = Setup([(0.0, 1), (20.0, 1)])
    result = simulate(source, setup).policies["drr"]
    assert (result.starts, result.unfinished, result.makespan_s) == (2, 0, 30.0)
    assert row(result, "a").worker_seconds == pytest.approx(14.0)


def test_what_is_not_done_by_the_end_is_said() -> None:
    """A time limit leaves jobs unfinished and counts only what has happened."""
    result = run(Listed([(0.0, 10.0, "a")] * 3), until=15.0)
    assert (result.jobs, result.unfinished) == (3, 2)


def test_the_same_input_gives_the_same_bytes() -> None:
    """Everything but the real time is a function of the trace."""
    one, other = (
        simulate(some_trace(7), Setup([(0.0, 3)]), POLICIES).to_json(tenants=True, timing=False) for _ in range(2)
    )
    assert one == other
    assert '"seconds": null' in one


def test_time_windows_are_bounded_in_number_and_complete() -> None:
    """However long the tail: a few hundred windows, whose worker-seconds add up."""
    source = Listed([(0.0, 1.0, "a"), (1.0, 1.0, "b"), *[(2.0, 50.0, "a")] * 300])
    result = run(source)
    assert len(result.windows) <= 401
    total = sum(usage.worker_seconds for window in result.windows for usage in window.usage.values())
    assert total == pytest.approx(source.demand().worker_seconds)
    assert sum(usage.starts for window in result.windows for usage in window.usage.values()) == 302


def test_waits_are_exact_percentiles_by_nearest_rank() -> None:
    """Of 1 to 100: 50, 95, 99 and 100; of nothing, zeros."""
    assert Waits.of(array("d", range(100, 0, -1))) == Waits(50.0, 95.0, 99.0, 100.0)
    assert Waits.of(array("d")) == Waits(0.0, 0.0, 0.0, 0.0)


def test_waiting_jobs_come_out_as_they_went_in() -> None:
    """Across the points where the used part is dropped."""
    waiting = Waiting()
    for number in range(5000):
        waiting.append(number, 2.0, 3.0)
    assert [waiting.popleft()[0] for _ in range(4000)] == list(range(4000))
    waiting.append(9999.0, 2.0, 3.0)
    assert len(waiting) == 1001
    assert [waiting.popleft()[0] for _ in range(1001)] == [*range(4000, 5000), 9999.0]


def test_workers_follow_from_a_load_or_are_given_or_stand_in_a_scenario() -> None:
    """100 worker-seconds over 10 s at a load of one half: 20 workers."""
    source = Listed([(0.0, 50.0, "a"), (10.0, 50.0, "a")])
    assert workers_for(source, 0.5) == 20
    assert slots_of(source, workers=7) == [(0.0, 7)]
    for wrong in ({}, {"workers": 0}, {"workers": 2, "load": 0.5}, {"load": -1.0}, {"load": float("nan")}):
        with pytest.raises(InvalidValue):
            slots_of(source, **wrong)
    with pytest.raises(InvalidValue, match="lifo"):
        simulate(source, Setup([(0.0, 1)]), ["lifo"])
