"""What the store has accepted, kept a second time from outside, and judged as it comes.

`Books` are the part that a store which loses its last second takes back with it. `Ledger` sees each call at the
instant when the store carries it out (`tests.world.network.Witness`), and keeps what no restart can undo: what was
acknowledged, and what is wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from drr.backend import (
    Commit,
    Drop,
    DropDelayed,
    NodeKey,
    Postpone,
    Requeue,
    Settlement,
    Snapshot,
    Strike,
    Usage,
    WorkerRecord,
)
from drr.model import PAYLOAD_LIMIT, Completion, JobSpec, Lease, NodeState, TenantPath
from drr.payload import unpack_arguments
from tests.world.life import Life

FRACTIONS = frozenset({"held", "charged", "refunded"})
"""Fields of `Usage` in worker-seconds; the books keep them in millionths."""


class Started(NamedTuple):
    """A live lease. ``at``: when the store accepted the dispatch, in the world's time."""

    job_id: str
    attempt: int
    path: TenantPath
    at: float


class Ended(NamedTuple):
    """What became of an attempt, at the time when the store accepted its end."""

    started: Started
    at: float
    completion: Completion | None


class Beat(NamedTuple):
    """A sign of life of a worker that the store has taken."""

    incarnation: str
    at: float
    held: tuple[str, ...]


@dataclass
class Books:
    """What the store should contain, by what it has accepted."""

    leader: str = ""
    former: set[str] = field(default_factory=set)
    """Tokens that another one has replaced."""
    passes: int = 0
    settings: bool = False
    """Whether any were stored: no cap binds before."""
    nodes: dict[NodeKey, NodeState] = field(default_factory=dict)
    live: dict[str, Started] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    completions: dict[str, Completion] = field(default_factory=dict)
    attempts: dict[str, int] = field(default_factory=dict)
    """Starts accepted so far, by job."""
    usage: Counter[tuple[TenantPath, str]] = field(default_factory=Counter)
    added: dict[str, int] = field(default_factory=dict)
    """Jobs in the store, to the label of their order."""

    def copy(self) -> Books:
        """Return books that stand as these do now."""
        parts: dict[str, Any] = {
            name: value.copy() for name, value in vars(self).items() if isinstance(value, dict | set)
        }
        return replace(self, **parts)


class Ledger:
    """See the top of this module. ``now``: the world's time."""

    def __init__(self, now: Callable[[], float], caps: Mapping[str, int], lease: float) -> None:
        """``caps``: hard caps of organisations; ``lease``: the dispatchers' setting."""
        self.books = Books()
        self.acknowledged: dict[str, int] = {}
        """Job id that a client was given, to the label of its order."""
        self.promised: set[int] = set()
        """Labels of the orders that were submitted through an outbox: none of them may be lost."""
        self.executed: dict[str, float] = {}
        """When the store last took each job in."""
        self.losses: list[tuple[float, float]] = []
        """The times that restarts of the store took back."""
        self.wrong: list[str] = []
        self.history: list[tuple[object, ...]] = []
        self.takeovers = 0
        self.led_by = ""
        """Which life won the last election."""
        self.clocks_jumped = False
        self.stopped = False
        """Whether a participant was, for a while."""
        self.watchers: list[Callable[[Commit], None]] = []
        self._now = now
        self._caps = caps
        self._lease = lease
        self._beats: dict[str, list[Beat]] = {}
        self._looked: dict[Life, float] = {}

    @property
    def now(self) -> float:
        """The world's time."""
        return self._now()

    def note(self, who: str, *what: object) -> None:
        """Write a line of the history."""
        self.history.append((round(self.now, 6), who, *what))

    def blame(self, text: str) -> None:
        """Something is wrong."""
        self.wrong.append(f"at {self.now:.4f}: {text}")
        self.note("wrong", text)

    def expect(self, true: object, text: str) -> None:
        """Something is wrong unless ``true``."""
        if not true:
            self.blame(text)

    def acknowledge(self, job_id: str, label: int, client: str) -> None:
        """A client was told that its job is in the store."""
        self.acknowledged[job_id] = label
        self.note(client, "acknowledged", job_id)

    def may_be_lost(self, job_id: str) -> bool:
        """Whether a restart of the store took back what is known of the job."""
        at = self.executed.get(job_id, float("-inf"))
        return any(since < at <= until for since, until in self.losses)

    # --- what the store carries out

    def carried_out(self, life: Life, name: str, args: tuple[Any, ...], result: Any) -> None:
        """The store has carried out a call."""
        match name:
            case "commit":
                self._commit(args[0], life)
            case "submit":
                self._submit(args[2], result)
            case "elect" if result:
                self._elect(args[1])
                self.led_by = life.name
            case "resign" if args[0] == self.books.leader:
                self._elect("")
            case "load":
                self._load(life, result)
            case "workers":
                self._looked[life] = self.now
            case "heartbeat" if result:
                self._beat(args[0])
            case "join":
                self._beat(args[0])

    def lose(self, since: float, kept: Books) -> None:
        """The store has gone back to what it was at ``since``, when the books stood as ``kept``."""
        self.losses.append((since, self.now))
        self.books = kept

    def _submit(self, specs: Iterable[JobSpec], ids: Iterable[str]) -> None:
        for spec, job_id in zip(specs, ids, strict=True):
            (label, *_), _ = unpack_arguments(spec.payload, PAYLOAD_LIMIT)
            self.books.added.setdefault(job_id, label)
            self.executed[job_id] = self.now

    def _elect(self, token: str) -> None:
        books = self.books
        if books.leader:
            books.former.add(books.leader)
        books.leader, books.passes = token, 0

    def _load(self, life: Life, snapshot: Snapshot) -> None:
        self._looked[life] = self.now
        self.takeovers += 1
        self.expect(
            snapshot.nodes == self.books.nodes, "the accounts that a leader loads are not those last committed"
        )
        found = {lease.token: lease.attempt for lease in snapshot.leases}
        wanted = {token: started.attempt for token, started in self.books.live.items()}
        self.expect(found == wanted, f"the leases that a leader loads are {found}, not {wanted}")

    def _beat(self, record: WorkerRecord) -> None:
        beats = self._beats.setdefault(record.name, [])
        beats.append(Beat(record.incarnation, self.now, record.held))

    # --- commits

    def _commit(self, commit: Commit, life: Life) -> None:
        books = self.books
        self.expect(
            commit.token == books.leader and commit.token not in books.former,
            f"a commit under {commit.token} was accepted, while {books.leader or 'nobody'} leads",
        )
        self.expect(commit.pass_number == books.passes + 1, f"pass {commit.pass_number} follows {books.passes}")
        books.passes = commit.pass_number
        ends: list[Settlement | Requeue | Postpone] = [*commit.settlements, *commit.requeues, *commit.postpones]
        paths = Counter(end.lease.header.lane.path for end in ends)
        self._judge_buried(commit, life)
        for end in ends:
            self._end(end)
        dropped = [removal for removal in commit.removals if isinstance(removal, Drop)]
        unstarted: list[DropDelayed | Strike | Drop] = [*commit.drops_delayed, *commit.strikes, *dropped]
        for one in unstarted:
            self._complete(one.header.job_id, one.completion)
        for dispatch in commit.dispatches:
            self._start(dispatch.lease)
        for key, state in commit.nodes.items():
            if state is None:
                books.nodes.pop(key, None)
            else:
                books.nodes[key] = state
        books.settings |= commit.settings is not None
        self._charge(commit, paths)
        self._check_caps()
        for watcher in self.watchers:
            watcher(commit)

    def _start(self, lease: Lease) -> None:
        books, job_id = self.books, lease.header.job_id
        self.expect(job_id not in books.completions, f"{job_id} was started after its end")
        self.expect(all(live.job_id != job_id for live in books.live.values()), f"{job_id} runs twice by its leases")
        wanted = books.attempts.get(job_id, 0) + 1
        self.expect(lease.attempt == wanted, f"attempt {lease.attempt} of {job_id} is its {wanted}th start")
        books.attempts[job_id] = wanted
        books.live[lease.token] = Started(job_id, lease.attempt, lease.header.lane.path, self.now)

    def _end(self, end: Settlement | Requeue | Postpone) -> None:
        token = end.lease.token
        started = self.books.live.pop(token, None)
        if started is None:
            self.blame(f"attempt {token} was ended, which is not live")
            return
        completion = end.completion if isinstance(end, Settlement) else None
        self.books.ended[token] = Ended(started, self.now, completion)
        if completion is not None:
            self.expect(completion.attempt == started.attempt, f"{token} was ended as attempt {completion.attempt}")
            self._complete(started.job_id, completion)

    def _complete(self, job_id: str, completion: Completion) -> None:
        self.expect(job_id not in self.books.completions, f"a second completion of {job_id} was accepted")
        self.books.completions[job_id] = completion

    def _charge(self, commit: Commit, paths: Counter[TenantPath]) -> None:
        """Each commit enters as many attempts as it ends, and charges or refunds all that they held."""
        counted: Counter[TenantPath] = Counter()
        for key, usage in commit.usage.items():
            counted[key.path] += usage.attempts
            for name, value in zip(Usage._fields, usage, strict=True):
                self.books.usage[key.path, name] += round(value * (1e6 if name in FRACTIONS else 1))
            drift = usage.held - usage.charged - usage.refunded
            self.expect(abs(drift) < 1e-5, f"{key.path}: held, charged and refunded do not add up: {usage}")
        self.expect(+counted == paths, f"attempts in the accounts {dict(counted)}, ended in the commit {dict(paths)}")

    def _check_caps(self) -> None:
        held = Counter(started.path[0] for started in self.books.live.values())
        for organisation, cap in self._caps.items() if self.books.settings else ():
            self.expect(held[organisation] <= cap, f"{organisation} holds {held[organisation]}, its cap is {cap}")

    # --- who is declared dead

    def _judge_buried(self, commit: Commit, life: Life) -> None:
        """Whoever is declared dead has not been heard of for one lease before the leader looked."""
        looked = self._looked.get(life, self.now)
        for name, incarnation in commit.forget_workers.items():
            heard = [beat.at for beat in self._beats.get(name, ()) if beat.incarnation == incarnation]
            last = max((at for at in heard if at <= looked), default=float("-inf"))
            self.expect(
                looked - last >= self._lease - 1e-6,
                f"worker {name} was declared dead {looked - last:.3f} s after a sign of life",
            )
