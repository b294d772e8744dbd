"""How an attempt ends: what is recorded of it, what it is charged, and what becomes of its job. Pure functions."""

from __future__ import annotations

import math
from typing import Final

from drr.backend import DeathCause, Event, EventKind, Settlement
from drr.dispatcher.liveness import Cause
from drr.model import NO_RETRY, Completion, Header, JobState, Lease, Outcome, RetryPolicy
from drr.policy import DELAY_MAX

OUTCOMES: Final = {
    EventKind.SUCCEEDED: Outcome.SUCCEEDED,
    EventKind.FAILED: Outcome.FAILED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
    EventKind.RETURNED: Outcome.RETURNED,
    EventKind.CANCELLED: Outcome.CANCELLED,
}
CLOCK_SLACK: Final = 0.05
"""Seconds by which a worker's measure of an attempt may exceed the leader's, before it is cut."""
REASON_LIMIT: Final = 500
"""Characters of a worker's error that a dead letter's reason repeats; the whole is in the completion."""
ATTEMPTS_LIMIT: Final = 2**16 - 1
"""Most attempts that a lane entry can count."""


def held_seconds(reported: float, age: float) -> float:
    """Return the worker-seconds to charge for an attempt whose worker says ``reported``, in whole microseconds.

    A worker measures what it held better than the leader, who sees the ways there and back as well; but its
    clock is not trusted beyond the age of the lease.
    """
    if 0.0 <= reported <= age:
        return round(reported, 6)
    if reported < 0.0:
        return 0.0
    limit = max(0.0, age) + CLOCK_SLACK
    return round(reported if reported <= limit else limit, 6)  # not a number: the limit


def conclude(lease: Lease, event: Event, held: float, wall: float) -> Settlement:
    """Return the end of a job by what its worker has reported: success, failure or a timeout.

    What failed goes to the dead letters; but not if it was cancelled meanwhile, since nobody wants it back.
    """
    if event.kind is EventKind.SUCCEEDED:
        return Settlement(lease, Completion(JobState.SUCCEEDED, lease.attempt, wall, held, event.value))
    what, cause = ("timed out", DeathCause.TIMED_OUT) if event.kind is EventKind.TIMED_OUT else _FAILED
    completion = Completion(JobState.FAILED, lease.attempt, wall, held, event.value, event.error or what)
    if lease.cancelled:
        return Settlement(lease, completion)
    reason = f"attempt {lease.attempt} {what}"
    if event.error:
        reason = f"{reason}: {event.error[:REASON_LIMIT]}"
    return Settlement(lease, completion, reason, cause)


_FAILED = ("failed", DeathCause.FAILED)


def retry_pause(policy: RetryPolicy | None, failures: int, asked: float | None, draw: float) -> float | None:
    """Return the seconds until the next attempt after the ``failures``-th failure, or ``None`` if there is none.

    ``asked``: what the handler asked for, which comes before what the policy says; ``draw``: uniform in 0 to 1.
    """
    policy = policy or NO_RETRY
    if failures >= policy.attempts:
        return None
    if asked is None or math.isnan(asked):
        return policy.pause(failures, draw)
    return min(max(asked, 0.0), DELAY_MAX)


def end_unstarted(header: Header, state: JobState, wall: float) -> Completion:
    """Return the end of a job that waits: it was cancelled, or its deadline has passed."""
    if state is JobState.CANCELLED:
        return Completion(state, header.attempts, wall, 0.0, b"", "cancelled before it was started")
    return Completion(state, header.attempts, wall, 0.0, b"", "its deadline passed before it was started")


def end_attempted(lease: Lease, state: JobState, held: float, wall: float, error: str) -> Settlement:
    """Return the end of a job whose attempt has ended without success, and which is not to be tried again."""
    return Settlement(lease, Completion(state, lease.attempt, wall, held, b"", error))


def has_expired(header: Header, wall: float) -> bool:
    """Whether the job must not be started any more."""
    return header.deadline is not None and header.deadline <= wall


def give_up_reason(lease: Lease, losses: int, cause: Cause, poison_after: int) -> str:
    """Return why a job must not go back to its lane, or "" if it may."""
    if cause.counts and losses >= poison_after:
        return (
            f"poison: {losses} of its {lease.attempt} attempts were lost (the last one: {cause.value}); "
            f"the limit is {poison_after}"
        )
    if lease.attempt >= ATTEMPTS_LIMIT:
        return f"started {lease.attempt} times without an outcome, as often as can be counted"
    return ""


def give_up(lease: Lease, held: float, wall: float, reason: str) -> Settlement:
    """Return the end of a job that is not tried again though nobody has judged it."""
    cause = DeathCause.POISON if reason.startswith("poison") else DeathCause.OTHER
    return Settlement(lease, Completion(JobState.DEAD, lease.attempt, wall, held, b"", reason), reason, cause)
