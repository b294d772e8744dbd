"""What a pass adds to the accounts of usage and to the counts of what waits, in whole micro-worker-seconds.

Rules of this file: pure. Accounts are entered as attempts end; `waiting_changes` follows from what the commit moves,
so that no path can forget it.
"""

from __future__ import annotations

from typing import Final

from drr.backend import Burial, Drop, Struck, Usage, UsageKey, Work
from drr.dispatcher.batch import Batch
from drr.model import UNNAMED_WORK, Header, Outcome, TenantPath

MICRO: Final = 1_000_000
HOUR: Final = 3600.0

_FIELDS: Final = Usage._fields
_EXPIRED, _HELD, _CHARGED, _REFUNDED = (_FIELDS.index(name) for name in ("expired", "held", "charged", "refunded"))
_COUNTED: Final = {
    Outcome.SUCCEEDED: _FIELDS.index("succeeded"),
    Outcome.FAILED: _FIELDS.index("failed"),
    Outcome.TIMED_OUT: _FIELDS.index("timed_out"),
    Outcome.LOST: _FIELDS.index("lost"),
    Outcome.RETURNED: _FIELDS.index("returned"),
    Outcome.CANCELLED: _FIELDS.index("cancelled"),
}


def book_attempt(batch: Batch, header: Header, outcome: Outcome, held: float, charged: float) -> None:
    """Enter an ended attempt: ``held`` and ``charged`` in worker-seconds, whole microseconds."""
    account = _account(batch, header)
    held_micro, charged_micro = round(held * MICRO), round(charged * MICRO)
    account[_COUNTED[outcome]] += 1
    account[_HELD] += held_micro
    account[_CHARGED] += charged_micro
    account[_REFUNDED] += held_micro - charged_micro


def book_expired(batch: Batch, header: Header) -> None:
    """Enter a job that expired, if it was never started: otherwise its attempts are in the accounts."""
    if not header.attempts:
        _account(batch, header)[_EXPIRED] += 1


def _account(batch: Batch, header: Header) -> list[int]:
    lane = header.lane
    key = (lane.path, lane.pool)
    account = batch.accounts.get(key)
    if account is None:
        account = batch.accounts[key] = [0] * len(_FIELDS)
    return account


def usage_of(batch: Batch, wall: float) -> dict[UsageKey, Usage]:
    """Return what the commit of ``batch`` adds to the accounts; all of it happened at ``wall``."""
    hour = int(wall // HOUR)
    return {
        UsageKey(hour, path, pool): Usage(*account[:_HELD], *(micro / MICRO for micro in account[_HELD:]))
        for (path, pool), account in batch.accounts.items()
    }


def waiting_changes(batch: Batch) -> dict[TenantPath, Work]:
    """Return by how much the commit of ``batch`` changes what waits, by project."""
    counts: dict[TenantPath, list[int]] = {}
    for header in _gone(batch):
        found = counts.get(header.lane.path)
        if found is None:
            found = counts[header.lane.path] = [0, 0]
        found[0] -= 1
        found[1] -= round(header.work * MICRO)
    for removal in batch.removals:
        if isinstance(removal, Burial):
            _add(counts, removal.lane.path, -1, UNNAMED_WORK)
        else:
            assert isinstance(removal, Drop | Struck), "a struck job was taken off when it was struck"
    for back in batch.backs:
        _add(counts, back.lease.header.lane.path, 1, back.lease.header.work)
    for revival in batch.revivals:
        _add(counts, revival.header.lane.path, 1, revival.header.work)
    return {path: Work(jobs, micro / MICRO) for path, (jobs, micro) in counts.items() if jobs or micro}


def _add(counts: dict[TenantPath, list[int]], path: TenantPath, jobs: int, work: float) -> None:
    found = counts.setdefault(path, [0, 0])
    found[0] += jobs
    found[1] += jobs * round(work * MICRO)


def _gone(batch: Batch) -> list[Header]:
    headers = [dispatch.header for dispatch in batch.dispatches]
    headers += [removal.header for removal in batch.removals if isinstance(removal, Drop)]
    headers += [strike.header for strike in batch.strikes]
    headers += [drop.header for drop in batch.drops_delayed]
    return headers
