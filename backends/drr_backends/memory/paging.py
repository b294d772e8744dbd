"""Listings of jobs, part by part. A cursor is a place that stays the same place while what it points into moves.

Put-back entries stand at the head of a lane and come and go there: each is counted from where they end. Fresh ones
stand behind them in order of their numbers. Running jobs go by number, delayed ones by due time and number, and ends
are numbered as they come.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from heapq import nsmallest
from itertools import islice
from math import isfinite, nan
from typing import Final

from drr.backend import HISTORY_SECONDS, Listed, Page, Struck
from drr.errors import InvalidValue
from drr.model import Header, JobState, TenantPath
from drr_backends.memory.records import Entry, cursor
from drr_backends.memory.store import Store

WHAT: Final = "cursor of a listing"


def list_jobs(store: Store, path: TenantPath, state: JobState, limit: int, after: str) -> Page:
    """Return part of a listing, by `ClientPort.list_jobs`."""
    if state is JobState.QUEUED:
        return _queued(store, path, limit, after)
    if state is JobState.RUNNING:
        return _running(store, path, limit, after)
    if state is JobState.DELAYED:
        return _delayed(store, path, limit, after)
    return _ended(store, path, state, limit, after)


def _refused(after: str) -> InvalidValue:
    return InvalidValue(WHAT, after, "it must be one that a listing returned, or empty")


def _queued(store: Store, path: TenantPath, limit: int, after: str) -> Page:
    name, _, place = after.rpartition("|")
    if after and (not name or place[:1] not in ("b", "f") or not place[1:]):
        raise _refused(after)
    number = cursor(WHAT, place[1:])
    ours = ((str(lane), lane) for lane in store.lanes if lane.path[: len(path)] == path)
    found: list[Listed] = []
    left = limit
    for text, lane in sorted((text, lane) for text, lane in ours if text >= name):
        entries = store.lanes[lane]
        returned = _returned(store, entries)
        at = 0
        if text == name:
            at = max(0, returned - number) if place[0] == "b" else _first_above(entries, returned, number)
        part = list(islice(entries, at, at + left))
        found += _of_headers((entry.head.submitted_at, entry) for entry in part if isinstance(entry.head, Header))
        left -= len(part)
        if left == 0:
            put_back = returned - at - len(part)
            numbers = [n for n in map(_number, part) if n is not None]
            behind = f"b{put_back}" if put_back > 0 else f"f{numbers[-1] if put_back < 0 and numbers else 0}"
            return Page(tuple(found), f"{text}|{behind}")
    return Page(tuple(found))


def _number(entry: Entry) -> int | None:
    return entry.head.sequence if isinstance(entry.head, Header | Struck) else None


def _returned(store: Store, entries: deque[Entry]) -> int:
    """Return how many put-back entries stand at a lane's head."""
    low, high = 0, len(entries)
    while low < high:
        middle = (low + high) // 2
        head = entries[middle].head
        if isinstance(head, Struck):
            back = store.struck.get(head.sequence, False)
        else:
            back = isinstance(head, Header) and head.returned
        if back:
            low = middle + 1
        else:
            high = middle
    return low


def _first_above(entries: deque[Entry], low: int, number: int) -> int:
    """Return where the first fresh entry with a higher number stands. What is no job says nothing of the order."""
    high = len(entries)
    while low < high:
        middle = (low + high) // 2
        at = middle
        while at < high and _number(entries[at]) is None:
            at += 1
        if at < high and (_number(entries[at]) or 0) <= number:
            low = at + 1
        else:
            high = middle
    while low < len(entries) and _number(entries[low]) is None:
        low += 1
    return low


def _running(store: Store, path: TenantPath, limit: int, after: str) -> Page:
    last = cursor(WHAT, after)
    numbers = nsmallest(limit, (number for number in store.running if number > last))
    found: list[Listed] = []
    for number in numbers:
        lease = store.leases[store.running[number]]
        header = lease.header
        if header.lane.path[: len(path)] == path:
            found.append(Listed(header.job_id, header.task, JobState.RUNNING, lease.attempt, header.submitted_at))
    return Page(tuple(found), str(numbers[-1]) if len(numbers) == limit else "")


def _delayed(store: Store, path: TenantPath, limit: int, after: str) -> Page:
    due_text, _, number = after.partition("|")
    try:
        due_at = float(due_text) if after else -1.0
    except ValueError:
        due_at = nan
    if not isfinite(due_at):
        raise _refused(after)
    first = bisect_right(store.due, (due_at, cursor(WHAT, number)))
    part = store.due[first : first + limit]
    entries = ((at, store.delayed[sequence][1]) for at, sequence in part)
    ours = [(at, e) for at, e in entries if isinstance(e.head, Header) and e.head.lane.path[: len(path)] == path]
    end = f"{part[-1][0]!r}|{part[-1][1]}" if len(part) == limit else ""
    return Page(tuple(_of_headers(ours, JobState.DELAYED)), end)


def _ended(store: Store, path: TenantPath, state: JobState, limit: int, after: str) -> Page:
    last = cursor(WHAT, after)
    kept = store.history.get(path[0])
    if kept is None or kept.touched <= store.clock.monotonic() - HISTORY_SECONDS:
        return Page(())
    first = max(0, kept.ended - last + 1) if after else 0  # the latest has the number `ended`
    part = list(islice(kept.jobs, first, first + limit))
    found = [listed for whose, listed in part if listed.state is state and whose[: len(path)] == path]
    return Page(tuple(found), str(kept.ended - first - limit + 1) if len(part) == limit else "")


def _of_headers(entries: Iterable[tuple[float, Entry]], state: JobState = JobState.QUEUED) -> list[Listed]:
    heads = ((at, entry.head) for at, entry in entries)
    return [Listed(h.job_id, h.task, state, h.attempts, at) for at, h in heads if isinstance(h, Header)]
