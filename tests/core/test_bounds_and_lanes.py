"""Caps, floors, reserve, parking and waking."""

from __future__ import annotations

import pytest

from drr.core.limits import UNLIMITED, resolve
from drr.core.scheduler import Job, RunningLease
from drr.model import NodePolicy, PoolPolicy, Share
from tests.core.example import Bench


def start_all(bench: Bench) -> list[RunningLease]:
    leases = []
    while (lease := bench.start()) is not None:
        leases.append(lease)
    return leases


def test_a_hard_cap_holds_with_slots_to_spare() -> None:
    """Three of five slots at most, and nothing is started for the rest."""
    bench = Bench(slots=5, acme=NodePolicy(hard_cap=3))
    bench.offer("acme", *[1.0] * 10)
    assert bench.start_all() == ["acme"] * 3
    assert bench.scheduler.free == 2


def test_a_release_wakes_the_capped_node_in_the_same_step() -> None:
    """One ends, one starts."""
    bench = Bench(slots=5, acme=NodePolicy(hard_cap=3))
    bench.offer("acme", *[1.0] * 10)
    leases = start_all(bench)
    bench.finish(leases[0])
    assert bench.start_all() == ["acme"]


def test_a_release_wakes_ancestors_that_were_parked_with_it() -> None:
    """The only project of an organisation is at its cap, so both are parked; both wake."""
    bench = Bench(slots=5)
    bench.scheduler.set_policy(("acme", "main"), NodePolicy(hard_cap=1))
    bench.offer("acme", 1.0, 1.0)
    (lease,) = start_all(bench)
    acme = bench.scheduler.view(("acme",))
    assert acme is not None
    assert acme.lane == "parked"
    bench.finish(lease)
    assert bench.start_all() == ["acme"]


def test_capped_tenants_cost_a_decision_nothing() -> None:
    """A thousand capped tenants are in no ring: the next decision ends no visit of theirs."""
    bench = Bench(slots=1010)
    scheduler = bench.scheduler
    for number in range(1000):
        scheduler.set_policy((f"capped{number}",), NodePolicy(hard_cap=1))
    for number in range(1000):
        bench.scheduler.offer(Job((number, 1), (f"capped{number}", "p"), 1.0))
        bench.scheduler.offer(Job((number, 2), (f"capped{number}", "p"), 1.0))
    for number in range(1000):
        assert scheduler.take(("start", number), 0.0) is not None
    assert scheduler.tree.root.active == 0
    bench.offer("free", *[1.0] * 5)
    before = scheduler.visits
    assert bench.start_all() == ["free"] * 5
    assert scheduler.visits - before <= 5


def test_a_soft_cap_yields_to_siblings_below_theirs() -> None:
    """While the other has work it could start, a tenant at its soft cap is not served."""
    bench = Bench(slots=6, big=NodePolicy(soft_cap=2))
    bench.offer("big", *[1.0] * 20)
    bench.offer("small", 1.0, 1.0, 1.0)
    started = bench.start_all()
    assert started.count("small") == 3
    assert started.count("big") == 3, "work-conserving: the sixth slot is borrowed"
    assert started[-1] == "big"


def test_borrowers_share_by_deficit_round_robin() -> None:
    """Two tenants over their soft caps divide what is left equally."""
    bench = Bench(slots=12, a=NodePolicy(soft_cap=1), b=NodePolicy(soft_cap=1))
    bench.offer("a", *[1.0] * 50)
    bench.offer("b", *[1.0] * 50)
    started = bench.start_all()
    assert started.count("a") == started.count("b") == 6


def test_nobody_pays_for_capacity_that_nobody_wanted() -> None:
    """A tenant that ran alone for long is an equal of one that arrives: no debt, no credit."""
    bench = Bench()
    bench.offer("alone", *[1.0] * 500)
    bench.serve(400)
    bench.offer("late", *[1.0] * 50)
    served = bench.serve(40)
    assert abs(served.count("alone") - served.count("late")) <= 2


def test_a_floor_goes_before_everybody_and_needs_no_credit() -> None:
    """A tenant deep in debt gets its floor when a slot frees."""
    bench = Bench(slots=2, vip=NodePolicy(floor=1))
    bench.offer("other", *[1.0] * 50)
    bench.offer("vip", 1.0, 1.0)
    leases = start_all(bench)
    by_name = {lease.job.path[0]: lease for lease in leases}
    assert set(by_name) == {"vip", "other"}
    bench.finish(by_name["vip"], held=50.0)
    assert bench.credit("vip") < -40
    lease = bench.start()
    assert lease is not None
    assert lease.job.path[0] == "vip"


def test_a_floor_leaves_at_most_one_ceiling_of_debt() -> None:
    """However much its floor dispatches cost, the account sinks to minus one ceiling."""
    bench = Bench(slots=1, pool=PoolPolicy(ceiling=5.0), vip=NodePolicy(floor=1))
    bench.offer("other", *[1.0] * 50)
    for _ in range(5):
        bench.offer("vip", 20.0)
        lease = bench.start()
        assert lease is not None
        assert lease.job.path[0] == "vip"
        bench.finish(lease)
    assert bench.credit("vip") == pytest.approx(-5.0)


def test_a_refund_gives_back_no_more_than_was_charged() -> None:
    """What the floor rule wrote off is not paid out when the job turns out cheap."""
    bench = Bench(slots=1, pool=PoolPolicy(ceiling=5.0), vip=NodePolicy(floor=1))
    bench.offer("other", *[1.0] * 50)
    bench.offer("vip", 20.0)
    lease = bench.start()
    assert lease is not None
    assert bench.credit("vip") == pytest.approx(-5.0)
    bench.finish(lease, held=0.0)
    assert bench.credit("vip") == pytest.approx(0.0)


def test_nodes_owed_a_floor_share_by_deficit_round_robin() -> None:
    """One slot, two floors, jobs of 10 and of 1: worker-seconds come out equal."""
    bench = Bench(slots=1, long=NodePolicy(floor=1), short=NodePolicy(floor=1))
    bench.offer("long", *[10.0] * 20)
    bench.offer("short", *[1.0] * 200)
    served = bench.serve(110)
    assert abs(10 * served.count("long") - served.count("short")) <= 20


def test_a_reserve_is_kept_free_from_borrowers_on_any_level() -> None:
    """An organisation under its cap borrows if its project does."""
    bench = Bench(slots=10, pool=PoolPolicy(reserve=3), big=NodePolicy(soft_cap=2))
    bench.scheduler.set_policy(("deep", "main"), NodePolicy(soft_cap=2))
    bench.offer("big", *[1.0] * 20)
    bench.offer("deep", *[1.0] * 20)
    assert len(bench.start_all()) == 7
    bench.offer("new", *[1.0] * 5)
    assert bench.start_all() == ["new"] * 3


def test_below_its_soft_cap_an_organisation_goes_before_borrowers_though_its_project_borrows() -> None:
    """Each level has its own lanes: the project's cap is no concern of the organisation's siblings."""
    bench = Bench(slots=8, over=NodePolicy(soft_cap=1))
    bench.scheduler.set_policy(("under", "main"), NodePolicy(soft_cap=1))
    bench.offer("over", *[1.0] * 20)
    bench.offer("under", *[1.0] * 20)
    started = bench.start_all()
    assert started.count("over") == 1
    assert started.count("under") == 7


def test_shares_follow_the_live_slots_at_once() -> None:
    """A cap of 20 % is 2 of 10 slots and 8 of 40; with fewer slots nothing is preempted."""
    bench = Bench(slots=10, acme=NodePolicy(hard_cap=Share(0.2)))
    bench.offer("acme", *[1.0] * 50)
    assert len(start_all(bench)) == 2
    bench.scheduler.set_slots(40)
    more = start_all(bench)
    assert len(more) == 6
    bench.scheduler.set_slots(5)
    assert bench.running("acme") == 8
    for lease in more:
        bench.finish(lease)
    assert start_all(bench) == []
    assert bench.running("acme") == 2


def test_a_changed_policy_binds_on_the_backlog() -> None:
    """A lower cap stops further starts, a higher one allows them, a weight changes the next shares."""
    bench = Bench(slots=10)
    bench.offer("acme", *[1.0] * 50)
    bench.scheduler.set_policy(("acme",), NodePolicy(hard_cap=4))
    assert len(start_all(bench)) == 4
    bench.scheduler.set_policy(("acme",), NodePolicy(hard_cap=6))
    assert len(start_all(bench)) == 2
    bench.scheduler.set_policy(("acme",), None)
    assert len(start_all(bench)) == 4


def test_a_parked_node_earns_up_to_its_ceiling() -> None:
    """What a capped tenant missed comes back on waking, but not all of a long wait."""
    bench = Bench(slots=2, pool=PoolPolicy(ceiling=3.0), capped=NodePolicy(hard_cap=1))
    bench.offer("capped", *[1.0] * 50)
    bench.offer("busy", *[1.0] * 200)
    leases = {lease.job.path[0]: lease for lease in start_all(bench)}
    busy = leases["busy"]
    for _ in range(50):
        bench.finish(busy)
        lease = bench.start()
        assert lease is not None
        assert lease.job.path[0] == "busy"
        busy = lease
    bench.finish(leases["capped"])
    assert 2.0 <= bench.credit("capped") <= 3.0


def test_withheld_slots_take_nothing() -> None:
    """A slot that is busy without a lease of ours counts as live but starts nothing."""
    bench = Bench(slots=3)
    bench.scheduler.set_slots(3, withheld=2)
    bench.offer("acme", 1.0, 1.0)
    assert len(start_all(bench)) == 1
    assert bench.scheduler.free == 0


@pytest.mark.parametrize(
    ("policy", "slots", "expected"),
    [
        (NodePolicy(), 10, (UNLIMITED, UNLIMITED, 0)),
        (NodePolicy(hard_cap=Share(0.2)), 10, (2, 2, 0)),
        (NodePolicy(hard_cap=Share(0.21)), 10, (3, 3, 0)),
        (NodePolicy(hard_cap=Share(0.2)), 0, (1, 1, 0)),
        (NodePolicy(floor=Share(0.19)), 10, (UNLIMITED, UNLIMITED, 1)),
        (NodePolicy(floor=Share(0.3)), 10, (UNLIMITED, UNLIMITED, 3)),
        (NodePolicy(soft_cap=5, hard_cap=Share(0.1)), 10, (1, 1, 0)),
        (NodePolicy(soft_cap=Share(0.1), floor=4), 10, (1, UNLIMITED, 1)),
    ],
)
def test_bounds_round_and_yield_as_documented(policy: NodePolicy, slots: int, expected: tuple[int, int, int]) -> None:
    """A cap rounds up and is at least 1, a floor rounds down; the hard cap wins, then the soft one."""
    assert tuple(resolve(policy, slots)) == expected
