"""Frozen values that all layers share. No I/O, no clock, no behaviour beyond validation.

Units: worker-seconds for every cost (one slot held for one second), seconds for every duration, Unix
seconds for every ``*_at``. Names follow one alphabet (`check_name`), so that they can be put into keys,
job ids and terminal output without quoting.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from hashlib import blake2s
from typing import Final, NamedTuple, TypeAlias

from drr.errors import InvalidName, InvalidPolicy, InvalidValue

TenantPath: TypeAlias = tuple[str, ...]
"""Names from the outermost tenant inwards: ``("acme", "billing")``. The empty path is the pool itself."""

NAME_LENGTH_LIMIT: Final = 128
PAYLOAD_LIMIT: Final = 256 * 1024
"""Default limit of an encoded payload or result, in bytes."""
PRIORITIES: Final = range(10)
"""0 is served first, 9 last."""
DEFAULT_PRIORITY: Final = 5
ESTIMATE_MIN: Final = 1e-6
ESTIMATE_MAX: Final = 1e8
"""Range of an estimate in worker-seconds; the upper end is about three years."""

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,128}\Z", re.ASCII)


def check_name(what: str, value: object) -> str:
    """Return ``value`` if it is a valid name, else raise `InvalidName` saying which ``what`` is wrong.

    A name has 1 to 128 characters out of ASCII letters, digits and ``_ - . @``.
    """
    if not isinstance(value, str) or _NAME.match(value) is None:
        raise InvalidName(what, value, "a name has 1 to 128 characters out of letters, digits and _ - . @")
    return value


def check_path(value: object, *, depth: int | None = None) -> TenantPath:
    """Return ``value`` (``"acme/billing"`` or a sequence of names) as a validated `TenantPath`."""
    if isinstance(value, str):
        parts: tuple[object, ...] = tuple(value.split("/"))
    elif isinstance(value, tuple | list):
        parts = tuple(value)
    else:
        raise InvalidName("tenant path", value, "a tenant path is 'organisation/project' or a tuple of names")
    if not parts or (depth is not None and len(parts) != depth):
        raise InvalidName("tenant path", value, f"a tenant path here has {depth or 'at least 1'} names")
    levels = ("organisation", "project")
    return tuple(check_name(levels[i] if i < 2 else "tenant", part) for i, part in enumerate(parts))


def check_number(
    what: str, value: object, low: float, high: float, *, error: type[InvalidValue] = InvalidValue
) -> float:
    """Return ``value`` as a float if it is a finite number with ``low <= value <= high``, else raise ``error``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise error(what, value, "it must be a finite number")
    if not low <= value <= high:
        raise error(what, value, f"it must be between {low:g} and {high:g}")
    return float(value)


@dataclass(frozen=True, slots=True)
class Share:
    """A cap or floor as a fraction (0..1) of the pool's live slots."""

    fraction: float

    def __post_init__(self) -> None:
        check_number("share", self.fraction, 0.0, 1.0, error=InvalidPolicy)

    def __str__(self) -> str:
        return f"{self.fraction * 100:g}%"


Amount: TypeAlias = int | Share
"""A number of running jobs, or a share of the pool's live slots."""


def parse_amount(what: str, value: object) -> Amount:
    """Read ``3``, ``"3"`` or ``"20%"`` as an `Amount`."""
    if isinstance(value, Share):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        try:
            if text.endswith("%"):
                percent = check_number(what, float(text[:-1]), 0.0, 100.0, error=InvalidPolicy)
                return Share(percent / 100)
            return int(text)
        except InvalidPolicy:
            raise
        except ValueError:
            pass
    raise InvalidPolicy(what, value, "it must be a whole number of jobs or a share such as '20%'")


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a node of the tree is entitled to. The defaults are weight 1, no caps and no floor.

    ``weight``: share relative to the siblings, 0.001 to 1,000,000. ``soft_cap``: running jobs while others
    wait; ``hard_cap``: running jobs ever; ``floor``: running jobs that the node gets ahead of everyone
    else when it has work. A cap is at least 1 (a share rounds up), a floor at least 0 (a share rounds
    down). ``ceiling``: the most credit, in worker-seconds, that the node may earn while it is parked;
    ``None`` takes the pool's default.
    """

    weight: float = 1.0
    soft_cap: Amount | None = None
    hard_cap: Amount | None = None
    floor: Amount = 0
    ceiling: float | None = None

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 1e-3, 1e6, error=InvalidPolicy)
        for what, cap in (("soft cap", self.soft_cap), ("hard cap", self.hard_cap)):
            if isinstance(cap, bool) or (isinstance(cap, int) and cap < 1):
                raise InvalidPolicy(what, cap, "a cap must be at least 1; leave it out for no cap")
        if isinstance(self.floor, bool) or (isinstance(self.floor, int) and self.floor < 0):
            raise InvalidPolicy("floor", self.floor, "a floor must be at least 0")
        if self.ceiling is not None:
            check_number("ceiling", self.ceiling, 0.0, 1e9, error=InvalidPolicy)
        self._check_order("soft cap", self.soft_cap, "hard cap", self.hard_cap)
        self._check_order("floor", self.floor, "soft cap", self.soft_cap)
        self._check_order("floor", self.floor, "hard cap", self.hard_cap)

    @staticmethod
    def _check_order(low_name: str, low: Amount | None, high_name: str, high: Amount | None) -> None:
        # Only like can be compared with like here: a count against a share depends on the live slots.
        # Where they are mixed, the core takes the smaller of the two when it resolves them.
        low_value = low.fraction if isinstance(low, Share) else low
        high_value = high.fraction if isinstance(high, Share) else high
        if isinstance(low, Share) != isinstance(high, Share) or low_value is None or high_value is None:
            return
        if low_value > high_value:
            raise InvalidPolicy(low_name, str(low), f"it must not be above the {high_name} ({high})")


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Settings of one pool's tree.

    ``quantum``: worker-seconds of credit per round to weight 1. ``ceiling``: default ceiling of the nodes.
    ``reserve``: slots kept free from borrowers. ``default_estimate``: worker-seconds charged for a job
    that names none.
    """

    quantum: float = 1.0
    ceiling: float = 60.0
    reserve: int = 0
    default_estimate: float = 1.0

    def __post_init__(self) -> None:
        check_number("quantum", self.quantum, 1e-3, 1e6, error=InvalidPolicy)
        check_number("ceiling", self.ceiling, 0.0, 1e9, error=InvalidPolicy)
        if type(self.reserve) is not int or self.reserve < 0:
            raise InvalidPolicy("reserve", self.reserve, "it must be a whole number of slots, at least 0")
        check_number("default estimate", self.default_estimate, ESTIMATE_MIN, ESTIMATE_MAX, error=InvalidPolicy)


class Lane(NamedTuple):
    """Where jobs wait in the store: first in first out within one lane.

    A lane belongs to one pool, tenant path and priority. (Sets of named limits will be part of it.)
    """

    pool: str
    path: TenantPath
    priority: int = DEFAULT_PRIORITY

    def __str__(self) -> str:
        return ":".join((self.pool, *self.path, str(self.priority)))


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job as its client describes it, before the store has numbered it.

    ``payload`` is opaque to everything but the worker. ``estimate`` in worker-seconds, or ``None`` for
    what the dispatcher knows. ``timeout`` bounds one attempt, in seconds. ``result_ttl``: seconds that the
    outcome is kept after the end; 0 keeps nothing. ``reply_to``: client to be told of the end, or empty.
    """

    lane: Lane
    task: str
    payload: bytes
    submitted_at: float
    estimate: float | None = None
    timeout: float | None = None
    result_ttl: float = 0.0
    reply_to: str = ""


@dataclass(frozen=True, slots=True)
class Header:
    """What a dispatcher needs to know of a queued job: everything but the payload.

    ``sequence`` is the store's number of the job: unique and rising within a namespace. ``nonce`` comes
    from the submitting client; it tells apart two jobs that got one number because the store lost its
    last moments. ``attempts`` counts starts so far, ``losses`` those that the platform lost.
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

    @property
    def job_id(self) -> str:
        """The job's id: it tells the lane, so that no index is kept per job."""
        return format_job_id(self.lane, self.sequence, self.nonce)


def format_job_id(lane: Lane, sequence: int, nonce: str) -> str:
    """Return the id of the job with this number: ``pool:organisation:project:priority:number-nonce``."""
    return f"{lane}:{sequence}~{nonce}"


def call_nonce(client: str, call: int) -> str:
    """Return the nonce of all jobs of one submit: 10 hexadecimal digits that follow from its client and call number.

    It is the same when the call is repeated, so that a retried submit yields the same ids.
    """
    return blake2s(f"{client}:{call}".encode(), digest_size=5).hexdigest()


def parse_job_id(job_id: str) -> tuple[Lane, int, str]:
    """Return the lane, number and nonce that a job id names; raise `InvalidValue` if it is none."""
    rule = "a job id looks like pool:organisation:project:priority:number~nonce"
    if len(job_id) > 1024:
        raise InvalidValue("job id", job_id, rule)
    head, _, nonce = job_id.rpartition("~")
    parts = head.split(":")
    if len(parts) < 4 or not nonce:
        raise InvalidValue("job id", job_id, rule)
    *names, priority, number = parts
    try:
        check_name("nonce", nonce)
        pool, *path = (check_name("job id part", name) for name in names)
        # isdecimal() alone would take the digits of any script.
        digits = priority.isdecimal() and number.isdecimal() and (priority + number).isascii()
        if not (digits and int(priority) in PRIORITIES and int(number) <= 2**53):
            raise InvalidValue("job id", job_id, rule)
    except InvalidName:
        raise InvalidValue("job id", job_id, rule) from None
    return Lane(pool, tuple(path), int(priority)), int(number), nonce


class JobState(StrEnum):
    """Where a job stands. The last three are final."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    DEAD = "dead"
    """Given up without a verdict of its own code: poison, malformed, or lost too often."""

    @property
    def final(self) -> bool:
        """Whether nothing more can happen to the job."""
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.DEAD)


class Outcome(IntEnum):
    """How one attempt ended, as far as accounting goes."""

    SUCCEEDED = 0
    FAILED = 1
    TIMED_OUT = 2
    LOST = 3
    """The worker died or its lease ran out: the platform's fault."""
    RETURNED = 4
    """The worker handed the attempt back unfinished (drain): the platform's fault."""

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
    is empty until somebody holds it.
    """

    token: str
    header: Header
    attempt: int
    dispatched_at: float
    charged: float
    worker: str = ""
    excused: tuple[float, ...] = ()


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


Policies: TypeAlias = Mapping[TenantPath, NodePolicy]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about entitlement that is stored: per pool its settings, and the policies of its nodes.

    A node without a policy of its own has the defaults of `NodePolicy`.
    """

    pools: Mapping[str, PoolPolicy] = field(default_factory=dict)
    nodes: Mapping[str, Policies] = field(default_factory=dict)
