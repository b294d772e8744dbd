"""What a pass adds to the accounts of usage and to the counts of what waits, in whole micro-worker-seconds.

Rules of this file: pure. `usage_of` is one attempt's line; `waiting_changes` follows from what the commit moves,
so that no path can forget it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from drr.backend import Burial, Drop, Struck, Usage, UsageKey, Work
from drr.dispatcher.batch import Batch
from drr.model import UNNAMED_WORK, Header, Outcome, TenantPath

MICRO: Final = 1_000_000
HOUR: Final = 3600.0

_COUNTED: Final = {
    Outcome.SUCCEEDED: "succeeded",
    Outcome.FAILED: "failed",
    Outcome.TIMED_OUT: "timed_out",
    Outcome.LOST: "lost",
    Outcome.RETURNED: "returned",
    Outcome.CANCELLED: "cancelled",
}


def book_attempt(batch: Batch, header: Header, outcome: Outcome, held: float, charged: float, wall: float) -> None:
    """Enter an ended attempt: ``held`` and ``charged`` in worker-seconds, whole microseconds."""
    lines = Usage(held=held, charged=charged, refunded=held - charged)
    _book(batch, header, lines._replace(**{_COUNTED[outcome]: 1}), wall)


def book_expired(batch: Batch, header: Header, wall: float) -> None:
    """Enter a job that expired, if it was never started: otherwise its attempts are in the accounts."""
    if not header.attempts:
        _book(batch, header, Usage(expired=1), wall)


def _book(batch: Batch, header: Header, lines: Usage, wall: float) -> None:
    key = UsageKey(int(wall // HOUR), header.lane.path, header.lane.pool)
    before = batch.usage.get(key)
    batch.usage[key] = lines if before is None else before.plus(lines)


def waiting_changes(batch: Batch) -> dict[TenantPath, Work]:
    """Return by how much the commit of ``batch`` changes what waits, by project."""
    counts: dict[TenantPath, list[int]] = {}

    def add(path: TenantPath, jobs: int, work: float) -> None:
        found = counts.setdefault(path, [0, 0])
        found[0] += jobs
        found[1] += jobs * round(work * MICRO)

    for header in _gone(batch):
        add(header.lane.path, -1, header.work)
    for removal in batch.removals:
        if isinstance(removal, Burial):
            add(removal.lane.path, -1, UNNAMED_WORK)
        else:
            assert isinstance(removal, Drop | Struck), "a struck job was taken off when it was struck"
    for back in batch.backs:
        add(back.lease.header.lane.path, 1, back.lease.header.work)
    for revival in batch.revivals:
        add(revival.header.lane.path, 1, revival.header.work)
    return {path: Work(jobs, micro / MICRO) for path, (jobs, micro) in counts.items() if jobs or micro}


def _gone(batch: Batch) -> Iterable[Header]:
    for dispatch in batch.dispatches:
        yield dispatch.header
    for removal in batch.removals:
        if isinstance(removal, Drop):
            yield removal.header
    for strike in batch.strikes:
        yield strike.header
    for drop in batch.drops_delayed:
        yield drop.header
