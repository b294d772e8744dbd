"""The store's look at itself, and what it sets right: `DispatcherPort.audit` in memory."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Final

from drr.backend import Audit, DeadLetter, DeathCause, Mismatch, Repair, Work
from drr.errors import InvalidValue
from drr.model import UNNAMED_WORK, Header, TenantPath
from drr_backends.memory.records import NEWS, micro
from drr_backends.memory.store import Store

NO_LEASE: Final = "its entry in the pool stream had no lease"


def audit(store: Store, cursor: str, limit: int) -> Audit:
    """Return the next page; a cursor is the name of a phase, and where in it to go on."""
    phase, _, at = cursor.partition("|")
    phase = phase or _PHASES[0]
    if phase not in _PHASES or not (at or "0").isdecimal():
        raise InvalidValue("cursor of an audit", cursor, "it must come from an audit of this store")
    start = int(at or 0)
    page, more = _LOOKS[phase](store, start, limit)
    return replace(page, cursor=_next(phase, start + limit if more else None))


def _next(phase: str, at: int | None) -> str:
    if at is not None:
        return f"{phase}|{at}"
    later = _PHASES[_PHASES.index(phase) + 1 :]
    return later[0] if later else ""


def _entries(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    del start
    repaired = []
    for token in [token for token in store.deliveries if token not in store.leases][:limit]:
        delivery = store.deliveries.pop(token)
        header = delivery.header
        pool = header.lane.pool
        if delivery.reader is None:
            store.undelivered.get(pool, OrderedDict()).pop(token, None)
        else:
            store.pending.get((delivery.reader, pool), {}).pop(token, None)
        number = next(store.letter_numbers)
        wall = store.clock.wall()
        store.dead[number] = DeadLetter(
            number, header.lane, NO_LEASE, DeathCause.OTHER, wall, header, delivery.payload
        )
        repaired.append(Repair(Mismatch.ENTRY, f"entry of job {header.job_id} without a lease; buried"))
    return Audit(repaired=tuple(repaired)), False


def _leases(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    del start, limit  # as many as there are slots, and a page of them must not be torn by what ends
    repaired = []
    for number, token in list(store.running.items()):
        if token not in store.leases:
            del store.running[number]
            repaired.append(Repair(Mismatch.PLACE, f"job {number} said to run under {token!r}, which is no lease"))
    bare = tuple(token for token in store.leases if token not in store.deliveries)
    return Audit(repaired=tuple(repaired), tokens=tuple(store.leases), leases_done=True, bare=bare), False


def _delayed(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    found: dict[TenantPath, list[int]] = {}
    repaired = []
    kept = list(islice(store.delayed.items(), start, start + limit))
    for number, (due_at, entry) in kept:
        head = entry.head
        assert isinstance(head, Header)
        place = bisect_left(store.due, (due_at, number))
        if place >= len(store.due) or store.due[place] != (due_at, number):
            insort(store.due, (due_at, number))
            store.announced.append(due_at)
            store.waiters.notify(NEWS)
            repaired.append(Repair(Mismatch.PLACE, f"delayed job {head.job_id} without a due time; due again"))
        count = found.setdefault(head.lane.path, [0, 0])
        count[0] += 1
        count[1] += micro(UNNAMED_WORK if head.estimate is None else head.estimate)
    works = {path: Work(jobs, micros / 1e6) for path, (jobs, micros) in found.items()}
    return Audit(repaired=tuple(repaired), delayed=works), len(kept) == limit


def _due(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    page = store.due[start : start + limit]
    gone = [item for item in page if item[1] not in store.delayed]
    for item in gone:
        store.due.remove(item)
    repaired = tuple(Repair(Mismatch.PLACE, f"due time of job {number}, which is not delayed") for _, number in gone)
    return Audit(repaired=repaired), len(page) == limit


def _lanes(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    page = tuple(islice(store.lanes, start, start + limit))
    return Audit(lanes=page), len(page) == limit


def _waiting(store: Store, start: int, limit: int) -> tuple[Audit, bool]:
    page = list(islice(store.waiting.items(), start, start + limit))
    works = {path: Work(jobs, micros / 1e6) for path, (jobs, micros) in page if len(path) > 1}
    return Audit(waiting=works), len(page) == limit


def correct_waiting(store: Store, path: TenantPath, found: Work, change: Work) -> bool:
    """See `DispatcherPort.correct_waiting`."""
    if store.work(path) != found:
        return False
    store.add_waiting(path, change.jobs, micro(change.worker_seconds))
    return True


_LOOKS: Final[dict[str, Callable[[Store, int, int], tuple[Audit, bool]]]] = {
    "entries": _entries,
    "leases": _leases,
    "delayed": _delayed,
    "due": _due,
    "lanes": _lanes,
    "waiting": _waiting,
}
_PHASES: Final = tuple(_LOOKS)
