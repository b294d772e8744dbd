"""What of a running attempt's lease changes while it runs: its charge, who holds it, whether it was cancelled."""

from __future__ import annotations

from dataclasses import replace

from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Batch
from drr.dispatcher.liveness import Liveness


def mark_cancelled(batch: Batch, liveness: Liveness) -> None:
    """Write into the ledger which running attempts were cancelled, and have their workers told."""
    for token in batch.marked:
        hold = liveness.holds.get(token)
        if hold is not None:
            batch.charges[token] = hold.lease
            batch.stops.append(token)


def accrue(batch: Batch, backlog: Backlog, liveness: Liveness, now: float) -> None:
    """Charge what runs longer than it is charged for, and forget accounts that say nothing any more."""
    for pool in backlog.pools.values():
        for running in pool.scheduler.accrue(now):
            hold = liveness.holds[str(running.token)]
            hold.lease = lease = replace(hold.lease, charged=running.charged, excused=running.excused)
            batch.charges[lease.token] = lease
        pool.scheduler.sweep()


def note_claims(batch: Batch, liveness: Liveness) -> None:
    """Write into the ledger which workers hold what, as far as heartbeats have told."""
    if not liveness.claimed:
        return
    claimed, liveness.claimed = liveness.claimed, []
    for hold in claimed:
        token = hold.lease.token
        if token in liveness.holds and hold.lease.worker != hold.worker:
            hold.lease = replace(hold.lease, worker=hold.worker)
            batch.charges[token] = hold.lease
