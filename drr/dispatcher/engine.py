"""The dispatcher's state machine: facts in, one commit per pass out. No I/O, no clock, no loop.

Theory of operation
    The engine is a window on the store as of the last accepted commit, plus what the pass in the making
    adds. A driver pushes facts (`feed`), workers' records (`look`) and settings, and pulls passes (`step`):
    each is one commit, to be carried out before the next is asked for, and answered with `confirm`. Facts
    change the core only in the pass whose commit carries them. So if a commit fails, or its outcome is
    unknown, nothing needs to be undone: the engine is thrown away and a new one is made from a new
    `Snapshot` under a new token. Takeover, restart and recovery are that one path.

    A pass ends what has ended (`drr.dispatcher.closing`), carries out what was asked for (`requests`), brings
    back what is due (`due`) or goes back, dooms what has expired, charges overruns, clears what is no job off the
    lanes, and then takes decisions from every pool until no slot is free. It moves at most `ITEM_LIMIT` jobs in each
    of these ways; the rest is left for the next. Before a pass the driver reads what it needs (`inquiry`, `inform`).

What must stay in step
    holds of `Liveness`  == leases of the pools' schedulers == the store's leases after the commit
    each window          == the first entries of its lane after the commit
    offered jobs         == the first entries of each project's windows (see `drr.dispatcher.pools`)
"""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final

from drr.backend import (
    ITEM_LIMIT,
    ChangeRecord,
    Commit,
    DeadLetter,
    Dispatch,
    DueJobs,
    EstimateKey,
    Facts,
    Located,
    Malformed,
    MalformedEvent,
    NodeKey,
    Peek,
    Snapshot,
    Window,
    WorkerRecord,
)
from drr.core.jobs import Job
from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Batch, Plan, Rules
from drr.dispatcher.charging import accrue, mark_cancelled, note_claims
from drr.dispatcher.closing import Closer
from drr.dispatcher.counters import Counters
from drr.dispatcher.due import Due
from drr.dispatcher.endings import end_unstarted
from drr.dispatcher.entitlement import Entitlement
from drr.dispatcher.inbox import Inbox
from drr.dispatcher.learning import learned, restore
from drr.dispatcher.ledger import book_expired, usage_of, waiting_changes
from drr.dispatcher.liveness import Capacity, Gone, Hold, Liveness
from drr.dispatcher.pools import earlier_faults
from drr.dispatcher.requests import Inquiry, Requests
from drr.dispatcher.windows import LaneWindow
from drr.errors import InvalidConfiguration
from drr.model import Header, JobState, Lane, Lease, NodePolicy, NodeState, PoolPolicy, Settings, TenantPath

log = logging.getLogger("drr.dispatcher")

ACCRUAL: Final = 1.0
"""Seconds between two charges of running attempts that are older than their charge."""
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
        rng: random.Random | None = None,
    ) -> None:
        """``trusting``: take an announced head at its word at once, instead of reading its lane for one lease.

        ``rng``: for the jitter of retries.
        """
        self.token = token
        self.rules = rules or Rules()
        self.counters = counters or Counters()
        self._tally = Counters()
        """What the pass in the making does; it goes into ``counters`` when that has succeeded."""
        trusting_from = now if trusting else now + self.rules.lease
        self.backlog = Backlog(Entitlement(snapshot.settings), self.rules.depth, self._tally, trusting_from)
        self.liveness = Liveness(self.rules.lease, self.rules.heartbeat, now, self._lease_of)
        self._closer = Closer(self.backlog, self.liveness, self.rules, self._tally, rng or random.Random())
        self._requests = Requests(self.backlog, self.liveness, self._closer, self._tally, self.entitle)
        self._due = Due(snapshot.due_at)
        self.position = snapshot.position
        self.workers_due = False
        """Whether a worker came, changed or left since the last `look`."""
        self._settings_changed = False
        self._changes: deque[ChangeRecord] = deque()
        self._passes = snapshot.passes
        self._inbox = Inbox()
        self._gone: deque[Gone] = deque()
        self._dead: dict[str, str] = {}
        self._forgotten: dict[NodeKey, NodeState | None] = {}
        """Accounts to be taken out of the store with the next commit."""
        self._unlearned: dict[EstimateKey, bytes | None] = {}
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
        self._unlearned = restore(self.backlog, snapshot.estimates)
        for lease in snapshot.leases:
            self._adopt(lease, now, wall)
        self.backlog.load(snapshot.lanes)
        self.look(snapshot.workers, now, now)

    def _adopt(self, lease: Lease, now: float, wall: float) -> None:
        """Go on with a running attempt.

        Its age comes from the wall clock of whoever dispatched it, which may have been wrong: it is taken to
        be at least as old as its overrun charges say. (Of a learned estimate nobody knows what it was then.)
        """
        header = lease.header
        if len(header.lane.path) != self.rules.depth:
            rule = f"attempt {lease.token} of job {header.job_id} is running: set the depth back until it has ended"
            raise InvalidConfiguration("depth", self.rules.depth, rule)
        pool = self.backlog.pool(header.lane.pool)
        estimate = pool.estimate(header)
        age = max(0.0, wall - lease.dispatched_at)
        if header.estimate is not None and lease.charged > estimate:
            age = max(age, lease.charged)
        number, faults = self.backlog.next_number(), earlier_faults(header)
        job = Job(number, header.lane.path, estimate, header.lane.priority, faults, limits=header.lane.limits)
        pool.scheduler.adopt(job, lease.token, now - age, lease.charged, lease.excused)
        hold = Hold(lease, now - age, now)
        self.liveness.add(hold)
        if lease.cancelled:
            self.liveness.cancel(hold, now)

    def opening(self) -> list[Peek]:
        """Return the next reads of a start: they are to be answered by `opened` until there are none."""
        return self.backlog.windows.requests()

    def opened(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to `opening`."""
        self.backlog.loaded(replies)

    # --- facts ----------------------------------------------------------------------------------------

    def feed(self, facts: Facts) -> None:
        """Note a batch of news; it is applied by one of the next passes."""
        self._inbox.add(facts)
        self.workers_due |= facts.workers_changed
        self._due.hear(facts.due_at)

    def inquiry(self, wall: float) -> Inquiry:
        """Return what must be read right before the next pass, for `inform`."""
        return Inquiry(wall if self._due.has_come(wall) else None, *Requests.inquiry(self._inbox.requests()))

    def inform(
        self,
        due: DueJobs | None = None,
        located: Mapping[str, Located | None] | None = None,
        letters: Mapping[int, DeadLetter | None] | None = None,
    ) -> None:
        """Take over what the store answered to an `inquiry`. No commit may come between that and the next `step`."""
        if due is not None:
            self._due.answered(due)
        self._requests.inform(located or {}, letters or {})

    def next_at(self, now: float, wall: float) -> float | None:
        """Return the monotonic time at which a pass is worth trying though nothing has happened, if there is one."""
        due = None if self._due.next_at is None else now + self._due.next_at - wall
        moments = [at for at in (due, self.backlog.book.next_start(now), self.liveness.next_lapse) if at is not None]
        return min(moments, default=None)

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

    def entitle(self, entitlement: Entitlement, changes: Sequence[ChangeRecord] = ()) -> None:
        """Change what tenants are entitled to. It binds at once; the next commit stores it, with ``changes``."""
        self.backlog.entitle(entitlement)
        self.liveness.leases_changed()
        self._settings_changed = True
        self._changes.extend(changes)

    @property
    def entitlement(self) -> Entitlement:
        """What tenants are entitled to now."""
        return self.backlog.entitlement

    def set_policy(self, pool: str, path: TenantPath, policy: NodePolicy | None) -> None:
        """Change (or with ``None`` reset) a node's policy. It binds at once and is stored with the next commit."""
        self.entitle(self.entitlement.with_node(pool, path, policy))

    def set_pool(self, pool: str, policy: PoolPolicy) -> None:
        """Change a pool's settings. They bind at once and are stored with the next commit."""
        self.entitle(self.entitlement.with_pool(pool, policy))

    def _lease_of(self, pool: str) -> float | None:
        return self.entitlement.pool(pool).lease

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.entitlement.settings

    @property
    def settings_changed(self) -> bool:
        """Whether the next commit will store settings."""
        return self._settings_changed

    def slots(self, pool: str) -> int:
        """Return the live slots of a pool."""
        found = self.backlog.pools.get(pool)
        return found.scheduler.slots if found is not None else 0

    # --- what reconciliation finds --------------------------------------------------------------------

    def entry_gone(self, token: str) -> None:
        """The entry of a live lease is gone from its pool's stream, and with it what a worker needs to run the job.

        Unless a worker has it and finishes it, the job is given up: there is nothing to put back.
        """
        self._closer.entry_gone(token)

    def lane_found(self, lane: Lane, now: float) -> None:
        """A lane holds jobs that nobody has announced."""
        self.backlog.announced(lane, Malformed(lane, b"", "found by reconciliation"), now)

    # --- passes ---------------------------------------------------------------------------------------

    def step(self, now: float, wall: float) -> Plan | None:
        """Return the next pass, or ``None`` if there is nothing to do. Its outcome goes to `confirm`."""
        batch = Batch()
        self.backlog.book.advance(now)
        self._requests.begin()
        self._apply_facts(batch, now, wall)
        self._requests.end()
        self._apply_gone(batch, now, wall)
        self._closer.lapse(batch, now, wall)
        self._due.mature(batch, self.backlog, self._tally, wall, self._requests.dropped)
        self._closer.give_back(batch)
        self._doom_expired(batch, wall)
        mark_cancelled(batch, self.liveness)
        if now - self._accrued >= ACCRUAL:
            self._accrued = now
            accrue(batch, self.backlog, self.liveness, now)
        note_claims(batch, self.liveness)
        self.backlog.clear(batch)
        if self.liveness.changed:
            self._set_slots(now)
        self._dispatch(batch, now, wall)
        while self._changes and len(batch.changes) < ITEM_LIMIT:
            batch.changes.append(self._changes.popleft())
        batch.due |= bool(self._dead) or self._settings_changed
        peeks = self.backlog.windows.requests()
        if not batch.empty:
            return Plan(self._seal(batch, wall), peeks)
        return Plan(None, peeks) if peeks else None

    def confirm(self, replies: Sequence[Window]) -> None:
        """Take over what the store answered to the reads of the last plan; its commit, if any, has succeeded."""
        self.counters.take_over(self._tally)
        self.backlog.answer(replies)

    def _seal(self, batch: Batch, wall: float) -> Commit:
        self._passes += 1
        dead, self._dead = self._dead, {}
        unlearned, self._unlearned = self._unlearned, {}
        settings = self.settings if self._settings_changed else None
        self._settings_changed = False
        for postpone in batch.postpones:
            self._due.hear(postpone.due_at)
        return Commit(
            self.token,
            self._passes,
            self.position,
            settlements=batch.settlements,
            requeues=batch.requeues,
            postpones=batch.postpones,
            matures=batch.matures,
            revivals=batch.revivals,
            drops_delayed=batch.drops_delayed,
            strikes=batch.strikes,
            removals=batch.removals,
            dispatches=batch.dispatches,
            charges=batch.charges,
            stops=batch.stops,
            nodes=self._touched(),
            estimates={**unlearned, **learned(self.backlog)},
            settings=settings,
            changes=batch.changes,
            usage=usage_of(batch, wall),
            waiting=waiting_changes(batch),
            forget_workers=dead,
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

    # --- what has happened ----------------------------------------------------------------------------

    def _apply_facts(self, batch: Batch, now: float, wall: float) -> None:
        while (facts := self._inbox.first) is not None and self._apply(facts, batch, now, wall):
            self.position = self._inbox.finish()
            batch.due = True
        batch.warn_of_skipped()

    def _apply(self, facts: Facts, batch: Batch, now: float, wall: float) -> bool:
        """Go on applying a batch of news; return whether that is finished."""
        inbox = self._inbox
        while not batch.full and (event := inbox.next_event()) is not None:
            if isinstance(event, MalformedEvent):
                self._tally.malformed += 1
                batch.skipped.append(event)
            else:
                self._closer.report(event, batch, now, wall)
        if batch.full:
            return False
        if inbox.take_lanes():
            for lane, head in facts.lanes:
                self.backlog.announced(lane, head, now)
        while (request := inbox.next_request()) is not None:
            if not self._requests.carry_out(request, batch, now, wall):
                return False
            inbox.request_done()
        return True

    def _apply_gone(self, batch: Batch, now: float, wall: float) -> None:
        while self._gone and not batch.full:
            self._closer.lose(*self._gone.popleft(), batch, now, wall)

    def _doom_expired(self, batch: Batch, wall: float) -> None:
        """Let no job start whose deadline has passed; those beyond the windows are found when they come in."""
        for window, places in self.backlog.windows.expired(wall):
            for place in places:
                header = window.entries[place]
                assert isinstance(header, Header), "only jobs expire"
                self.backlog.doom(window, place, end_unstarted(header, JobState.EXPIRED, wall))
                book_expired(batch, header)
            self._tally.expired += len(places)

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
                if window.wait_target is not None and _came_late(header, window.wait_target, wall):
                    self._tally.late += 1
                pool.refill(window)
                backlog.note_head(window)
        self._tally.dispatched += len(dispatches)

    def _set_slots(self, now: float) -> None:
        self.liveness.changed = False
        capacities = self.liveness.capacities(now)
        for name in {*capacities, *self.backlog.pools}:
            slots, withheld = capacities.get(name, _NO_CAPACITY)
            self.backlog.pool(name).scheduler.set_slots(slots, withheld)


def _came_late(header: Header, target: float, wall: float) -> bool:
    """Return whether a job waited too long for its first start; of one that was put off nobody knows."""
    return not header.attempts and not header.returned and wall - header.submitted_at > target
