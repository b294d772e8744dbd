"""The engine, fed with values: what each commit contains."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drr.backend import Commit, Event, EventKind, Facts, Position
from drr.core.invariants import check as check_core
from drr.dispatcher.batch import Rules
from drr.errors import CommitRefused, InvalidConfiguration
from drr.model import Lane, NodePolicy, PoolPolicy, Share
from tests.helpers.desk import ACME, GLOBEX, RULES, TRIVIAL, URGENT, Desk


def tokens_of(commits: list[Commit]) -> list[str]:
    return [dispatch.lease.token for commit in commits for dispatch in commit.dispatches]


def lanes_of(commits: list[Commit]) -> list[Lane]:
    return [dispatch.header.lane for commit in commits for dispatch in commit.dispatches]


def test_nothing_to_do_is_no_commit() -> None:
    """An engine that heard nothing and has nothing asks for nothing."""
    desk = Desk()
    assert desk.step() is None


def test_dispatch_needs_a_free_slot() -> None:
    """Jobs wait without workers; a worker's arrival starts as many as it has slots, and no more."""
    desk = Desk()
    desk.submit(number=5)
    desk.turn()
    assert tokens_of(desk.commits) == []
    desk.join(slots=3)
    made = desk.turn()
    assert len(tokens_of(made)) == 3
    desk.check()
    assert desk.turn() == []


def test_a_lone_job_starts_with_the_news_of_it() -> None:
    """The announcement carries the head, so the commit that takes the news in dispatches the job: one round trip."""
    desk = Desk()
    desk.join()
    desk.turn()
    desk.submit()
    (commit,) = desk.turn()
    assert lanes_of([commit]) == [ACME]
    desk.check()


def test_a_dispatch_carries_token_attempt_and_charge() -> None:
    desk = Desk()
    desk.join()
    desk.submit(estimate=2.5)
    desk.turn()
    (dispatch,) = [dispatch for commit in desk.commits for dispatch in commit.dispatches]
    assert dispatch.lease.attempt == 1
    assert dispatch.lease.charged == 2.5
    assert dispatch.lease.dispatched_at == desk.clock.wall()
    assert dispatch.lease.header == dispatch.header
    nodes = [key for commit in desk.commits for key in commit.nodes]
    assert ("default", ("acme", "web")) in nodes, "the account that paid is stored with the dispatch"


def test_a_job_without_estimate_is_charged_the_pools_default() -> None:
    desk = Desk()
    desk.engine.set_pool("default", PoolPolicy(default_estimate=7.0))
    desk.join()
    desk.submit(estimate=None)
    desk.turn()
    assert [lease.charged for lease in desk.store.leases.values()] == [7.0]


def test_a_lane_of_another_depth_is_refused() -> None:
    """An organisation cannot be a project as well: such a lane is counted and left alone."""
    desk = Desk()
    desk.join(slots=5)
    desk.submit(Lane("default", ("acme",)))
    desk.submit(Lane("default", ("acme", "web", "deep")))
    desk.submit(ACME)
    desk.turn()
    assert lanes_of(desk.commits) == [ACME]
    assert desk.counters.refused == 2
    desk.load()
    desk.turn()
    desk.check()


def test_priority_inside_a_project() -> None:
    """More urgent lanes first, whenever they were filled; first in first out within one."""
    desk = Desk()
    desk.submit(TRIVIAL, 2)
    desk.submit(ACME, 2)
    desk.submit(URGENT, 2)
    desk.turn()
    desk.join(slots=1)
    order = []
    for _ in range(6):
        desk.turn()
        (attempt,) = desk.take()
        order.append(attempt.header.lane)
        desk.finish(attempt)
        desk.check()
    assert order == [URGENT, URGENT, ACME, ACME, TRIVIAL, TRIVIAL]


def test_nothing_less_urgent_overtakes_headers_that_were_not_read_yet() -> None:
    """A burst of urgent jobs is announced by its head only; the lane behind it waits for the rest to be read."""
    desk = Desk()
    desk.submit(TRIVIAL, 50)
    desk.join(slots=1)
    desk.turn()
    (running,) = desk.take()
    desk.submit(URGENT, 50)
    desk.hear()
    desk.step()
    desk.check()
    desk.join("w2", slots=40)
    desk.finish(running)
    made = desk.turn()
    assert set(lanes_of(made)) == {URGENT}
    assert len(lanes_of(made)) == 41
    desk.check()


def test_tenants_share_by_weight() -> None:
    """Three to one in worker-seconds, over a backlog that the windows see only the heads of."""
    desk = Desk()
    desk.engine.set_policy("default", ("acme",), NodePolicy(weight=3.0))
    desk.submit(ACME, 900)
    desk.submit(GLOBEX, 900)
    desk.join(slots=4)
    for _ in range(150):
        desk.turn()
        for attempt in desk.take():
            desk.clock.now += 0.25
            desk.finish(attempt, seconds=1.0)
    lanes = lanes_of(desk.commits)
    assert len(lanes) >= 600
    assert lanes.count(ACME) / lanes.count(GLOBEX) == pytest.approx(3.0, rel=0.05)


def test_a_share_follows_the_live_slots_within_one_pass() -> None:
    """A cap of 20 % is 2 of 10 slots and 8 of 40, at once when the workers come."""
    desk = Desk()
    desk.engine.set_policy("default", ("acme",), NodePolicy(hard_cap=Share(0.2)))
    desk.submit(ACME, 100)
    desk.join("w1", slots=10)
    desk.turn()
    assert len(desk.store.leases) == 2
    desk.join("w2", slots=30)
    made = desk.turn()
    assert len(desk.store.leases) == 8
    assert len(made) <= 2
    desk.check()


def test_a_changed_policy_binds_on_the_backlog_and_is_stored() -> None:
    desk = Desk()
    desk.submit(ACME, 20)
    desk.engine.set_policy("default", ("acme",), NodePolicy(hard_cap=1))
    desk.join(slots=5)
    desk.turn()
    assert len(desk.store.leases) == 1
    desk.engine.set_policy("default", ("acme",), NodePolicy(hard_cap=4))
    desk.turn()
    assert len(desk.store.leases) == 4
    assert desk.store.settings.nodes["default"]["acme",] == NodePolicy(hard_cap=4)
    desk.load()
    desk.turn()
    assert len(desk.store.leases) == 4, "the cap survives the takeover"
    desk.engine.set_policy("default", ("acme",), None)
    desk.turn()
    assert len(desk.store.leases) == 5
    assert desk.store.settings.nodes["default"] == {}
    desk.check()


def test_a_takeover_goes_on_with_credits_and_leases_as_of_the_last_commit() -> None:
    """After a load the accounts are equal, running attempts stay charged once, and their reports settle."""
    desk = Desk()
    desk.submit(ACME, 30, estimate=3.0)
    desk.submit(GLOBEX, 30, estimate=0.5)
    desk.join(slots=4)
    for _ in range(5):
        desk.turn()
        for attempt in desk.take()[:2]:
            desk.clock.now += 0.3
            desk.finish(attempt, seconds=0.4)
    desk.turn()
    desk.commits.clear()
    old = desk.engine.backlog.pools["default"].scheduler
    desk.load()
    new = desk.engine.backlog.pools["default"].scheduler
    for path, node in old.tree.nodes.items():
        there = new.tree.nodes[path]
        assert (there.credit, there.granted) == (node.credit, node.granted), path
    assert {token: lease.charged for token, lease in new.leases.items()} == {
        token: lease.charged for token, lease in old.leases.items()
    }
    desk.check()
    for attempt in list(desk.taken["w1"]):
        desk.finish(attempt)
    desk.turn()
    assert desk.counters.zombies == 0
    desk.check()


def test_a_load_takes_few_headers_of_each_lane_first() -> None:
    """A hundred thousand queued jobs are no reason to read more than a few headers of their lane."""
    desk = Desk()
    for _ in range(100):
        desk.submit(ACME, 1000)
    desk.load()
    assert desk.engine.backlog.windows.headers <= 4
    desk.join(slots=100)
    peak = 0
    for _ in range(50):
        desk.turn()
        desk.check()
        peak = max(peak, desk.engine.backlog.windows.headers)
        for attempt in desk.take():
            desk.finish(attempt)
    assert desk.counters.succeeded >= 2000
    assert peak <= 1000


def test_a_pass_moves_at_most_a_thousand_jobs() -> None:
    """More events than that are applied by several commits; the position moves with the last of them only."""
    desk = Desk()
    for _ in range(3):
        desk.submit(ACME, 1000)
    desk.join(slots=2500)
    desk.turn()
    attempts = desk.take(limit=2500)
    assert len(attempts) == 2500
    events = tuple(Event(attempt.token, EventKind.SUCCEEDED, "w1", 1.0) for attempt in attempts)
    desk.engine.feed(Facts(Position("7", "9"), events))
    before = desk.engine.position
    sizes, positions = [], []
    while commit := desk.engine.step(desk.clock.now, desk.clock.wall()):
        if commit.commit is not None:
            sizes.append(len(commit.commit.settlements))
            positions.append(commit.commit.position)
        desk.engine.confirm([])
    assert [size for size in sizes if size] == [1000, 1000, 500]
    assert positions[:2] == [before, before]
    assert positions[-1] == Position("7", "9")


def test_overruns_are_charged_once_a_second_and_stored_with_the_lease() -> None:
    desk = Desk()
    desk.join()
    desk.submit(estimate=1.0)
    desk.turn()
    (token,) = desk.store.leases
    desk.take()
    made = desk.pass_time(5.0, step=0.5, beating=["w1"])
    charges = [commit.charges[token].charged for commit in made if token in commit.charges]
    assert charges[-1] == pytest.approx(5.0)
    assert charges == sorted(charges)
    assert desk.store.leases[token].charged == pytest.approx(5.0)
    assert desk.store.leases[token].worker == "w1", "who holds it was learned from a heartbeat"
    assert desk.store.nodes["default", ("acme",)].credit == pytest.approx(
        desk.engine.backlog.pools["default"].scheduler.tree.nodes["acme",].credit
    )


def test_a_lane_that_lost_jobs_behind_our_back_drops_the_engine() -> None:
    """A window that holds more than the store says contradicts it: the engine must not go on."""
    desk = Desk()
    desk.submit(ACME, 20)
    desk.turn()
    entries = desk.store.lanes[ACME]
    while len(entries) > 1:
        entries.pop()
        desk.store.add_waiting(ACME.path, -1, -1_000_000)
    desk.join(slots=3)
    with pytest.raises(CommitRefused):
        desk.turn()
    desk.load()
    desk.turn()
    desk.check()


def test_a_distrustful_engine_reads_announced_lanes_first() -> None:
    """After a refused commit an announced head is not taken at its word: its lane is read first, one trip more."""
    desk = Desk()
    desk.join()
    desk.turn()
    desk.load(trusting=False)
    desk.turn()
    desk.submit()
    desk.hear()
    plan = desk.engine.step(desk.clock.now, desk.clock.wall())
    assert plan is not None
    assert plan.commit is not None
    assert plan.commit.dispatches == []
    assert [peek.lane for peek in plan.peeks] == [ACME]


def test_an_empty_project_leaves_nothing_behind() -> None:
    """Lanes close, projects drain, and accounts that say nothing are forgotten, in the store too."""
    desk = Desk()
    desk.join(slots=2)
    for number in range(40):
        desk.submit(Lane("default", (f"org-{number}", "p")), estimate=0.1)
    for _ in range(40):
        desk.turn()
        for attempt in desk.take():
            desk.finish(attempt, seconds=0.1)
    assert desk.engine.backlog.windows.by_lane == {}
    assert desk.engine.backlog.pools["default"].projects == {}
    desk.pass_time(20.0, step=1.0, beating=["w1"])
    desk.submit()
    desk.turn()
    check_core(desk.engine.backlog.pools["default"].scheduler)


def test_pools_are_apart() -> None:
    """Workers of one pool take nothing of another; each has a tree and slots of its own."""
    renders = Lane("renders", ("acme", "web"))
    desk = Desk()
    desk.submit(ACME, 3)
    desk.submit(renders, 3)
    desk.join("w1", slots=2)
    desk.turn()
    assert set(lanes_of(desk.commits)) == {ACME}
    desk.join("w2", slots=2, pool="renders")
    made = desk.turn()
    assert lanes_of(made) == [renders, renders]
    desk.check()


def test_rules_have_the_documented_defaults() -> None:
    assert Rules() == Rules(lease=30.0, heartbeat=10.0, poison_after=3, depth=2)


def test_a_pool_that_nobody_uses_any_more_is_forgotten() -> None:
    """Its tree, and its root's account in the store; it is made anew, with its stored settings, when a job comes."""
    strange = Lane("strange", ("acme", "web"))
    desk = Desk()
    desk.engine.set_pool("strange", PoolPolicy(quantum=5.0))
    desk.join("w1", pool="strange")
    desk.submit(strange, estimate=0.1)
    desk.turn()
    (attempt,) = desk.take(pool="strange")
    desk.finish(attempt, seconds=0.1)
    desk.turn()
    desk.leave("w1")
    desk.turn()
    for _ in range(10):
        desk.join("w2")
        desk.pass_time(5.0, beating=["w2"])
    assert set(desk.engine.backlog.pools) == {"default"}
    assert [key for key in desk.store.nodes if key[0] == "strange"] == []
    desk.submit(strange)
    desk.turn()
    assert desk.engine.backlog.pools["strange"].scheduler.pool.quantum == 5.0
    desk.check()


def test_accounts_of_longer_paths_leave_the_store() -> None:
    """The depth was reduced: what is left of deeper tenants must not turn projects into organisations."""
    desk = Desk(replace(RULES, depth=3))
    deep = Lane("default", ("acme", "web", "deep"))
    desk.join()
    desk.submit(deep)
    desk.turn()
    desk.rules = RULES
    with pytest.raises(InvalidConfiguration, match="running"):
        desk.load()
    desk.rules = replace(RULES, depth=3)
    desk.load()
    (attempt,) = desk.take()
    desk.finish(attempt)
    desk.turn()
    assert ("default", deep.path) in desk.store.nodes
    desk.rules = RULES
    desk.load()
    desk.submit(ACME)
    desk.turn()
    assert ("default", deep.path) not in desk.store.nodes
    assert lanes_of(desk.commits)[-1] == ACME
    desk.check()
