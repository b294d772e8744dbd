"""Values that cross the port between drr and its stores, and their limits. See `drr.backend` for the port itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import reduce
from typing import Final, NamedTuple, TypeAlias

from drr.model import Completion, Header, JobState, Lane, Lease, NodeState, Settings, TenantPath

ITEM_LIMIT: Final = 1000
"""Most jobs in one submit, most headers in one peek, most items of one kind in one commit.

The kinds that move jobs (settlements, requeues, burials, dispatches) are bounded; what follows from them
(charges, nodes) is not: one dispatch touches the account of every node on its path.
"""

STRIKE_LIMIT: Final = 100
"""Most strikes in one commit, and most jobs in one `DispatcherPort.locate`: each is a search in a lane."""

TOKEN_LIMIT: Final = 256
"""Most characters of a lease's token. It does not begin with ``#``, which adapters keep for themselves."""

CALLS_REMEMBERED: Final = 64
"""How many of a client's submits are remembered, to recognise one that is repeated."""
CALLS_KEPT_SECONDS: Final = 86_400.0
"""Seconds after a client's last submit for which its calls are remembered."""
CALLS_RELEASED: Final = 600.0
"""Seconds for which they are remembered still once the client has said that it will repeat none."""


ATTENDANCE_MAX: Final = 10_000_000.0
"""Most seconds for which a store remembers that a dispatcher lives."""


@dataclass(frozen=True, slots=True)
class Malformed:
    """A lane entry that is no valid job. ``raw`` is its whole content (possibly cut), to name it by."""

    lane: Lane
    raw: bytes
    reason: str


class Struck(NamedTuple):
    """What is left in a lane of a job that was cancelled or expired while it waited; its outcome is recorded."""

    lane: Lane
    sequence: int


@dataclass(frozen=True, slots=True)
class Attempt:
    """A dispatched attempt as its worker receives it."""

    delivery: str
    """Names the entry of the pool stream, to be passed back in the final event."""
    token: str
    number: int
    header: Header
    payload: bytes


class EventKind(StrEnum):
    """What a worker can report of an attempt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    RETURNED = "returned"
    CANCELLED = "cancelled"
    """The handler was stopped because its job was cancelled."""


@dataclass(frozen=True, slots=True)
class Event:
    """A final report on one attempt. ``seconds``: how long it held its slot by the worker's clock.

    ``retry_after``: of a failed one, the pause that the handler asked for before the next attempt, in seconds.
    """

    token: str
    kind: EventKind
    worker: str
    seconds: float
    value: bytes = b""
    error: str = ""
    retry_after: float | None = None


class RequestKind(StrEnum):
    """What may be asked of the leader."""

    CANCEL = "cancel"
    """``subject``: a job id."""
    REVIVE = "revive"
    """Put a dead letter's job back to the head of its lane, as if never tried. ``subject``: the letter's number."""
    PLANS = "plans"
    """Put a plans file into force. ``body``: its text in UTF-8; ``subject``: what it is called."""
    ASSIGN = "assign"
    """Put an organisation on a plan. ``subject``: ``organisation plan``; with no plan, on what the file says."""


@dataclass(frozen=True, slots=True)
class Request:
    """Something that is asked of the leader; durable once accepted, carried out by a later pass.

    ``id``: chosen by who asks (at most 64 characters of a name), so that the outcome can be found in the log of
    changes. ``by``: who asks, for people; at most 200 characters.
    """

    kind: RequestKind
    subject: str
    body: bytes = b""
    id: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class MalformedRequest:
    """A request that could not be decoded; counted, logged and skipped."""

    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class MalformedEvent:
    """An event that could not be decoded; counted, logged and skipped."""

    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's heartbeat as the store holds it. ``renewals`` rises by one with every beat.

    ``slots`` by pool. ``held``: tokens of the attempts in its hands, unreported ones included.
    ``draining``: takes nothing new; its free slots do not count. ``blocks``: how often its event loop was blocked for
    too long since the process began; 0 for workers that do not count that.
    """

    name: str
    incarnation: str
    slots: Mapping[str, int]
    held: tuple[str, ...] = ()
    draining: bool = False
    version: str = ""
    renewals: int = 0
    blocks: int = 0


@dataclass(frozen=True, slots=True)
class LeaderRecord:
    """Who leads. ``token`` is ``epoch:uuid``, or empty after a resignation.

    ``renewals`` and ``passes`` start at 0 with each election and rise while the leader lives and commits; a
    resignation leaves them as they are.
    """

    token: str = ""
    renewals: int = 0
    passes: int = 0


@dataclass(frozen=True, slots=True)
class Position:
    """How far the leader has read: adapter-defined cursors into events, announcements, requests ("" = the start)."""

    events: str = ""
    wake: str = ""
    requests: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """One batch of news: events in order, lanes that were announced, whether a worker came, changed or left.

    ``position`` is where the next read goes on; it is committed with the pass that applied the batch.
    An announcement carries the head of its lane, so that a lone job needs no second read. A lane that was
    announced several times comes once, with the latest head.
    ``due_at``: the earliest due time (Unix seconds) that was announced since the last read, or ``None``: a submit
    announces it when no job that was delayed before is due earlier.
    """

    position: Position
    events: tuple[Event | MalformedEvent, ...] = ()
    lanes: tuple[tuple[Lane, Header | Malformed], ...] = ()
    workers_changed: bool = False
    requests: tuple[Request | MalformedRequest, ...] = ()
    due_at: float | None = None


@dataclass(frozen=True, slots=True)
class DueJobs:
    """Delayed jobs whose time has come, earliest first; and when (Unix seconds) the next one after them is due."""

    jobs: tuple[Header, ...] = ()
    next_at: float | None = None


@dataclass(frozen=True, slots=True)
class Peek:
    """A request for headers of a lane: ``count`` of them after the first ``offset``."""

    lane: Lane
    offset: int
    count: int


@dataclass(frozen=True, slots=True)
class Window:
    """The answer to a `Peek`: headers in lane order, and the lane's whole length at that moment."""

    lane: Lane
    offset: int
    entries: tuple[Header | Malformed | Struck, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Move the head of a lane to its pool's stream and write its lease.

    ``header`` is the head as the dispatcher saw it; another head refuses the commit. Several dispatches
    of one lane take successive heads, and a job that the same commit puts back is a head again.
    """

    header: Header
    lease: Lease


class DeathCause(StrEnum):
    """Why a job is on the dead-letter list."""

    FAILED = "failed"
    TIMED_OUT = "timed_out"
    POISON = "poison"
    """Lost its worker too often."""
    MALFORMED = "malformed"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Settlement:
    """End an attempt, and its job, for good: lease and pool entry go, the outcome is recorded if anybody wants it.

    ``bury`` puts the job (header and payload) on the dead-letter list with this reason and ``cause``; empty does not.
    """

    lease: Lease
    completion: Completion
    bury: str = ""
    cause: DeathCause = DeathCause.OTHER


@dataclass(frozen=True, slots=True)
class Requeue:
    """Give an attempt's job back to the head of its lane with these new counts; lease and entry go.

    ``attempts`` is at least 1, ``losses`` and ``failures`` at least 0. Of several in one lane the last is in front.
    """

    lease: Lease
    attempts: int
    losses: int
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Postpone:
    """Put an attempt's job off until ``due_at`` (Unix seconds), with these new counts; lease and entry go."""

    lease: Lease
    due_at: float
    attempts: int
    losses: int
    failures: int


@dataclass(frozen=True, slots=True)
class Mature:
    """Put a delayed job, whose time has come, at the head of its lane.

    Of several in one lane the last is in front; all stand behind what the same commit requeues.
    The commit is refused if ``header`` is not what is stored under its number.
    """

    header: Header


@dataclass(frozen=True, slots=True)
class Drop:
    """Take the head off a lane without starting it, because it was cancelled or has expired; record the outcome.

    Another head refuses the commit.
    """

    header: Header
    completion: Completion


@dataclass(frozen=True, slots=True)
class DropDelayed:
    """Take a delayed job away because it was cancelled or has expired; record the outcome.

    The commit is refused if ``header`` is not what is stored under its number.
    """

    header: Header
    completion: Completion


@dataclass(frozen=True, slots=True)
class Strike:
    """End a waiting job anywhere in its lane: its payload goes, a `Struck` stays in its place; record the outcome.

    Found by its number, at a cost that grows with the logarithm of the lane's length. The commit is refused if
    ``header`` is not what is stored there. Strikes see the lanes as they were before the commit.
    """

    header: Header
    completion: Completion


@dataclass(frozen=True, slots=True)
class Located:
    """A job that waits: its header, and whether it is delayed (else it stands in its lane)."""

    header: Header
    delayed: bool


@dataclass(frozen=True, slots=True)
class Revival:
    """Put a dead letter's job back to the head of its lane, with all counts at 0 and no outcome.

    The commit is refused if the letter with this number is gone or is not of ``header``'s job. Behind what the
    same commit matures.
    """

    number: int
    header: Header


@dataclass(frozen=True, slots=True)
class Burial:
    """Move a malformed head of a lane to the dead-letter list. (Of a `Struck` head, take the `Struck` itself.)"""

    lane: Lane
    raw: bytes
    reason: str


class Work(NamedTuple):
    """Jobs that wait and their worker-seconds by estimate (`Header.work`), or changes of the two."""

    jobs: int = 0
    worker_seconds: float = 0.0


class UsageKey(NamedTuple):
    """What usage is counted by: ``hour`` is Unix time divided by 3,600, of the moment when an attempt ended."""

    hour: int
    path: TenantPath
    pool: str


class Usage(NamedTuple):
    """An account of ended attempts. Worker-seconds are kept by stores to the microsecond.

    ``held`` = ``charged`` + ``refunded``, to the last attempt: what workers spent is what somebody was charged or
    what the platform took upon itself. ``attempts`` is the sum of the five counts before it; ``expired`` counts jobs
    that were never started.
    """

    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    lost: int = 0
    returned: int = 0
    expired: int = 0
    held: float = 0.0
    charged: float = 0.0
    refunded: float = 0.0

    @property
    def attempts(self) -> int:
        """How many attempts ended."""
        return self.succeeded + self.failed + self.timed_out + self.cancelled + self.lost + self.returned

    @classmethod
    def sum(cls, accounts: Iterable[Usage]) -> Usage:
        """Return the sum of any number of accounts."""
        return reduce(cls.plus, accounts, cls())

    def plus(self, other: Usage) -> Usage:
        """Return the sum of two accounts."""
        mine, its = self, other
        return Usage(
            mine.succeeded + its.succeeded,
            mine.failed + its.failed,
            mine.timed_out + its.timed_out,
            mine.cancelled + its.cancelled,
            mine.lost + its.lost,
            mine.returned + its.returned,
            mine.expired + its.expired,
            mine.held + its.held,
            mine.charged + its.charged,
            mine.refunded + its.refunded,
        )


@dataclass(frozen=True, slots=True)
class ChangeRecord:
    """A line of the log of changes to entitlement.

    ``id`` is that of the request or empty; ``what`` for people; ``refused``: why nothing was changed, or empty.
    """

    at: float
    id: str
    by: str
    what: str
    refused: str = ""


CHANGES_KEPT: Final = 1000
"""Lines of the log of changes that are kept."""
USAGE_KEPT_DAYS: Final = 400


class EstimateKey(NamedTuple):
    """What an estimate is learned for: a task of a project, a project (``task`` empty), or a pool (both empty)."""

    pool: str
    path: TenantPath
    task: str


NodeKey: TypeAlias = tuple[str, TenantPath]
"""A pool and a path in its tree; the empty path is the root."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything one pass changes. Applied in the order of the fields, all or nothing.

    ``charges`` updates what running leases have been charged, and marks cancelled ones. ``stops``: tokens of running
    attempts whose workers are told to stop (`WorkerPort.stops`). ``nodes`` are the accounts of touched nodes;
    ``None`` forgets one. ``estimates`` likewise, opaque. ``settings`` replaces what is stored if given;
    ``changes`` are appended to the log of changes. ``usage`` is added to the accounts. ``waiting`` is added to the
    counts that backlog limits are checked against: the engine takes off what was dispatched, dropped or buried
    or struck (a malformed head counts for a job without an estimate, a struck one for nothing), and adds what was
    requeued, postponed or revived;
    ``submit`` itself adds what it appends. ``forget_workers``: workers that left or were declared dead (name to
    incarnation); a record of another incarnation is left alone.

    Put-back order in one lane, from the head: requeues (last first), matured (last first), revived, what was there.

    Leases are named by their tokens. A settlement, requeue, postponement or charge of a token that is not live (any
    more) refuses the commit; so does a dispatch under a token that is live already, or was until this commit.
    Once committed, events, announcements and requests up to ``position`` are gone. A commit renews the leadership.
    """

    token: str
    pass_number: int
    position: Position
    settlements: Sequence[Settlement] = ()
    requeues: Sequence[Requeue] = ()
    postpones: Sequence[Postpone] = ()
    matures: Sequence[Mature] = ()
    revivals: Sequence[Revival] = ()
    drops_delayed: Sequence[DropDelayed] = ()
    strikes: Sequence[Strike] = ()
    removals: Sequence[Burial | Drop | Struck] = ()
    """Heads of lanes that go, in this order."""
    dispatches: Sequence[Dispatch] = ()
    charges: Mapping[str, Lease] = field(default_factory=dict)
    stops: Sequence[str] = ()
    nodes: Mapping[NodeKey, NodeState | None] = field(default_factory=dict)
    estimates: Mapping[EstimateKey, bytes | None] = field(default_factory=dict)
    settings: Settings | None = None
    changes: Sequence[ChangeRecord] = ()
    usage: Mapping[UsageKey, Usage] = field(default_factory=dict)
    waiting: Mapping[TenantPath, Work] = field(default_factory=dict)
    """By project path; a store keeps the sums of organisations itself."""
    forget_workers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a new leader starts from: the store at the end of some pass."""

    position: Position
    passes: int
    leases: tuple[Lease, ...]
    nodes: Mapping[NodeKey, NodeState]
    settings: Settings
    workers: tuple[WorkerRecord, ...]
    lanes: tuple[Lane, ...]
    """All active lanes. They are read after ``position.wake`` was taken: none can fall between."""
    due_at: float | None = None
    """When (Unix seconds) the first delayed job is due; read after ``position.wake``, too."""
    estimates: Mapping[EstimateKey, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, and why.

    ``header`` is the job as it was dispatched, ``payload`` what its worker would have got. Of an entry that
    was no valid job ``header`` is ``None`` and ``payload`` its raw content (possibly cut). ``number`` names the
    letter: unique and rising. ``buried_at``: Unix seconds by the store's clock.
    """

    number: int
    lane: Lane
    reason: str
    cause: DeathCause
    buried_at: float
    header: Header | None
    payload: bytes

    def expired(self, now: float) -> bool:
        """Whether the job's deadline is over at ``now`` (Unix seconds), so that it would not run any more."""
        return self.header is not None and self.header.deadline is not None and self.header.deadline <= now


@dataclass(frozen=True, slots=True)
class Listed:
    """A job in a listing. ``at``: when it ended if it has, is due if it is delayed, else was submitted."""

    job_id: str
    task: str
    state: JobState
    attempt: int
    at: float
    seconds: float = 0.0
    error: str = ""


HISTORY_LENGTH: Final = 10_000
"""Ended jobs that are kept for listing per organisation."""
HISTORY_SECONDS: Final = 7 * 86_400.0
"""Seconds after the last end of a job for which an organisation's history is kept."""
PROGRESS_LIMIT: Final = 4096
"""Most bytes of what a handler may report of its progress."""
PROGRESS_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a listing. ``cursor`` goes on where it ends; empty at the end. A page may be empty before that."""

    jobs: tuple[Listed, ...]
    cursor: str = ""


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The leader's own description of its tree, for ``drr status``; opaque to the store."""

    blob: bytes
    leader: LeaderRecord
    workers: tuple[WorkerRecord, ...]


class Mismatch(StrEnum):
    """Kinds of disagreement between parts of what is known, which should never be found."""

    ENTRY = "entry"
    """A pool's stream has an entry, or a delivery without one, to which no lease belongs."""
    LEASE = "lease"
    """A lease whose entry in its pool's stream is gone, and the job's payload with it."""
    PLACE = "place"
    """A job that is kept where nobody would find it, or a note of a job that is not there."""
    LANE = "lane"
    """A lane holds jobs that the leader does not know of."""
    COUNT = "count"
    """What backlog limits count of a project is not what waits."""
    HOLD = "hold"
    """The leader's memory of who holds what is not the ledger."""


class Repair(NamedTuple):
    """A disagreement that was found and set right; ``what`` is for people."""

    kind: Mismatch
    what: str


AUDIT_LIMIT: Final = 500
"""Most items of one kind that one page of an audit looks at."""


@dataclass(frozen=True, slots=True)
class Audit:
    """One page of a store's look at itself; ``cursor`` goes on where it ends, and is empty at the end.

    ``repaired``: what was wrong within the store. The rest is for the leader to compare with what it knows:
    ``tokens`` of leases on this page, the last of them if ``leases_done``; ``bare``: those whose entries are gone;
    ``lanes`` that hold jobs; ``delayed``: what is put off, by project; ``waiting``: what backlog limits count, by
    project. All that is put off comes before the first that is counted.
    """

    cursor: str = ""
    repaired: tuple[Repair, ...] = ()
    tokens: tuple[str, ...] = ()
    leases_done: bool = False
    bare: tuple[str, ...] = ()
    lanes: tuple[Lane, ...] = ()
    delayed: Mapping[TenantPath, Work] = field(default_factory=dict)
    waiting: Mapping[TenantPath, Work] = field(default_factory=dict)
