"""The order of starts: rounds, weights, newcomers, visits, priorities."""

from __future__ import annotations

import pytest

from drr.core.scheduler import Job, Scheduler
from drr.errors import DuplicateJob, InvalidValue, UnknownLease
from drr.model import NodePolicy, Outcome, PoolPolicy
from tests.core.example import Bench


def counts(served: list[str]) -> dict[str, int]:
    return {name: served.count(name) for name in sorted(set(served))}


def test_equal_tenants_alternate_whatever_their_backlogs() -> None:
    """Two tenants with equal jobs take turns, one backlog being a hundred times the other."""
    bench = Bench()
    bench.offer("big", *[1.0] * 100)
    bench.offer("small", 1.0)
    bench.serve(2)
    bench.offer("small", *[1.0] * 3)
    assert bench.serve(6) == ["big", "small"] * 3


def test_shares_are_of_worker_seconds_not_of_jobs() -> None:
    """A tenant with jobs ten times as long starts a tenth as many."""
    bench = Bench()
    bench.offer("long", *[10.0] * 20)
    bench.offer("short", *[1.0] * 200)
    assert counts(bench.serve(110)) == {"long": 10, "short": 100}


def test_weights_divide_worker_seconds() -> None:
    """Weights 1, 2 and 4 give 1 : 2 : 4."""
    bench = Bench(b=NodePolicy(weight=2), c=NodePolicy(weight=4))
    for name in "abc":
        bench.offer(name, *[1.0] * 100)
    assert counts(bench.serve(140)) == {"a": 20, "b": 40, "c": 80}


def test_weights_divide_inside_an_organisation_too() -> None:
    """A project's weight counts among its siblings only."""
    bench = Bench()
    bench.scheduler.set_policy(("acme", "rest"), NodePolicy(weight=3))
    bench.offer("acme/main", *[1.0] * 90)
    bench.offer("acme/rest", *[1.0] * 90)
    bench.offer("globex", *[1.0] * 90)
    projects = []
    for _ in range(80):
        lease = bench.start()
        assert lease is not None
        projects.append("/".join(lease.job.path))
        bench.finish(lease)
    assert counts(projects) == {"acme/main": 10, "acme/rest": 30, "globex/main": 40}


def test_splitting_into_projects_moves_no_share() -> None:
    """An organisation with four projects gets what it would get with one."""
    bench = Bench()
    for project in range(4):
        bench.offer(f"split/p{project}", *[1.0] * 50)
    bench.offer("whole", *[1.0] * 200)
    assert counts(bench.serve(100)) == {"split": 50, "whole": 50}


def test_a_job_dearer_than_quantum_and_ceiling_runs() -> None:
    """Credit of a waiting node is never clamped, so any head becomes affordable."""
    bench = Bench(pool=PoolPolicy(quantum=0.01, ceiling=0.5))
    bench.offer("dear", *[100.0] * 3)
    bench.offer("cheap", *[1.0] * 300)
    served = bench.serve(200)
    assert served.count("dear") >= 1
    assert abs(100 * served.count("dear") - served.count("cheap")) <= 101


def test_rounds_in_which_nobody_can_start_are_skipped_by_arithmetic() -> None:
    """With a quantum of a ten-thousandth of a job, a decision still ends at most a few visits."""
    bench = Bench(pool=PoolPolicy(quantum=0.001))
    bench.offer("a", *[10.0] * 20)
    bench.offer("b", *[10.0] * 20)
    before = bench.scheduler.visits
    bench.serve(40)
    assert bench.scheduler.visits - before <= 40 * 2 * 2


def test_a_newcomer_goes_before_those_that_wait() -> None:
    """The next slot after its arrival is a newcomer's, even amid a visit of another."""
    bench = Bench(pool=PoolPolicy(quantum=100.0))
    for name in ("a", "b", "c"):
        bench.offer(name, *[1.0] * 500)
    bench.serve(7)
    bench.offer("new", 1.0)
    assert bench.serve(1) == ["new"]


def test_newcomers_are_first_in_first_out() -> None:
    """Two newcomers start in the order of their arrival."""
    bench = Bench()
    bench.offer("old", *[1.0] * 50)
    bench.serve(5)
    bench.offer("first", 1.0)
    bench.offer("second", 1.0)
    assert bench.serve(3) == ["first", "second", "old"]


def test_a_newcomers_first_job_may_overdraw_and_the_debt_is_paid() -> None:
    """It starts at once though dearer than its credit; then the others catch up."""
    bench = Bench()
    bench.offer("old", *[1.0] * 100)
    bench.serve(5)
    bench.offer("new", *[10.0] * 5)
    served = bench.serve(12)
    assert served[0] == "new"
    assert served[1:9] == ["old"] * 8


def test_one_job_at_a_time_buys_one_turn_a_round() -> None:
    """Who submits the next job as the last one ends joins the tail, and cannot starve who waits."""
    bench = Bench()
    bench.offer("queue", *[1.0] * 100)
    served: list[str] = []
    for _ in range(40):
        if not any(name == "drip" for name in served[-1:]):
            bench.offer("drip", 1.0)
        served += bench.serve(1)
    assert served.count("queue") >= 18


def test_a_new_project_goes_first_inside_its_organisation_only() -> None:
    """A project's arrival gives its organisation no turn that it did not have."""
    bench = Bench()
    bench.offer("acme/old", *[1.0] * 50)
    bench.offer("globex", *[1.0] * 50)
    bench.serve(8)
    bench.offer("acme/new", 1.0)
    order = []
    for _ in range(2):
        lease = bench.start()
        assert lease is not None
        order.append("/".join(lease.job.path))
        bench.finish(lease)
    assert sorted(order) == ["acme/new", "globex/main"]


def test_a_visit_lasts_as_long_as_the_credit() -> None:
    """With a quantum of five jobs each visit starts five; two newcomers' first jobs go before that."""
    bench = Bench(pool=PoolPolicy(quantum=5.0))
    bench.offer("a", *[1.0] * 50)
    bench.offer("b", *[1.0] * 50)
    assert bench.serve(20) == ["a", "b", *["a"] * 4, *["b"] * 4, *["a"] * 5, *["b"] * 5]


def test_priority_orders_inside_a_project_only() -> None:
    """An urgent job overtakes its own project's jobs, not those of another."""
    bench = Bench()
    slow = bench.offer("acme", 1.0, 1.0)
    bench.offer("globex", 1.0, 1.0)
    urgent = bench.offer("acme", 1.0, priority=0)
    late = bench.offer("acme", 1.0, priority=9)
    order = []
    while (lease := bench.start()) is not None:
        order.append(lease.job.id if lease.job.path[0] == "acme" else "globex")
        bench.finish(lease)
    assert order == [urgent[0], "globex", slow[0], "globex", slow[1], late[0]]


def test_a_returned_job_goes_to_the_head_of_its_priority() -> None:
    """Not before more urgent ones, but before all of its own priority."""
    bench = Bench()
    (first,) = bench.offer("acme", 1.0)
    (urgent,) = bench.offer("acme", 1.0, priority=1)
    (back,) = bench.offer("acme", 1.0, front=True)
    order = []
    while (lease := bench.start()) is not None:
        order.append(lease.job.id)
        bench.finish(lease)
    assert order == [urgent, back, first]


def test_a_cheaper_head_brings_its_tenant_forward() -> None:
    """A tenant that waits many rounds for a dear head is visited sooner once a cheap one stands before it."""
    bench = Bench(pool=PoolPolicy(quantum=1.0))
    bench.offer("dear", 1.0)
    bench.offer("other", *[1.0] * 300)
    bench.serve(4)
    bench.offer("dear", *[1.0, 100.0, 100.0])
    bench.serve(4)
    (cheap,) = bench.offer("dear", 1.0, priority=0)
    started = []
    for _ in range(4):
        lease = bench.start()
        assert lease is not None
        started.append(lease.job.id)
        bench.finish(lease)
    assert cheap in started


def test_withdrawn_jobs_never_start() -> None:
    """At the head, in the middle and as the last one."""
    bench = Bench()
    one, two, three, four = bench.offer("acme", 1.0, 1.0, 1.0, 1.0)
    for job_id in (two, one, four):
        withdrawn = bench.scheduler.withdraw(job_id)
        assert withdrawn is not None
        assert withdrawn.id == job_id
    assert bench.scheduler.withdraw(one) is None
    lease = bench.start()
    assert lease is not None
    assert lease.job.id == three
    assert bench.scheduler.withdraw(three) is None, "a running job is not withdrawn"
    assert bench.start() is None


def test_refused_calls_leave_the_state_unchanged() -> None:
    """A duplicate offer, an unknown token, a used token, an inner node as a project, a wrong time."""
    bench = Bench(slots=5)
    bench.offer("acme", 1.0, 1.0)
    lease = bench.start()
    assert lease is not None
    scheduler = bench.scheduler
    before = scheduler.describe()
    with pytest.raises(DuplicateJob):
        scheduler.offer(Job(lease.job.id, lease.job.path, 1.0))
    with pytest.raises(UnknownLease):
        scheduler.settle("nobody's", Outcome.SUCCEEDED, 1.0)
    with pytest.raises(InvalidValue):
        scheduler.take(lease.token, 0.0)
    with pytest.raises(InvalidValue):
        scheduler.offer(Job("inner", ("acme",), 1.0))
    with pytest.raises(InvalidValue):
        scheduler.offer(Job("below", ("acme", "main", "deeper"), 1.0))
    with pytest.raises(InvalidValue):
        scheduler.settle(lease.token, Outcome.SUCCEEDED, float("nan"))
    with pytest.raises(InvalidValue):
        scheduler.set_slots(-1)
    assert scheduler.describe() == before


@pytest.mark.parametrize("estimate", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_an_estimate_outside_its_range_is_refused(estimate: float) -> None:
    """Named with its value and range."""
    with pytest.raises(InvalidValue, match="estimate"):
        Job(1, ("a", "b"), estimate)


def test_any_depth_shares_level_by_level() -> None:
    """One node class serves every level: three levels divide like three pools in one another."""
    scheduler = Scheduler()
    scheduler.set_slots(1)
    number = 0
    for path in (("a", "x", "1"), ("a", "x", "2"), ("a", "y", "1"), ("b", "z", "1")):
        for _ in range(100):
            number += 1
            scheduler.offer(Job(number, path, 1.0))
    served: dict[tuple[str, ...], int] = {}
    for token in range(160):
        lease = scheduler.take(token, 0.0)
        assert lease is not None
        served[lease.job.path] = served.get(lease.job.path, 0) + 1
        scheduler.settle(token, Outcome.SUCCEEDED, 1.0)
    assert served == {("a", "x", "1"): 20, ("a", "x", "2"): 20, ("a", "y", "1"): 40, ("b", "z", "1"): 80}


def test_the_schedule_in_the_concepts_page() -> None:
    """`docs/concepts.md` works this one through step by step."""
    bench = Bench()
    bench.offer("heavy", *[3.0] * 4)
    bench.offer("light", *[1.0] * 12)
    steps = []
    for _ in range(8):
        lease = bench.start()
        assert lease is not None
        heavy, light = (bench.scheduler.tree.nodes[(name,)].credit for name in ("heavy", "light"))
        steps.append((lease.job.path[0], bench.scheduler.tree.root.middle.round, heavy, light))
        bench.finish(lease)
    assert steps == [
        ("heavy", 0, -2.0, 0.0),
        ("light", 0, -2.0, 0.0),
        ("light", 1, -2.0, 0.0),
        ("light", 2, -2.0, 0.0),
        ("light", 3, -2.0, 0.0),
        ("light", 4, -2.0, 0.0),
        ("heavy", 5, 0.0, 0.0),
        ("light", 5, 0.0, 0.0),
    ]
