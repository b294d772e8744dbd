"""Cancelling: in every state, in bulk, against whatever else happens; and jobs whose deadline passes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from drr.backend import Attempt, EventKind, Facts, MalformedRequest, RequestKind, Struck
from drr.errors import CommitRefused
from drr.model import JobState, NodePolicy, RetryPolicy
from drr_backends.memory.checks import validate
from drr_backends.memory.listing import look_up
from tests.helpers.desk import ACME, RULES, TRIVIAL, URGENT, Desk

ONCE_MORE = RetryPolicy(attempts=2, delay=10.0, jitter=0.0)


def state(desk: Desk, job_id: str) -> JobState | None:
    status = look_up(desk.store, job_id)
    return None if status is None else status.state


def running(desk: Desk, **fields: Any) -> tuple[str, Attempt]:
    """Return a job that runs, and its attempt."""
    desk.join()
    (job,) = desk.submit(result_ttl=1e6, **fields)
    desk.turn()
    (attempt,) = desk.take()
    desk.beat()
    desk.look()
    desk.turn()
    return job, attempt


# --- what waits


def test_the_head_is_dropped_and_others_are_struck() -> None:
    """In a window: at once, without asking the store where; the lane's other jobs start in order."""
    desk = Desk()
    ids = desk.submit(number=4, result_ttl=1e6)
    desk.turn()
    desk.cancel(ids[0], ids[2])
    (commit,) = desk.turn()
    assert [removal.header.job_id for removal in commit.removals] == [ids[0]]  # type: ignore[union-attr]
    assert [strike.header.job_id for strike in commit.strikes] == [ids[2]]
    assert [state(desk, ids[n]) for n in (0, 2)] == [JobState.CANCELLED] * 2
    desk.check()
    desk.join(slots=4)
    desk.turn()
    assert [attempt.header.job_id for attempt in desk.take()] == [ids[1], ids[3]]
    assert desk.store.lanes == {}
    assert (desk.counters.cancelled, desk.counters.ignored) == (2, 0)
    desk.check()


def test_a_job_beyond_the_window_is_struck() -> None:
    desk = Desk()
    ids = desk.submit(number=500, result_ttl=1e6)
    desk.turn()
    desk.cancel(ids[400])
    (commit,) = desk.turn()
    assert [strike.header.job_id for strike in commit.strikes] == [ids[400]]
    desk.check()
    desk.join(slots=600)
    desk.turn()
    assert len(desk.store.leases) == 499
    assert desk.store.lanes == {}
    desk.check()


def test_in_bulk_a_hundred_a_pass() -> None:
    desk = Desk()
    ids = desk.submit(number=1000, result_ttl=1e6)
    desk.turn()
    desk.cancel(*ids[100:900])
    made = desk.turn()
    assert max(len(commit.strikes) for commit in made) == 100
    assert desk.counters.cancelled == 800
    desk.check()
    desk.cancel(*ids[:100], *ids[900:])
    desk.turn()
    assert desk.store.lanes == {}
    assert {state(desk, job) for job in ids} == {JobState.CANCELLED}
    desk.check()


def test_a_delayed_job_and_a_waiting_retry_are_dropped() -> None:
    desk = Desk()
    desk.join()
    delayed = desk.submit(due_at=desk.clock.wall() + 100.0, result_ttl=1e6)
    (retry,) = desk.submit(retry=ONCE_MORE, result_ttl=1e6)
    desk.turn()
    (attempt,) = desk.take()
    desk.finish(attempt, EventKind.FAILED)
    desk.turn()
    desk.cancel(*delayed, retry)
    (commit,) = desk.turn()
    assert len(commit.drops_delayed) == 2
    assert state(desk, retry) is JobState.CANCELLED
    assert desk.store.delayed == {}
    desk.check()


def test_due_and_cancelled_in_one_pass() -> None:
    desk = Desk()
    desk.join()
    (job,) = desk.submit(due_at=desk.clock.wall() + 10.0)
    desk.turn()
    desk.clock.now += 10.0
    desk.cancel(job)
    (commit,) = desk.turn()
    assert (len(commit.drops_delayed), commit.matures, commit.dispatches) == (1, [], [])
    desk.check()


def test_an_unheard_announcement_of_a_struck_job_misleads_nobody() -> None:
    """The strike is asked for before the engine has heard of the lane."""
    desk = Desk()
    desk.join()
    desk.turn()
    (job,) = desk.submit()
    facts = desk.store.receive(desk.engine.position, 1000)
    assert facts is not None
    desk.cancel(job)
    both = desk.store.receive(desk.engine.position, 1000)
    assert both is not None
    desk.engine.feed(Facts(replace(both.position, wake=desk.engine.position.wake), requests=both.requests))
    desk.step()
    assert desk.counters.cancelled == 1
    desk.engine.feed(Facts(both.position, lanes=facts.lanes))
    desk._position = both.position
    desk.turn()
    assert (desk.store.lanes, desk.store.leases) == ({}, {})
    desk.check()


def test_what_is_unknown_or_ended_is_ignored_and_counted() -> None:
    desk = Desk()
    desk.join()
    (done,) = desk.submit(result_ttl=1e6)
    desk.turn()
    desk.finish(desk.take()[0])
    desk.turn()
    desk.cancel(done, "default:acme:web:5:99~n", "no job id", done)
    (commit,) = desk.turn()
    assert (commit.settlements, commit.strikes, commit.removals) == ([], [], [])
    assert desk.counters.ignored == 4
    assert state(desk, done) is JobState.SUCCEEDED
    assert len(desk.store.requests) == 0, "requests are trimmed with the pass"


def test_twice_is_once() -> None:
    desk = Desk()
    ids = desk.submit(number=200)
    desk.turn()
    desk.cancel(ids[1], ids[1], ids[150], ids[150])
    desk.turn()
    assert desk.counters.cancelled == 2
    desk.check()


def test_what_a_refused_commit_was_to_cancel_is_cancelled_by_the_next_engine() -> None:
    desk = Desk()
    ids = desk.submit(number=20, result_ttl=1e6)
    desk.turn()
    desk.cancel(ids[3], ids[15])
    desk.hear()
    desk.inquire()
    assert desk.engine.step(desk.clock.now, desk.clock.wall()) is not None  # and the commit is lost
    desk.load()
    desk.turn()
    assert {state(desk, ids[n]) for n in (3, 15)} == {JobState.CANCELLED}
    desk.check()


def test_without_the_order_of_reads_a_cancel_would_hit_what_has_started() -> None:
    """The control: where a job stood before a pass that dispatches it is asked too early."""
    desk = Desk()
    ids = desk.submit(number=30)
    desk.turn()
    desk.cancel(ids[20])
    desk.hear()
    desk.inquire()
    located = dict(desk.engine._requests._located)
    desk.engine._requests.end()
    held, desk.engine._inbox = desk.engine._inbox, type(desk.engine._inbox)()
    desk.join(slots=30)
    desk.look()
    while len(desk.store.leases) < 30:
        desk.step()
    desk.engine._inbox = held
    desk.engine.inform(located=located)
    desk.engine.liveness.holds.pop(
        next(t for t, h in desk.engine.liveness.holds.items() if h.lease.header.job_id == ids[20])
    )
    desk.engine.liveness.changed = False
    plan = desk.engine.step(desk.clock.now, desk.clock.wall())
    assert plan is not None
    assert plan.commit is not None
    with pytest.raises(CommitRefused):
        validate(desk.store, plan.commit)


# --- what runs


def test_a_running_job_is_marked_and_its_worker_told() -> None:
    desk = Desk()
    job, attempt = running(desk)
    desk.cancel(job)
    (commit,) = desk.turn()
    assert commit.stops == [attempt.token]
    assert commit.charges[attempt.token].cancelled
    assert desk.store.leases[attempt.token].cancelled
    assert state(desk, job) is JobState.RUNNING
    desk.cancel(job)
    (commit,) = desk.turn()
    assert commit.stops == [], "told once"
    desk.clock.now += 4.0
    desk.finish(attempt, EventKind.CANCELLED, seconds=4.0)
    desk.turn()
    assert state(desk, job) is JobState.CANCELLED
    (counts,) = desk.usage().values()
    assert counts[3] == 1
    assert counts[-3:] == [4_000_000, 4_000_000, 0]
    assert desk.store.dead == {}
    desk.check()


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        (EventKind.SUCCEEDED, JobState.SUCCEEDED),
        (EventKind.FAILED, JobState.FAILED),
        (EventKind.TIMED_OUT, JobState.FAILED),
        (EventKind.RETURNED, JobState.CANCELLED),
    ],
)
def test_what_the_worker_says_first_counts_but_is_not_tried_again(kind: EventKind, end: JobState) -> None:
    desk = Desk()
    job, attempt = running(desk, retry=ONCE_MORE)
    desk.cancel(job)
    desk.turn()
    desk.finish(attempt, kind)
    desk.turn()
    assert state(desk, job) is end
    assert (desk.store.delayed, desk.store.lanes, desk.store.leases, desk.store.dead) == ({}, {}, {}, {})
    desk.check()


@pytest.mark.parametrize("kind", [EventKind.RETURNED, EventKind.FAILED])
def test_a_report_and_a_cancel_in_one_pass(kind: EventKind) -> None:
    """The attempt ended and its job was to go on; it does not."""
    desk = Desk()
    job, attempt = running(desk, retry=ONCE_MORE)
    desk.finish(attempt, kind)
    desk.cancel(job)
    (commit,) = desk.turn()
    assert (commit.requeues, commit.postpones, commit.stops) == ([], [], [])
    assert state(desk, job) is JobState.CANCELLED
    desk.check()


def test_heartbeats_do_not_extend_a_cancelled_attempt() -> None:
    """A cap of 1 is a mutual exclusion until one lease has passed; the busy worker's slot stays withheld."""
    desk = Desk()
    desk.engine.set_policy("default", ("acme",), NodePolicy(hard_cap=1))
    job, attempt = running(desk)
    desk.join("w2")
    (follower,) = desk.submit()
    desk.cancel(job)
    desk.turn()
    desk.pass_time(RULES.lease - 1.0, beating=["w1", "w2"])
    assert state(desk, job) is JobState.RUNNING
    assert set(desk.store.leases) == {attempt.token}
    desk.pass_time(2.0, step=1.0, beating=["w1", "w2"])
    assert state(desk, job) is JobState.CANCELLED
    assert [lease.header.job_id for lease in desk.store.leases.values()] == [follower]
    capacity = desk.engine.liveness.capacities(desk.clock.now)["default"]
    assert (capacity.slots, capacity.withheld) == (2, 1), "w1 is busy with what has ended"
    others = desk.submit(TRIVIAL, 2)
    desk.engine.set_policy("default", ("acme",), None)
    desk.turn()
    assert len(desk.store.leases) == 1
    zombies = desk.counters.zombies
    desk.finish(attempt, EventKind.SUCCEEDED)
    desk.beat()
    desk.turn()
    assert desk.counters.zombies == zombies + 1
    assert state(desk, job) is JobState.CANCELLED
    assert len(desk.store.leases) == 2, f"the slot is free for {others}"
    desk.check()


def test_a_ghost_goes_with_its_worker_or_its_claim() -> None:
    for way in ("no longer listed", "left"):
        desk = Desk()
        job, _ = running(desk)
        desk.cancel(job)
        desk.pass_time(RULES.lease + 1.0, step=1.0, beating=["w1"])
        assert desk.engine.liveness.capacities(desk.clock.now)["default"].withheld == 1
        if way == "left":
            desk.leave()
            desk.turn()
            assert "default" not in desk.engine.liveness.capacities(desk.clock.now)
        else:
            desk.taken["w1"].clear()
            desk.pass_time(1.0, step=1.0, beating=["w1"])
            assert desk.engine.liveness.capacities(desk.clock.now)["default"].withheld == 0
        desk.check()


def test_a_lost_worker_of_a_cancelled_job_ends_it() -> None:
    desk = Desk()
    job, _ = running(desk)
    desk.cancel(job)
    desk.turn()
    desk.leave()
    (commit,) = desk.turn()
    assert commit.requeues == []
    assert state(desk, job) is JobState.CANCELLED
    assert (desk.store.lanes, desk.store.leases) == ({}, {})
    desk.check()


def test_a_takeover_keeps_the_mark() -> None:
    desk = Desk()
    job, _attempt = running(desk)
    desk.cancel(job)
    desk.turn()
    desk.load()
    desk.pass_time(RULES.lease + 1.0, beating=["w1"])
    assert state(desk, job) is JobState.CANCELLED
    desk.check()


def test_stopped_by_a_worker_though_nobody_cancelled_is_handed_back() -> None:
    desk = Desk()
    job, attempt = running(desk)
    desk.finish(attempt, EventKind.CANCELLED)
    desk.turn()
    (lease,) = desk.store.leases.values()
    assert (lease.header.job_id, lease.attempt) == (job, 2)
    desk.check()


# --- deadlines


def test_an_expired_job_is_never_started() -> None:
    """At the head, in the window and beyond it; also of a tenant at its cap."""
    desk = Desk()
    desk.engine.set_policy("default", ("acme",), NodePolicy(hard_cap=1))
    _, attempt = running(desk)
    ids = desk.submit(number=500, deadline=desk.clock.wall() + 10.0, result_ttl=1e6)
    last = desk.submit(number=2)
    desk.turn()
    desk.clock.now += 10.0
    desk.turn()
    assert state(desk, ids[0]) is JobState.EXPIRED, "on time, though its tenant is at its cap"
    desk.check()
    desk.beat()
    desk.finish(attempt)
    desk.turn()
    assert {state(desk, job) for job in ids} == {JobState.EXPIRED}
    assert [lease.header.job_id for lease in desk.store.leases.values()] == last[:1]
    assert desk.counters.expired == 500
    assert sum(counts[6] for counts in desk.usage().values()) == 500
    desk.check()


def test_some_in_the_middle_expire() -> None:
    desk = Desk()
    ids = []
    for number in range(8):
        ids += desk.submit(deadline=desk.clock.wall() + 5.0 if number in (2, 3, 6) else None, result_ttl=1e6)
    desk.turn()
    desk.join("w1", slots=1)
    desk.turn()
    desk.clock.now += 5.0
    desk.turn()
    assert {number for number, job in enumerate(ids) if state(desk, job) is JobState.EXPIRED} >= {2, 3}
    struck = [entry.head for entry in desk.store.lanes[ACME] if isinstance(entry.head, Struck)]
    assert len(struck) >= 2
    desk.join("w2", slots=10)
    desk.turn()
    assert len(desk.store.leases) == 5
    desk.check()


def test_a_deadline_does_not_touch_what_runs() -> None:
    desk = Desk()
    job, attempt = running(desk, deadline=Desk().clock.wall() + 5.0)
    desk.pass_time(20.0, beating=["w1"])
    assert state(desk, job) is JobState.RUNNING
    desk.finish(attempt)
    desk.turn()
    assert state(desk, job) is JobState.SUCCEEDED


def test_a_lost_attempt_whose_deadline_has_passed_is_not_tried_again() -> None:
    desk = Desk()
    job, attempt = running(desk, deadline=Desk().clock.wall() + 5.0)
    desk.clock.now += 6.0
    desk.finish(attempt, EventKind.RETURNED)
    desk.turn()
    assert state(desk, job) is JobState.EXPIRED
    assert desk.counters.expired == 1
    assert [counts[5:7] for counts in desk.usage().values()] == [[1, 0]], (
        "it was started: its attempt is in the account"
    )
    desk.check()


def test_less_urgent_lanes_go_on_behind_what_expired() -> None:
    desk = Desk()
    desk.submit(URGENT, 3, deadline=desk.clock.wall() + 1.0)
    later = desk.submit(TRIVIAL, 2)
    desk.turn()
    desk.clock.now += 1.0
    desk.join(slots=2)
    desk.turn()
    assert sorted(lease.header.job_id for lease in desk.store.leases.values()) == sorted(later)
    desk.check()


def test_a_request_that_is_none_is_counted() -> None:
    desk = Desk()
    desk.store.requests.append(MalformedRequest(b"\xc1", "not msgpack"))
    desk.request(RequestKind.REVIVE, "not a number")
    desk.turn()
    assert (desk.counters.malformed, desk.counters.ignored) == (1, 1)
