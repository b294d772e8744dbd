"""Shared limits through the engine: taken with the lease, freed with it, in nobody's way; never leaked."""

from __future__ import annotations

from drr.backend import EventKind
from drr.core.invariants import check as check_core
from drr.model import Lane, SharedLimit
from tests.helpers.desk import ACME, RULES, Desk

DB = Lane("default", ("acme", "web"), 5, ("db",))
DB_AND_MAIL = Lane("default", ("acme", "web"), 5, ("db", "mail"))
OTHERS_DB = Lane("renders", ("globex", "mail"), 5, ("db",))


def limited(**limits: SharedLimit) -> Desk:
    desk = Desk()
    desk.limit(**limits)
    return desk


def running(desk: Desk, lane: Lane) -> int:
    return sum(1 for lease in desk.store.leases.values() if lease.header.lane == lane)


def test_a_limit_bounds_what_runs_and_blocks_nobody_else() -> None:
    desk = limited(db=SharedLimit(concurrency=2))
    desk.submit(DB, 20)
    plain = desk.submit(ACME, 5)
    desk.join(slots=10)
    desk.turn()
    assert (running(desk, DB), running(desk, ACME)) == (2, len(plain))
    desk.check()
    for attempt in desk.take():
        if attempt.header.lane == DB:
            desk.finish(attempt)
    (commit, *_) = desk.turn()
    assert len(commit.dispatches) == 2, "woken by the release, in the same pass"
    desk.check()


def test_first_in_first_out_across_sets_of_limits() -> None:
    """Older jobs that name a limit start before younger ones that name none, as long as nothing holds them up."""
    desk = limited(db=SharedLimit(concurrency=50))
    first = desk.submit(DB, 40)
    second = desk.submit(ACME, 10)
    desk.join(slots=1)
    order = []
    for _ in range(50):
        desk.turn()
        (attempt,) = desk.take()
        order.append(attempt.header.job_id)
        desk.finish(attempt)
    assert order == [*first, *second]


def test_pools_share_a_limit_and_a_takeover_counts_the_leases() -> None:
    desk = limited(db=SharedLimit(concurrency=3))
    desk.submit(DB, 5)
    desk.submit(OTHERS_DB, 5)
    desk.join("w1", slots=2)
    desk.join("w2", slots=5, pool="renders")
    desk.turn()
    assert running(desk, DB) + running(desk, OTHERS_DB) == 3
    desk.load()
    desk.turn()
    assert running(desk, DB) + running(desk, OTHERS_DB) == 3
    assert desk.engine.backlog.book.running("db") == 3
    desk.check()


def test_every_end_frees_the_limit() -> None:
    desk = limited(db=SharedLimit(concurrency=1), mail=SharedLimit(concurrency=1))
    desk.join(slots=3)
    for way in ("done", "failed", "returned", "cancelled", "lost"):
        (job,) = desk.submit(DB_AND_MAIL)
        desk.turn()
        (attempt,) = desk.take()
        assert attempt.header.job_id == job
        if way == "cancelled":
            desk.cancel(job)
            desk.turn()
            desk.finish(attempt, EventKind.CANCELLED)
        elif way == "lost":
            desk.beat()
            desk.look()
            desk.taken["w1"].clear()
            desk.pass_time(RULES.lease + 1.0, beating=["w1"])
            (attempt,) = desk.take()
            desk.finish(attempt)
        elif way == "returned":
            desk.finish(attempt, EventKind.RETURNED)
            desk.turn()
            (attempt,) = desk.take()
            desk.finish(attempt)
        else:
            desk.finish(attempt, EventKind.FAILED if way == "failed" else EventKind.SUCCEEDED)
        desk.turn()
        book = desk.engine.backlog.book
        assert (book.running("db"), book.running("mail"), book.waiting("db")) == (0, 0, 0), way
        desk.check()


def test_a_rate_lets_the_next_start_when_its_time_comes() -> None:
    """And the driver is told when that is."""
    desk = limited(db=SharedLimit(rate=0.5))
    desk.submit(DB, 3)
    desk.join(slots=5)
    desk.turn()
    assert running(desk, DB) == 1
    at = desk.engine.next_at(desk.clock.now, desk.clock.wall())
    assert at is not None
    assert 1.9 < at - desk.clock.now < 2.1
    desk.clock.now = at
    desk.turn()
    assert running(desk, DB) == 2
    desk.check()


def test_what_waits_for_a_limit_is_cancelled_and_expires() -> None:
    desk = limited(db=SharedLimit(concurrency=1))
    desk.join(slots=5)
    ids = desk.submit(DB, 6, deadline=desk.clock.wall() + 10.0)
    desk.turn()
    desk.cancel(ids[1], ids[3])
    desk.turn()
    assert desk.counters.cancelled == 2
    desk.check()
    desk.clock.now += 10.0
    desk.turn()
    assert desk.counters.expired == 3
    assert (running(desk, DB), desk.store.lanes) == (1, {})
    assert desk.engine.backlog.book.waiting("db") == 0
    desk.check()
    check_core(desk.engine.backlog.pools["default"].scheduler)
