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
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Final

from drr.backend import (
    ITEM_LIMIT,
    Commit,
    Dispatch,
    Event,
    EventKind,
    Facts,
    MalformedEvent,
    NodeKey,
    Peek,
    Requeue,
    Snapshot,
    Window,
    WorkerRecord,
)
from drr.core.jobs import Job
from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Batch, Plan, Rules
from drr.dispatcher.counters import Counters
from drr.dispatcher.endings import conclude, give_up, give_up_reason, held_seconds
from drr.dispatcher.liveness import Capacity, Cause, Gone, Hold, Liveness
from drr.dispatcher.pools import earlier_faults
from drr.dispatcher.windows import LaneWindow
from drr.errors import InvalidConfiguration
from drr.model import Header, Lease, NodePolicy, NodeState, Outcome, PoolPolicy, Settings, TenantPath

log = logging.getLogger("drr.dispatcher")

ACCRUAL: Final = 1.0
"""Seconds between two charges of running attempts that are older than their charge."""
_OUTCOMES: Final = {
    EventKind.SUCCEEDED: Outcome.SUCCEEDED,
    EventKind.FAILED: Outcome.FAILED,
    EventKind.TIMED_OUT: Outcome.TIMED_OUT,
}
_NO_CAPACITY: Final = Capacity(0, 0)


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
        self._tally = Counters()
        """What the pass in the making does; it goes into ``counters`` when that has succeeded."""
        trusting_from = now if trusting else now + self.rules.lease
        self.backlog = Backlog(snapshot.settings, self.rules.depth, self._tally, trusting_from)
        self.liveness = Liveness(self.rules.lease, self.rules.heartbeat, now)
        self.position = snapshot.position
        self.workers_due = False
        """Whether a worker came, changed or left since the last `look`."""
        self._settings_changed = False
        self._passes = snapshot.passes
        self._facts: deque[Facts] = deque()
        self._applied = 0
        """Events of the first batch in ``_facts`` that earlier passes have applied."""
        self._gone: deque[Gone] = deque()
        self._dead: dict[str, str] = {}
        self._forgotten: dict[NodeKey, NodeState | None] = {}
        """Accounts to be taken out of the store with the next commit."""
        self._accrued = now
        self._tokens = count(1)
        self._token_stem = f"{token.rpartition(':')[2][:16]}."
        self._load(snapshot, now, wall)

    # --- loading --------------------------------------------------------------------------------------

    def _load(self, snapshot: Snapshot, now: float, wall: float) -> None:
        states: dict[str, dict[TenantPath, NodeState]] = {}
        for (name, path), state in snapshot.nodes.items():
            if len(path) <= self.rules.depth:
                states.setdefault(name, {})[path] = state
            else:
                self._forgotten[name, path] = None  # from a time when paths were longer
        for name, of_pool in states.items():
            self.backlog.pool(name).scheduler.restore(of_pool)
        for lease in snapshot.leases:
            self._adopt(lease, now, wall)
        self.backlog.load(snapshot.lanes)
        self.look(snapshot.workers, now, now)

    def _adopt(self, lease: Lease, now: float, wall: float) -> None:
        """Go on with a running attempt.

        Its age comes from the wall clock of whoever dispatched it, which may have been wrong: it is taken to
        be at least as old as its overrun charges say.
        """
        header = lease.header
        if len(header.lane.path) != self.rules.depth:
            rule = f"attempt {lease.token} of job {header.job_id} is running: set the depth back until it has ended"
            raise InvalidConfiguration("depth", self.rules.depth, rule)
        pool = self.backlog.pool(header.lane.pool)
        estimate = pool.estimate(header)
        age = max(0.0, wall - lease.dispatched_at)
        if lease.charged > estimate:
            age = max(age, lease.charged)
        number, faults = self.backlog.next_number(), earlier_faults(header)
        job = Job(number, header.lane.path, estimate, header.lane.priority, faults)
        pool.scheduler.adopt(job, lease.token, now - age, lease.charged, lease.excused)
        self.liveness.add(Hold(lease, now - age, now))

    def opening(self) -> list[Peek]:
        """Return the next reads of a start: they are to be answered by `opened` until there are none."""
        return self.backlog.windows.requests()

    def opened(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to `opening`."""
        self.backlog.loaded(replies)

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
        self.backlog.set_node(pool, path, policy)
        self._settings_changed = True

    def set_pool(self, pool: str, policy: PoolPolicy) -> None:
        """Change a pool's settings. They bind at once and are stored with the next commit."""
        self.backlog.set_pool(pool, policy)
        self._settings_changed = True

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.backlog.settings

    def slots(self, pool: str) -> int:
        """Return the live slots of a pool."""
        found = self.backlog.pools.get(pool)
        return found.scheduler.slots if found is not None else 0

    # --- passes ---------------------------------------------------------------------------------------

    def step(self, now: float, wall: float) -> Plan | None:
        """Return the next pass, or ``None`` if there is nothing to do. Its outcome goes to `confirm`."""
        batch = Batch()
        self._apply_facts(batch, now, wall)
        if batch.skipped:
            first = batch.skipped[0]
            log.warning("%d events cannot be decoded (%s: %.80r ...)", len(batch.skipped), first.reason, first.raw)
        self._apply_gone(batch, now, wall)
        self._give_back(batch)
        if now - self._accrued >= ACCRUAL:
            self._accrue(batch, now)
        self._note_claims(batch)
        self.backlog.bury(batch)
        if self.liveness.changed:
            self._set_slots(now)
        self._dispatch(batch, now, wall)
        batch.due |= bool(self._dead) or self._settings_changed
        peeks = self.backlog.windows.requests()
        if not batch.empty:
            return Plan(self._seal(batch), peeks)
        return Plan(None, peeks) if peeks else None

    def confirm(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to the reads of the last plan; its commit, if any, has succeeded."""
        self.counters.take_over(self._tally)
        self.backlog.answer(replies)

    def _seal(self, batch: Batch) -> Commit:
        self._passes += 1
        dead, self._dead = self._dead, {}
        settings = self.settings if self._settings_changed else None
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
        nodes, self._forgotten = self._forgotten, {}
        for name, pool in list(self.backlog.pools.items()):
            for path, state in pool.scheduler.touched().items():
                nodes[name, path] = state
            if pool.forgettable:
                # Nothing is left of it, and this commit says so; it is made anew when it is needed.
                nodes[name, ()] = None
                del self.backlog.pools[name]
        return nodes

    # --- what has ended -------------------------------------------------------------------------------

    def _apply_facts(self, batch: Batch, now: float, wall: float) -> None:
        while self._facts:
            facts = self._facts[0]
            for event in facts.events[self._applied :] if self._applied else facts.events:
                if batch.full:
                    return
                self._applied += 1
                self._end(event, batch, now, wall)
            self._applied = 0
            for lane, head in facts.lanes:
                self.backlog.announced(lane, head, now)
            self.position = facts.position
            batch.due = True
            self._facts.popleft()

    def _end(self, event: Event | MalformedEvent, batch: Batch, now: float, wall: float) -> None:
        if isinstance(event, MalformedEvent):
            self._tally.malformed += 1
            batch.skipped.append(event)
            return
        hold = self.liveness.remove(event.token)
        if hold is None:
            self._tally.zombies += 1
            log.debug("a report of attempt %s comes too late: its lease is gone", event.token)
            return
        held = held_seconds(event.seconds, now - hold.since)
        if event.kind is EventKind.RETURNED:
            self._lose(hold, Cause.HANDED_BACK, held, batch, wall)
            return
        self.backlog.pools[hold.pool].scheduler.settle(event.token, _OUTCOMES[event.kind], held)
        batch.settlements.append(conclude(hold.lease, event, held, wall))
        if event.kind is EventKind.SUCCEEDED:
            self._tally.succeeded += 1
        elif event.kind is EventKind.FAILED:
            self._tally.failed += 1
        else:
            self._tally.timed_out += 1

    def _apply_gone(self, batch: Batch, now: float, wall: float) -> None:
        while self._gone and not batch.full:
            token, cause = self._gone.popleft()
            hold = self.liveness.remove(token)
            if hold is not None:
                held = 0.0 if cause is Cause.UNCLAIMED else max(0.0, now - hold.since)
                self._lose(hold, cause, held, batch, wall)

    def _lose(self, hold: Hold, cause: Cause, held: float, batch: Batch, wall: float) -> None:
        """End an attempt that has no outcome: its job goes back to the head of its lane, or is given up."""
        lease = hold.lease
        outcome = Outcome.LOST if cause.counts else Outcome.RETURNED
        self.backlog.pools[hold.pool].scheduler.settle(lease.token, outcome, held)
        losses = lease.header.losses + (1 if cause.counts else 0)
        reason = give_up_reason(lease, losses, cause, self.rules.poison_after)
        if cause.counts:
            self._tally.lost += 1
        else:
            self._tally.returned += 1
        if reason:
            self._tally.poisoned += 1
            log.error("job %s is given up: %s", lease.header.job_id, reason)
            batch.settlements.append(give_up(lease, held, wall, reason))
        else:
            batch.returned.append((lease, losses))

    def _give_back(self, batch: Batch) -> None:
        """Put returned jobs at the heads of their lanes, the oldest in front."""
        for lease, losses in sorted(batch.returned, key=_sequence, reverse=True):
            batch.requeues.append(Requeue(lease, lease.attempt, losses))
            self.backlog.give_back(replace(lease.header, attempts=lease.attempt, losses=losses))

    # --- what starts ----------------------------------------------------------------------------------

    def _dispatch(self, batch: Batch, now: float, wall: float) -> None:
        backlog, holds = self.backlog, self.liveness.holds
        dispatches, stem, tokens = batch.dispatches, self._token_stem, self._tokens
        for pool in backlog.pools_in_turn(self._passes):
            scheduler = pool.scheduler
            free = min(scheduler.free, ITEM_LIMIT - len(dispatches))
            while free > 0:
                token = f"{stem}{next(tokens):x}"
                running = scheduler.take(token, now)
                if running is None:
                    break
                free -= 1
                window: LaneWindow = running.job.ref  # type: ignore[assignment]
                assert window.jobs[0] is running.job, "the core starts a lane's jobs in the lane's order"
                del window.jobs[0]
                header: Header = backlog.windows.use(window)  # type: ignore[assignment]
                lease = Lease(token, header, header.attempts + 1, wall, running.charged, "", running.excused)
                holds[token] = Hold(lease, now, now)
                dispatches.append(Dispatch(header, lease))
                pool.refill(window)
                backlog.note_head(window)
        self._tally.dispatched += len(dispatches)

    def _set_slots(self, now: float) -> None:
        self.liveness.changed = False
        capacities = self.liveness.capacities(now)
        for name in {*capacities, *self.backlog.pools}:
            slots, withheld = capacities.get(name, _NO_CAPACITY)
            self.backlog.pool(name).scheduler.set_slots(slots, withheld)

    # --- charges --------------------------------------------------------------------------------------

    def _accrue(self, batch: Batch, now: float) -> None:
        """Charge what runs longer than it is charged for, and forget accounts that say nothing any more."""
        self._accrued = now
        for pool in self.backlog.pools.values():
            for running in pool.scheduler.accrue(now):
                hold = self.liveness.holds[str(running.token)]
                hold.lease = lease = replace(hold.lease, charged=running.charged, excused=running.excused)
                batch.charges[lease.token] = lease
            pool.scheduler.sweep()

    def _note_claims(self, batch: Batch) -> None:
        """Write into the ledger which workers hold what, as far as heartbeats have told."""
        if not self.liveness.claimed:
            return
        claimed, self.liveness.claimed = self.liveness.claimed, []
        for hold in claimed:
            token = hold.lease.token
            if token in self.liveness.holds and hold.lease.worker != hold.worker:
                hold.lease = replace(hold.lease, worker=hold.worker)
                batch.charges[token] = hold.lease


def _sequence(returned: tuple[Lease, int]) -> int:
    return returned[0].header.sequence
