"""Retries: what is tried again, when, and who pays; jobs that are put off, and those that are due."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drr.backend import DeathCause, EventKind
from drr.model import JobState, RetryPolicy
from tests.helpers.desk import ACME, GLOBEX, RULES, WALL, Desk

STEADY = RetryPolicy(attempts=3, delay=10.0, factor=2.0, jitter=0.0)
AT_ONCE = RetryPolicy(attempts=2, delay=0.0)


def fail(desk: Desk, kind: EventKind = EventKind.FAILED, seconds: float = 1.0, **more: Any) -> None:
    """Report that the one attempt there is has failed."""
    (attempt,) = desk.take()
    desk.clock.now += seconds
    desk.finish(attempt, kind, seconds=seconds, **more)
    desk.turn()


@pytest.mark.parametrize("kind", [EventKind.FAILED, EventKind.TIMED_OUT])
def test_a_failure_with_tries_left_is_charged_and_put_off(kind: EventKind) -> None:
    """It holds no lease, slot or place in a lane meanwhile, and starts again when due: not sooner, not later."""
    desk = Desk()
    desk.join()
    (job,) = desk.submit(retry=STEADY)
    desk.turn()
    fail(desk, kind)
    (due_at, entry) = next(iter(desk.store.delayed.values()))
    assert due_at == pytest.approx(desk.clock.wall() + 10.0)
    assert (entry.head.attempts, entry.head.failures, entry.head.losses) == (1, 1, 0)  # type: ignore[union-attr]
    assert (desk.store.leases, desk.store.lanes) == ({}, {})
    scheduler = desk.engine.backlog.pools["default"].scheduler
    assert scheduler.view(("acme",)).charged == 1.0  # type: ignore[union-attr]
    desk.check()
    desk.clock.now += 9.9
    assert desk.turn() == []
    desk.clock.now += 0.1
    (commit, *_) = desk.turn()
    assert [mature.header.job_id for mature in commit.matures] == [job]
    assert [dispatch.lease.attempt for dispatch in commit.dispatches] == [2], "in the same pass"
    desk.check()
    assert desk.counters.retried == 1


def test_pauses_grow_and_the_last_failure_is_final() -> None:
    desk = Desk()
    desk.join()
    desk.submit(retry=STEADY)
    desk.turn()
    for pause in (10.0, 20.0):
        fail(desk)
        (due_at, _) = next(iter(desk.store.delayed.values()))
        assert due_at - desk.clock.wall() == pytest.approx(pause)
        desk.clock.now += pause
        desk.turn()
    fail(desk, EventKind.TIMED_OUT)
    (letter,) = desk.store.dead.values()
    assert (letter.cause, letter.header.failures) == (DeathCause.TIMED_OUT, 2)  # type: ignore[union-attr]
    assert (desk.store.delayed, desk.store.lanes, desk.store.leases) == ({}, {}, {})
    assert desk.counters.retried == 2
    desk.check()


def test_a_handler_says_when_to_try_again() -> None:
    """`Event.retry_after` comes before the policy's pause, within bounds, but adds no tries."""
    for asked, pause in ((33.0, 33.0), (1e30, 90 * 86_400.0), (float("nan"), 10.0)):
        desk = Desk()
        desk.join()
        desk.submit(retry=replace(STEADY, attempts=2))
        desk.turn()
        fail(desk, retry_after=asked)
        (due_at, _) = next(iter(desk.store.delayed.values()))
        assert due_at - desk.clock.wall() == pytest.approx(pause)
        desk.clock.now += pause
        desk.turn()
        fail(desk, retry_after=asked)
        assert len(desk.store.dead) == 1


def test_due_at_once_goes_back_to_the_head() -> None:
    desk = Desk()
    desk.join()
    first, _ = desk.submit(number=2, retry=AT_ONCE)
    desk.turn()
    fail(desk)
    (lease,) = desk.store.leases.values()
    assert (lease.header.job_id, lease.attempt, lease.header.failures) == (first, 2, 1)
    assert desk.store.delayed == {}
    desk.check()


def test_jitter_spreads_pauses_within_its_part() -> None:
    desk = Desk()
    desk.join(slots=50)
    desk.submit(number=50, retry=replace(STEADY, jitter=0.5))
    desk.turn()
    for attempt in desk.take():
        desk.finish(attempt, EventKind.FAILED)
    desk.turn()
    pauses = [due_at - desk.clock.wall() for due_at, _ in desk.store.delayed.values()]
    assert len(set(pauses)) > 40
    assert 5.0 <= min(pauses) < 7.0 < 8.0 < max(pauses) <= 10.0


def test_no_policy_anywhere_is_no_retry() -> None:
    desk = Desk()
    desk.join()
    desk.submit()
    desk.turn()
    fail(desk)
    assert [letter.cause for letter in desk.store.dead.values()] == [DeathCause.FAILED]


def test_losses_are_no_failures_and_retries_no_losses() -> None:
    """A job that failed once and was handed back twice has two tries left of three; its first loss is refunded."""
    desk = Desk()
    desk.join()
    desk.submit(retry=replace(STEADY, delay=0.0))
    desk.turn()
    fail(desk)
    for _ in range(2):
        (attempt,) = desk.take()
        desk.clock.now += 5.0
        desk.finish(attempt, EventKind.RETURNED, seconds=5.0)
        desk.turn()
    (lease,) = desk.store.leases.values()
    assert (lease.header.attempts, lease.header.failures, lease.header.losses) == (3, 1, 0)
    (counts,) = desk.usage().values()
    assert counts[-3:] == [11_000_000, 6_000_000, 5_000_000], "held, charged, refunded: of two returns the first"


def test_what_runs_by_the_takeover_keeps_its_failures() -> None:
    desk = Desk()
    desk.join()
    desk.submit(retry=STEADY)
    desk.turn()
    fail(desk)
    desk.load()
    desk.clock.now += 10.0
    desk.turn()
    desk.load()
    fail(desk)
    (_, entry) = next(iter(desk.store.delayed.values()))
    assert entry.head.failures == 2  # type: ignore[union-attr]
    desk.check()


def test_retries_cost_like_first_attempts() -> None:
    """S9: whose jobs fail four times of five gets no more worker-seconds than whose succeed."""
    desk = Desk()
    desk.join(slots=2)
    policy = RetryPolicy(attempts=5, delay=0.0)
    desk.submit(ACME, 200, retry=policy, estimate=5.0)
    desk.submit(GLOBEX, 200, estimate=5.0)
    for _ in range(150):
        desk.turn()
        desk.clock.now += 5.0
        for attempt in desk.take():
            kind = EventKind.FAILED if attempt.header.lane == ACME else EventKind.SUCCEEDED
            desk.finish(attempt, kind, seconds=5.0)
    scheduler = desk.engine.backlog.pools["default"].scheduler
    charged = {name: scheduler.view((name,)).charged for name in ("acme", "globex")}  # type: ignore[union-attr]
    assert charged["acme"] == pytest.approx(charged["globex"], rel=0.05)
    assert desk.counters.retried > 100


# --- jobs that clients put off


def test_a_delayed_job_makes_nobody_active_until_it_is_due() -> None:
    desk = Desk()
    desk.join()
    desk.turn()
    (job,) = desk.submit(due_at=desk.clock.wall() + 60.0)
    desk.turn()
    assert desk.engine.backlog.windows.by_lane == {}
    assert desk.engine.next_at(desk.clock.now, desk.clock.wall()) == pytest.approx(desk.clock.now + 60.0)
    asked = desk.inquiries
    desk.clock.now += 59.0
    desk.turn()
    assert desk.inquiries == asked, "the store is not asked before something is due"
    desk.clock.now += 1.0
    desk.turn()
    assert [lease.header.job_id for lease in desk.store.leases.values()] == [job]
    desk.check()


def test_due_times_are_found_again_after_a_load_and_behind_each_other() -> None:
    """A later job that is due earlier; one that was hidden behind what was due; and all of it after a takeover."""
    desk = Desk()
    desk.join(slots=5)
    late = desk.submit(due_at=desk.clock.wall() + 30.0)
    early = desk.submit(due_at=desk.clock.wall() + 10.0)
    desk.turn()
    hidden = desk.submit(due_at=desk.clock.wall() + 20.0)
    desk.load()
    order = []
    for _ in range(3):
        desk.clock.now += 10.0
        desk.turn()
        order += [attempt.header.job_id for attempt in desk.take()]
    assert order == [*early, *hidden, *late]
    assert desk.engine.next_at(desk.clock.now, desk.clock.wall()) is None


def test_a_job_submitted_between_the_question_and_the_pass_is_not_forgotten() -> None:
    """It is due after what the store was asked for, and before what it named next: nobody announces it."""
    desk = Desk()
    desk.join(slots=5)
    desk.submit(due_at=desk.clock.wall() + 10.0)
    desk.submit(due_at=desk.clock.wall() + 1000.0)
    desk.turn()
    desk.clock.now += 10.0
    desk.inquire()
    desk.submit(due_at=desk.clock.wall() + 5.0)
    desk.hear()
    desk.step()
    desk.turn()
    desk.clock.now += 5.0
    desk.turn()
    assert len(desk.store.leases) == 2


def test_due_jobs_come_in_order_and_before_what_waits() -> None:
    desk = Desk()
    first = desk.submit(due_at=desk.clock.wall() + 5.0)
    second = desk.submit(due_at=desk.clock.wall() + 6.0)
    waiting = desk.submit(number=2)
    desk.turn()
    desk.clock.now += 10.0
    desk.turn()
    assert [entry.head.job_id for entry in desk.store.lanes[ACME]] == [*first, *second, *waiting]  # type: ignore[union-attr]
    desk.check()


def test_many_due_at_once_come_in_several_passes() -> None:
    desk = Desk(replace(RULES))
    for _ in range(3):
        desk.submit(number=800, due_at=desk.clock.wall() + 5.0)
    desk.turn()
    desk.clock.now += 5.0
    made = desk.turn()
    assert [len(commit.matures) for commit in made if commit.matures] == [1000, 1000, 400]
    desk.check()


def test_the_wall_clock_may_jump() -> None:
    """Back: nothing is lost, what is due by it comes in time. Forth: all comes at once."""
    desk = Desk()
    desk.join()
    desk.submit(due_at=desk.clock.wall() + 10.0)
    desk.turn()
    engine, now = desk.engine, desk.clock.now
    wall = WALL + now
    assert engine.inquiry(wall - 3600.0).until is None
    assert engine.inquiry(wall + 3600.0).until == wall + 3600.0
    desk.clock.now += 10.0
    desk.turn()
    assert len(desk.store.leases) == 1


def test_an_expired_job_is_not_matured() -> None:
    desk = Desk()
    desk.join()
    desk.submit(due_at=desk.clock.wall() + 10.0, deadline=desk.clock.wall() + 10.0, result_ttl=60.0)
    desk.turn()
    desk.clock.now += 10.0
    (commit, *_) = desk.turn()
    (drop,) = commit.drops_delayed
    assert drop.completion.state is JobState.EXPIRED
    assert (desk.store.delayed, desk.store.lanes, desk.store.leases) == ({}, {}, {})
    assert desk.counters.expired == 1
    desk.check()
