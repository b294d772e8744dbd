"""Scenarios about what caps and limits cost others, in virtual time: D4 and D5."""

from __future__ import annotations

import itertools
from collections.abc import Hashable

import pytest

from drr.core.scheduler import Job, Scheduler
from drr.core.shared import LimitBook
from drr.model import NodePolicy, Outcome, SharedLimit, TenantPath
from tests.sim.bounds import check_no_violations
from tests.sim.driver import Simulation
from tests.sim.jobs import bulk

ORGANISATIONS: list[TenantPath] = [(f"org{number}",) for number in range(125)]
LATE: TenantPath = ("late",)


def crowd(policy: NodePolicy) -> tuple[Scheduler, Simulation]:
    """550 slots, 125 organisations with 12 jobs of 60 s each."""
    policies = dict.fromkeys([*ORGANISATIONS, LATE], policy)
    scheduler = Scheduler(policies=policies)
    sim = Simulation(scheduler, 550, policies)
    for path in ORGANISATIONS:
        sim.arrive(bulk(path, 12, 60.0))
    return scheduler, sim


def test_D4_a_hard_cap_strands_slots_and_says_so() -> None:
    """Hard cap 2: 250 run, 1,250 wait, 300 slots idle, and every organisation is reported as capped."""
    scheduler, sim = crowd(NodePolicy(hard_cap=2))
    record = sim.run(until=1.0)
    assert (scheduler.running, scheduler.queued, scheduler.free) == (250, 1250, 300)
    views = [view for view in scheduler.describe() if view.path]
    assert len(views) == 125
    assert all(view.capped for view in views)
    check_no_violations(record)


def late_arrival(policy: NodePolicy) -> tuple[int, int, list[float]]:
    """Return the least and the total running at 1 s, and the starts of one that comes at 30 s with two jobs."""
    scheduler, sim = crowd(policy)
    sim.arrive(bulk(LATE, 2, 60.0, at=30.0))
    sim.run(until=1.0)
    running = [view.running for view in scheduler.describe() if view.path]
    record = sim.run(until=1000.0)
    check_no_violations(record)
    return min(running), sum(running), list(record.track(LATE).first_starts)


def test_D4_a_floor_and_a_burstable_cap_fill_the_pool() -> None:
    """Floor 2, hard cap 10: 550 run, none has fewer than 2, and a late organisation has both jobs running at 60 s."""
    least, total, starts = late_arrival(NodePolicy(floor=2, hard_cap=10))
    assert (total, least >= 2) == (550, True)
    assert starts == [60.0, 60.0]


def test_D4_the_floor_is_served_ahead_of_every_queued_job() -> None:
    """One slot frees at a time: the first two that do go to the organisation below its floor."""
    policies: dict[TenantPath, NodePolicy] = dict.fromkeys([*ORGANISATIONS, LATE], NodePolicy(floor=2, hard_cap=10))
    scheduler = Scheduler(policies=policies)
    scheduler.set_slots(550)
    for path in ORGANISATIONS:
        for number in range(12):
            scheduler.offer(Job((path, number), path, 60.0))
    tokens = list(itertools.takewhile(lambda token: scheduler.take(token, 0.0) is not None, itertools.count()))
    assert len(tokens) == 550
    for number in range(2):
        scheduler.offer(Job((LATE, number), LATE, 60.0))
    served = []
    for token in reversed(tokens[-4:]):
        scheduler.settle(token, Outcome.SUCCEEDED, 60.0)
        lease = scheduler.take(("next", token), 60.0)
        assert lease is not None
        served.append(lease.job.path)
    assert served[:2] == [LATE, LATE]
    assert LATE not in served[2:]


@pytest.mark.parametrize("by", ["cap", "limit"])
def test_D5_a_cap_starts_nothing_that_it_would_have_to_put_back(by: str) -> None:
    """6 slots, 20,000 jobs, 4 at once: 20,000 starts, never a fifth, none in vain, done in 1,000 s."""
    path: TenantPath = ("A", "main")
    policies: dict[TenantPath, NodePolicy] = {("A",): NodePolicy(hard_cap=4)} if by == "cap" else {}
    book = LimitBook({"key": SharedLimit(concurrency=4)})
    scheduler = Scheduler(policies=policies, limits=book)
    scheduler.set_slots(6)
    limits = ("key",) if by == "limit" else ()
    for number in range(20_000):
        scheduler.offer(Job(number, path, 0.2, limits=limits))
    now, asked = 0.0, 0
    starts: list[Hashable] = []
    ends: list[tuple[float, Hashable]] = []
    while scheduler.queued or scheduler.running:
        while scheduler.free:
            asked += 1
            lease = scheduler.take(len(starts), now)
            if lease is None:
                break
            starts.append(lease.job.id)
            ends.append((now + 0.2, lease.token))
            assert scheduler.running <= 4
        ends.sort(key=lambda end: -end[0])
        now, ended = ends.pop()
        scheduler.settle(ended, Outcome.SUCCEEDED, 0.2)
    assert starts == list(range(20_000)), "each once, in order"
    assert now == pytest.approx(1000.0)
    assert asked <= 2 * len(starts) + 1, "one more question after each end; then the spare slots wait for an event"
