"""What is kept of jobs that have ended: usage, histories, the log of changes; and the names of estimates.

Hostile until decoded here (`MalformedMessage`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from drr.backend import ChangeRecord, EstimateKey, Listed, Usage, UsageKey
from drr.errors import MalformedMessage
from drr.model import Completion, Header, JobState, check_name
from drr.wire import pack
from drr_backends.redis.codec import SECONDS_MAX, VERSION, WALL_MAX, is_number
from drr_backends.redis.records import record

USAGE_COUNTS: Final = 7
"""Fields of `Usage` that are counts; the others are worker-seconds, kept in whole microseconds."""
ERROR_LISTED: Final = 200
"""Characters of an error that a listing shows."""


# --- usage --------------------------------------------------------------------------------------------


def usage_field(key: UsageKey) -> str:
    """Return what the fields of an account begin with."""
    return f"{key.hour}:{'/'.join(key.path)}:{key.pool}"


def decode_usage(fields: Mapping[bytes, bytes]) -> dict[UsageKey, Usage]:
    """Decode an account; what in it is none is passed over."""
    found: dict[UsageKey, list[float]] = {}
    for field, value in fields.items():
        try:
            hour, path, pool, number = field.decode("ascii").split(":")
            names = tuple(check_name("tenant", name) for name in path.split("/"))
            key = UsageKey(int(hour), names, check_name("pool", pool))
            place, amount = int(number), int(value)
            counts = found.setdefault(key, [0] * len(Usage._fields))
            counts[place] = amount if place < USAGE_COUNTS else amount / 1e6
        except (ValueError, IndexError):
            continue
    return {
        key: Usage(*(int(c) for c in counts[:USAGE_COUNTS]), *counts[USAGE_COUNTS:]) for key, counts in found.items()
    }


# --- histories ----------------------------------------------------------------------------------------


def encode_ended(header: Header, completion: Completion) -> bytes:
    """Return what a history keeps of a job."""
    return pack(
        (
            VERSION,
            header.job_id,
            header.lane.path,
            header.task,
            completion.state.value,
            completion.attempt,
            completion.finished_at,
            completion.seconds,
            completion.error[:ERROR_LISTED],
        )
    )


def decode_ended(data: bytes) -> tuple[tuple[str, ...], Listed]:
    """Decode an entry of a history: whose job it was, and the job."""
    _, job_id, path, task, state, attempt, at, seconds, error = record("history", data, 9, 64 * 1024)
    texts = (job_id, task, error)
    if not all(isinstance(text, str) for text in texts) or not isinstance(path, list) or type(attempt) is not int:
        raise MalformedMessage("history", "a part of it has the wrong type")
    if not is_number(at, WALL_MAX) or not is_number(seconds, SECONDS_MAX):
        raise MalformedMessage("history", "a number in it is out of range")
    try:
        return tuple(map(str, path)), Listed(job_id, task, JobState(state), attempt, at, seconds, error)
    except (ValueError, TypeError):
        raise MalformedMessage("history", f"{state!r:.40} is no state") from None


# --- the log of changes -------------------------------------------------------------------------------


def encode_change(change: ChangeRecord) -> bytes:
    """Return a line of the log."""
    return pack((VERSION, change.at, change.id, change.by, change.what[:4096], change.refused[:4096]))


def decode_change(data: bytes) -> ChangeRecord:
    """Decode a line of the log; raises `MalformedMessage`."""
    _, at, name, by, what, refused = record("change", data, 6, 64 * 1024)
    if not is_number(at, WALL_MAX) or not all(isinstance(text, str) for text in (name, by, what, refused)):
        raise MalformedMessage("change", "a part of it has the wrong type")
    return ChangeRecord(at, name, by, what, refused)


# --- estimates ----------------------------------------------------------------------------------------


def estimate_field(key: EstimateKey) -> str:
    """Return the field of an estimate."""
    return ":".join((key.pool, "/".join(key.path), key.task))


def estimate_of(field: bytes) -> EstimateKey:
    """Return what an estimate is of; raises `MalformedMessage`."""
    try:
        pool, path, task = field.decode("ascii").split(":")
        names = tuple(check_name("tenant", name) for name in path.split("/")) if path else ()
        return EstimateKey(check_name("pool", pool), names, check_name("task", task) if task else "")
    except ValueError as error:
        raise MalformedMessage("estimate", str(error)[:200]) from None
