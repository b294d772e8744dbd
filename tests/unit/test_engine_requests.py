"""What else is asked of the leader: reviving dead letters, plans, assignments; and what is learned and kept."""

from __future__ import annotations

from typing import Any

from drr.backend import EstimateKey, EventKind, RequestKind, WorkerRecord
from drr.model import JobState, Lane, PoolPolicy
from drr_backends.memory.listing import look_up
from tests.helpers.desk import ACME, RULES, Desk


def bury(desk: Desk, number: int = 1, **fields: Any) -> list[str]:
    """Let jobs fail for good, in order."""
    ids = desk.submit(number=number, result_ttl=1e6, **fields)
    for _ in ids:
        desk.turn()
        (attempt,) = desk.take()
        desk.finish(attempt, EventKind.FAILED)
    desk.turn()
    return ids


def test_a_revived_job_begins_anew_at_the_head() -> None:
    desk = Desk()
    desk.join()
    (job,) = bury(desk)
    desk.leave()
    desk.submit(number=2)
    desk.turn()
    (number,) = desk.store.dead
    desk.request(RequestKind.REVIVE, str(number))
    (commit,) = desk.turn()
    assert len(commit.revivals) == 1
    head = desk.store.lanes[ACME][0].head
    assert (head.job_id, head.attempts, head.failures, head.returned) == (job, 0, 0, True)  # type: ignore[union-attr]
    assert desk.store.dead == {}
    status = look_up(desk.store, job)
    assert status is not None
    assert status.state is JobState.QUEUED
    desk.check()
    desk.join("w2")
    desk.turn()
    (attempt,) = desk.take("w2")
    assert (attempt.header.job_id, attempt.number) == (job, 1)
    desk.finish(attempt, name="w2")
    desk.turn()
    desk.check()


def test_several_of_a_lane_are_revived_one_a_pass() -> None:
    desk = Desk()
    desk.join()
    ids = bury(desk, 3)
    desk.leave()
    for number in desk.store.dead:
        desk.request(RequestKind.REVIVE, str(number))
    desk.turn()
    assert [entry.head.job_id for entry in desk.store.lanes[ACME]] == ids[::-1]  # type: ignore[union-attr]
    desk.check()


def test_revived_and_cancelled() -> None:
    desk = Desk()
    desk.join()
    (job,) = bury(desk)
    desk.leave()
    (number,) = desk.store.dead
    desk.request(RequestKind.REVIVE, str(number))
    desk.cancel(job)
    desk.turn()
    assert (desk.store.lanes, desk.store.leases, desk.store.dead) == ({}, {}, {})
    assert desk.counters.cancelled == 1
    desk.check()


def test_what_cannot_be_revived_stays() -> None:
    """No letter, junk, or a deadline that has passed."""
    desk = Desk()
    desk.join()
    desk.plant()
    bury(desk, deadline=desk.clock.wall() + 10.0)
    desk.clock.now += 10.0
    for subject in ("1", "2", "77", "x"):
        desk.request(RequestKind.REVIVE, subject)
    desk.turn()
    assert len(desk.store.dead) == 2
    assert desk.counters.ignored == 4
    assert desk.store.lanes == {}
    desk.check()


# --- entitlement


def test_bad_plans_change_nothing_and_are_recorded() -> None:
    desk = Desk()
    before = desk.engine.settings
    desk.request(RequestKind.PLANS, "plans.toml", body=b"[pools]\nbad = 1", id="r1", by="me")
    desk.request(RequestKind.PLANS, "plans.toml", body=b"\xff\xfe", id="r2")
    (commit,) = desk.turn()
    assert commit.settings is None
    assert [(record.id, bool(record.refused)) for record in commit.changes] == [("r1", True), ("r2", True)]
    assert commit.changes[0].by == "me"
    assert desk.engine.settings == before
    assert desk.counters.ignored == 2


def test_an_unknown_plan_is_refused() -> None:
    desk = Desk()
    desk.request(RequestKind.ASSIGN, "acme nosuchplan", id="a")
    desk.request(RequestKind.ASSIGN, "no/name gold", id="b")
    (commit,) = desk.turn()
    assert [(record.id, bool(record.refused)) for record in commit.changes] == [("a", True), ("b", True)]


# --- estimates and leases


def test_estimates_are_learned_stored_and_restored() -> None:
    desk = Desk()
    desk.join()
    for _ in range(20):
        desk.submit(estimate=None)
        desk.turn()
        (attempt,) = desk.take()
        desk.clock.now += 8.0
        desk.beat()
        desk.look()
        desk.finish(attempt, seconds=8.0)
        desk.turn()
    assert EstimateKey("default", ACME.path, "work") in desk.store.estimates
    learned = desk.engine.backlog.pools["default"].estimator.estimate(ACME.path, "work")
    assert 7.0 < learned < 9.0
    desk.store.estimates[EstimateKey("default", ACME.path, "junk")] = b"\xc1"
    desk.load()
    desk.submit(estimate=None)
    desk.turn()
    assert [round(lease.charged, 6) for lease in desk.store.leases.values()] == [round(learned, 6)]
    assert EstimateKey("default", ACME.path, "junk") not in desk.store.estimates, "what cannot be read is forgotten"


def test_what_was_cut_short_teaches_nothing() -> None:
    desk = Desk()
    desk.join()
    (job,) = desk.submit(estimate=None)
    desk.turn()
    (attempt,) = desk.take()
    desk.finish(attempt, EventKind.RETURNED)
    desk.turn()
    desk.cancel(job)
    desk.turn()
    (attempt,) = desk.take()
    desk.finish(attempt, EventKind.CANCELLED)
    desk.turn()
    assert desk.store.estimates == {}


def test_a_pools_own_lease() -> None:
    """Longer: a silent worker's attempts are kept until then. Shorter than three heartbeats: it counts as three."""
    for lease, seconds in ((90.0, 90.0), (0.1, RULES.heartbeat * 3), (None, RULES.lease)):
        desk = Desk()
        desk.engine.set_pool("default", PoolPolicy(lease=lease))
        desk.join()
        desk.submit()
        desk.turn()
        desk.take()
        desk.beat()
        desk.look()
        desk.pass_time(seconds - 2.0, step=2.0)
        assert desk.counters.lost == 0, lease
        desk.pass_time(4.0, step=2.0)
        assert desk.counters.lost == 1, lease
        desk.check()


def test_pools_with_leases_of_their_own_on_one_worker() -> None:
    """The attempt of the shorter lease is lost first; the worker is dead when the longer one has passed."""
    desk = Desk()
    desk.engine.set_pool("renders", PoolPolicy(lease=120.0))
    desk.store.join(WorkerRecord("w1", "i1", {"default": 1, "renders": 1}), "")
    desk.taken["w1"] = []
    desk.submit()
    desk.submit(Lane("renders", ("acme", "web")))
    desk.turn()
    desk.take()
    desk.take(pool="renders")
    desk.beat()
    desk.look()
    desk.pass_time(40.0)
    assert [lease.header.lane.pool for lease in desk.store.leases.values()] == ["renders"]
    assert "w1" in desk.store.workers
    desk.pass_time(100.0)
    assert "w1" not in desk.store.workers
    assert desk.counters.lost == 2
    desk.check()
