"""Moments and durations as callers write them, in Unix seconds."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from drr.errors import InvalidValue
from drr.model import check_number
from drr.policy import DELAY_MAX

FARTHEST: Final = 1e11
"""Latest Unix time that a store keeps."""


def read_seconds(what: str, value: float | timedelta, limit: float = DELAY_MAX) -> float:
    """Return a duration in seconds; raises `InvalidValue` unless it is 0 to ``limit``."""
    return check_number(what, value.total_seconds() if isinstance(value, timedelta) else value, 0.0, limit)


def read_moment(what: str, value: float | datetime) -> float:
    """Return a moment in Unix seconds; raises `InvalidValue` for a `datetime` without a time zone."""
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidValue(what, value.isoformat(), "a datetime needs a time zone, such as datetime.now(UTC)")
        value = value.timestamp()
    return check_number(what, value, 0.0, FARTHEST)


def read_times(
    delay: float | timedelta | None,
    at: float | datetime | None,
    deadline: float | datetime | timedelta | None,
    now: float,
) -> tuple[float, float | None]:
    """Return when a job is due (0: at once) and until when it may be started, in Unix seconds.

    Raises `InvalidValue` for what contradicts itself: a delay and a moment, a deadline before the job is due or
    in the past, and a job that is due in more than 90 days.
    """
    due_at = 0.0
    if at is not None:
        if delay is not None:
            raise InvalidValue("delay", delay, f"the moment is given too (at={at!r}): leave out one of them")
        due_at = read_moment("at", at)
        if due_at > now + DELAY_MAX:
            raise InvalidValue("at", at, f"it is more than {DELAY_MAX / 86_400:g} days away")
    elif delay is not None:
        seconds = read_seconds("delay", delay)
        due_at = now + seconds if seconds else 0.0
    if deadline is None:
        return due_at, None
    if isinstance(deadline, timedelta):
        until = now + read_seconds("deadline", deadline, FARTHEST / 2)
    else:
        until = read_moment("deadline", deadline)
    if until <= now:
        raise InvalidValue("deadline", deadline, "it has passed: the job would never be started")
    if until < due_at:
        raise InvalidValue("deadline", deadline, "it is before the job is due: it would never be started")
    return due_at, until
