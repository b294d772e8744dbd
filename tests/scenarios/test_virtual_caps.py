"""Scenarios about caps, floors and lost leases, in virtual time: S10, D1, D2, D3, D8 and D9 (the core's part)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from drr.core.invariants import check
from drr.core.scheduler import Job, Scheduler
from drr.model import NodePolicy, NodeState, Outcome, Share, TenantPath
from tests.sim.baselines import Fifo
from tests.sim.bounds import check_no_violations
from tests.sim.driver import Schedules, Simulation, Work
from tests.sim.jobs import bulk, endless
from tests.sim.work import count_bytecodes

A: TenantPath = ("A",)
B: TenantPath = ("B",)


def simulate(slots: int, policies: dict[TenantPath, NodePolicy]) -> Simulation:
    return Simulation(Scheduler(policies=policies), slots, policies)


def staggered(path: TenantPath, offset: int) -> Iterator[Work]:
    return (Work(path, 7.0 + (number * 13 + offset) % 5, 9.0) for number in itertools.count())


# --- S10 ----------------------------------------------------------------------------------------------


def test_S10_caps_and_floors_follow_the_live_slots() -> None:
    """10 -> 40 -> 5 slots: within the pass of the change the capped tenant fills its new cap and the floor is met."""
    capped, owed, heavy = ("capped",), ("owed",), ("heavy",)
    policies: dict[TenantPath, NodePolicy] = {
        capped: NodePolicy(hard_cap=Share(0.2)),
        owed: NodePolicy(weight=0.001, floor=Share(0.1)),
        heavy: NodePolicy(weight=1000.0),
    }
    sim = simulate(10, policies)
    # Lengths that never end together, so that slots free one by one.
    for number, path in enumerate(policies):
        sim.keep_backlogged(path, staggered(path, number))
    tracks = {path: sim.record.track(path) for path in policies}
    sim.run(until=49.9)
    assert (tracks[capped].hard, tracks[owed].floor) == (2, 1)
    assert (tracks[capped].running <= 2, tracks[owed].running) == (True, 1)

    sim.at(50.0, lambda s: s.set_slots(40))
    sim.run(until=50.0)
    assert (tracks[capped].hard, tracks[owed].floor) == (8, 4)
    assert tracks[owed].running == 4
    assert len(sim.running) == 40
    sim.run(until=200.0)
    assert tracks[owed].running == 4

    before = sum(track.started for track in tracks.values())
    sim.at(200.0, lambda s: s.set_slots(5))
    sim.run(until=200.0)
    assert (tracks[capped].hard, tracks[owed].floor) == (1, 0)
    assert sum(track.started for track in tracks.values()) == before, "nothing starts above the live slots"
    assert len(sim.running) == 40, "and nothing is preempted"
    sim.run(until=212.0)
    assert len(sim.running) == 5, "one longest job later the pool is down to its slots"
    assert tracks[capped].running <= 1
    check_no_violations(sim.run(until=400.0))


def test_S10_a_cap_fills_in_the_same_pass() -> None:
    """A tenant alone with its cap of 20 % runs 2 of 10, 8 of 40 and 1 of 5, each from the pass of the change on."""
    policies: dict[TenantPath, NodePolicy] = {A: NodePolicy(hard_cap=Share(0.2))}
    sim = simulate(10, policies)
    sim.keep_backlogged(A, endless(A, 10.0), depth=50)
    track = sim.record.track(A)
    sim.run(until=5.0)
    assert track.running == 2
    sim.at(15.0, lambda s: s.set_slots(40))
    sim.run(until=15.0)
    assert track.running == 8
    sim.at(33.0, lambda s: s.set_slots(5))
    sim.run(until=33.0)
    assert track.running == 8, "nothing is preempted"
    sim.run(until=40.0)
    assert track.running == 1
    check_no_violations(sim.run(until=100.0))


# --- D1, D2, D3 ---------------------------------------------------------------------------------------


def test_D1_a_capped_backlog_hides_nobody() -> None:
    """25 slots; A has 100 jobs and a cap of 1; B's job starts at once and A ends after 1,000 s."""
    sim = simulate(25, {A: NodePolicy(hard_cap=1)})
    sim.arrive(bulk(A, 100, 10.0))
    sim.arrive(bulk(B, 1, 1.0, at=0.01))
    record = sim.run()
    assert list(record.track(B).waits) == [0.0]
    assert record.track(A).peak == 1
    assert sim.now == 1000.0
    check_no_violations(record)


def test_D1_looks_at_none_of_a_capped_backlog() -> None:
    """While A is at its cap, a pass costs the same whether 100 or 10,000 of its jobs wait."""

    def cost_of_a_pass(backlog: int) -> int:
        scheduler = Scheduler(policies={A: NodePolicy(hard_cap=1)})
        scheduler.set_slots(25)
        for number in range(backlog):
            scheduler.offer(Job(number, A, 10.0))
        assert scheduler.take("a", 0.0) is not None

        def one_pass() -> None:
            scheduler.offer(Job("b", B, 1.0))
            assert scheduler.take("b", 0.0) is not None
            assert scheduler.take("nothing", 0.0) is None
            scheduler.accrue(1.0)
            scheduler.settle("b", Outcome.SUCCEEDED, 1.0)

        return count_bytecodes(one_pass)

    cost_of_a_pass(1)  # from CPython 3.13 on, code that was never traced shows only part of its bytecodes
    assert cost_of_a_pass(10_000) == cost_of_a_pass(100)


def test_D2_a_cap_of_one_freezes_no_neighbour() -> None:
    """At 0 s one job of A and 16 of B run; B drains in four waves, A in 500 s; 15 slots idle because of caps."""
    sim = simulate(32, {A: NodePolicy(hard_cap=1), B: NodePolicy(hard_cap=16)})
    sim.arrive(bulk(A, 50, 10.0))
    sim.arrive(bulk(B, 50, 10.0))
    record = sim.run(until=0.0)
    assert (record.track(A).running, record.track(B).running, len(sim.running)) == (1, 16, 17)
    assert isinstance(sim.scheduler, Scheduler)
    views = {view.path: view for view in sim.scheduler.describe()}
    assert views[A].capped
    assert views[B].capped
    sim.run(until=40.0)
    assert record.track(B).running == 0
    assert record.track(B).queued == 0
    sim.run()
    assert sim.now == 500.0
    check_no_violations(record)


def campaign(scheduler: Schedules) -> float:
    """Return how long one message waits behind 200,000 (the report's were 2,000,000)."""
    sim = Simulation(scheduler, 20)
    sim.arrive(bulk(("A", "campaign"), 200_000, 0.05))
    sim.arrive(bulk(("B", "receipt"), 1, 0.05, at=2.0))
    record = sim.run(until=3.0)
    if not record.track(("B", "receipt")).waits:
        record = sim.run()
    return record.track(("B", "receipt")).waits[0]


def test_D3_one_message_behind_a_campaign() -> None:
    """It waits for one slot to free: at most one job."""
    assert campaign(Scheduler()) <= 0.05


def test_D3_fails_under_fifo() -> None:
    """The negative control: first in, first out makes it wait for the whole campaign, 200,000 * 0.05 s / 20."""
    assert campaign(Fifo()) == pytest.approx(500.0 - 2.0, abs=1.0)


# --- D8, D9: leases of the dead -----------------------------------------------------------------------


def test_D9_a_dead_worker_blocks_for_a_lease_and_not_for_a_day() -> None:
    """Cap 1, jobs of up to a day; the worker dies at 15 s; the next attempt starts after lease and reaper tick."""
    path = ("acme", "nightly")
    sim = simulate(3, {path: NodePolicy(hard_cap=1)})
    sim.arrive((0.0, Work(path, 86_400.0, 60.0)) for _ in range(3))
    sim.at(15.0, lambda s: s.vanish(1, lease=30.0 + 5.0))
    record = sim.run(until=50.0)
    attempt = next(iter(sim.running.values()))
    assert (record.track(path).running, attempt.started, attempt.losses) == (1, 50.0, 1)
    assert list(record.track(path).first_starts) == [0.0], "the lost job is first in line again"
    assert record.refunded == 50.0
    check_no_violations(record)


def test_D8_after_a_crash_of_everything_the_slot_comes_back() -> None:
    """Dispatcher and worker die; a new dispatcher adopts the lease, and its expiry is all it takes."""
    path = ("acme", "etl")
    policies: dict[TenantPath, NodePolicy] = {path: NodePolicy(hard_cap=1)}
    old = Scheduler(policies=policies)
    old.set_slots(1)
    for number in range(2):
        old.offer(Job(number, path, 600.0))
    assert old.take("first", 0.0) is not None
    store: dict[TenantPath, NodeState] = {p: state for p, state in old.touched().items() if state is not None}
    del old  # at 20 s everything dies

    new = Scheduler(policies=policies)
    new.restore(store)
    new.set_slots(1)
    new.adopt(Job(0, path, 600.0), "first", 0.0, 600.0)
    new.offer(Job(1, path, 600.0))
    check(new)
    assert new.take("too early", 40.0) is None, "the lease still holds the cap"
    new.settle("first", Outcome.LOST, 75.0)
    new.offer(Job(0, path, 600.0, losses=1), front=True)
    again = new.take("second", 75.0)
    assert again is not None
    assert (again.job.id, again.job.losses) == (0, 1)
    check(new)
    views = {view.path: view for view in new.describe()}
    assert (views[path].running, views[path].queued) == (1, 1)
    assert views[path].charged == pytest.approx(0.0), "the lost attempt is refunded, the new one charged"
