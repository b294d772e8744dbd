"""The port: what drr asks of a store. Adapters implement it and are found by URL scheme.

Who may do what
    A *client* appends jobs to lanes and reads outcomes. A *worker* reads attempts from its pools' streams,
    appends events and keeps one heartbeat. Only the *leader* changes what a job's state is, and it does so
    in one call, `DispatcherPort.commit`. The port is cut into three protocols along these roles, so that
    each process needs no more rights than its role has.

What an adapter promises
    - ``submit`` is durable when it returns (as durable as the store is), all of the batch or nothing, and a
      repeated call (same client, same call number) adds nothing and returns the first call's numbers.
    - ``commit`` is atomic: every effect of one pass, or none. It is refused with `NotLeader` unless its
      token leads and its pass number is the one after the last accepted, and with `CommitRefused` if a
      lane's head or a lease is not what it says. Everything is validated before the first write.
    - A lane is in the store's set of active lanes exactly while it holds jobs. A submit that adds to an
      empty lane also announces it.
    - Methods raise only `drr.errors.BackendError` subclasses (and cancellation), except that an argument
      outside its range (`check_count`, `check_commit`, `check_job` ...) or a name outside the alphabet is the
      caller's mistake: `InvalidValue`, and nothing was done. After `close` they raise `StoreUnavailable`. After
      `StoreUnavailable` it is unknown whether a write took effect: only ``submit``, ``report`` and
      reads may simply be repeated. A dispatcher that saw it elects itself anew and loads again.
    - Blocking reads return empty when ``block`` seconds have passed; 0 means do not block.

Liveness is never judged by the store: it keeps renewal counters, and an observer compares them over its
own monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.metadata import entry_points
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from drr.clock import Clock
from drr.errors import InvalidValue, UnknownBackend
from drr.model import (
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    PRIORITIES,
    Completion,
    Header,
    JobSpec,
    JobStatus,
    Lane,
    Lease,
    NodeState,
    Settings,
    TenantPath,
    check_name,
    check_number,
    check_path,
)

ITEM_LIMIT = 1000
"""Most jobs in one submit, most headers in one peek, most items of one kind in one commit.

The kinds that move jobs (settlements, requeues, burials, dispatches) are bounded; what follows from them
(charges, nodes) is not: one dispatch touches the account of every node on its path.
"""

TOKEN_LIMIT = 256
"""Most characters of a lease's token. It does not begin with ``#``, which adapters keep for themselves."""

CALLS_REMEMBERED = 64
"""How many of a client's submits are remembered, to recognise one that is repeated."""


# --- values that cross the port -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Malformed:
    """A lane entry that is no valid job. ``raw`` is its whole content (possibly cut), to name it by."""

    lane: Lane
    raw: bytes
    reason: str


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


@dataclass(frozen=True, slots=True)
class Event:
    """A final report on one attempt. ``seconds``: how long it held its slot by the worker's clock."""

    token: str
    kind: EventKind
    worker: str
    seconds: float
    value: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class MalformedEvent:
    """An event that could not be decoded; counted, logged and skipped."""

    raw: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """A worker's heartbeat as the store holds it. ``renewals`` rises by one with every beat.

    ``slots`` by pool. ``held``: tokens of the attempts in its hands, unreported ones included.
    ``draining``: takes nothing new; its free slots do not count.
    """

    name: str
    incarnation: str
    slots: Mapping[str, int]
    held: tuple[str, ...] = ()
    draining: bool = False
    version: str = ""
    renewals: int = 0


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
    """How far the leader has read: adapter-defined cursors into events and announcements ("" = the start)."""

    events: str = ""
    wake: str = ""


@dataclass(frozen=True, slots=True)
class Facts:
    """One batch of news: events in order, lanes that were announced, whether a worker came, changed or left.

    ``position`` is where the next read goes on; it is committed with the pass that applied the batch.
    An announcement carries the head of its lane, so that a lone job needs no second read. A lane that was
    announced several times comes once, with the latest head.
    """

    position: Position
    events: tuple[Event | MalformedEvent, ...] = ()
    lanes: tuple[tuple[Lane, Header | Malformed], ...] = ()
    workers_changed: bool = False


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
    entries: tuple[Header | Malformed, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Move the head of a lane to its pool's stream and write its lease.

    ``header`` is the head as the dispatcher saw it; another head refuses the commit. Several dispatches
    of one lane take successive heads, and a job that the same commit requeues is a head again.
    """

    header: Header
    lease: Lease


@dataclass(frozen=True, slots=True)
class Settlement:
    """End an attempt for good: its lease and its pool entry go, the outcome is recorded if anybody wants it.

    ``bury`` puts the job (header and payload) on the dead-letter list with this reason; empty does not.
    """

    lease: Lease
    completion: Completion
    bury: str = ""


@dataclass(frozen=True, slots=True)
class Requeue:
    """Give an attempt's job back to the head of its lane with these new counts; lease and entry go.

    ``attempts`` is at least 1 (it tells a returned entry from a fresh one), ``losses`` at least 0. Of several
    in one lane the last is in front.
    """

    lease: Lease
    attempts: int
    losses: int


@dataclass(frozen=True, slots=True)
class Burial:
    """Move a malformed head of a lane to the dead-letter list."""

    lane: Lane
    raw: bytes
    reason: str


NodeKey: TypeAlias = tuple[str, TenantPath]
"""A pool and a path in its tree; the empty path is the root."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Everything one pass changes. Applied in the order of the fields, all or nothing.

    ``charges`` updates what running leases have been charged. ``nodes`` are the accounts of touched nodes;
    ``None`` forgets one. ``settings`` replaces what is stored if given. ``forget_workers``: workers that
    left or were declared dead (name to incarnation); a record of another incarnation is left alone.

    Leases are named by their tokens. A settlement, requeue or charge of a token that is not live (any more)
    refuses the commit; so does a dispatch under a token that is live already, or was until this commit.
    Once committed, events and announcements up to ``position`` are gone. A commit renews the leadership.
    """

    token: str
    pass_number: int
    position: Position
    settlements: Sequence[Settlement] = ()
    requeues: Sequence[Requeue] = ()
    burials: Sequence[Burial] = ()
    dispatches: Sequence[Dispatch] = ()
    charges: Mapping[str, Lease] = field(default_factory=dict)
    nodes: Mapping[NodeKey, NodeState | None] = field(default_factory=dict)
    settings: Settings | None = None
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


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A job that was given up, and why.

    ``header`` is the job as it was dispatched, ``payload`` what its worker would have got. Of an entry that
    was no valid job ``header`` is ``None`` and ``payload`` its raw content (possibly cut).
    """

    lane: Lane
    reason: str
    header: Header | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The leader's own description of its tree, for ``drr status``; opaque to the store."""

    blob: bytes
    leader: LeaderRecord
    workers: tuple[WorkerRecord, ...]


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
    for kind in ("settlements", "requeues", "burials", "dispatches"):
        check_count(f"number of {kind} in one commit", len(getattr(commit, kind)))
    for requeue in commit.requeues:
        check_count("attempts of a returned job", requeue.attempts, low=1, high=2**16 - 1)
        check_count("losses of a returned job", requeue.losses, high=2**16 - 1)
    for dispatch in commit.dispatches:
        token = dispatch.lease.token
        if not 0 < len(token) <= TOKEN_LIMIT or token[0] == "#":
            raise InvalidValue("token of a lease", token, f"it has 1 to {TOKEN_LIMIT} characters and no # in front")
    check_peeks(peeks)


# --- the port -----------------------------------------------------------------------------------------


class ClientPort(Protocol):
    """What a client needs."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """Append ``jobs`` (at most `ITEM_LIMIT`) to their lanes in order; return their ids.

        ``client`` is unique to one client process, ``call`` rises by one per call: a repeated pair is
        recognised among the client's last 64 calls (`CALLS_REMEMBERED`). The jobs' nonce is
        `drr.model.call_nonce` of the two. Raises `StoreFull` when there is no room.
        """
        ...

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """Return where each of the jobs (at most `ITEM_LIMIT`) stands; ``None`` for one the store knows nothing of.

        A live lease makes it running, a kept outcome final. There is no index of waiting jobs: as lanes are
        first in first out, a job waits if it is one of the returned entries at its lane's head (``attempts``
        at least 1; ``attempt`` of the answer is that number), or if the lane's first fresh entry has a number
        not above its own. So an id that no submit returned may be taken for a waiting one. What is no job
        id at all is unknown.
        """
        ...

    async def replies(self, client: str, after: str, block: float) -> tuple[str, list[str]]:
        """Wait for ends of jobs that were submitted with ``reply_to=client``; return the new cursor and ids.

        ``after`` is the last cursor, or "" for the oldest that is still kept.
        """
        ...

    async def lane_lengths(self, lanes: Sequence[Lane]) -> list[int]:
        """Return how many jobs wait in each lane."""
        ...

    async def read_status(self) -> StoredStatus:
        """Return the leader's last description of its tree, the leader record and the workers."""
        ...

    async def dead_letters(self, limit: int = 100, offset: int = 0) -> list[DeadLetter]:
        """Return up to ``limit`` (at most `ITEM_LIMIT`) dead letters after the first ``offset``, oldest first."""
        ...


class WorkerPort(Protocol):
    """What a worker needs."""

    async def join(self, record: WorkerRecord, replacing: str = "") -> None:
        """Register a worker's new incarnation and tell the dispatcher.

        If another incarnation is on record and it is not ``replacing``, raises `WorkerNameInUse`. The caller
        decides whether that one is dead, by watching its renewal counter over one lease (`worker_record`),
        and then passes its incarnation as ``replacing``. Entries that were delivered to the predecessor
        and not settled are reported as returned, on its behalf, by the dispatcher's own judgement; the new
        incarnation never runs them. The store keeps the renewal counter: ``record.renewals`` is ignored, a new
        incarnation starts at 0. To join again as the incarnation on record (a lost reply) is a heartbeat and told.
        """
        ...

    async def worker_record(self, name: str) -> WorkerRecord | None:
        """Return what is on record under a worker's name."""
        ...

    async def heartbeat(self, record: WorkerRecord) -> bool:
        """Renew: write ``record`` and raise its counter. Returns whether the record still was this
        incarnation's; if not (declared dead, or replaced), nothing is written and the worker must stop,
        or join again under a new incarnation. A change of slots or of draining is told to the dispatcher.
        """
        ...

    async def leave(self, name: str, incarnation: str) -> None:
        """Say goodbye: the record goes if it is this incarnation's, and the dispatcher is told at once."""
        ...

    async def read_attempts(
        self, name: str, incarnation: str, pool: str, count: int, block: float
    ) -> list[Attempt | Malformed]:
        """Take up to ``count`` (1 to `ITEM_LIMIT`) attempts off a pool's stream, in order of dispatch.

        They are pending for this incarnation until their leases end. Needs a connection of its own; never
        cancelled.
        """
        ...

    async def pending_attempts(self, name: str, incarnation: str, pool: str) -> list[Attempt | Malformed]:
        """Return the attempts delivered to this incarnation and not settled; to be asked after a reconnect."""
        ...

    async def report(self, events: Sequence[Event]) -> None:
        """Append final events (at most `ITEM_LIMIT`). Once it returns, the tokens may leave the heartbeat."""
        ...


class DispatcherPort(Protocol):
    """What a dispatcher needs."""

    async def prepare(self) -> None:
        """Make the store ready (idempotent): libraries, schema number, server version. Raises
        `StoreUnsupported` or `StoreNotPrepared`.
        """
        ...

    async def leader(self) -> LeaderRecord:
        """Return who leads."""
        ...

    async def elect(self, expected: str, token: str) -> bool:
        """Make ``token`` the leader if ``expected`` still is; its pass number starts at 0."""
        ...

    async def renew(self, token: str) -> None:
        """Raise the leader's renewal counter; `NotLeader` if it does not lead. Works when memory is full."""
        ...

    async def resign(self, token: str) -> None:
        """Give up the leadership if ``token`` holds it, and wake the standbys."""
        ...

    async def await_resignation(self, block: float) -> bool:
        """Block until somebody resigns or ``block`` seconds have passed; return whether somebody did.

        Returns true at once if nobody leads, so that a resignation just before the call is not missed.
        """
        ...

    async def load(self, token: str) -> Snapshot:
        """Read the state to start from; ``token`` must lead, else `NotLeader`."""
        ...

    async def receive(self, position: Position, block: float, limit: int = ITEM_LIMIT) -> Facts:
        """Wait for news after ``position``: at most ``limit`` (1 to `ITEM_LIMIT`) events and as many announcements.

        A store keeps a report as one or a few messages (a big one in several) and tears none of them apart: if
        the first alone holds more than ``limit`` events, it comes whole. A change of workers counts as one event.
        Needs a connection of its own; never cancelled.
        """
        ...

    async def peek(self, requests: Sequence[Peek]) -> list[Window]:
        """Read headers ahead, no payloads; one `Window` per request, at most `ITEM_LIMIT` headers in all."""
        ...

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        """Apply a pass and, in the same round trip, read ahead: ``peeks`` see the lanes after the commit."""
        ...

    async def workers(self) -> list[WorkerRecord]:
        """Return every worker's record."""
        ...

    async def lane_lengths(self, lanes: Sequence[Lane]) -> list[int]:
        """Return how many jobs wait in each lane."""
        ...

    async def write_status(self, token: str, blob: bytes) -> None:
        """Store the leader's description of its tree, for whoever asks; `NotLeader` if ``token`` does not lead."""
        ...


class Backend(ClientPort, WorkerPort, DispatcherPort, Protocol):
    """A store with all three roles, opened by `open_backend`."""

    async def close(self) -> None:
        """Close every connection. Idempotent; the object cannot be used afterwards."""
        ...

    def sibling(self) -> Backend:
        """Return another handle on the same store with connections of its own.

        For use in another thread and event loop (a worker's heartbeat), and for blocking reads.
        """
        ...


BackendFactory: TypeAlias = Callable[[str, str, Clock], Backend]
"""Takes the URL, the namespace and a clock; connects lazily."""


def open_backend(url: str, *, namespace: str, clock: Clock) -> Backend:
    """Return the store that ``url`` names. Raises `UnknownBackend` if no adapter has its scheme.

    Adapters are entry points of the group ``drr.backends``, named by scheme.
    """
    scheme = urlsplit(url).scheme if "://" in url else ""
    found = {point.name: point for point in entry_points(group="drr.backends")}
    if scheme not in found:
        raise UnknownBackend(url, scheme, sorted(found))
    factory: BackendFactory = found[scheme].load()
    return factory(url, namespace, clock)
