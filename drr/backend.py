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

from collections.abc import Callable, Sequence
from importlib.metadata import entry_points
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from drr.checks import (
    COUNT_MAX,
    ITEM_KINDS,
    REQUEST_BODY_LIMIT,
    check_commit,
    check_count,
    check_job,
    check_lane,
    check_peeks,
    check_request,
    check_worker,
)
from drr.clock import Clock
from drr.durability import Survey
from drr.errors import UnknownBackend
from drr.exchange import (
    ATTENDANCE_MAX,
    AUDIT_LIMIT,
    CALLS_KEPT_SECONDS,
    CALLS_RELEASED,
    CALLS_REMEMBERED,
    CHANGES_KEPT,
    HISTORY_LENGTH,
    HISTORY_SECONDS,
    ITEM_LIMIT,
    PROGRESS_LIMIT,
    PROGRESS_SECONDS,
    STRIKE_LIMIT,
    TOKEN_LIMIT,
    USAGE_KEPT_DAYS,
    Attempt,
    Audit,
    Burial,
    ChangeRecord,
    Commit,
    DeadLetter,
    DeathCause,
    Dispatch,
    Drop,
    DropDelayed,
    DueJobs,
    EstimateKey,
    Event,
    EventKind,
    Facts,
    LeaderRecord,
    Listed,
    Located,
    Malformed,
    MalformedEvent,
    MalformedRequest,
    Mature,
    Mismatch,
    NodeKey,
    Page,
    Peek,
    Position,
    Postpone,
    Repair,
    Request,
    RequestKind,
    Requeue,
    Revival,
    Settlement,
    Snapshot,
    StoredStatus,
    Strike,
    Struck,
    Usage,
    UsageKey,
    Window,
    Work,
    WorkerRecord,
)
from drr.model import JobSpec, JobState, JobStatus, Lane, Settings, TenantPath

__all__ = [
    "ATTENDANCE_MAX",
    "AUDIT_LIMIT",
    "CALLS_KEPT_SECONDS",
    "CALLS_RELEASED",
    "CALLS_REMEMBERED",
    "CHANGES_KEPT",
    "COUNT_MAX",
    "HISTORY_LENGTH",
    "HISTORY_SECONDS",
    "ITEM_KINDS",
    "ITEM_LIMIT",
    "PROGRESS_LIMIT",
    "PROGRESS_SECONDS",
    "REQUEST_BODY_LIMIT",
    "STRIKE_LIMIT",
    "TOKEN_LIMIT",
    "USAGE_KEPT_DAYS",
    "Attempt",
    "Audit",
    "Backend",
    "BackendFactory",
    "Burial",
    "ChangeRecord",
    "ClientPort",
    "Commit",
    "DeadLetter",
    "DeathCause",
    "Dispatch",
    "DispatcherPort",
    "Drop",
    "DropDelayed",
    "DueJobs",
    "EstimateKey",
    "Event",
    "EventKind",
    "Facts",
    "LeaderRecord",
    "Listed",
    "Located",
    "Malformed",
    "MalformedEvent",
    "MalformedRequest",
    "Mature",
    "Mismatch",
    "NodeKey",
    "Page",
    "Peek",
    "Position",
    "Postpone",
    "Repair",
    "Request",
    "RequestKind",
    "Requeue",
    "Revival",
    "Settlement",
    "Snapshot",
    "StoredStatus",
    "Strike",
    "Struck",
    "Survey",
    "Usage",
    "UsageKey",
    "Window",
    "Work",
    "WorkerPort",
    "WorkerRecord",
    "check_commit",
    "check_count",
    "check_job",
    "check_lane",
    "check_peeks",
    "check_request",
    "check_worker",
    "open_backend",
]


class ClientPort(Protocol):
    """What a client needs."""

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """Append ``jobs`` (at most `ITEM_LIMIT`) to their lanes in order; return their ids.

        ``client`` is unique to one client process, ``call`` rises by one per call: a repeated pair is
        recognised among the client's last 64 calls (`CALLS_REMEMBERED`). The call's nonce is
        `drr.model.call_nonce` of the two, the jobs' are `drr.model.job_nonce` of that. A job whose idempotency key
        is taken is not added, and the id of the first one with that key stands in its place. A job with ``due_at``
        in the future (by the store's clock) is kept
        aside until the leader queues it.

        All of these refuse the whole call: `JobExists` for a job whose ``name`` is taken; `UnknownLimit` for a
        limit that `Settings.limits` does not have; `BacklogFull` or `RateLimited` where a quota of the project, or
        then of its organisation, would be exceeded (in the order of the jobs' first appearance; jobs that are
        not added do not count); `StoreFull` when there is no room.
        """
        ...

    async def calls(self, client: str) -> list[int]:
        """Return the numbers of the client's calls of ``submit`` that the store remembers, in any order.

        A call that was answered, is among the client's last `CALLS_REMEMBERED` and is not remembered has been lost,
        with all its jobs: the store is back at an earlier moment.
        """
        ...

    async def release_calls(self, client: str) -> None:
        """The client will repeat none of its calls: the store forgets them `CALLS_RELEASED` seconds from now.

        It remembers them so long still for the sake of a call that is under way, cut off from who sent it.
        """
        ...

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """Return where each of the jobs (at most `ITEM_LIMIT`) stands; ``None`` for one the store knows nothing of.

        A live lease makes it running, a kept outcome final, a place among the delayed jobs delayed. There is no
        index of waiting jobs: a job waits if it is one of the put-back entries of its lane (which are known by
        number), or if the lane's first fresh entry has a number not above its own. So an id that no submit
        returned may be taken for a waiting one. What is no job id at all is unknown. ``attempt`` is that of the
        lease or outcome, else the number of starts so far.
        """
        ...

    async def find(self, path: TenantPath, name: str) -> str | None:
        """Return the id of the job that was submitted with this ``name`` (or else ``key``), or ``None``."""
        ...

    async def request(self, requests: Sequence[Request]) -> None:
        """Ask something of the leader (at most `ITEM_LIMIT` requests, or 1 with a body). Durable when it returns.

        May be repeated: each kind of request has the same effect if it is carried out twice.
        """
        ...

    async def progress(self, job_ids: Sequence[str]) -> list[bytes | None]:
        """Return what the handlers of these jobs (at most `ITEM_LIMIT`) reported last, as far as it is kept."""
        ...

    async def list_jobs(self, path: TenantPath, state: JobState, limit: int = 100, cursor: str = "") -> Page:
        """List jobs of an organisation (path of one name) or project in a state, part by part.

        Waiting jobs come lane by lane, by the lanes' names, as they wait there; delayed ones by due time; of final
        states the history is read, latest end first (`HISTORY_LENGTH`, `HISTORY_SECONDS`). A cursor is a number or a
        due time and no count: a job that stays in the state all along is listed whatever others do meanwhile, and
        once; only a running one may come twice. What ends or begins during the listing may be missed.

        ``limit`` (1 to `ITEM_LIMIT`) bounds how many jobs a call looks at; of running ones a store may look at more.
        A call costs no more in a deep backlog than in a small one, but for the logarithm; of waiting jobs it goes
        over the names of the active lanes as well.
        """
        ...

    async def waiting(self, paths: Sequence[TenantPath]) -> list[Work]:
        """Return what backlog limits count for each organisation or project."""
        ...

    async def usage(self, organisation: str, since: int, until: int) -> dict[UsageKey, Usage]:
        """Return an organisation's accounts for the hours from ``since`` to before ``until`` (Unix time / 3,600)."""
        ...

    async def changes(self, limit: int = 100) -> list[ChangeRecord]:
        """Return the last lines of the log of changes, latest first."""
        ...

    async def settings(self) -> Settings:
        """Return the stored settings."""
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

    async def survey(self) -> Survey:
        """Return what the store keeps of what it acknowledges, as far as it tells: a want of rights is no error."""
        ...

    async def attendance(self, dispatcher: str) -> int | None:
        """Return the counter of a dispatcher's signs of life (`DispatcherPort.attend`); ``None`` if there is none."""
        ...

    async def dead_letters(self, organisation: str = "", limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """Return up to ``limit`` (at most `ITEM_LIMIT`) dead letters with numbers above ``after``, oldest first.

        ``organisation``: of this one only.
        """
        ...

    async def letters(self, numbers: Sequence[int]) -> list[DeadLetter | None]:
        """Return dead letters (at most `ITEM_LIMIT`) by their numbers, without payloads."""
        ...

    async def purge_dead(self, numbers: Sequence[int]) -> int:
        """Delete dead letters (at most `ITEM_LIMIT`); return how many there were."""
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

    async def stops(self, after: str, block: float) -> tuple[str, list[str]]:
        """Wait for tokens of running attempts, of all workers, that are to be stopped: their jobs were cancelled.

        Returns the new cursor and the tokens. ``after`` is the last cursor; "" asks for all that are running and
        to be stopped now, and does not block. Needs a connection of its own; never cancelled.
        """
        ...

    async def report_progress(self, token: str, job_id: str, blob: bytes) -> bool:
        """Keep what a handler says of its progress (at most `PROGRESS_LIMIT` bytes, for `PROGRESS_SECONDS`).

        Returns false, and keeps nothing, if the lease ``token`` is not live.
        """
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

    async def survey(self) -> Survey:
        """Return what the store keeps of what it acknowledges, as far as it tells: a want of rights is no error."""
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

    async def attend(self, dispatcher: str, seconds: float) -> None:
        """Raise the counter by which others see that a dispatcher of this name lives, leading or not.

        It starts at 1, and is forgotten when ``seconds`` (0.001 to `ATTENDANCE_MAX`) have passed by the store's clock
        without another call. Works when memory is full.
        """
        ...

    async def load(self, token: str) -> Snapshot:
        """Read the state to start from; ``token`` must lead, else `NotLeader`."""
        ...

    async def due(self, until: float, limit: int = ITEM_LIMIT) -> DueJobs:
        """Return delayed jobs that are due at ``until`` (Unix seconds), earliest first. Changes nothing."""
        ...

    async def locate(self, job_ids: Sequence[str]) -> list[Located | None]:
        """Find jobs (at most `STRIKE_LIMIT`) that wait in their lanes or are delayed; ``None`` for others."""
        ...

    async def letters(self, numbers: Sequence[int]) -> list[DeadLetter | None]:
        """Return dead letters by their numbers, without payloads."""
        ...

    async def receive(self, position: Position, block: float, limit: int = ITEM_LIMIT) -> Facts:
        """Wait for news after ``position``: at most ``limit`` (1 to `ITEM_LIMIT`) events, and as many announcements
        and requests.

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

    async def audit(self, token: str, pools: Sequence[str], cursor: str = "", limit: int = AUDIT_LIMIT) -> Audit:
        """Look at the next page of what is stored, and set right what contradicts itself; `NotLeader` as ever.

        ``pools``: whose streams to look at. ``limit``: 1 to `AUDIT_LIMIT`. Asked for by the leader between two
        commits, so that only clients change anything meanwhile. No job is thrown away: an entry without a lease goes
        to the dead letters.
        """
        ...

    async def correct_waiting(self, token: str, path: TenantPath, found: Work, change: Work) -> bool:
        """Change what backlog limits count of a project, and of its organisation, if it still is ``found``.

        Returns whether it was. `NotLeader` if ``token`` does not lead.
        """
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
