"""Frozen values that all layers share. No I/O, no clock, no behaviour beyond validation.

Units: worker-seconds for every cost (one slot held for one second), seconds for every duration, Unix
seconds for every ``*_at``. Names follow one alphabet (`check_name`), so that they can be put into keys,
job ids and terminal output without quoting. What tenants are entitled to is in `drr.policy`, and named here too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum
from hashlib import blake2s
from typing import Final, NamedTuple

from drr.errors import InvalidName, InvalidPolicy, InvalidValue
from drr.names import (
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    NAME_LENGTH_LIMIT,
    TenantPath,
    check_name,
    check_number,
    check_path,
)
from drr.policy import (
    ANY,
    LIMITS_PER_JOB,
    NO_QUOTA,
    NO_RETRY,
    UNNAMED_WORK,
    Amount,
    NodePolicy,
    Policies,
    PoolPolicy,
    Quota,
    RetryPolicy,
    Settings,
    Share,
    SharedLimit,
    check_limits,
    parse_amount,
)

__all__ = [
    "ANY",
    "DEFAULT_PRIORITY",
    "ESTIMATE_MAX",
    "ESTIMATE_MIN",
    "LIMITS_PER_JOB",
    "NAME_LENGTH_LIMIT",
    "NO_QUOTA",
    "NO_RETRY",
    "PAYLOAD_LIMIT",
    "PRIORITIES",
    "UNNAMED_WORK",
    "Amount",
    "Completion",
    "Header",
    "JobSpec",
    "JobState",
    "JobStatus",
    "Lane",
    "Lease",
    "NodePolicy",
    "NodeState",
    "Outcome",
    "Policies",
    "PoolPolicy",
    "Quota",
    "RetryPolicy",
    "Settings",
    "Share",
    "SharedLimit",
    "TenantPath",
    "call_nonce",
    "check_limits",
    "check_name",
    "check_number",
    "check_path",
    "format_job_id",
    "job_nonce",
    "parse_amount",
    "parse_job_id",
]

PAYLOAD_LIMIT: Final = 256 * 1024
"""Default limit of an encoded payload or result, in bytes."""
PRIORITIES: Final = range(10)
"""0 is served first, 9 last."""
DEFAULT_PRIORITY: Final = 5


class Lane(NamedTuple):
    """Where jobs wait in the store: first in first out within one lane.

    A lane belongs to one pool, tenant path, priority and set of named limits (sorted, see `check_limits`): so
    what waits for a limit stands in nobody else's way.
    """

    pool: str
    path: TenantPath
    priority: int = DEFAULT_PRIORITY
    limits: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ":".join((self.pool, *self.path, "+".join((str(self.priority), *self.limits))))

    @classmethod
    def parse(cls, text: str) -> Lane:
        """Return the lane that ``pool:organisation:project:priority+limit+...`` names; `InvalidValue` if none."""
        rule = "a lane looks like pool:organisation:project:priority, with +limit for each limit behind it"
        parts = text.split(":") if len(text) <= LANE_LENGTH_LIMIT else []
        if len(parts) < 3:
            raise InvalidValue("lane", text, rule)
        *names, last = parts
        digit, *limits = last.split("+")
        try:
            pool, *path = (check_name("lane part", name) for name in names)
            checked = check_limits(limits)
        except (InvalidName, InvalidPolicy):
            raise InvalidValue("lane", text, rule) from None
        if len(digit) != 1 or digit not in "0123456789" or checked != tuple(limits):
            raise InvalidValue("lane", text, rule)
        return cls(pool, tuple(path), int(digit), checked)


LANE_LENGTH_LIMIT: Final = 4096


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its client describes it, before the store has numbered it.

    ``payload`` is opaque to everything but the worker. ``estimate`` in worker-seconds, or ``None`` for
    what the dispatcher knows. ``timeout`` bounds one attempt, in seconds. ``result_ttl``: seconds that the
    outcome is kept after the end; 0 keeps nothing. ``reply_to``: client to be told of the end, or empty.
    ``retry``: ``None`` for what the tenant's plan says. ``deadline``: not to be started after this time (Unix
    seconds). ``due_at``: not to be queued before this time; 0 is at once.
    ``key``: an idempotency key, unique within the tenant path: for ``key_ttl`` seconds another job with it is not
    added, the submit yields the first one's id instead. ``name``: an id of the client's choice, likewise, but
    another job with it refuses the submit (`JobExists`). A job has one of the two at most.
    """

    lane: Lane
    task: str
    payload: bytes
    submitted_at: float
    estimate: float | None = None
    timeout: float | None = None
    result_ttl: float = 0.0
    reply_to: str = ""
    retry: RetryPolicy | None = None
    deadline: float | None = None
    due_at: float = 0.0
    key: str = ""
    name: str = ""
    key_ttl: float = 86_400.0


@dataclass(frozen=True, slots=True)
class Header:
    """What a dispatcher needs to know of a queued job: everything but the payload.

    ``sequence`` is the store's number of the job: unique and rising within a namespace. ``nonce`` comes
    from the submitting client; it tells apart two jobs that got one number because the store lost its
    last moments. ``attempts`` counts starts so far, ``losses`` those that the platform lost, ``failures`` those
    that failed or timed out (handed-back ones are neither).
    ``returned``: it stands at the head of its lane because it came back or was due, out of the order of numbers.
    """

    lane: Lane
    sequence: int
    nonce: str
    task: str
    submitted_at: float
    estimate: float | None = None
    timeout: float | None = None
    result_ttl: float = 0.0
    reply_to: str = ""
    attempts: int = 0
    losses: int = 0
    retry: RetryPolicy | None = None
    deadline: float | None = None
    failures: int = 0
    returned: bool = False

    @property
    def job_id(self) -> str:
        """The job's id: it tells the lane, so that no index is kept per job."""
        return format_job_id(self.lane, self.sequence, self.nonce)

    @property
    def work(self) -> float:
        """Worker-seconds that the job counts for in a backlog limit while it waits."""
        return UNNAMED_WORK if self.estimate is None else self.estimate


def format_job_id(lane: Lane, sequence: int, nonce: str) -> str:
    """Return the id of the job with this number: ``pool:organisation:project:priority:number~nonce``."""
    return f"{lane}:{sequence}~{nonce}"


def call_nonce(client: str, call: int) -> str:
    """Return the nonce of a submit: 10 hexadecimal digits that follow from its client and call number.

    It is the same when the call is repeated, so that a retried submit yields the same ids. See `job_nonce`.
    """
    return blake2s(f"{client}:{call}".encode(), digest_size=5).hexdigest()


def job_nonce(nonce: str, index: int) -> str:
    """Return the nonce of the ``index``-th job (from 0) of a submit with this nonce: itself, then ``nonce.1`` etc.

    Each has its own, since a store that has lost its last moments gives numbers twice: if the call is repeated then,
    the number that one job of it had may go to another one.
    """
    return f"{nonce}.{index}" if index else nonce


def parse_job_id(job_id: str) -> tuple[Lane, int, str]:
    """Return the lane, number and nonce that a job id names; raise `InvalidValue` if it is none."""
    rule = "a job id looks like pool:organisation:project:priority:number~nonce"
    head, _, nonce = job_id.rpartition("~") if len(job_id) <= LANE_LENGTH_LIMIT else ("", "", "")
    lane_name, _, number = head.rpartition(":")
    try:
        check_name("nonce", nonce)
        lane = Lane.parse(lane_name)
    except InvalidValue:
        raise InvalidValue("job id", job_id, rule) from None
    # isdecimal() alone would take the digits of any script.
    if not (number.isdecimal() and number.isascii() and len(number) <= 16 and int(number) <= 2**53):
        raise InvalidValue("job id", job_id, rule)
    return lane, int(number), nonce


class JobState(StrEnum):
    """Where a job stands. The last five are final."""

    DELAYED = "delayed"
    """Not due yet, or waiting for its next attempt: it holds nothing and makes no tenant active."""
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    """Given up without a verdict of its own code: poison, malformed, or lost too often."""
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    """Its deadline passed before it was started."""

    @property
    def final(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self not in (JobState.DELAYED, JobState.QUEUED, JobState.RUNNING)


class Outcome(IntEnum):
    """How one attempt ended, as far as accounting goes."""

    SUCCEEDED = 0
    FAILED = 1
    TIMED_OUT = 2
    LOST = 3
    """The worker died or its lease ran out: the platform's fault."""
    RETURNED = 4
    """The worker handed the attempt back unfinished (drain): the platform's fault."""
    CANCELLED = 5
    """Somebody cancelled the job while it ran: charged what it held."""

    @property
    def platform_fault(self) -> bool:
        """Whether the platform, not the tenant, ended the attempt."""
        return self in (Outcome.LOST, Outcome.RETURNED)


class NodeState(NamedTuple):
    """What is kept of one node's account between passes; enough to continue with every credit intact.

    ``credit``: worker-seconds, negative is debt. ``granted``: last round whose quantum is contained in it.
    ``served_round``: round of the last dispatch (a newcomer's turn is free again two rounds later).
    ``drained``: whether its queue was empty. ``void``: how many of its level's amnesties it has seen.
    ``floor_*``: the same for the share among nodes that are owed a floor. ``round``, ``voids``,
    ``floor_turn`` and ``floor_voids`` are the clocks of the level below an inner node.
    """

    credit: float = 0.0
    granted: int = 0
    served_round: int = -2
    drained: bool = False
    void: int = 0
    floor_credit: float = 0.0
    floor_granted: int = 0
    floor_void: int = 0
    round: int = 0
    voids: int = 0
    floor_turn: int = 0
    floor_voids: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """The right of one worker to run one attempt, as the store's ledger has it.

    ``token`` names it. ``dispatched_at``: the leader's wall clock at dispatch (for people).
    ``charged``: worker-seconds charged so far. ``excused``: empty, or a value per level (outermost first):
    the part of the charge that the floor rule wrote off there, or -1 where no floor was used. ``worker``
    is empty until somebody holds it. ``cancelled``: its job was cancelled while it runs; heartbeats no longer
    extend it.
    """

    token: str
    header: Header
    attempt: int
    dispatched_at: float
    charged: float
    worker: str = ""
    excused: tuple[float, ...] = ()
    cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Completion:
    """What is kept of a job's end, and what its handle shows."""

    state: JobState
    attempt: int
    finished_at: float
    seconds: float
    value: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobStatus:
    """What the store knows of one job; ``completion`` is there once it is final and kept."""

    job_id: str
    state: JobState
    attempt: int = 0
    completion: Completion | None = None
