"""Ending attempts: the core's account is settled, the ledger written, and the job ends, goes back or is put off.

Every live lease ends here and nowhere else: `Closer.report`, `Closer.lose` and `Closer.lapse` are all there is.
"""

from __future__ import annotations

import logging
import random

from drr.backend import Event, EventKind, Postpone, Requeue
from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Back, Batch, Rules
from drr.dispatcher.counters import Counters
from drr.dispatcher.endings import (
    OUTCOMES,
    conclude,
    end_attempted,
    give_up,
    give_up_reason,
    has_expired,
    held_seconds,
    retry_pause,
)
from drr.dispatcher.ledger import book_attempt
from drr.dispatcher.liveness import Cause, Hold, Liveness
from drr.model import JobState, Outcome

log = logging.getLogger("drr.dispatcher")

TEACHING = frozenset({Outcome.SUCCEEDED, Outcome.FAILED, Outcome.TIMED_OUT})
"""What an estimate learns from: what the job cost by its own doing. Others were cut short at any moment."""
CANCELLED = "cancelled while it ran"
ENTRY_GONE = "its entry in the pool stream was gone, and the payload with it"


class Closer:
    """Ends the attempts of one engine. ``rng``: for the jitter of retries."""

    def __init__(
        self, backlog: Backlog, liveness: Liveness, rules: Rules, tally: Counters, rng: random.Random
    ) -> None:
        self._backlog = backlog
        self._liveness = liveness
        self._rules = rules
        self._tally = tally
        self._rng = rng
        self._bare: set[str] = set()
        """Tokens of live leases whose entries are gone."""

    def report(self, event: Event, batch: Batch, now: float, wall: float) -> None:
        """A worker says how an attempt ended."""
        hold = self._liveness.remove(event.token)
        if hold is None:
            self._liveness.forget_ghost(event.token)
            self._tally.zombies += 1
            log.debug("a report of attempt %s comes too late: its lease is gone", event.token)
            return
        held = held_seconds(event.seconds, now - hold.since)
        if event.kind is EventKind.CANCELLED and not hold.lease.cancelled:
            log.warning("attempt %s was stopped by its worker, but nobody has cancelled its job", event.token)
            self._go_back(hold, Cause.HANDED_BACK, held, batch, wall)
        elif event.kind is EventKind.RETURNED and not hold.lease.cancelled:
            self._go_back(hold, Cause.HANDED_BACK, held, batch, wall)
        elif event.kind in (EventKind.CANCELLED, EventKind.RETURNED):
            self._cancel(hold, held, batch, wall)
        else:
            self._judge(hold, event, held, batch, wall)

    def lose(self, token: str, cause: Cause, batch: Batch, now: float, wall: float) -> None:
        """An attempt is gone without a report."""
        hold = self._liveness.remove(token)
        if hold is None:
            return
        held = 0.0 if cause is Cause.UNCLAIMED else round(max(0.0, now - hold.since), 6)
        if hold.lease.cancelled:
            self._cancel(hold, held, batch, wall)
        else:
            self._go_back(hold, cause, held, batch, wall)

    def lapse(self, batch: Batch, now: float, wall: float) -> None:
        """End the cancelled attempts whose workers have had a lease's time to say so.

        A worker that still lists one keeps the slot withheld until it does not.
        """
        for token in self._liveness.lapsed(now):
            if batch.full:
                return
            hold = self._liveness.remove(token, ghost=True)
            if hold is not None:
                log.warning("attempt %s was cancelled and its worker has not answered; it is ended", token)
                self._cancel(hold, round(max(0.0, now - hold.since), 6), batch, wall)

    def entry_gone(self, token: str) -> None:
        """A live lease has lost its entry in the pool's stream; see `Engine.entry_gone`."""
        self._bare.intersection_update(self._liveness.holds)
        self._bare.add(token)

    def give_back(self, batch: Batch) -> None:
        """Put jobs that go back at the heads of their lanes, the oldest in front, or off until they are due."""
        for back in sorted(batch.backs, key=_sequence, reverse=True):
            lease = back.lease
            if back.due_at is None:
                batch.requeues.append(Requeue(lease, lease.attempt, back.losses, back.failures))
                self._backlog.give_back(back.header)
            else:
                batch.postpones.append(Postpone(lease, back.due_at, lease.attempt, back.losses, back.failures))

    def cancel_back(self, back: Back, batch: Batch, wall: float) -> None:
        """End a job that this pass was to put back: it was cancelled meanwhile."""
        batch.backs.remove(back)
        batch.settlements.append(
            end_attempted(back.lease, JobState.CANCELLED, back.held, wall, "cancelled before it was started again")
        )
        self._tally.cancelled += 1

    # --- kinds of ends ------------------------------------------------------------------------------------

    def _settle(self, hold: Hold, outcome: Outcome, held: float, batch: Batch) -> None:
        pool = self._backlog.pools[hold.pool]
        header = hold.lease.header
        running = pool.scheduler.settle(hold.lease.token, outcome, held)
        charged = pool.scheduler.final_charge(running, outcome, held)
        book_attempt(batch, header, outcome, held, charged)
        if outcome in TEACHING:
            pool.estimator.observe(header.lane.path, header.task, held)

    def _judge(self, hold: Hold, event: Event, held: float, batch: Batch, wall: float) -> None:
        """Act on what a worker reports of its own job: success, or a failure after which it may be tried again."""
        lease, header = hold.lease, hold.lease.header
        self._settle(hold, OUTCOMES[event.kind], held, batch)
        if event.kind is EventKind.SUCCEEDED:
            self._tally.succeeded += 1
        else:
            if event.kind is EventKind.FAILED:
                self._tally.failed += 1
            else:
                self._tally.timed_out += 1
            policy = header.retry or self._backlog.entitlement.retry(header.lane.path)
            failures = header.failures + 1
            pause = None
            if not lease.cancelled and not give_up_reason(lease, header.losses, Cause.HANDED_BACK, 0):
                pause = retry_pause(policy, failures, event.retry_after, self._rng.random())
            if pause is not None and lease.token not in self._bare:
                self._tally.retried += 1
                due_at = wall + pause if pause > 0.0 else None
                self._put_back(Back(lease, header.losses, failures, held, due_at), batch, wall)
                return
        batch.settlements.append(conclude(lease, event, held, wall))

    def _go_back(self, hold: Hold, cause: Cause, held: float, batch: Batch, wall: float) -> None:
        """End an attempt that has no outcome: its job goes back to the head of its lane, or is given up."""
        lease = hold.lease
        outcome = Outcome.LOST if cause.counts else Outcome.RETURNED
        self._settle(hold, outcome, held, batch)
        losses = lease.header.losses + (1 if cause.counts else 0)
        reason = give_up_reason(lease, losses, cause, self._rules.poison_after)
        if lease.token in self._bare:
            reason = reason or ENTRY_GONE
        if cause.counts:
            self._tally.lost += 1
        else:
            self._tally.returned += 1
        if reason:
            self._tally.poisoned += reason is not ENTRY_GONE
            log.error("job %s is given up: %s", lease.header.job_id, reason)
            batch.settlements.append(give_up(lease, held, wall, reason))
        else:
            self._put_back(Back(lease, losses, lease.header.failures, held), batch, wall)

    def _put_back(self, back: Back, batch: Batch, wall: float) -> None:
        header = back.lease.header
        if back.due_at is None and has_expired(header, wall):
            error = f"its deadline passed before attempt {back.lease.attempt + 1}"
            batch.settlements.append(end_attempted(back.lease, JobState.EXPIRED, back.held, wall, error))
            self._tally.expired += 1
        else:
            batch.backs.append(back)

    def _cancel(self, hold: Hold, held: float, batch: Batch, wall: float) -> None:
        self._settle(hold, Outcome.CANCELLED, held, batch)
        batch.settlements.append(end_attempted(hold.lease, JobState.CANCELLED, held, wall, CANCELLED))
        self._tally.cancelled += 1


def _sequence(back: Back) -> int:
    return back.lease.header.sequence
