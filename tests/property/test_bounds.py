"""The promised bounds over random trees, weights, costs, wrong estimates and parallel slots."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drr.core.invariants import check
from drr.core.scheduler import Scheduler
from drr.model import NodePolicy, PoolPolicy, TenantPath
from tests.sim.bounds import (
    check_no_violations,
    check_nobody_overtakes,
    check_siblings,
    measure,
    newcomer_wait,
    siblings,
)
from tests.sim.driver import Simulation, Work
from tests.sim.jobs import endless, one_at_a_time
from tests.sim.restarts import Restarting
from tests.sim.trees import bursty, random_tenants, run_until_it_counts, saturated

EXACT: Sequence[float] = (1.0,)
WRONG: Sequence[float] = (0.1, 1.0, 10.0)


# --- siblings that always wait ------------------------------------------------------------------------


def check_saturated(seed: int, depth: int, slots: int, wrong: Sequence[float], *, at_most: int) -> float:
    rng = random.Random(seed)
    pool = PoolPolicy(quantum=rng.choice([0.01, 0.3, 1.0, 5.0]))
    sim = saturated(rng, random_tenants(rng, depth), slots, wrong, pool)
    run_until_it_counts(sim, at_most=at_most)
    first_level = [track.path for track in sim.record.root.children]
    worst = check_siblings(sim.record, pool, itertools.combinations(first_level, 2))
    check_no_violations(sim.record)
    assert isinstance(sim.scheduler, Scheduler)
    check(sim.scheduler)
    return worst


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("wrong", [EXACT, WRONG], ids=["exact", "wrong"])
def test_siblings_stay_within_the_bound(depth: int, slots: int, wrong: Sequence[float]) -> None:
    """At every node of a random tree, over every interval."""
    check_saturated(depth * 100 + slots, depth, slots, wrong, at_most=120_000)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(200))
def test_siblings_stay_within_the_bound_at_length(seed: int) -> None:
    check_saturated(seed, 1 + seed % 4, 1 + seed % 7, WRONG if seed % 3 else EXACT, at_most=1_500_000)


@pytest.mark.parametrize("seed", range(4))
def test_siblings_stay_within_the_bound_across_takeovers(seed: int) -> None:
    """A dispatcher that restarts every 7 s from what it stored shares as one that never does."""
    tenants, pool = random_tenants(random.Random(seed), 2), PoolPolicy(quantum=0.5)
    sim = Simulation(restarting := Restarting(pool, tenants.policies), 2, tenants.policies, pool)
    for path in tenants.leaves:
        sim.keep_backlogged(path, mixed_exact(path, seed))
    restart_every(sim, restarting, 7.0)
    run_until_it_counts(sim, at_most=40_000)
    first_level = [track.path for track in sim.record.root.children]
    check_siblings(sim.record, pool, itertools.combinations(first_level, 2))
    check_no_violations(sim.record)
    assert restarting.restarts > 20


def mixed_exact(path: TenantPath, seed: int) -> Iterator[Work]:
    rng = random.Random(f"{seed}{path}")
    while True:
        seconds = rng.uniform(0.1, 2.0)
        yield Work(path, seconds, seconds)


def restart_every(sim: Simulation, restarting: Restarting, seconds: float) -> None:
    def again(sim: Simulation) -> None:
        restarting.restart()
        sim.at(sim.now + seconds, again)

    sim.at(seconds, again)


# --- tenants that come and go -------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9), depth=st.integers(1, 3), slots=st.integers(2, 6))
def test_bursts_break_no_rule(seed: int, depth: int, slots: int) -> None:
    """Whatever comes: no slot idles while a job may start, no cap is passed, no lane jumped, no bound broken."""
    rng = random.Random(seed)
    tenants, pool = random_tenants(rng, depth), PoolPolicy(quantum=rng.choice([0.01, 1.0]), ceiling=5.0)
    for path in list(tenants.policies):
        soft, more = rng.randint(1, 3), rng.randint(0, 2)
        tenants.policies[path] = rng.choice(
            [
                tenants.policies[path],
                NodePolicy(tenants.policies[path].weight, soft_cap=soft),
                NodePolicy(tenants.policies[path].weight, hard_cap=soft + more, soft_cap=soft),
                NodePolicy(tenants.policies[path].weight, floor=1),
            ]
        )
    scheduler = Scheduler(pool, tenants.policies)
    sim = bursty(scheduler, rng, tenants, slots, pool)
    record = sim.run()
    check_no_violations(record)
    check(scheduler)
    assert not scheduler.queued
    assert not scheduler.running
    for one, other in siblings(record):
        drift = measure(one, other, pool.quantum)
        assert drift.ratio <= 1, str(drift)


@pytest.mark.parametrize("gap", [0.0, 3.0])
@pytest.mark.parametrize("wrong", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("cost", [0.8, 7.0])
def test_one_job_at_a_time_buys_nothing(gap: float, wrong: float, cost: float) -> None:
    """Three tenants that each submit one job at a time gain nothing on one that always waits."""
    sim = Simulation(Scheduler(), 2)
    patient: TenantPath = ("patient",)
    sim.keep_backlogged(patient, endless(patient, 1.0))
    sparse: list[TenantPath] = [(f"sparse{number}",) for number in range(3)]
    for number, path in enumerate(sparse):
        works = endless(path, cost, wrong=wrong)
        sim.on_end(path, one_at_a_time(path, works, gap=gap))
        sim.arrive([(0.1 * (number + 1), next(works))])
    record = sim.run(until=15_000 if wrong > 1 else 5_000)
    check_no_violations(record)
    check_nobody_overtakes(record, sim.pool, patient, sparse)


# --- newcomers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("wrong", [EXACT, WRONG], ids=["exact", "wrong"])
def test_a_newcomer_waits_for_one_slot(seed: int, wrong: Sequence[float]) -> None:
    """Among tenants that wait with long queues, a lone newcomer starts when the next slot frees, at any depth."""
    rng = random.Random(seed)
    tenants, pool = random_tenants(rng, 3), PoolPolicy(quantum=0.5)
    slots = rng.randint(1, 6)
    sim = saturated(rng, tenants, slots, wrong, pool)
    arrivals = [50.0 + 30.0 * number for number in range(10)]
    newcomers: list[TenantPath] = [("newcomer", f"n{number}") for number in range(10)]
    for at, path in zip(arrivals, newcomers, strict=True):
        sim.arrive([(at, Work(path, 0.5, 0.5))])
    record = sim.run(until=400.0)
    for path in newcomers:
        assert record.tracks[path].waits[0] <= record.root.extremes().longest, "one slot release"
        assert record.tracks[path].waits[0] <= newcomer_wait(record, path, pool, slots)
    check_no_violations(record)


# --- determinism, cost --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_a_seeded_run_repeats_exactly(seed: int) -> None:
    def decisions() -> list[tuple[float, object]]:
        rng = random.Random(seed)
        tenants, pool = random_tenants(rng, 3), PoolPolicy(quantum=0.1, reserve=1)
        sim = bursty(Scheduler(pool, tenants.policies), rng, tenants, 4, pool)
        sim.decisions = []
        sim.run()
        assert len(sim.decisions) > 100
        return sim.decisions

    assert decisions() == decisions()


def alternating(path: TenantPath, count: int) -> Iterator[Work]:
    return (Work(path, seconds, seconds) for seconds in itertools.islice(itertools.cycle([1.0, 30.0]), count))


@pytest.mark.parametrize("quantum", [0.001, 1.0])
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_rounds_are_skipped_by_arithmetic(quantum: float, depth: int) -> None:
    """Jobs of up to 30,000 quanta cost a few visits a level, not one a round."""
    rng = random.Random(depth)
    tenants, pool = random_tenants(rng, depth, weights=(0.01, 1, 100)), PoolPolicy(quantum=quantum)
    scheduler = Scheduler(pool, tenants.policies)
    sim = Simulation(scheduler, 2, tenants.policies, pool)
    for path in tenants.leaves:
        sim.keep_backlogged(path, alternating(path, 500))
    record = sim.run()
    starts = sum(leaf.started for leaf in record.root.leaves())
    assert starts == 500 * len(tenants.leaves)
    assert scheduler.visits <= 3 * depth * starts
