"""What holds for tenants without a policy of their own."""

from __future__ import annotations

from drr.core.invariants import check
from drr.core.scheduler import Job, Scheduler
from drr.model import NodePolicy, TenantPath


def running(scheduler: Scheduler, name: str) -> int:
    view = scheduler.view((name,))
    assert view is not None
    return view.running


def start_all(scheduler: Scheduler) -> None:
    while scheduler.take(object(), 0.0) is not None:
        check(scheduler)


def of_plans(cap: int) -> dict[str, NodePolicy]:
    return {"a": NodePolicy(hard_cap=cap), "b": NodePolicy(hard_cap=cap)}


def backlogged(cap: int) -> Scheduler:
    """Two organisations with ten jobs each; b has a policy of its own."""
    plans = of_plans(cap)
    scheduler = Scheduler(
        policies={("b",): NodePolicy(hard_cap=1)}, policy_of=lambda path: plans.get("".join(path), NodePolicy())
    )
    scheduler.set_slots(30)
    for name in ("a", "b"):
        for number in range(10):
            scheduler.offer(Job((name, number), (name, "main"), 1.0))
    return scheduler


def test_a_node_without_a_policy_has_what_the_source_says() -> None:
    scheduler = backlogged(3)
    start_all(scheduler)
    assert (running(scheduler, "a"), running(scheduler, "b")) == (3, 1)


def test_another_source_binds_existing_nodes_at_once_but_not_those_with_a_policy_of_their_own() -> None:
    scheduler = backlogged(3)
    start_all(scheduler)
    scheduler.rebind(lambda path: NodePolicy(hard_cap=5) if len(path) == 1 else NodePolicy())
    check(scheduler)
    start_all(scheduler)
    assert (running(scheduler, "a"), running(scheduler, "b")) == (5, 1)
    scheduler.rebind(lambda path: NodePolicy())
    start_all(scheduler)
    assert (running(scheduler, "a"), running(scheduler, "b")) == (10, 1)


def test_without_its_own_policy_a_node_falls_back_to_the_source() -> None:
    scheduler = backlogged(3)
    scheduler.set_policy(("b",), None)
    start_all(scheduler)
    assert running(scheduler, "b") == 3


def test_the_source_is_asked_once_per_node() -> None:
    asked: list[TenantPath] = []

    def source(path: TenantPath) -> NodePolicy:
        asked.append(path)
        return NodePolicy()

    scheduler = Scheduler(policy_of=source)
    scheduler.set_slots(5)
    for number in range(5):
        scheduler.offer(Job(number, ("a", "main"), 1.0))
    start_all(scheduler)
    assert asked == [("a",), ("a", "main")]
