"""How attempts end: reports, losses, poison and what is no job."""

from __future__ import annotations

import pytest

from drr.backend import Event, EventKind, MalformedEvent
from drr.model import JobState
from tests.helpers.desk import ACME, Desk


def test_success_settles_with_the_workers_seconds_and_value() -> None:
    desk = Desk()
    desk.join()
    desk.submit(result_ttl=60.0)
    desk.turn()
    (attempt,) = desk.take()
    desk.clock.now += 3.0
    desk.finish(attempt, seconds=2.0, value=b"42")
    (commit,) = desk.turn()
    (settlement,) = commit.settlements
    assert settlement.completion.state is JobState.SUCCEEDED
    assert (settlement.completion.seconds, settlement.completion.value) == (2.0, b"42")
    assert settlement.bury == ""
    assert desk.store.leases == {}
    desk.check()


@pytest.mark.parametrize("kind", [EventKind.FAILED, EventKind.TIMED_OUT])
def test_failure_is_final_and_a_dead_letter(kind: EventKind) -> None:
    desk = Desk()
    desk.join()
    desk.submit(number=2)
    desk.turn()
    (attempt,) = desk.take()
    desk.finish(attempt, kind, error="ValueError: no such file")
    (commit, *_) = desk.turn()
    (settlement,) = commit.settlements
    assert settlement.completion.state is JobState.FAILED
    assert "no such file" in settlement.bury
    assert len(commit.dispatches) == 1, "the slot is given on in the same pass"
    assert [letter.reason for letter in desk.store.dead.values()] == [settlement.bury]
    assert desk.counters.settled == 1
    desk.check()


@pytest.mark.parametrize(
    ("reported", "charged"),
    [(2.0, 2.0), (-1.0, 0.0), (1e9, 4.05), (float("inf"), 4.05), (float("nan"), 4.05)],
)
def test_a_workers_clock_is_not_trusted_blindly(reported: float, charged: float) -> None:
    """What is charged lies between nothing and the age of the lease."""
    desk = Desk()
    desk.join()
    desk.submit()
    desk.turn()
    (attempt,) = desk.take()
    desk.clock.now += 4.0
    desk.finish(attempt, seconds=reported)
    desk.turn()
    assert desk.engine.backlog.pools["default"].scheduler.view(("acme",)).charged == pytest.approx(charged)  # type: ignore[union-attr]


def test_a_zombies_report_is_ignored_and_counted() -> None:
    """A report of a token that is no lease settles nothing, charges nothing and is no error."""
    desk = Desk()
    desk.join(slots=1)
    desk.submit()
    desk.turn()
    (attempt,) = desk.take()
    desk.finish(attempt)
    desk.turn()
    before = dict(desk.store.nodes)
    desk.store.report(
        (Event(attempt.token, EventKind.FAILED, "w1", 5.0), Event("forged", EventKind.SUCCEEDED, "x", 1.0))
    )
    (commit,) = desk.turn()
    assert (commit.settlements, commit.requeues) == ([], [])
    assert desk.counters.zombies == 2
    assert desk.store.nodes == before
    assert len(desk.store.events) == 0, "the events are trimmed all the same"


def test_a_returned_attempt_goes_back_to_the_head_unpenalised() -> None:
    """RETURNED: attempt 2, no loss, ahead of the jobs that came later, and refunded."""
    desk = Desk()
    desk.join()
    first, _ = desk.submit(number=2)
    desk.turn()
    (attempt,) = desk.take()
    desk.clock.now += 3.0
    desk.finish(attempt, EventKind.RETURNED, seconds=3.0)
    (commit, *_) = desk.turn()
    (requeue,) = commit.requeues
    assert (requeue.attempts, requeue.losses) == (1, 0)
    (dispatch,) = commit.dispatches
    assert (dispatch.header.job_id, dispatch.lease.attempt) == (first, 2)
    assert desk.store.nodes["default", ("acme", "web")].credit == desk.store.nodes["default", ("acme",)].credit
    view = desk.engine.backlog.pools["default"].scheduler.view(("acme",))
    assert view is not None
    assert (view.charged, view.lost) == (1.0, 3.0), "only the second start is charged"
    desk.check()


def test_returned_jobs_keep_their_order() -> None:
    """Several attempts that come back in one pass stand at the head of their lane in their old order."""
    desk = Desk()
    desk.join(slots=3)
    ids = desk.submit(number=5)
    desk.turn()
    attempts = desk.take()
    desk.beat(draining=True)
    desk.turn()
    for attempt in (attempts[1], attempts[2], attempts[0]):
        desk.finish(attempt, EventKind.RETURNED)
    desk.turn()
    assert [entry.head.job_id for entry in desk.store.lanes[ACME]] == ids  # type: ignore[union-attr]
    desk.check()


def test_poison_is_given_up_after_three_lost_workers() -> None:
    """A job whose worker died three times goes to the dead letters with the reason; others go on."""
    desk = Desk()
    (poison,) = desk.submit()
    for life in range(3):
        desk.join("w1", incarnation=f"i{life}")
        desk.turn()
        (attempt,) = desk.take()
        assert (attempt.header.job_id, attempt.number) == (poison, life + 1)
        desk.beat()
        desk.look()
    desk.join("w1", incarnation="i3")
    made = desk.turn()
    settlements = [settlement for commit in made for settlement in commit.settlements]
    assert [settlement.completion.state for settlement in settlements] == [JobState.DEAD]
    assert "poison: 3 of its 3 attempts were lost" in settlements[0].bury
    assert desk.counters.poisoned == 1
    assert (desk.store.lanes, desk.store.leases) == ({}, {})
    desk.check()


def test_being_handed_back_is_no_step_towards_poison() -> None:
    desk = Desk()
    desk.submit()
    desk.join()
    for number in range(1, 8):
        desk.turn()
        (attempt,) = desk.take()
        assert attempt.number == number
        desk.finish(attempt, EventKind.RETURNED)
    desk.turn()
    assert desk.counters.poisoned == 0
    assert [lease.attempt for lease in desk.store.leases.values()] == [8]


def test_malformed_entries_are_buried_in_their_turn() -> None:
    """Junk at the head, in the middle and at the tail goes to the dead letters; the jobs around it run in order."""
    desk = Desk()
    desk.join(slots=10)
    desk.turn()
    desk.plant(raw=b"head")
    ids = desk.submit(number=2)
    desk.plant(raw=b"middle 1")
    desk.plant(raw=b"middle 2")
    ids += desk.submit(number=1)
    desk.plant(raw=b"tail")
    desk.turn()
    assert [dispatch.header.job_id for commit in desk.commits for dispatch in commit.dispatches] == ids
    assert [letter.payload for letter in desk.store.dead.values()] == [b"head", b"middle 1", b"middle 2", b"tail"]
    assert desk.store.lanes == {}
    assert desk.counters.malformed == 4
    desk.check()


def test_a_returned_job_before_junk_is_dispatched_before_the_burial() -> None:
    """Junk that has come to the head, and in the same pass a job is given back before it."""
    desk = Desk()
    desk.join(slots=1)
    desk.submit()
    desk.turn()
    (attempt,) = desk.take()
    desk.plant()
    desk.finish(attempt, EventKind.RETURNED)
    desk.turn()
    desk.check()
    (again,) = desk.take()
    desk.finish(again)
    desk.turn()
    assert len(desk.store.dead) == 1
    assert desk.store.lanes == {}


def test_a_malformed_event_is_counted_and_skipped() -> None:
    desk = Desk()
    desk.join()
    desk.submit()
    desk.turn()
    (attempt,) = desk.take()
    desk.store.report((MalformedEvent(b"\xc1", "not msgpack"),))
    desk.finish(attempt)
    desk.turn()
    assert desk.counters.malformed == 1
    assert desk.store.leases == {}
