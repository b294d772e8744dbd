"""Charging, accruing, settling, refunds, debts, forgetting and continuing after a takeover."""

from __future__ import annotations

import pytest

from drr.core.invariants import check
from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.model import NodePolicy, NodeState, Outcome, PoolPolicy
from tests.core.example import Bench


def started(bench: Bench) -> RunningLease:
    lease = bench.start()
    assert lease is not None
    return lease


def contended() -> Bench:
    """A pool in which another tenant always waits, so that no amnesty clears accounts."""
    bench = Bench()
    bench.offer("other", *[1.0] * 200)
    bench.serve(4)
    return bench


def test_the_estimate_is_charged_at_dispatch_to_project_and_organisation() -> None:
    """Both accounts sink by the estimate at the moment of the decision."""
    bench = contended()
    bench.offer("acme/imports", 7.0)
    lease = started(bench)
    assert lease.charged == 7.0
    acme, imports = bench.scheduler.view(("acme",)), bench.scheduler.view(("acme", "imports"))
    assert acme is not None
    assert imports is not None
    assert acme.charged == imports.charged == 7.0
    assert acme.credit < 0


def test_an_overestimate_is_refunded_in_full() -> None:
    """After settlement the tenant has been charged what it held."""
    bench = contended()
    bench.offer("acme", 10.0)
    lease = started(bench)
    before = bench.credit("acme")
    bench.finish(lease, held=0.5)
    assert bench.credit("acme") == pytest.approx(before + 9.5)


def test_an_underestimate_leaves_debt() -> None:
    """And the others run until it is paid."""
    bench = contended()
    bench.offer("acme", 1.0, 1.0)
    bench.finish(started(bench), held=21.0)
    served = bench.serve(25)
    assert 18 <= served.index("acme") <= 22


def test_overruns_are_charged_while_they_happen() -> None:
    """A job older than its estimate is charged up to now, and not again at the end."""
    bench = contended()
    bench.offer("acme", 1.0)
    lease = started(bench)
    assert bench.scheduler.accrue(0.5) == []
    assert bench.scheduler.accrue(5.0) == [lease]
    assert lease.charged == 5.0
    bench.finish(lease, held=6.0)
    acme = bench.scheduler.view(("acme",))
    assert acme is not None
    assert acme.charged == pytest.approx(6.0)


def test_a_failed_attempt_is_charged_like_any_other() -> None:
    """Failing buys no capacity."""
    for outcome in (Outcome.FAILED, Outcome.TIMED_OUT):
        bench = contended()
        bench.offer("acme", 3.0)
        bench.finish(started(bench), held=3.0, outcome=outcome)
        acme = bench.scheduler.view(("acme",))
        assert acme is not None
        assert acme.charged == 3.0


def test_the_first_loss_is_refunded_and_later_ones_are_charged() -> None:
    """Both are counted apart: attempts lost, and worker-seconds refunded."""
    bench = contended()
    bench.offer("acme", 3.0)
    bench.finish(started(bench), held=2.0, outcome=Outcome.LOST)
    acme = bench.scheduler.view(("acme",))
    assert acme is not None
    assert (acme.charged, acme.lost, acme.losses) == (0.0, 2.0, 1)
    bench.offer("acme", 3.0, front=True, losses=1)
    while (lease := started(bench)).job.path[0] != "acme":
        bench.finish(lease)
    bench.finish(lease, held=2.0, outcome=Outcome.LOST)
    acme = bench.scheduler.view(("acme",))
    assert acme is not None
    assert (acme.charged, acme.lost, acme.losses) == (2.0, 2.0, 2)


def test_debt_survives_an_empty_queue_and_is_forgiven_by_rounds() -> None:
    """Draining sheds no debt; a quantum per round that passes does."""
    bench = contended()
    bench.offer("acme", 1.0)
    bench.finish(started(bench), held=11.0)
    assert bench.credit("acme") == pytest.approx(-10.0)
    bench.serve(4)
    bench.offer("acme", 1.0)
    assert bench.serve(1) == ["other"], "in debt it is no newcomer"
    served = bench.serve(10)
    assert "acme" in served
    assert served.index("acme") >= 4


def test_credit_does_not_survive_an_empty_queue() -> None:
    """A refund that comes after the queue has drained is not saved up for later."""
    bench = contended()
    bench.offer("acme", 50.0)
    bench.finish(started(bench), held=0.0)
    bench.serve(10)
    bench.offer("acme", *[1.0] * 20)
    served = bench.serve(20)
    assert 8 <= served.count("acme") <= 12


def test_debts_are_void_when_nobody_waits() -> None:
    """Who arrives at an idle level finds all debts there forgiven."""
    bench = Bench(slots=2)
    bench.offer("acme", 1.0)
    bench.finish(started(bench), held=500.0)
    bench.offer("globex", *[1.0] * 50)
    bench.offer("acme", *[1.0] * 50)
    served = bench.serve(20)
    assert 8 <= served.count("acme") <= 12


def test_idle_tenants_are_forgotten() -> None:
    """Memory follows the active tenants: a thousand that had one job each leave nothing behind."""
    bench = contended()
    for number in range(50):
        bench.offer(f"once{number}", 1.0)
    bench.serve(100)
    bench.scheduler.sweep()  # the projects
    bench.scheduler.sweep()  # their organisations
    check(bench.scheduler)
    states = bench.scheduler.touched()
    assert [path for path in states if path and path[0].startswith("once") and states[path] is not None] == []
    assert all(not path or path[0] == "other" for path in bench.scheduler.tree.nodes)


def test_a_tenant_in_debt_is_remembered_until_it_is_forgiven() -> None:
    """Otherwise leaving for a moment would clear an account."""
    bench = contended()
    bench.offer("acme", 1.0)
    bench.finish(started(bench), held=20.0)
    bench.scheduler.sweep()
    assert bench.credit("acme") < 0
    bench.serve(30)
    bench.scheduler.sweep()
    bench.scheduler.sweep()
    assert bench.scheduler.view(("acme",)) is None


def take_over(
    scheduler: Scheduler, states: dict[tuple[str, ...], NodeState], backlog: list[Job], now: float
) -> Scheduler:
    """Build a second scheduler from what a store would hold."""
    successor = Scheduler(scheduler.pool, dict(scheduler.policies))
    successor.set_slots(scheduler.slots)
    successor.restore(states)
    for token, lease in scheduler.leases.items():
        job = Job(lease.job.id, lease.job.path, lease.job.estimate, lease.job.priority)
        successor.adopt(job, token, lease.started, lease.charged, lease.excused)
    for job in backlog:
        successor.offer(Job(job.id, job.path, job.estimate, job.priority))
    check(successor)
    return successor


def test_a_takeover_continues_with_every_account_intact() -> None:
    """Stored accounts, leases and backlog give the same credits, and the same shares from there on."""
    policies = {"a": NodePolicy(weight=2), "b": NodePolicy(hard_cap=2, floor=1), "c": NodePolicy(soft_cap=1)}
    bench = Bench(slots=4, pool=PoolPolicy(quantum=0.5), limits=None, **policies)
    backlog: dict[int, Job] = {}
    states: dict[tuple[str, ...], NodeState] = {}
    for name in "abcd":
        for job_id in bench.offer(name, *[1.0, 3.0, 0.25] * 20):
            job = bench.scheduler.job(job_id)
            assert job is not None
            backlog[job_id] = job
    leases: list[RunningLease] = []
    for _ in range(60):
        while (lease := bench.start()) is not None:
            leases.append(lease)
            del backlog[lease.job.id]  # type: ignore[arg-type]
        bench.now += 0.5
        bench.scheduler.accrue(bench.now)
        bench.finish(leases.pop(0), held=1.5)
        for path, state in bench.scheduler.touched().items():
            assert state is not None
            states[path] = state
    successor = take_over(bench.scheduler, states, list(backlog.values()), bench.now)
    for name in "abcd":
        for path in ((name,), (name, "main")):
            mine, theirs = bench.scheduler.view(path), successor.view(path)
            assert mine is not None
            assert theirs is not None
            assert theirs.credit == mine.credit
            assert (theirs.queued, theirs.running, theirs.lane) == (mine.queued, mine.running, mine.lane)


def test_a_takeover_voids_no_debt_and_gives_no_second_turn() -> None:
    """Putting accounts back is not an arrival: the one in debt stays behind the one that waited."""
    bench = contended()
    bench.offer("acme", 1.0, 1.0, 1.0)
    bench.finish(started(bench), held=31.0)
    states = {path: state for path, state in bench.scheduler.touched().items() if state is not None}
    backlog = [Job(1000 + n, ("other", "main"), 1.0) for n in range(40)]
    backlog += [Job(2000 + n, ("acme", "main"), 1.0) for n in range(2)]
    successor = take_over(bench.scheduler, states, backlog, 0.0)
    first = []
    for token in range(15):
        lease = successor.take(token, 0.0)
        assert lease is not None
        first.append(lease.job.path[0])
        successor.settle(token, Outcome.SUCCEEDED, 1.0)
    assert first == ["other"] * 15


def test_a_window_that_ran_out_parks_and_does_not_drain() -> None:
    """While the store holds more of a project, its credit is kept."""
    bench = contended()
    bench.offer("acme", 40.0)
    bench.scheduler.expect(("acme", "main"), True)
    bench.finish(started(bench), held=0.0)
    credit = bench.credit("acme")
    assert credit > 0
    bench.serve(10)
    bench.offer("acme", 1.0)
    assert bench.credit("acme") >= credit
    bench.scheduler.expect(("acme", "main"), False)
    check(bench.scheduler)


def test_running_empty_again_and_again_saves_nothing_up() -> None:
    """Two tenants drain after every job, so rounds pass; when both are busy, neither has more than a quantum."""
    bench = Bench(pool=PoolPolicy(quantum=10.0))
    for _ in range(50):
        bench.offer("drip", 1.0)
        bench.offer("drop", 1.0)
        bench.serve(2)
    bench.offer("drip", *[1.0] * 100)
    bench.offer("drop", *[1.0] * 100)
    served = bench.serve(60)
    assert max(bench.credit("drip"), bench.credit("drop")) <= 11.0
    assert abs(served.count("drip") - served.count("drop")) <= 20


def test_waking_from_a_cap_again_and_again_saves_nothing_up_beyond_the_ceiling() -> None:
    """The same for tenants that are parked at their cap after every start."""
    cap = NodePolicy(hard_cap=1)
    bench = Bench(slots=2, pool=PoolPolicy(quantum=10.0, ceiling=5.0), drip=cap, drop=cap)
    bench.offer("drip", *[1.0] * 60)
    bench.offer("drop", *[1.0] * 60)
    bench.serve(100)
    assert max(bench.credit("drip"), bench.credit("drop")) <= 5.0 + 10.0
