"""Listings of jobs, part by part.

A cursor names the last job that was looked at, and where it was: a queue moves while somebody turns its pages, and a
place alone would skip as many jobs as have left the front since.
"""

from __future__ import annotations

import struct
from contextlib import suppress
from math import isfinite, nan
from typing import Any, NamedTuple

from drr.backend import ITEM_LIMIT, Listed, Page
from drr.errors import InvalidValue, MalformedMessage
from drr.model import Header, JobState, Lane, TenantPath
from drr_backends.redis.accounts import decode_ended
from drr_backends.redis.codec import PREFIX, RETURNED, decode_delayed, decode_entry, decode_lease
from drr_backends.redis.keys import lane_of
from drr_backends.redis.library import function
from drr_backends.redis.store import Store, log

_SCAN = 1000


async def list_jobs(store: Store, path: TenantPath, state: JobState, limit: int, cursor: str) -> Page:
    """See `drr.backend.ClientPort.list_jobs`."""
    if state is JobState.QUEUED:
        return await _queued(store, path, limit, cursor)
    if state is JobState.RUNNING:
        return await _running(store, path, limit, cursor)
    if state is JobState.DELAYED:
        return await _delayed(store, path, limit, cursor)
    return await _ended(store, path, state, limit, cursor)


def _number(cursor: str) -> int:
    if cursor and not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= 20):
        raise InvalidValue("cursor of a listing", cursor, "it must be one that a listing returned, or empty")
    return int(cursor or 0)


async def _queued(store: Store, path: TenantPath, limit: int, cursor: str) -> Page:
    rest, _, last = cursor.rpartition("|")
    name, _, offset = rest.rpartition("|")
    mark = Mark(_number(offset), _number(last.removeprefix("-")), last.startswith("-"))
    lanes = [lane for lane in await _lanes_of(store, path) if str(lane) >= name]
    found: list[Listed] = []
    for lane in sorted(lanes, key=str):
        skipped = await _resume(store, lane, mark) if str(lane) == name and mark.offset else 0
        while len(found) < limit:
            entries = await _peek(store, lane, skipped, min(limit - len(found), ITEM_LIMIT))
            heads = [decode_entry(entry, lane) for entry in entries]
            waiting = [head for head in heads if isinstance(head, Header)]
            found += [_of_header(head, JobState.QUEUED, head.submitted_at) for head in waiting]
            skipped += len(entries)
            if not entries:
                break
            mark = Mark(skipped, *_place(entries[-1]))
        else:
            sign = "-" if mark.returned else ""
            return Page(tuple(found), f"{lane}|{mark.offset}|{sign}{mark.sequence}")
    return Page(tuple(found))


class Mark(NamedTuple):
    """Where in a lane a listing stands: after so many entries, the last of which has this number.

    ``returned``: it came back to the lane's front. What never left waits behind those, in order of numbers.
    """

    offset: int
    sequence: int
    returned: bool


def _place(entry: bytes) -> tuple[int, bool]:
    """Return the number of an entry, and whether it came back; (0, True) for what is no frame."""
    try:
        sequence, _, _, _, flags, _ = PREFIX.unpack_from(entry)
    except struct.error:
        return 0, True
    return sequence, bool(flags & RETURNED)


async def _peek(store: Store, lane: Lane, offset: int, count: int) -> list[bytes]:
    [window] = await store.link.call(
        "FCALL_RO", function("peek"), 1, store.keys.lane(lane), offset, count, repeatable=True
    )
    entries: list[bytes] = window[1:]
    return entries


async def _resume(store: Store, lane: Lane, mark: Mark) -> int:
    """Return where a lane goes on after a mark, though entries have left it at the front or come back there."""
    here = await _peek(store, lane, max(0, mark.offset - 1), 1)
    if here and _place(here[0]) == mark[1:]:
        return mark.offset
    if mark.returned:
        return await _find_returned(store, lane, mark)
    low, high = 0, await store.link.call("LLEN", store.keys.lane(lane), repeatable=True)
    while low < high:
        middle = (low + high) // 2
        entries = await _peek(store, lane, middle, 1)
        sequence, returned = _place(entries[0]) if entries else (mark.sequence + 1, False)
        if returned or sequence <= mark.sequence:
            low = middle + 1
        else:
            high = middle
    return int(low)


async def _find_returned(store: Store, lane: Lane, mark: Mark) -> int:
    """Return the place after a job that came back; the start if it has left: so has all that was before it."""
    at = 0
    while True:
        places = [_place(entry) for entry in await _peek(store, lane, at, ITEM_LIMIT)]
        if mark[1:] in places:
            return at + places.index(mark[1:]) + 1
        if not places or not places[-1][1]:
            return 0
        at += len(places)


async def _lanes_of(store: Store, path: TenantPath) -> set[Lane]:
    """Return the lanes of a tenant that hold jobs. Names hold no glob characters, so a pattern finds these only."""
    pattern = f"*:{':'.join(path)}:*"
    lanes: set[Lane] = set()
    at = b"0"
    while True:
        at, names = await store.link.call(
            "SSCAN", store.keys.active, at, "MATCH", pattern, "COUNT", _SCAN, repeatable=True
        )
        for name in names:
            try:
                lane = lane_of(name)
            except MalformedMessage:
                continue
            if lane.path[: len(path)] == path:
                lanes.add(lane)
        if at == b"0":
            return lanes


async def _running(store: Store, path: TenantPath, limit: int, cursor: str) -> Page:
    at, flat = await store.link.call("HSCAN", store.keys.leases, _number(cursor), "COUNT", limit, repeatable=True)
    found: list[Listed] = []
    for field, record in zip(flat[::2], flat[1::2], strict=True):
        if field.startswith(b"#") and len(field) == 9:
            continue
        try:
            lease = decode_lease(record)
        except MalformedMessage as error:
            log.warning("a lease is left out of a listing: %s", error)
            continue
        header = lease.header
        if header.lane.path[: len(path)] == path:
            found.append(Listed(header.job_id, header.task, JobState.RUNNING, lease.attempt, header.submitted_at))
    return Page(tuple(found), "" if at == b"0" else at.decode())


async def _delayed(store: Store, path: TenantPath, limit: int, cursor: str) -> Page:
    first = await _rank_after(store, cursor) if cursor else 0
    flat = await store.link.call("ZRANGE", store.keys.due, first, first + limit - 1, "WITHSCORES", repeatable=True)
    if not flat:
        return Page(())
    args: list[Any] = [store.keys.lane_name_from]
    for packed in flat[::2]:
        args += (packed, 0)
    keys = (store.keys.delayed, store.keys.back)
    answers = await store.link.call("FCALL_RO", function("locate"), 2, *keys, *args, repeatable=True)
    found: list[Listed] = []
    for (kind, value), score in zip(answers, flat[1::2], strict=True):
        try:
            header = decode_delayed(value) if kind else None
        except MalformedMessage as error:
            log.warning("a delayed job is left out of a listing: %s", error)
            continue
        if header is not None and header.lane.path[: len(path)] == path:
            found.append(_of_header(header, JobState.DELAYED, float(score)))
    last = f"{flat[-1].decode()}|{int.from_bytes(flat[-2], 'big')}"
    return Page(tuple(found), last if len(flat) == 2 * limit else "")


async def _rank_after(store: Store, cursor: str) -> int:
    """Return how many delayed jobs are due before the one that a cursor names by due time and number, or are it."""
    score, _, number = cursor.partition("|")
    sequence = _number(number)
    try:
        due_at = float(score)
    except ValueError:
        due_at = nan
    if not isfinite(due_at) or sequence >= 2**63:
        raise InvalidValue("cursor of a listing", cursor, "it must be one that a listing returned, or empty")
    key, packed = store.keys.due, sequence.to_bytes(8, "big")
    low = await store.link.call("ZCOUNT", key, "-inf", f"({due_at!r}", repeatable=True)
    high = await store.link.call("ZCOUNT", key, "-inf", f"{due_at!r}", repeatable=True)
    while low < high:  # among those due at the same time, in order of numbers
        middle = (low + high) // 2
        members = await store.link.call("ZRANGE", key, middle, middle, repeatable=True)
        if members and members[0] <= packed:
            low = middle + 1
        else:
            high = middle
    return int(low)


async def _ended(store: Store, path: TenantPath, state: JobState, limit: int, cursor: str) -> Page:
    first = await _history_after(store, path[0], cursor) if cursor else 0
    records = await store.link.call("LRANGE", store.keys.history(path[0]), first, first + limit - 1, repeatable=True)
    found: list[Listed] = []
    after = f"{first + limit}|"
    for place, record in enumerate(records, first + 1):
        try:
            whose, listed = decode_ended(record)
        except MalformedMessage as error:
            log.warning("an entry of a history is skipped: %s", error)
            continue
        after = f"{place}|{listed.job_id}"
        if listed.state is state and whose[: len(path)] == path:
            found.append(listed)
    return Page(tuple(found), after if len(records) == limit else "")


async def _history_after(store: Store, organisation: str, cursor: str) -> int:
    """Return where a history goes on: what has ended since has moved the rest by as many places."""
    offset, _, last = cursor.partition("|")
    first = _number(offset)
    if not first:
        raise InvalidValue("cursor of a listing", cursor, "it must be one that a listing returned, or empty")
    at = first - 1
    while True:
        records = await store.link.call(
            "LRANGE", store.keys.history(organisation), at, at + ITEM_LIMIT - 1, repeatable=True
        )
        for place, record in enumerate(records, at + 1):
            with suppress(MalformedMessage):
                if not last or decode_ended(record)[1].job_id == last:
                    return place
        if not records:
            return at  # it was so old that it has been dropped since, and so is the rest
        at += len(records)


def _of_header(header: Header, state: JobState, at: float) -> Listed:
    return Listed(header.job_id, header.task, state, header.attempts, at)
