"""An engine at a real store's desk, without a loop: every move is a plain call, time is a number.

The store is the memory adapter's, which is synchronous inside. `Desk.turn` does what the dispatcher's loop
does (news, looks at the workers, passes), and `Desk.check` compares the engine with the store and the core
with itself. Tests feed values and look at the commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import count
from typing import Any

from drr.backend import (
    STRIKE_LIMIT,
    Attempt,
    Commit,
    Event,
    EventKind,
    Facts,
    Malformed,
    Request,
    RequestKind,
    UsageKey,
    WorkerRecord,
    check_commit,
)
from drr.core.invariants import check as check_core
from drr.dispatcher.batch import Rules
from drr.dispatcher.counters import Counters
from drr.dispatcher.engine import Engine
from drr.dispatcher.windows import Doomed
from drr.model import Header, JobSpec, Lane, SharedLimit, TenantPath
from drr_backends.memory.admission import submit
from drr_backends.memory.checks import check_fence, validate
from drr_backends.memory.listing import locate
from drr_backends.memory.passes import apply
from drr_backends.memory.records import Entry, micro
from drr_backends.memory.store import Store

ACME = Lane("default", ("acme", "web"))
GLOBEX = Lane("default", ("globex", "mail"))
URGENT = Lane("default", ("acme", "web"), 0)
TRIVIAL = Lane("default", ("acme", "web"), 9)
RULES = Rules(lease=30.0, heartbeat=10.0, poison_after=3, depth=2)
WALL = 1.7e9


class StoppedClock:
    """The time of a `Desk`, for its store."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return WALL + self.now

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("nobody sleeps at a desk")


class Desk:
    """A store, an engine that leads it, and workers that do what the test says."""

    def __init__(self, rules: Rules = RULES) -> None:
        self.clock = StoppedClock()
        self.store = Store(self.clock)
        self.rules = rules
        self.counters = Counters()
        self.commits: list[Commit] = []
        self.taken: dict[str, list[Attempt]] = {}
        """Attempts that each worker has in its hands."""
        self.inquiries = 0
        """How often the store was asked something before a pass."""
        self._epochs = count(1)
        self._calls = count(1)
        self.engine = self.load()

    # --- the dispatcher's part

    def load(self, **options: Any) -> Engine:
        """Elect a new leader and load: what happens at a start, a takeover and after every error."""
        epoch = next(self._epochs)
        token = f"{epoch}:leader-{epoch}"
        assert self.store.elect(self.store.leader.token, token)
        snapshot = self.store.load(token)
        engine = Engine(
            snapshot, token, self.clock.monotonic(), self.clock.wall(), self.rules, self.counters, **options
        )
        while peeks := engine.opening():
            assert sum(peek.count for peek in peeks) <= 1000
            engine.opened([self.store.window(peek) for peek in peeks])
        self.engine = engine
        self._position = engine.position
        return engine

    def limit(self, **limits: SharedLimit) -> None:
        """Put shared limits into force, by plans that say nothing else, and load."""
        lines = []
        for name, limit in limits.items():
            lines.append(f"[limits.{name}]")
            lines += [f"{key} = {value}" for key, value in asdict(limit).items() if value is not None]
        settings = replace(self.store.settings, plans="\n".join(lines), limits=limits)
        self.store.settings = settings
        self.load()

    def hear(self, limit: int = 1000) -> Facts | None:
        """Feed the engine the news that the store has."""
        facts = self.store.receive(self._position, limit)
        if facts is not None:
            self._position = facts.position
            self.engine.feed(facts)
        return facts

    def look(self) -> None:
        """Show the engine the workers' records."""
        now = self.clock.now
        self.engine.look(list(self.store.workers.values()), now, now)

    def step(self) -> Commit | None:
        """Carry out one pass; ``None`` if there was nothing to commit."""
        self.inquire()
        plan = self.engine.step(self.clock.monotonic(), self.clock.wall())
        if plan is None:
            return None
        if plan.commit is not None:
            check_commit(plan.commit, plan.peeks)
            check_fence(self.store, plan.commit)
            validate(self.store, plan.commit)
            apply(self.store, plan.commit)
            self.commits.append(plan.commit)
        self.engine.confirm([self.store.window(peek) for peek in plan.peeks])
        return plan.commit if plan.commit is not None else self.step()

    def inquire(self) -> None:
        """Read what the engine asks for before a pass."""
        inquiry = self.engine.inquiry(self.clock.wall())
        if inquiry.empty:
            return
        self.inquiries += 1
        assert len(inquiry.jobs) <= STRIKE_LIMIT
        self.engine.inform(
            None if inquiry.until is None else self.store.due_jobs(inquiry.until, 1000),
            {job_id: locate(self.store, job_id) for job_id in inquiry.jobs},
            {number: self.store.dead.get(number) for number in inquiry.letters},
        )

    def turn(self) -> list[Commit]:
        """Hear, look if somebody came or went, and make passes until there is nothing to do."""
        made: list[Commit] = []
        while True:
            heard = self.hear()
            if self.engine.workers_due:
                self.look()
            commit = self.step()
            if commit is not None:
                made.append(commit)
            elif heard is None and self.engine.inquiry(self.clock.wall()).empty:
                return made

    def pass_time(self, seconds: float, step: float = 5.0, beating: Sequence[str] = ()) -> list[Commit]:
        """Let time pass with a look at the workers every ``step`` seconds; ``beating`` workers go on beating."""
        made = []
        end = self.clock.now + seconds
        while self.clock.now < end - 1e-9:
            self.clock.now = min(end, self.clock.now + step)
            for name in beating:
                self.beat(name)
            self.look()
            made.extend(self.turn())
        return made

    # --- the others' part

    def submit(self, lane: Lane = ACME, number: int = 1, **fields: Any) -> list[str]:
        """Submit jobs like a client."""
        fields = {"task": "work", "payload": b"", "submitted_at": self.clock.wall(), "estimate": 1.0, **fields}
        return submit(self.store, "client", next(self._calls), [JobSpec(lane, **fields)] * number)

    def cancel(self, *job_ids: str) -> None:
        """Ask for jobs to be cancelled."""
        self.store.request([Request(RequestKind.CANCEL, job_id) for job_id in job_ids])

    def request(self, kind: RequestKind, subject: str = "", **fields: Any) -> None:
        """Ask something else of the leader."""
        self.store.request([Request(kind, subject, **fields)])

    def plant(self, lane: Lane = ACME, raw: bytes = b"junk") -> None:
        """Write an entry that is no job."""
        self.store.append(lane, Entry(Malformed(lane, raw, "planted"), raw))
        self.store.queued += 1
        self.store.add_waiting(lane.path, 1, micro(1.0))

    def join(self, name: str = "w1", slots: int = 1, incarnation: str = "i1", pool: str = "default") -> None:
        """Register a worker; its predecessor's attempts are forgotten."""
        known = self.store.workers.get(name)
        self.store.join(WorkerRecord(name, incarnation, {pool: slots}), known.incarnation if known else "")
        self.taken[name] = []

    def beat(self, name: str = "w1", **fields: Any) -> bool:
        """Send a heartbeat that lists what the worker has taken."""
        known = self.store.workers.get(name)
        if known is None:
            return False
        held = tuple(attempt.token for attempt in self.taken[name])
        fields = {"slots": known.slots, "held": held, "draining": known.draining, **fields}
        return self.store.heartbeat(WorkerRecord(name, known.incarnation, **fields))

    def leave(self, name: str = "w1") -> None:
        """Say goodbye."""
        self.store.leave(name, self.store.workers[name].incarnation)

    def take(self, name: str = "w1", limit: int = 1000, pool: str = "default") -> list[Attempt]:
        """Read attempts off the pool's stream."""
        record = self.store.workers[name]
        found = self.store.take_attempts((name, record.incarnation), pool, limit)
        attempts = [attempt for attempt in found if isinstance(attempt, Attempt)]
        self.taken[name].extend(attempts)
        return attempts

    def finish(
        self,
        attempt: Attempt,
        kind: EventKind = EventKind.SUCCEEDED,
        name: str = "w1",
        seconds: float = 1.0,
        **more: Any,
    ) -> None:
        """Report an attempt's end."""
        self.store.report((Event(attempt.token, kind, name, seconds, **more),))
        if attempt in self.taken.get(name, ()):
            self.taken[name].remove(attempt)

    # --- what must hold

    def check(self) -> None:
        """Compare the engine with the store, after a pass that was confirmed."""
        engine, store = self.engine, self.store
        backlog = engine.backlog
        assert set(engine.liveness.holds) == set(store.leases), "holds are the store's leases"
        for name, pool in backlog.pools.items():
            check_core(pool.scheduler)
            leases = {token for token, lease in store.leases.items() if lease.header.lane.pool == name}
            assert set(pool.scheduler.leases) == leases, "the core's leases are the store's"
            self._check_offers(pool.projects)
            offered = sum(len(window.jobs) for project in pool.projects.values() for window in project.windows)
            assert pool.scheduler.queued == offered, "the core knows the offered jobs and no others"
        for lane, window in backlog.windows.by_lane.items():
            entries = [entry.head for entry in store.lanes.get(lane, ())]
            held = [entry.header if isinstance(entry, Doomed) else entry for entry in window.entries]
            assert held == entries[: len(held)], f"the window on {lane} is its head"
            if window.rest >= 0:
                assert len(window.entries) + window.rest <= len(entries), f"{lane} holds what was seen of it"
        assert backlog.windows.headers == sum(len(window.entries) for window in backlog.windows.by_lane.values())
        stored = {key for key in store.nodes if key[1] and key[1] not in backlog.pools[key[0]].scheduler.tree.nodes}
        forgotten = {(name, path) for name, pool in backlog.pools.items() for path in pool.scheduler._forgotten}
        assert stored <= forgotten, "an account that the core has forgotten leaves the store with the next commit"

        self.check_waiting()

    def check_waiting(self) -> None:
        """Count again what waits, and compare with the counts that commits have changed."""
        counts: dict[TenantPath, tuple[int, int]] = {}
        heads = [entry.head for entries in self.store.lanes.values() for entry in entries]
        for head in [*heads, *(entry.head for _, entry in self.store.delayed.values())]:
            work = head.work if isinstance(head, Header) else 1.0
            if isinstance(head, Header | Malformed):
                for path in (head.lane.path, head.lane.path[:1]):
                    jobs, micros = counts.get(path, (0, 0))
                    counts[path] = (jobs + 1, micros + micro(work))
        assert self.store.waiting == counts, "what waits is counted exactly"

    def usage(self) -> dict[UsageKey, list[int]]:
        """Return all accounts as the store keeps them: seven counts; held, charged, refunded in microseconds."""
        return {key: counts for kept in self.store.usage.values() for key, counts in kept.items()}

    @staticmethod
    def _check_offers(projects: dict[Any, Any]) -> None:
        for project in projects.values():
            blocked = False
            for window in () if project.mixed else project.windows:
                heads = list(window.entries)[: len(window.jobs)]
                assert all(isinstance(head, Header) for head in heads), "only jobs are offered"
                assert not (blocked and window.jobs), "nothing is offered behind a lane that was not read"
                dry = len(window.jobs) == len(window.entries)
                stuck = not dry and not isinstance(window.entries[len(window.jobs)], Header)
                blocked = blocked or stuck or (dry and window.rest != 0)
