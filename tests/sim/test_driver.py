"""The driver and the record against runs worked by hand, with baselines that need no core."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from drr.model import NodePolicy, Outcome, PoolPolicy, Share, TenantPath
from tests.sim.baselines import Fifo, RoundRobinByCount
from tests.sim.bounds import (
    TooShort,
    Unfair,
    check_no_violations,
    check_nobody_overtakes,
    check_siblings,
    measure,
)
from tests.sim.driver import Simulation, Work

A, B = ("a",), ("b",)
POOL = PoolPolicy()


def endless(path: tuple[str, ...], seconds: float, estimate: float | None = None) -> Iterator[Work]:
    """The same job again and again."""
    while True:
        yield Work(path, seconds, seconds if estimate is None else estimate)


def test_fifo_timeline() -> None:
    """Two slots, three jobs: the third starts when the shorter of the first two ends."""
    sim = Simulation(Fifo(), 2)
    sim.arrive([(0.0, Work(A, 3.0, 3.0)), (0.0, Work(A, 1.0, 1.0)), (0.5, Work(B, 2.0, 2.0))])
    record = sim.run()
    assert list(record.track(B).first_starts) == [1.0]
    assert list(record.track(B).waits) == [0.5]
    assert record.track(A).served == 4.0
    assert (sim.now, sim.ended, sim.running) == (3.0, 3, {})
    check_no_violations(record)


def test_books_charge_estimate_then_overrun_then_settle() -> None:
    """An under-estimated job is charged 1 s at its start, what it overran at each tick, and the rest at its end."""
    sim = Simulation(Fifo(), 1)
    sim.arrive([(0.25, Work(A, 3.5, 1.0))])
    track = sim.run().track(A)
    assert list(track.times) == [0.25, 2.25, 3.25, 3.75]
    assert list(track.amounts) == [1.0, 1.0, 1.0, 0.5]
    assert (track.own.under, track.own.over, track.own.estimate, track.own.ratio) == (2.5, 0.0, 1.0, 3.5)
    assert track.served_between(1.0, 3.5) == pytest.approx(2.0)


def test_books_refund_an_over_estimate() -> None:
    sim = Simulation(Fifo(), 1)
    sim.arrive([(0.0, Work(A, 1.0, 10.0))])
    track = sim.run().track(A)
    assert list(track.amounts) == [10.0, -9.0]
    assert (track.own.under, track.own.over) == (0.0, 9.0)


def test_first_loss_is_left_out_and_later_ones_are_not() -> None:
    """A job that kills its worker three times is charged for two of them, then given up."""
    sim = Simulation(Fifo(), 1)
    sim.arrive([(0.0, Work(A, 2.0, 1.0, outcome=Outcome.LOST))])
    record = sim.run()
    assert record.track(A).started == 3
    assert record.track(A).served == pytest.approx(4.0)
    assert record.refunded == 2.0
    assert sim.ended == 1


def test_failed_attempts_are_charged() -> None:
    sim = Simulation(Fifo(), 1)
    sim.arrive([(0.0, Work(A, 2.0, 2.0, outcome=Outcome.FAILED, attempts=3))])
    assert sim.run().track(A).served == 6.0


def test_vanished_slots_are_noticed_after_a_lease() -> None:
    """Three of four slots die at 5 s, two of them busy: their jobs are lost at 15 s and go to the front."""
    sim = Simulation(Fifo(), 4)
    sim.arrive([(0.0, Work(A, 20.0, 20.0)), (1.0, Work(B, 9.0, 9.0)), (6.0, Work(B, 30.0, 30.0))])
    sim.arrive([(7.0, Work(B, 1.0, 1.0))])
    sim.at(5.0, lambda s: s.vanish(3, lease=10.0))
    record = sim.run()
    # At 6 s the only idle slot is the last one; it is free again at 36 s, when A's and B's lost jobs are first.
    assert list(record.track(B).first_starts) == [1.0, 6.0, 65.0]
    assert (record.track(A).started, record.track(B).started) == (2, 4)
    assert record.refunded == 15.0 + 14.0
    assert (sim.slots, sim.withheld, sim.now) == (1, 0, 66.0)


def test_slots_and_shares_follow() -> None:
    sim = Simulation(Fifo(), 10, {A: NodePolicy(hard_cap=Share(0.07), floor=Share(0.05))})
    track = sim.record.track(A)
    assert (track.hard, track.floor) == (1, 0)
    sim.at(1.0, lambda s: s.set_slots(100))
    sim.run()
    assert (track.hard, track.floor) == (7, 5)


def test_hooks_submit_when_a_job_ends() -> None:
    """A tenant that submits one job at a time."""
    sim = Simulation(Fifo(), 1)
    left = iter(range(4))

    def again(sim: Simulation, work: Work) -> None:
        if next(left, None) is not None:
            sim.submit(Work(A, 1.0, 1.0))

    sim.on_end(A, again)
    sim.arrive([(0.0, Work(A, 1.0, 1.0))])
    assert sim.run().track(A).started == 5
    assert sim.now == 5.0


def test_run_stops_at_a_time_or_after_starts_and_goes_on() -> None:
    sim = Simulation(Fifo(), 1)
    sim.keep_backlogged(A, endless(A, 1.0))
    sim.run(until=10.5)
    assert (sim.now, sim.record.track(A).started) == (10.5, 11)
    sim.run(starts=5)
    assert sim.record.track(A).started == 16


# --- the checks see what they should ------------------------------------------------------------------


def test_broken_caps_and_lanes_are_seen() -> None:
    """FIFO knows no caps: the record lists each rule that it breaks."""
    policies: dict[TenantPath, NodePolicy] = {A: NodePolicy(hard_cap=2, soft_cap=1), B: NodePolicy(floor=1)}
    sim = Simulation(Fifo(), 5, policies)
    sim.arrive((0.0, Work(A, 1.0, 1.0)) for _ in range(9))
    sim.arrive((0.0, Work(B, 1.0, 1.0)) for _ in range(9))
    violations = "\n".join(sim.run().violations)
    assert "('a',) at its hard cap 2 was served" in violations
    assert "('b',), owed a floor, was passed over for ('a',)" in violations
    assert "('a',) borrowed ahead of ('b',)" in violations


def test_an_idle_slot_is_seen() -> None:
    class Lazy(Fifo):
        def take(self, token, now):  # type: ignore[no-untyped-def]
            return super().take(token, now) if token % 2 == 0 else None

    sim = Simulation(Lazy(), 2)
    sim.arrive((0.0, Work(A, 1.0, 1.0)) for _ in range(2))
    with pytest.raises(Unfair, match="1 slots idle while"):
        check_no_violations(sim.run(until=0.5))


def test_drift_is_the_largest_over_all_intervals() -> None:
    """One slot, ``aaab`` over and over: from after one b to before the next, a gains 3."""
    sim = Simulation(Fifo(), 1)
    order = itertools.cycle((A, A, A, B))
    sim.arrive((0.0, Work(next(order), 1.0, 1.0)) for _ in range(401))
    record = sim.run()
    drift = measure(record.tracks[A], record.tracks[B], POOL.quantum)
    assert drift.drift == pytest.approx(200.0, abs=4)  # it grows with the run: 2 for every 4 served
    assert drift.bound == pytest.approx(2 * (1 + 2))
    assert drift.horizon == pytest.approx(200, abs=3)


def test_an_interval_ends_where_one_ceases_to_wait() -> None:
    """What A is served while B has nothing waiting does not count against it."""
    sim = Simulation(Fifo(), 1)
    sim.arrive([(0.0, Work(B, 1.0, 1.0)), (0.0, Work(B, 1.0, 1.0))])
    sim.keep_backlogged(A, endless(A, 1.0))
    sim.arrive([(50.0, Work(B, 1.0, 1.0)), (50.0, Work(B, 1.0, 1.0))])
    record = sim.run(until=100)
    drift = measure(record.tracks[A], record.tracks[B], POOL.quantum)
    assert drift.drift <= 3.0


@pytest.mark.parametrize("baseline", [Fifo, RoundRobinByCount])
def test_baselines_fail_the_sibling_bound(baseline: type[Fifo]) -> None:
    """FIFO and round robin by job count fail: A's jobs cost 30 times B's."""
    sim = Simulation(baseline(), 2)
    sim.keep_backlogged(A, endless(A, 30.0))
    sim.keep_backlogged(B, endless(B, 1.0))
    with pytest.raises(Unfair, match="a against b"):
        check_siblings(sim.run(until=20_000), POOL)


def test_a_short_run_proves_nothing() -> None:
    sim = Simulation(RoundRobinByCount(), 1)
    sim.keep_backlogged(A, endless(A, 1.0))
    sim.keep_backlogged(B, endless(B, 1.0))
    with pytest.raises(TooShort):
        check_siblings(sim.run(until=20), POOL)
    assert check_siblings(sim.run(until=500), POOL, [(A, B)]) <= 1
    with pytest.raises(TooShort):
        check_nobody_overtakes(Simulation(Fifo(), 1, {A: NodePolicy(floor=1)}).record, POOL, (), [A])


def test_overtaking_is_seen() -> None:
    """Under FIFO a tenant that submits one long job at a time gains on one that always waits."""
    sim = Simulation(Fifo(), 1)
    sim.keep_backlogged(A, endless(A, 1.0))
    sim.on_end(B, lambda s, _: s.submit(Work(B, 9.0, 9.0)))
    sim.arrive([(0.0, Work(B, 9.0, 9.0))])
    with pytest.raises(Unfair, match="gained"):
        check_nobody_overtakes(sim.run(until=2_000), POOL, A, [B])
