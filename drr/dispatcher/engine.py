"""The dispatcher's state machine: facts in, one commit per pass out. No I/O, no clock, no loop.

Theory of operation
    The engine is a window on the store as of the last accepted commit, plus what the pass in the making
    adds. A driver pushes facts (`feed`), workers' records (`look`) and settings, and pulls passes (`step`):
    each is one commit, to be carried out before the next is asked for, and answered with `confirm`. Facts
    change the core only in the pass whose commit carries them. So if a commit fails, or its outcome is
    unknown, nothing needs to be undone: the engine is thrown away and a new one is made from a new
    `Snapshot` under a new token. Takeover, restart and recovery are that one path.

    A pass settles what has ended, gives back what was lost, charges overruns, buries what is no job, and
    then takes decisions from every pool until no slot is free. It moves at most `ITEM_LIMIT` jobs in each
    of these ways; what is over is left for the next pass.

What must stay in step
    holds of `Liveness`  == leases of the pools' schedulers == the store's leases after the commit
    each window          == the first entries of its lane after the commit
    offered jobs         == the first entries of each project's windows (see `drr.dispatcher.pools`)
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

from drr.backend import (
    ITEM_LIMIT,
    Burial,
    Commit,
    Dispatch,
    Event,
    EventKind,
    Facts,
    Malformed,
    MalformedEvent,
    NodeKey,
    Peek,
    Requeue,
    Settlement,
    Snapshot,
    Window,
    WorkerRecord,
)
from drr.core.jobs import Job
from drr.dispatcher.counters import Counters
from drr.dispatcher.endings import conclude, give_up, give_up_reason, held_seconds
from drr.dispatcher.liveness import Cause, Gone, Hold, Liveness
from drr.dispatcher.pools import Pool, earlier_faults
from drr.dispatcher.windows import SPARE, UNKNOWN, LaneWindow, Windows
from drr.model import Header, Lane, Lease, NodePolicy, NodeState, Outcome, PoolPolicy, Settings, TenantPath

log = logging.getLogger("drr.dispatcher")

ACCRUAL: Final = 1.0
"""Seconds between two charges of running attempts that are older than their charge."""
_OUTCOMES: Final = {
    EventKind.SUCCEEDED: Outcome.SUCCEEDED,
    EventKind.FAILED: Outcome.FAILED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
}


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the state machine.

    ``lease``, and the longest ``heartbeat`` interval of any worker: seconds. ``poison_after``: lost attempts
    after which a job is given up. ``depth``: names in a tenant path; lanes of another depth are not served,
    since a tenant cannot be both project and organisation.
    """

    lease: float = 30.0
    heartbeat: float = 10.0
    poison_after: int = 3
    depth: int = 2


class Plan(NamedTuple):
    """What is to be done next: a commit with reads riding on it, or reads only."""

    commit: Commit | None
    peeks: list[Peek]


@dataclass(slots=True)
class _Pass:
    """A commit in the making."""

    settlements: list[Settlement] = field(default_factory=list)
    returned: list[tuple[Lease, int]] = field(default_factory=list)
    """Leases whose jobs go back, with their new number of losses."""
    requeues: list[Requeue] = field(default_factory=list)
    burials: list[Burial] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    charges: dict[str, Lease] = field(default_factory=dict)
    due: bool = False
    """Whether something other than these is to be stored."""

    @property
    def full(self) -> bool:
        return len(self.settlements) >= ITEM_LIMIT or len(self.returned) >= ITEM_LIMIT

    @property
    def empty(self) -> bool:
        return not (self.due or self.settlements or self.requeues or self.burials or self.dispatches or self.charges)


class Engine:
    """One leadership's view of the store. Made from a `Snapshot`, dropped at the first error."""

    def __init__(
        self,
        snapshot: Snapshot,
        token: str,
        now: float,
        wall: float,
        rules: Rules | None = None,
        counters: Counters | None = None,
        *,
        trusting: bool = True,
    ) -> None:
        """``trusting``: take an announced head at its word at once, instead of reading its lane for one lease."""
        self.token = token
        self.rules = rules or Rules()
        self.counters = counters or Counters()
        self.pools: dict[str, Pool] = {}
        self.windows = Windows()
        self.liveness = Liveness(self.rules.lease, self.rules.heartbeat, now)
        self.position = snapshot.position
        self.workers_due = False
        """Whether a worker came, changed or left since the last `look`."""
        self._settings = snapshot.settings
        self._settings_changed = False
        self._passes = snapshot.passes
        self._facts: deque[Facts] = deque()
        self._applied = 0
        """Events of the first batch in ``_facts`` that earlier passes have applied."""
        self._gone: deque[Gone] = deque()
        self._dead: dict[str, str] = {}
        self._malformed: dict[LaneWindow, None] = {}
        """Windows that may have no job at their head."""
        self._trusting_from = now if trusting else now + self.rules.lease
        self._loaded_upto = 0
        """Highest job number seen while loading: announcements up to it may be stale."""
        self._accrued = now
        self._numbers = count(1).__next__
        self._tokens = count(1)
        self._token_stem = f"{token.rpartition(':')[2][:16]}."
        self._load(snapshot, now, wall)

    # --- loading --------------------------------------------------------------------------------------

    def _load(self, snapshot: Snapshot, now: float, wall: float) -> None:
        states: dict[str, dict[TenantPath, NodeState]] = {}
        for (name, path), state in snapshot.nodes.items():
            states.setdefault(name, {})[path] = state
        for name, of_pool in states.items():
            self._pool(name).scheduler.restore(of_pool)
        for lease in snapshot.leases:
            self._adopt(lease, now, wall)
        for lane in snapshot.lanes:
            if self._fits(lane):
                self._open(lane, SPARE)
        self.look(snapshot.workers, now, now)

    def _adopt(self, lease: Lease, now: float, wall: float) -> None:
        """Go on with a running attempt.

        Its age comes from the wall clock of whoever dispatched it, which may have been wrong: it is taken to
        be at least as old as its overrun charges say.
        """
        header = lease.header
        pool = self._pool(header.lane.pool)
        age = max(0.0, wall - lease.dispatched_at)
        if lease.charged > pool.estimate(header):
            age = max(age, lease.charged)
        job = Job(
            self._numbers(),
            header.lane.path,
            pool.estimate(header),
            header.lane.priority,
            earlier_faults(header),
        )
        pool.scheduler.adopt(job, lease.token, now - age, lease.charged, lease.excused)
        self.liveness.add(Hold(lease, now - age, now))

    def opening(self) -> list[Peek]:
        """Return the next reads of a start: they are to be answered by `opened` until there are none."""
        return self.windows.requests()

    def opened(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to `opening`."""
        for reply in replies:
            for entry in reply.entries:
                if isinstance(entry, Header) and entry.sequence > self._loaded_upto:
                    self._loaded_upto = entry.sequence
        self._answer(replies)

    # --- facts ----------------------------------------------------------------------------------------

    def feed(self, facts: Facts) -> None:
        """Note a batch of news; it is applied by one of the next passes."""
        self._facts.append(facts)
        self.workers_due |= facts.workers_changed

    def look(self, records: Sequence[WorkerRecord], asked: float, now: float) -> None:
        """Take in all workers' records, asked for at ``asked`` and here at ``now``."""
        self.workers_due = False
        gone, dead = self.liveness.look(records, asked, now)
        self._gone.extend(gone)
        self._dead.update(dead)
        for name in dead:
            log.warning("worker %s is declared dead: its counter stood still for %g s", name, self.rules.lease)
        if gone:
            log.warning("%d attempts go back to their lanes (%s ...)", len(gone), gone[0].cause.value)

    def set_policy(self, pool: str, path: TenantPath, policy: NodePolicy | None) -> None:
        """Change (or with ``None`` reset) a node's policy. It binds at once and is stored with the next commit."""
        self._pool(pool).set_node(path, policy)
        nodes = {name: dict(policies) for name, policies in self._settings.nodes.items()}
        policies = nodes.setdefault(pool, {})
        if policy is None:
            policies.pop(path, None)
        else:
            policies[path] = policy
        self._settings = Settings(self._settings.pools, nodes)
        self._settings_changed = True

    def set_pool(self, pool: str, policy: PoolPolicy) -> None:
        """Change a pool's settings. They bind at once and are stored with the next commit."""
        self._pool(pool).set_policy(policy)
        self._settings = Settings({**self._settings.pools, pool: policy}, self._settings.nodes)
        self._settings_changed = True

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._settings

    # --- passes ---------------------------------------------------------------------------------------

    def step(self, now: float, wall: float) -> Plan | None:
        """Return the next pass, or ``None`` if there is nothing to do. Its outcome goes to `confirm`."""
        batch = _Pass()
        self._apply_facts(batch, now, wall)
        self._apply_gone(batch, now, wall)
        self._give_back(batch)
        if now - self._accrued >= ACCRUAL:
            self._accrue(batch, now)
        self._note_claims(batch)
        self._bury(batch)
        if self.liveness.changed:
            self._set_slots(now)
        self._dispatch(batch, now, wall)
        batch.due |= bool(self._dead) or self._settings_changed
        peeks = self.windows.requests()
        if not batch.empty:
            return Plan(self._seal(batch), peeks)
        return Plan(None, peeks) if peeks else None

    def _seal(self, batch: _Pass) -> Commit:
        self._passes += 1
        dead, self._dead = self._dead, {}
        settings = self._settings if self._settings_changed else None
        self._settings_changed = False
        return Commit(
            self.token,
            self._passes,
            self.position,
            batch.settlements,
            batch.requeues,
            batch.burials,
            batch.dispatches,
            batch.charges,
            self._touched(),
            settings,
            dead,
        )

    def _touched(self) -> dict[NodeKey, NodeState | None]:
        nodes: dict[NodeKey, NodeState | None] = {}
        for name, pool in self.pools.items():
            for path, state in pool.scheduler.touched().items():
                nodes[name, path] = state
        return nodes

    def confirm(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to the reads of the last plan; its commit, if any, has succeeded."""
        self._answer(replies)

    def _answer(self, replies: Sequence[Window]) -> None:
        for reply in replies:
            window = self.windows.answer(reply)
            if window is None:
                continue
            pool = self.pools[window.lane.pool]
            if window.entries:
                pool.refill(window)
                if window.entries[0].__class__ is Malformed:
                    self._malformed[window] = None
            else:
                self.windows.close(window)
                pool.drop(window)

    # --- what has ended -------------------------------------------------------------------------------

    def _apply_facts(self, batch: _Pass, now: float, wall: float) -> None:
        while self._facts:
            facts = self._facts[0]
            for event in facts.events[self._applied :] if self._applied else facts.events:
                if batch.full:
                    return
                self._applied += 1
                self._end(event, batch, now, wall)
            self._applied = 0
            for lane, head in facts.lanes:
                self._announced(lane, head, now)
            self.position = facts.position
            batch.due = True
            self._facts.popleft()

    def _end(self, event: Event | MalformedEvent, batch: _Pass, now: float, wall: float) -> None:
        if isinstance(event, MalformedEvent):
            self.counters.malformed += 1
            log.warning("an event cannot be decoded and is skipped: %s (%.80r)", event.reason, event.raw)
            return
        hold = self.liveness.remove(event.token)
        if hold is None:
            self.counters.zombies += 1
            log.debug("a report of attempt %s comes too late: its lease is gone", event.token)
            return
        held = held_seconds(event.seconds, now - hold.since)
        if event.kind is EventKind.RETURNED:
            self._lose(hold, Cause.HANDED_BACK, held, batch, wall)
            return
        self.pools[hold.pool].scheduler.settle(event.token, _OUTCOMES[event.kind], held)
        batch.settlements.append(conclude(hold.lease, event, held, wall))
        if event.kind is EventKind.SUCCEEDED:
            self.counters.succeeded += 1
        elif event.kind is EventKind.FAILED:
            self.counters.failed += 1
        else:
            self.counters.timed_out += 1

    def _apply_gone(self, batch: _Pass, now: float, wall: float) -> None:
        while self._gone and not batch.full:
            token, cause = self._gone.popleft()
            hold = self.liveness.remove(token)
            if hold is not None:
                held = 0.0 if cause is Cause.UNCLAIMED else max(0.0, now - hold.since)
                self._lose(hold, cause, held, batch, wall)

    def _lose(self, hold: Hold, cause: Cause, held: float, batch: _Pass, wall: float) -> None:
        """End an attempt that has no outcome: its job goes back to the head of its lane, or is given up."""
        lease = hold.lease
        outcome = Outcome.LOST if cause.counts else Outcome.RETURNED
        self.pools[hold.pool].scheduler.settle(lease.token, outcome, held)
        losses = lease.header.losses + (1 if cause.counts else 0)
        reason = give_up_reason(lease, losses, cause, self.rules.poison_after)
        if cause.counts:
            self.counters.lost += 1
        else:
            self.counters.returned += 1
        if reason:
            self.counters.poisoned += 1
            log.error("job %s is given up: %s", lease.header.job_id, reason)
            batch.settlements.append(give_up(lease, held, wall, reason))
        else:
            batch.returned.append((lease, losses))

    def _give_back(self, batch: _Pass) -> None:
        """Put returned jobs at the heads of their lanes, the oldest in front."""
        for lease, losses in sorted(batch.returned, key=_sequence, reverse=True):
            batch.requeues.append(Requeue(lease, lease.attempt, losses))
            header = replace(lease.header, attempts=lease.attempt, losses=losses)
            window = self.windows.by_lane.get(header.lane) or self._open(header.lane)
            self.windows.put_back(window, header)
            self.pools[header.lane.pool].give_back(window, header)

    # --- lanes ----------------------------------------------------------------------------------------

    def _announced(self, lane: Lane, head: Header | Malformed, now: float) -> None:
        window = self.windows.by_lane.get(lane)
        if window is not None:
            if window.rest == 0:
                window.rest = UNKNOWN
            self.windows.want(window)
            return
        if not self._fits(lane):
            return
        window = self._open(lane)
        # A head from before the load may have been dispatched since: then the lane has to be read instead.
        if isinstance(head, Header) and head.sequence > self._loaded_upto and now >= self._trusting_from:
            self.windows.append(window, head)
            self.pools[lane.pool].refill(window)

    def _open(self, lane: Lane, target: int | None = None) -> LaneWindow:
        window = self.windows.open(lane) if target is None else self.windows.open(lane, target)
        self._pool(lane.pool).add(window)
        return window

    def _fits(self, lane: Lane) -> bool:
        if len(lane.path) == self.rules.depth:
            return True
        self.counters.refused += 1
        log.error("lane %s is not served: tenant paths here have %d names", lane, self.rules.depth)
        return False

    def _bury(self, batch: _Pass) -> None:
        """Bury what is no job and has come to the head of its lane; what was given back stands before it."""
        suspects, self._malformed = self._malformed, {}
        for window in suspects:
            while window.entries and isinstance(entry := window.entries[0], Malformed):
                if len(batch.burials) >= ITEM_LIMIT:
                    self._malformed[window] = None
                    return
                self.windows.use(window)
                batch.burials.append(Burial(window.lane, entry.raw, entry.reason))
                self.counters.malformed += 1
                log.warning("an entry of lane %s is no job and is buried: %s", window.lane, entry.reason)
            if window.entries:
                self.pools[window.lane.pool].refill(window)

    # --- what starts ----------------------------------------------------------------------------------

    def _dispatch(self, batch: _Pass, now: float, wall: float) -> None:
        for pool in self._pools_in_turn():
            scheduler, windows, liveness = pool.scheduler, self.windows, self.liveness
            dispatches, stem, tokens = batch.dispatches, self._token_stem, self._tokens
            free = min(scheduler.free, ITEM_LIMIT - len(dispatches))
            while free > 0:
                token = f"{stem}{next(tokens):x}"
                running = scheduler.take(token, now)
                if running is None:
                    break
                free -= 1
                window: LaneWindow = running.job.ref  # type: ignore[assignment]
                assert window.jobs[0] is running.job, "the core starts a lane's jobs in the lane's order"
                window.jobs.popleft()
                header: Header = windows.use(window)  # type: ignore[assignment]
                lease = Lease(token, header, header.attempts + 1, wall, running.charged, "", running.excused)
                liveness.holds[token] = Hold(lease, now, now)
                dispatches.append(Dispatch(header, lease))
                pool.refill(window)
                if window.entries and window.entries[0].__class__ is Malformed:
                    self._malformed[window] = None
        self.counters.dispatched += len(batch.dispatches)

    def _pools_in_turn(self) -> Iterator[Pool]:
        """Yield all pools, another one first each time: a full pass must not always favour the same."""
        pools = list(self.pools.values())
        start = self._passes % len(pools) if pools else 0
        yield from pools[start:]
        yield from pools[:start]

    def _set_slots(self, now: float) -> None:
        capacities = self.liveness.capacities(now)
        for name in capacities:
            self._pool(name)
        for name, pool in self.pools.items():
            slots, withheld = capacities.get(name, (0, 0))
            pool.scheduler.set_slots(slots, withheld)

    # --- charges --------------------------------------------------------------------------------------

    def _accrue(self, batch: _Pass, now: float) -> None:
        self._accrued = now
        holds = self.liveness.holds
        for pool in self.pools.values():
            for running in pool.scheduler.accrue(now):
                hold = holds[str(running.token)]
                old = hold.lease
                hold.lease = Lease(
                    old.token,
                    old.header,
                    old.attempt,
                    old.dispatched_at,
                    running.charged,
                    hold.worker or old.worker,
                    running.excused,
                )
                batch.charges[old.token] = hold.lease
            pool.scheduler.sweep()

    def _note_claims(self, batch: _Pass) -> None:
        """Write into the ledger which workers hold what, as far as heartbeats have told."""
        if not self.liveness.claimed:
            return
        claimed, self.liveness.claimed = self.liveness.claimed, []
        for hold in claimed:
            token = hold.lease.token
            if token in self.liveness.holds and hold.lease.worker != hold.worker:
                hold.lease = replace(hold.lease, worker=hold.worker)
                batch.charges[token] = hold.lease

    # --- pools ----------------------------------------------------------------------------------------

    def _pool(self, name: str) -> Pool:
        pool = self.pools.get(name)
        if pool is None:
            policy = self._settings.pools.get(name) or PoolPolicy()
            policies: Mapping[TenantPath, NodePolicy] = self._settings.nodes.get(name, {})
            pool = self.pools[name] = Pool(name, policy, policies, self._numbers)
            self.liveness.changed = True
        return pool


def _sequence(returned: tuple[Lease, int]) -> int:
    return returned[0].header.sequence
