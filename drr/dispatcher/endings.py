"""How an attempt ends: what is recorded of it, what it is charged, and whether its job is given up.

In this release a failure is final. Retries take their place in `conclude`: it is the only function that
turns a worker's report into the end of a job.
"""

from __future__ import annotations

from typing import Final

from drr.backend import Event, EventKind, Settlement
from drr.dispatcher.liveness import Cause
from drr.model import Completion, JobState, Lease

CLOCK_SLACK: Final = 0.05
"""Seconds by which a worker's measure of an attempt may exceed the leader's, before it is cut."""
REASON_LIMIT: Final = 500
"""Characters of a worker's error that a dead letter's reason repeats; the whole is in the completion."""
ATTEMPTS_LIMIT: Final = 2**16 - 1
"""Most attempts that a lane entry can count."""


def held_seconds(reported: float, age: float) -> float:
    """Return the worker-seconds to charge for an attempt whose worker says ``reported``.

    A worker measures what it held better than the leader, who sees the ways there and back as well; but its
    clock is not trusted beyond the age of the lease.
    """
    if 0.0 <= reported <= age:
        return reported
    if reported < 0.0:
        return 0.0
    limit = max(0.0, age) + CLOCK_SLACK
    return reported if reported <= limit else limit  # not a number: the limit


def conclude(lease: Lease, event: Event, held: float, wall: float) -> Settlement:
    """Return the end of a job whose worker has reported an outcome. ``RETURNED`` is none and not for here."""
    if event.kind is EventKind.SUCCEEDED:
        return Settlement(lease, Completion(JobState.SUCCEEDED, lease.attempt, wall, held, event.value))
    what = "timed out" if event.kind is EventKind.TIMED_OUT else "failed"
    completion = Completion(JobState.FAILED, lease.attempt, wall, held, event.value, event.error or what)
    reason = f"attempt {lease.attempt} {what}"
    if event.error:
        reason = f"{reason}: {event.error[:REASON_LIMIT]}"
    return Settlement(lease, completion, reason)


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
    return Settlement(lease, Completion(JobState.DEAD, lease.attempt, wall, held, b"", reason), reason)
