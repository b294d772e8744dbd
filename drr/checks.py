"""Checks of what callers pass to an adapter, for adapters. Each raises `InvalidValue`, and nothing is done."""

from __future__ import annotations

from collections.abc import Sequence

from drr.errors import InvalidValue
from drr.exchange import ITEM_LIMIT, STRIKE_LIMIT, TOKEN_LIMIT, Commit, Peek, Postpone, Request, Requeue, WorkerRecord
from drr.model import (
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    PRIORITIES,
    JobSpec,
    Lane,
    check_limits,
    check_name,
    check_number,
    check_path,
)


def check_count(what: str, count: int, low: int = 0, high: int = ITEM_LIMIT) -> int:
    """Return ``count`` if it is within ``low`` and ``high``, else raise `InvalidValue`; for adapters."""
    if not low <= count <= high:
        raise InvalidValue(what, count, f"it must be between {low} and {high}")
    return count


def check_lane(lane: Lane) -> None:
    """Raise `InvalidValue` unless ``lane`` has a pool, a tenant path and a priority of 0 to 9; for adapters."""
    check_name("pool", lane.pool)
    check_path(lane.path)
    if type(lane.priority) is not int or lane.priority not in PRIORITIES:
        raise InvalidValue("priority", lane.priority, "it must be a whole number from 0 to 9")
    if lane.limits and check_limits(lane.limits) != lane.limits:
        raise InvalidValue("limits", lane.limits, "they must be sorted and each named once")


def check_job(job: JobSpec) -> None:
    """Raise `InvalidValue` for a name outside the alphabet or a number out of range; for adapters.

    ``submitted_at`` is at most 1e11, ``result_ttl`` and ``timeout`` at most 1e9 seconds; the latter is above 0.
    """
    check_lane(job.lane)
    check_name("task", job.task)
    if job.reply_to:
        check_name("reply_to", job.reply_to)
    check_number("time of submission", job.submitted_at, 0.0, 1e11)
    check_number("seconds to keep a result", job.result_ttl, 0.0, 1e9)
    if job.estimate is not None:
        check_number("estimate", job.estimate, ESTIMATE_MIN, ESTIMATE_MAX)
    if job.timeout is not None:
        check_number("timeout", job.timeout, 5e-324, 1e9)
    check_number("due time", job.due_at, 0.0, 1e11)
    if job.deadline is not None:
        check_number("deadline", job.deadline, 0.0, 1e11)
    for what, name in (("idempotency key", job.key), ("job name", job.name)):
        if name:
            check_name(what, name)
            check_number("seconds to remember a key", job.key_ttl, 1e-3, 1e9)
    if job.key and job.name:
        raise InvalidValue("idempotency key", job.key, "a job has a key or a name of its own, not both")


def check_worker(record: WorkerRecord) -> None:
    """Raise `InvalidValue` for a name outside the alphabet or slots of a pool not in 0 to 1,000,000; for adapters."""
    check_name("worker", record.name)
    check_name("incarnation", record.incarnation)
    for pool, slots in record.slots.items():
        check_name("pool", pool)
        check_count(f"number of slots for pool {pool}", slots, high=1_000_000)


def check_peeks(peeks: Sequence[Peek]) -> None:
    """Raise `InvalidValue` for a negative offset or count, or more than `ITEM_LIMIT` headers in all; for adapters."""
    for peek in peeks:
        check_count("offset of a peek", peek.offset, high=2**53)
        check_count("count of a peek", peek.count)
    check_count("number of headers in all peeks of one call", sum(peek.count for peek in peeks))


def check_commit(commit: Commit, peeks: Sequence[Peek] = ()) -> None:
    """Raise `InvalidValue` if a pass holds too many items of one kind or impossible counts; for adapters."""
    for kind in ITEM_KINDS:
        check_count(f"number of {kind} in one commit", len(getattr(commit, kind)))
    check_count("number of strikes in one commit", len(commit.strikes), high=STRIKE_LIMIT)
    backs: list[Requeue | Postpone] = [*commit.requeues, *commit.postpones]
    for back in backs:
        check_count("attempts of a returned job", back.attempts, low=1, high=COUNT_MAX)
        check_count("losses of a returned job", back.losses, high=COUNT_MAX)
        check_count("failures of a returned job", back.failures, high=COUNT_MAX)
    for postpone in commit.postpones:
        check_number("due time", postpone.due_at, 0.0, 1e11)
    for dispatch in commit.dispatches:
        token = dispatch.lease.token
        if not 0 < len(token) <= TOKEN_LIMIT or token[0] == "#":
            raise InvalidValue("token of a lease", token, f"it has 1 to {TOKEN_LIMIT} characters and no # in front")
    check_peeks(peeks)


ITEM_KINDS = (
    "settlements",
    "requeues",
    "postpones",
    "matures",
    "revivals",
    "drops_delayed",
    "removals",
    "dispatches",
    "stops",
    "changes",
)
COUNT_MAX = 2**16 - 1
REQUEST_BODY_LIMIT = 1024 * 1024


def check_request(request: Request) -> None:
    """Raise `InvalidValue` for a request that is longer than its limits; for adapters."""
    if request.id:
        check_name("request id", request.id)
    for what, text, limit in (("subject", request.subject, 4096), ("author", request.by, 200)):
        if len(text) > limit:
            raise InvalidValue(f"{what} of a request", text, f"it has at most {limit} characters")
    check_count("bytes of a request", len(request.body), high=REQUEST_BODY_LIMIT)
