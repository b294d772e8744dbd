"""What a memory store holds, and every operation but the commit, as plain synchronous methods.

The caller holds ``lock`` around each call. Nothing here waits or calls out; the clock only says what expired.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from math import inf

from drr.backend import (
    CHANGES_KEPT,
    PROGRESS_SECONDS,
    Attempt,
    ChangeRecord,
    DeadLetter,
    DueJobs,
    EstimateKey,
    Event,
    Facts,
    LeaderRecord,
    Malformed,
    MalformedEvent,
    MalformedRequest,
    NodeKey,
    Peek,
    Position,
    Request,
    Snapshot,
    StoredStatus,
    Struck,
    UsageKey,
    Window,
    Work,
    WorkerRecord,
)
from drr.clock import Clock
from drr.errors import NotLeader, WorkerNameInUse
from drr.model import Completion, Header, Lane, Lease, NodeState, Settings, TenantPath
from drr_backends.memory.attendance import Attendance
from drr_backends.memory.records import (
    NEWS,
    RESIGNATION,
    STOPS_KEPT,
    Bucket,
    Calls,
    Delivery,
    Entry,
    History,
    Key,
    Reader,
    Replies,
    Report,
    cursor,
)
from drr_backends.memory.waiting import Log, Waiters


class Store:
    """All state of one namespace. A lane is a key of ``lanes`` exactly while it holds jobs: the active set."""

    def __init__(self, clock: Clock, max_jobs: int | None = None) -> None:
        self.clock = clock
        self.lock = threading.Lock()
        self.waiters = Waiters()
        self.max_jobs = max_jobs
        self.queued = 0
        self.sequence = 0
        self.lanes: dict[Lane, deque[Entry]] = {}
        self.calls: OrderedDict[str, Calls] = OrderedDict()
        self.struck: dict[int, bool] = {}
        """Numbers of the `Struck` entries in lanes, and whether they had been put back."""
        self.delayed: dict[int, tuple[float, Entry]] = {}
        self.due: list[tuple[float, int]] = []
        """Due times and numbers of the delayed jobs, in order."""
        self.keys: dict[tuple[TenantPath, str], Key] = {}
        self.key_expiries: list[tuple[float, tuple[TenantPath, str]]] = []
        """A heap over ``keys``; an entry may be stale."""
        self.waiting: dict[TenantPath, tuple[int, int]] = {}
        """Jobs and micro-worker-seconds that wait, of projects and organisations."""
        self.buckets: dict[TenantPath, Bucket] = {}
        self.announced: Log[tuple[Lane, Header | Malformed] | float] = Log()
        """Lanes that were empty with their heads, and due times that are the earliest."""
        self.requests: Log[Request | MalformedRequest] = Log()
        self.stopping: dict[str, None] = {}
        """Tokens of the leases whose attempts are to be stopped."""
        self.stops: Log[str] = Log()
        self.events: Log[Report | None] = Log()
        """Reports in order; ``None`` says that a worker came, changed or left."""
        self.leases: dict[str, Lease] = {}
        self.running: dict[int, str] = {}
        """Sequence number to the token of the job's live lease."""
        self.deliveries: dict[str, Delivery] = {}
        """Token to entry of its pool's stream; one per lease."""
        self.delivery_names = count(1)
        self.undelivered: dict[str, OrderedDict[str, None]] = {}
        """Pool to the tokens that no worker has taken, in order of dispatch."""
        self.pending: dict[tuple[Reader, str], dict[str, None]] = {}
        """Reader and pool to the tokens that it took and that are live."""
        self.results: dict[str, tuple[float, Completion]] = {}
        """Job id to expiry (monotonic) and outcome."""
        self.expiries: list[tuple[float, str]] = []
        """A heap over ``results``; an entry may be stale if the id was written again."""
        self.replies: OrderedDict[str, Replies] = OrderedDict()
        self.replies_forgotten = 0
        """New logs of replies number on from here, so that a cursor into a forgotten one misses nothing."""
        self.dead: dict[int, DeadLetter] = {}
        self.letter_numbers = count(1)
        self.history: dict[str, History] = {}
        self.attendance = Attendance(clock)
        self.said: dict[str, tuple[float, bytes]] = {}
        """Job id to expiry and what its handler said, in order of expiry."""
        self.usage: dict[str, dict[UsageKey, list[int]]] = {}
        self.changes: deque[ChangeRecord] = deque(maxlen=CHANGES_KEPT)
        self.estimates: dict[EstimateKey, bytes] = {}
        self.workers: dict[str, WorkerRecord] = {}
        self.leader = LeaderRecord()
        self.resignations = 0
        self.position = Position()
        self.nodes: dict[NodeKey, NodeState] = {}
        self.settings = Settings()
        self.status = b""

    # --- clients

    def append(self, lane: Lane, entry: Entry) -> None:
        """Put an entry at a lane's tail; a lane that was empty is announced."""
        assert not isinstance(entry.head, Struck)
        entries = self.lanes.get(lane)
        if entries is None:
            self.lanes[lane] = deque([entry])
            self.announced.append((lane, entry.head))
            self.waiters.notify(NEWS)
        else:
            entries.append(entry)

    def delay(self, due_at: float, entry: Entry) -> None:
        """Keep a job aside until it is due."""
        head = entry.head
        assert isinstance(head, Header)
        self.delayed[head.sequence] = (due_at, entry)
        insort(self.due, (due_at, head.sequence))

    @property
    def first_due(self) -> float:
        """When the first delayed job is due; infinity without one."""
        return self.due[0][0] if self.due else inf

    def announce_due(self, before: float) -> None:
        """Announce the first due time if it lies ahead of what was the first before."""
        if self.first_due < before:
            self.announced.append(self.first_due)
            self.waiters.notify(NEWS)

    def undelay(self, sequence: int) -> Entry:
        """Take a delayed job out."""
        due_at, entry = self.delayed.pop(sequence)
        del self.due[bisect_left(self.due, (due_at, sequence))]
        return entry

    def add_waiting(self, path: TenantPath, jobs: int, micros: int) -> None:
        """Change what waits of a project, and of its organisation."""
        for tenant in (path, path[:1]):
            had_jobs, had_micros = self.waiting.get(tenant, (0, 0))
            if had_jobs + jobs or had_micros + micros:
                self.waiting[tenant] = (had_jobs + jobs, had_micros + micros)
            else:
                self.waiting.pop(tenant, None)

    def find(self, path: TenantPath, name: str) -> str | None:
        """Return the job that was submitted with a name or key."""
        found = self.keys.get((path, name))
        return found.job_id if found is not None and found.expiry > self.clock.monotonic() else None

    def request(self, requests: Sequence[Request]) -> None:
        """Append what is asked of the leader."""
        for request in requests:
            self.requests.append(request)
        if requests:
            self.waiters.notify(NEWS)

    def progress(self, job_id: str) -> bytes | None:
        """Return what a handler said last."""
        found = self.said.get(job_id)
        return found[1] if found is not None and found[0] > self.clock.monotonic() else None

    def work(self, path: TenantPath) -> Work:
        """Return what waits of a tenant."""
        jobs, micros = self.waiting.get(path, (0, 0))
        return Work(jobs, micros / 1e6)

    def read_replies(self, client: str, after: str, limit: int) -> tuple[str, list[str]] | None:
        """Return the new cursor and ids after ``after``; ``None`` if there are none."""
        number = cursor("reply cursor", after)
        kept = self.replies.get(client)
        found = list(islice(kept.log.after(number), limit)) if kept is not None else []
        return (str(found[-1][0]), [job_id for _, job_id in found]) if found else None

    def lane_length(self, lane: Lane) -> int:
        """Return how many jobs wait in a lane."""
        return len(self.lanes.get(lane, ()))

    def read_status(self) -> StoredStatus:
        """Return what `ClientPort.read_status` promises."""
        return StoredStatus(self.status, self.leader, tuple(self.workers.values()))

    # --- workers

    def join(self, record: WorkerRecord, replacing: str) -> None:
        """Register an incarnation, unless another one holds the name."""
        known = self.workers.get(record.name)
        renewals = 0
        if known is not None and known.incarnation == record.incarnation:
            renewals = known.renewals + 1
        elif known is not None and known.incarnation != replacing:
            raise WorkerNameInUse(record.name, known.incarnation)
        self.workers[record.name] = replace(record, slots=dict(record.slots), renewals=renewals)
        self.workers_changed()

    def heartbeat(self, record: WorkerRecord) -> bool:
        """Renew a record; false if it is not this incarnation's (any more)."""
        known = self.workers.get(record.name)
        if known is None or known.incarnation != record.incarnation:
            return False
        self.workers[record.name] = replace(record, slots=dict(record.slots), renewals=known.renewals + 1)
        if known.slots != record.slots or known.draining != record.draining:
            self.workers_changed()
        return True

    def leave(self, name: str, incarnation: str) -> None:
        """Remove a record if it is this incarnation's."""
        known = self.workers.get(name)
        if known is not None and known.incarnation == incarnation:
            del self.workers[name]
            self.workers_changed()

    def workers_changed(self) -> None:
        """Tell the dispatcher that a worker came, changed or left."""
        self.events.append(None)
        self.waiters.notify(NEWS)

    def take_attempts(self, reader: Reader, pool: str, limit: int) -> list[Attempt | Malformed]:
        """Deliver the oldest undelivered attempts of a pool to ``reader``."""
        queue = self.undelivered.get(pool)
        taken: list[Attempt | Malformed] = []
        while queue and len(taken) < limit:
            token, _ = queue.popitem(last=False)
            self.deliveries[token].reader = reader
            self.pending.setdefault((reader, pool), {})[token] = None
            taken.append(self._attempt(token))
        if not queue:
            self.undelivered.pop(pool, None)
        return taken

    def pending_attempts(self, reader: Reader, pool: str) -> list[Attempt | Malformed]:
        """Return what was delivered to ``reader`` and is live, in order of delivery."""
        return [self._attempt(token) for token in self.pending.get((reader, pool), ())]

    def _attempt(self, token: str) -> Attempt:
        found = self.deliveries[token]
        return Attempt(found.name, token, found.attempt, found.header, found.payload)

    def read_stops(self, after: str) -> tuple[str, list[str]] | None:
        """Return the new cursor and the tokens after ``after``; ``None`` if there are none."""
        if after == "":
            return str(self.stops.last), list(self.stopping)
        found = list(islice(self.stops.after(cursor("cursor of stops", after)), STOPS_KEPT))
        return (str(found[-1][0]), [token for _, token in found]) if found else None

    def report_progress(self, token: str, job_id: str, blob: bytes) -> bool:
        """Keep what a handler says while its lease lives."""
        lease = self.leases.get(token)
        if lease is None or lease.header.job_id != job_id:
            return False
        now = self.clock.monotonic()
        self.said.pop(job_id, None)
        self.said[job_id] = (now + PROGRESS_SECONDS, blob)
        while next(iter(self.said.values()))[0] <= now:
            del self.said[next(iter(self.said))]
        return True

    def report(self, events: Report) -> None:
        """Append one report; an empty one is none."""
        if events:
            self.events.append(events)
            self.waiters.notify(NEWS)

    # --- the dispatcher

    def check_leads(self, token: str) -> None:
        """Raise `NotLeader` unless ``token`` leads; the empty one never does."""
        if not token or token != self.leader.token:
            raise NotLeader(f"token {token!r} does not lead; {self.leader.token or 'nobody'!r} does")

    def elect(self, expected: str, token: str) -> bool:
        """Compare and swap the leader."""
        if self.leader.token != expected:
            return False
        self.leader = LeaderRecord(token)
        return True

    def renew(self, token: str) -> None:
        """Raise the leader's renewal counter."""
        self.check_leads(token)
        self.leader = replace(self.leader, renewals=self.leader.renewals + 1)

    def resign(self, token: str) -> None:
        """Give up the leadership, if ``token`` holds it."""
        if token and token == self.leader.token:
            self.leader = replace(self.leader, token="")
            self.resignations += 1
            self.waiters.notify(RESIGNATION)

    def resigned_since(self, resignations: int) -> bool:
        """Return whether nobody leads, or somebody resigned since the counter stood at ``resignations``."""
        return not self.leader.token or self.resignations > resignations

    def load(self, token: str) -> Snapshot:
        """Return the state that a new leader starts from."""
        self.check_leads(token)
        return Snapshot(
            replace(self.position, wake=str(self.announced.last)),
            self.leader.passes,
            tuple(self.leases.values()),
            dict(self.nodes),
            self.settings,
            tuple(self.workers.values()),
            tuple(self.lanes),
            self.due[0][0] if self.due else None,
            dict(self.estimates),
        )

    def due_jobs(self, until: float, limit: int) -> DueJobs:
        """Return delayed jobs whose time has come."""
        last = min(limit, bisect_right(self.due, (until, self.sequence)))
        found = tuple(self.delayed[sequence][1].head for _, sequence in self.due[:last])
        next_at = self.due[last][0] if last < len(self.due) else None
        return DueJobs(found, next_at)  # type: ignore[arg-type]  # only jobs are delayed

    def receive(self, position: Position, limit: int) -> Facts | None:
        """Return the news after ``position``; ``None`` if there are none."""
        last_event = cursor("event position", position.events)
        last_wake = cursor("announcement position", position.wake)
        last_request = cursor("request position", position.requests)
        events: list[Event | MalformedEvent] = []
        changed = False
        read_any = False
        for number, report in islice(self.events.after(last_event), limit):
            if report is not None and events and len(events) + len(report) > limit:
                break
            last_event, read_any = number, True
            events.extend(report or ())
            changed = changed or report is None
        announced: dict[Lane, Header | Malformed] = {}
        due_at: float | None = None
        for number, item in islice(self.announced.after(last_wake), limit):
            last_wake, read_any = number, True
            if isinstance(item, float):
                due_at = item if due_at is None else min(due_at, item)
            else:
                announced[item[0]] = item[1]
        requests: list[Request | MalformedRequest] = []
        for number, request in islice(self.requests.after(last_request), limit):
            last_request, read_any = number, True
            requests.append(request)
        if not read_any:
            return None
        lanes = [(lane, real) for lane, head in announced.items() if (real := self._real_head(lane, head))]
        # The start stays the start: a position without a number has read nothing yet.
        read_upto = Position(str(last_event or ""), str(last_wake or ""), str(last_request or ""))
        return Facts(read_upto, tuple(events), tuple(lanes), changed, tuple(requests), due_at)

    def _real_head(self, lane: Lane, announced: Header | Malformed) -> Header | Malformed | None:
        """Return the head that an announcement brings. One that is no job proves nothing: look at the lane."""
        if isinstance(announced, Header):
            return announced
        entries = self.lanes.get(lane)
        head = entries[0].head if entries else None
        return None if isinstance(head, Struck) else head

    def window(self, peek: Peek) -> Window:
        """Return the headers that ``peek`` asks for and the lane's length."""
        entries = self.lanes.get(peek.lane, ())
        heads = tuple(entry.head for entry in islice(entries, peek.offset, peek.offset + peek.count))
        return Window(peek.lane, peek.offset, heads, len(entries))

    def write_status(self, token: str, blob: bytes) -> None:
        """Keep the leader's description of its tree."""
        self.check_leads(token)
        self.status = blob
