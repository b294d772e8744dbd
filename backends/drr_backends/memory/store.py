"""What a memory store holds, and every operation but the commit, as plain synchronous methods.

The caller holds ``lock`` around each call. Nothing here waits or calls out; the clock only says what expired.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice

from drr.backend import (
    CALLS_REMEMBERED,
    Attempt,
    DeadLetter,
    Event,
    Facts,
    LeaderRecord,
    Malformed,
    MalformedEvent,
    NodeKey,
    Peek,
    Position,
    Snapshot,
    StoredStatus,
    Window,
    WorkerRecord,
)
from drr.clock import Clock
from drr.errors import InvalidValue, NotLeader, StoreFull, WorkerNameInUse
from drr.model import (
    Completion,
    Header,
    JobSpec,
    JobState,
    JobStatus,
    Lane,
    Lease,
    NodeState,
    Settings,
    call_nonce,
    parse_job_id,
)
from drr_backends.memory.records import (
    CLIENT_TTL,
    NEWS,
    RESIGNATION,
    Calls,
    Delivery,
    Entry,
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
        self.announced: Log[tuple[Lane, Header | Malformed]] = Log()
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
        self.dead: list[DeadLetter] = []
        self.workers: dict[str, WorkerRecord] = {}
        self.leader = LeaderRecord()
        self.resignations = 0
        self.position = Position()
        self.nodes: dict[NodeKey, NodeState] = {}
        self.settings = Settings()
        self.status = b""

    # --- clients

    def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """Append jobs in order and return their ids; a repeated call gets the first one's."""
        if not jobs:
            return []
        now = self.clock.monotonic()
        calls = self.calls.get(client) or Calls()
        if call in calls.ids:
            return list(calls.ids[call])
        if self.max_jobs is not None and self.queued + len(jobs) > self.max_jobs:
            raise StoreFull(f"the store holds {self.queued} of at most {self.max_jobs} waiting jobs (max_jobs)")
        nonce = call_nonce(client, call)
        ids = []
        for job in jobs:
            self.sequence += 1
            header = Header(
                job.lane,
                self.sequence,
                nonce,
                job.task,
                job.submitted_at,
                job.estimate,
                job.timeout,
                job.result_ttl,
                job.reply_to,
            )
            self.append(job.lane, Entry(header, job.payload))
            ids.append(header.job_id)
        calls.ids[call] = ids
        calls.touched = now
        self.calls[client] = calls
        self.calls.move_to_end(client)
        while len(calls.ids) > CALLS_REMEMBERED:
            calls.ids.popitem(last=False)
        self._forget_idle_clients(now)
        return list(ids)

    def append(self, lane: Lane, entry: Entry) -> None:
        """Put an entry at a lane's tail; a lane that was empty is announced."""
        entries = self.lanes.get(lane)
        if entries is None:
            self.lanes[lane] = deque([entry])
            self.announced.append((lane, entry.head))
            self.waiters.notify(NEWS)
        else:
            entries.append(entry)
        self.queued += 1

    def _forget_idle_clients(self, now: float) -> None:
        while self.calls and next(iter(self.calls.values())).touched <= now - CLIENT_TTL:
            self.calls.popitem(last=False)

    def look_up(self, job_id: str) -> JobStatus | None:
        """Return where a job stands, by `ClientPort.look_up`."""
        try:
            lane, sequence, _ = parse_job_id(job_id)
        except InvalidValue:
            return None
        kept = self.results.get(job_id)
        if kept is not None and kept[0] > self.clock.monotonic():
            completion = kept[1]
            return JobStatus(job_id, completion.state, completion.attempt, completion)
        token = self.running.get(sequence)
        if token is not None:
            lease = self.leases[token]
            # Another id with this number is that of a job that the store has lost.
            return JobStatus(job_id, JobState.RUNNING, lease.attempt) if lease.header.job_id == job_id else None
        attempts = self._attempts_of_waiting(lane, sequence)
        return JobStatus(job_id, JobState.QUEUED, attempts) if attempts is not None else None

    def _attempts_of_waiting(self, lane: Lane, sequence: int) -> int | None:
        """Return how often a waiting job was tried; ``None`` if it does not wait."""
        for entry in self.lanes.get(lane, ()):
            head = entry.head
            if isinstance(head, Malformed):
                continue
            if head.attempts == 0:
                return 0 if head.sequence <= sequence else None
            if head.sequence == sequence:
                return head.attempts
        return None

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
            Position(self.position.events, str(self.announced.last)),
            self.leader.passes,
            tuple(self.leases.values()),
            dict(self.nodes),
            self.settings,
            tuple(self.workers.values()),
            tuple(self.lanes),
        )

    def receive(self, position: Position, limit: int) -> Facts | None:
        """Return the news after ``position``; ``None`` if there are none."""
        last_event = cursor("event position", position.events)
        last_wake = cursor("announcement position", position.wake)
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
        for number, (lane, head) in islice(self.announced.after(last_wake), limit):
            last_wake, read_any = number, True
            announced[lane] = head
        if not read_any:
            return None
        lanes = [(lane, real) for lane, head in announced.items() if (real := self._real_head(lane, head))]
        # The start stays the start: a position without a number has read nothing yet.
        read_upto = Position(str(last_event or ""), str(last_wake or ""))
        return Facts(read_upto, tuple(events), tuple(lanes), changed)

    def _real_head(self, lane: Lane, announced: Header | Malformed) -> Header | Malformed | None:
        """Return the head that an announcement brings. One that is no job proves nothing: look at the lane."""
        if isinstance(announced, Header):
            return announced
        entries = self.lanes.get(lane)
        return entries[0].head if entries else None

    def window(self, peek: Peek) -> Window:
        """Return the headers that ``peek`` asks for and the lane's length."""
        entries = self.lanes.get(peek.lane, ())
        heads = tuple(entry.head for entry in islice(entries, peek.offset, peek.offset + peek.count))
        return Window(peek.lane, peek.offset, heads, len(entries))

    def write_status(self, token: str, blob: bytes) -> None:
        """Keep the leader's description of its tree."""
        self.check_leads(token)
        self.status = blob
