"""What a store in memory is made of, how long its parts are kept, and what may be waited for."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from drr.backend import CALLS_KEPT_SECONDS, HISTORY_LENGTH, Event, Listed, Malformed, MalformedEvent, Struck
from drr.errors import InvalidValue
from drr.model import Header, TenantPath
from drr_backends.memory.waiting import Log

REPLIES_KEPT: Final = 10_000
"""Ends of jobs that are kept for one client that does not read them."""
REPLIES_TTL: Final = 3600.0
"""Seconds after its last reply until a client's replies are forgotten."""
CLIENT_TTL: Final = CALLS_KEPT_SECONDS
"""Seconds after its last submit until a client's remembered calls are forgotten."""

Report: TypeAlias = tuple[Event | MalformedEvent, ...]
Reader: TypeAlias = tuple[str, str]
"""A worker's name and incarnation."""

NEWS: Final = "news"
RESIGNATION: Final = "resignation"
COUNTS: Final = 7
"""Fields of `Usage` that are counts; the others are worker-seconds."""
STOPS: Final = "stops"
STOPS_KEPT: Final = 10_000
"""Cancelled attempts that are kept for workers that do not listen at the moment."""


def micro(worker_seconds: float) -> int:
    """Return whole micro-worker-seconds: sums of these are exact."""
    return round(worker_seconds * 1e6)


def attempts_topic(pool: str) -> tuple[str, str]:
    """What readers of a pool's stream wait for."""
    return ("attempts", pool)


def replies_topic(client: str) -> tuple[str, str]:
    """What a client waits for."""
    return ("replies", client)


@dataclass(slots=True)
class Entry:
    """A job in a lane, what is left of one, or bytes that are none."""

    head: Header | Malformed | Struck
    payload: bytes


@dataclass(slots=True)
class Delivery:
    """A dispatched job in its pool's stream, until its lease ends. ``reader`` is who took it."""

    name: str
    header: Header
    payload: bytes
    attempt: int
    reader: Reader | None = None


@dataclass(slots=True)
class Replies:
    """The ends of one client's jobs."""

    log: Log[str]
    touched: float = 0.0


@dataclass(slots=True)
class Calls:
    """The last submits of one client: call number to job ids."""

    ids: OrderedDict[int, list[str]] = field(default_factory=OrderedDict)
    touched: float = 0.0


def cursor(what: str, text: str) -> int:
    """Return the number that a cursor stands for."""
    if text == "":
        return 0
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise InvalidValue(what, text, "it must be empty or one that this store returned")
    return int(text)


class Key(NamedTuple):
    """Whose an idempotency key or chosen name is, and until when (monotonic)."""

    job_id: str
    expiry: float


class Bucket(NamedTuple):
    """A tenant's token bucket as it was at ``at``, by the wall clock."""

    tokens: float
    at: float


@dataclass(slots=True)
class History:
    """The last ends of an organisation's jobs, latest first."""

    jobs: deque[tuple[TenantPath, Listed]] = field(default_factory=lambda: deque(maxlen=HISTORY_LENGTH))
    touched: float = 0.0
