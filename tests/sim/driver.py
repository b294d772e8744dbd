"""A virtual-time driver: a pool of slots, a stream of jobs with true durations, and a scheduler under test.

Time moves from event to event; at one instant all events are applied first (ends, arrivals, planned
actions), then one pass of decisions fills the free slots. Nothing is random here: a run is a function of
its inputs. Jobs may come from three kinds of sources: timed streams (`Simulation.arrive`), tenants that
always have the next job ready (`Simulation.keep_backlogged`), and hooks that submit when a job of a tenant
ends (`Simulation.on_end`).

The driver knows the true duration of a job, the scheduler only its estimate. What happened is written to a
`Record`, which judges by its own books.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from drr.core.scheduler import Job
from drr.model import DEFAULT_PRIORITY, NodePolicy, Outcome, PoolPolicy, TenantPath
from tests.sim.record import Attempt, Record


@dataclass(slots=True)
class Work:
    """A job as the world knows it: how long each attempt of it really takes and how that ends.

    ``attempts``: how often it is started at most when it ends in failure. ``poison``: how many lost attempts
    it takes until it is given up (a job with ``outcome=LOST`` kills whoever runs it).
    """

    path: TenantPath
    seconds: float
    estimate: float
    priority: int = DEFAULT_PRIORITY
    outcome: Outcome = Outcome.SUCCEEDED
    attempts: int = 1
    poison: int = 3
    arrived: float = 0.0
    starts: int = 0
    losses: int = 0


class Taken(Protocol):
    """What a decision returns, as far as the driver looks at it."""

    @property
    def job(self) -> Job: ...


class Schedules(Protocol):
    """The part of `drr.core.scheduler.Scheduler` that the driver uses; baselines implement it too."""

    def set_slots(self, slots: int, withheld: int = 0) -> None: ...
    def offer(self, job: Job, *, front: bool = False) -> None: ...
    def take(self, token: Hashable, now: float) -> Taken | None: ...
    def settle(self, token: Hashable, outcome: Outcome, held: float) -> object: ...
    def accrue(self, now: float) -> object: ...


Action = Callable[["Simulation"], None]
EndHook = Callable[["Simulation", Work], None]


class Simulation:
    """One pool in virtual time. Build it, give it sources, then `run`."""

    def __init__(
        self,
        scheduler: Schedules,
        slots: int,
        policies: Mapping[TenantPath, NodePolicy] | None = None,
        pool: PoolPolicy | None = None,
        *,
        tick: float = 1.0,
    ) -> None:
        self.scheduler = scheduler
        self.pool = pool or PoolPolicy()
        self.record = Record(policies or {}, slots)
        self.now = 0.0
        self.slots = slots
        self.withheld = 0
        self.running: dict[int, Attempt] = {}
        self.ended = 0
        self.decisions: list[tuple[float, Hashable]] | None = None
        self._events: list[tuple[float, int, object]] = []
        self._order = 0
        self._jobs = 0
        self._tokens = 0
        self._streams: list[Iterator[tuple[float, Work]]] = []
        self._backlogs: dict[TenantPath, Iterator[Work]] = {}
        self._hooks: dict[TenantPath, EndHook] = {}
        self._late: list[tuple[float, int]] = []
        self._overrun: dict[int, Attempt] = {}
        self._tick = tick
        self._next_tick = tick
        scheduler.set_slots(slots)

    # --- sources and plans ---

    def arrive(self, stream: Iterable[tuple[float, Work]]) -> None:
        """Add a stream of timed arrivals, in order of time; it is read one ahead."""
        self._streams.append(iter(stream))
        self._pull(len(self._streams) - 1)

    def keep_backlogged(self, path: TenantPath, works: Iterable[Work], depth: int = 2) -> None:
        """Keep ``depth`` jobs of a tenant waiting for as long as ``works`` lasts."""
        self._backlogs[path] = iter(works)
        for _ in range(depth):
            self._refill(path)

    def on_end(self, path: TenantPath, hook: EndHook) -> None:
        """Call ``hook`` whenever a job of ``path`` has ended for good."""
        self._hooks[path] = hook

    def at(self, time: float, action: Action) -> None:
        """Plan an action."""
        self._push(time, action)

    def submit(self, work: Work) -> None:
        """Offer a job now."""
        work.arrived = self.now
        self._offer(work, front=False)

    def set_slots(self, slots: int) -> None:
        """Workers came or went, in peace: what runs stays."""
        self.slots = slots
        self.scheduler.set_slots(slots, self.withheld)
        self.record.set_slots(slots)

    def vanish(self, slots: int, lease: float) -> None:
        """``slots`` slots die silently now, those of the longest running attempts first; noticed after ``lease``.

        No more die than still live.
        """
        slots = min(slots, self.slots - self.withheld - sum(attempt.dead for attempt in self.running.values()))
        dead = [token for token, attempt in self.running.items() if not attempt.dead][:slots]
        for token in dead:
            self.running[token].dead = True
        idle = slots - len(dead)
        self.withheld += idle
        self.scheduler.set_slots(self.slots, self.withheld)

        def expire(sim: Simulation) -> None:
            sim.withheld -= idle
            sim.set_slots(sim.slots - slots)
            for token in reversed(dead):
                sim._end(token, Outcome.LOST, sim.now - sim.running[token].started)

        self.at(self.now + lease, expire)

    # --- the loop ---

    def run(self, until: float = float("inf"), *, starts: int | None = None) -> Record:
        """Go on until time ``until``, until nothing is left to happen, or until ``starts`` attempts have begun."""
        limit = self._tokens + starts if starts is not None else None
        events = self._events
        self._dispatch()
        while events or self.running:
            due = events[0][0] if events else float("inf")
            if self.running and self._next_tick <= due:
                if self._next_tick > until:
                    break
                self._accrue(self._next_tick)
                self._next_tick += self._tick
                continue
            if due > until or (limit is not None and self._tokens >= limit):
                break
            self.now = due
            while events and events[0][0] <= due:
                self._apply(heapq.heappop(events)[2])
            if not self.running:
                self._next_tick = max(self._next_tick, self.now + self._tick)
            self._dispatch()
        self.now = max(self.now, until) if until < float("inf") else self.now
        return self.record

    def _apply(self, event: Any) -> None:
        if type(event) is int:  # the end of the attempt with this token
            attempt = self.running.get(event)
            if attempt is not None and not attempt.dead:
                work: Any = attempt.work
                self._end(event, work.outcome, work.seconds)
        elif type(event) is tuple:  # an arrival, and the stream that it came from
            work, source = event
            self.submit(work)
            self._pull(source)
        else:
            event(self)

    def _dispatch(self) -> None:
        scheduler, record, running = self.scheduler, self.record, self.running
        now = self.now
        while len(running) < self.slots - self.withheld:
            token = self._tokens
            lease = scheduler.take(token, now)
            if lease is None:
                self._check_idle()
                break
            self._tokens += 1
            job = lease.job
            work: Any = job.ref
            attempt = record.start(job.path, work, job.estimate, job.losses, now)
            if work.starts == 0:
                attempt.leaf.waits.append(now - work.arrived)
                attempt.leaf.first_starts.append(now)
            work.starts += 1
            running[token] = attempt
            self._push(now + work.seconds, token)
            if work.seconds > job.estimate:
                heapq.heappush(self._late, (now + job.estimate, token))
            if self.decisions is not None:
                self.decisions.append((now, job.id))
            if job.path in self._backlogs:
                self._refill(job.path)

    def _check_idle(self) -> None:
        """A slot stays free: nothing may be startable, but for borrowers while a reserve is kept."""
        free = self.slots - self.withheld - len(self.running)
        if not self.record.root.startable:
            return
        for leaf in self.record.root.leaves():
            line = list(leaf.line())
            borrows = any(node.running >= node.soft for node in line)
            if all(node.startable for node in line) and (not borrows or free > self.pool.reserve):
                self.record.violations.append(f"{self.now}: {free} slots idle while {leaf.path} could start")
                return

    def _accrue(self, now: float) -> None:
        self.now = now
        late, overrun = self._late, self._overrun
        while late and late[0][0] <= now:
            _, token = heapq.heappop(late)
            if token in self.running:
                overrun[token] = self.running[token]
        for attempt in overrun.values():
            self.record.accrue(attempt, now)
        self.scheduler.accrue(now)

    def _end(self, token: int, outcome: Outcome, held: float) -> None:
        attempt = self.running.pop(token)
        self._overrun.pop(token, None)
        self.scheduler.settle(token, outcome, held)
        self.record.end(attempt, outcome, self.now, held)
        work: Any = attempt.work
        if outcome is not Outcome.SUCCEEDED and self._may_retry(work, outcome):
            self._offer(work, front=True)
            return
        self.ended += 1
        if not self._hooks:
            return
        hook = self._hooks.get(work.path)
        if hook is not None:
            hook(self, work)

    @staticmethod
    def _may_retry(work: Work, outcome: Outcome) -> bool:
        if outcome.platform_fault:
            work.losses += 1
            return work.losses < work.poison
        return work.starts < work.attempts

    # --- small steps ---

    def _push(self, time: float, event: object) -> None:
        heapq.heappush(self._events, (time, self._order, event))
        self._order += 1

    def _pull(self, source: int) -> None:
        item = next(self._streams[source], None)
        if item is not None:
            self._push(item[0], (item[1], source))

    def _refill(self, path: TenantPath) -> None:
        work = next(self._backlogs[path], None)
        if work is not None:
            self.submit(work)

    def _offer(self, work: Work, *, front: bool) -> None:
        self._jobs += 1
        job = Job(self._jobs, work.path, work.estimate, work.priority, work.losses, work)
        self.scheduler.offer(job, front=front)
        self.record.queue(work.path)
