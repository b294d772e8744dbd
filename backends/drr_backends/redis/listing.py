"""Listings of jobs, part by part. A cursor says where in which of the store's own collections to go on."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2s
from math import isfinite, nan
from typing import Any, Final

from drr.backend import Listed, Malformed, Page, Struck
from drr.errors import InvalidValue, MalformedMessage
from drr.model import Header, JobState, Lane, TenantPath
from drr_backends.redis.accounts import decode_ended
from drr_backends.redis.codec import decode_delayed, decode_entry, decode_lease, is_frame
from drr_backends.redis.keys import lane_of
from drr_backends.redis.library import function
from drr_backends.redis.store import Store, log

_SCAN = 1000
_LANES: Final = 100
"""Lanes that are looked into at once: a tenant may have thousands with a job each."""
_FROM_THE_HEAD: Final = ("b", 2**53)
_CURSOR_RULE: Final = "it must be one that a listing returned, or empty"


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
        raise InvalidValue("cursor of a listing", cursor, _CURSOR_RULE)
    return int(cursor or 0)


async def _queued(store: Store, path: TenantPath, limit: int, cursor: str) -> Page:
    name, kind, number = _place(cursor)
    lanes = sorted((lane for lane in await _lanes_of(store, path) if str(lane) >= name), key=str)
    found: list[Listed] = []
    left = limit
    for first in range(0, len(lanes), _LANES):
        batch = lanes[first : first + _LANES]
        args: list[Any] = [left, store.keys.lane_name_from]
        for lane in batch:
            args += (kind, number) if str(lane) == name else _FROM_THE_HEAD
        keys = [store.keys.back, *map(store.keys.lane, batch)]
        answers = await store.link.call("FCALL_RO", function("list_queued"), len(keys), *keys, *args, repeatable=True)
        for lane, (at, returned, *raw) in zip(batch, answers, strict=False):
            entries = [decode_entry(entry, lane) for entry in raw]
            found += [_of_header(e, JobState.QUEUED, e.submitted_at) for e in entries if isinstance(e, Header)]
            left -= len(entries)
            if left == 0:
                put_back = returned - at - len(entries)
                if put_back >= 0:
                    return Page(tuple(found), f"{lane}|b{put_back}" if put_back else f"{lane}|f0")
                before = number if str(lane) == name and kind == "f" else 0
                return Page(tuple(found), f"{lane}|f{_last_number(entries, raw, before)}")
    return Page(tuple(found))


def _place(cursor: str) -> tuple[str, str, int]:
    """Return the lane and the place in it where a listing of waiting jobs goes on."""
    if not cursor:
        return "", *_FROM_THE_HEAD
    name, _, place = cursor.rpartition("|")
    if not name or place[:1] not in ("b", "f") or not place[1:]:
        raise InvalidValue("cursor of a listing", cursor, _CURSOR_RULE)
    return name, place[0], _number(place[1:])


def _last_number(entries: Sequence[Header | Malformed | Struck], raw: Sequence[bytes], before: int) -> int:
    """Return the number to go on behind, which is above ``before``.

    That of the last job. A frame that is none may have any number: it counts only where all would stand still.
    """
    numbers = [entry.sequence for entry in entries if not isinstance(entry, Malformed)]
    if numbers and numbers[-1] > before:
        return numbers[-1]
    frames = [int.from_bytes(entry[:8], "big") for entry in raw if is_frame(entry)]
    return max(frames, default=before)


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
    after_text, _, number = cursor.partition("|")
    try:
        after = float(after_text) if cursor else -1.0
    except ValueError:
        after = nan
    if not isfinite(after):
        raise InvalidValue("cursor of a listing", cursor, _CURSOR_RULE)
    keys = (store.keys.due, store.keys.delayed)
    flat = await store.link.call(
        "FCALL_RO", function("list_delayed"), 2, *keys, repr(after), _number(number), limit, repeatable=True
    )
    found: list[Listed] = []
    for score, value in zip(flat[1::3], flat[2::3], strict=True):
        try:
            header = decode_delayed(value) if value else None
        except MalformedMessage as error:
            log.warning("a delayed job is left out of a listing: %s", error)
            continue
        if header is not None and header.lane.path[: len(path)] == path:
            found.append(_of_header(header, JobState.DELAYED, float(score)))
    return Page(tuple(found), f"{float(flat[-2])!r}|{int(flat[-3])}" if len(flat) == 3 * limit else "")


async def _ended(store: Store, path: TenantPath, state: JobState, limit: int, cursor: str) -> Page:
    """Go on behind the record that was read last: ends that came since have moved it towards the tail.

    If it is gone, so is all behind it.
    """
    place, _, mark = cursor.partition("|")
    at = _number(place)
    if cursor and not mark:
        raise InvalidValue("cursor of a listing", cursor, _CURSOR_RULE)
    key = store.keys.history(path[0])
    begin = None if mark else 0
    while True:
        records = await store.link.call("LRANGE", key, at, at + limit, repeatable=True)
        if begin is None:
            begin = next((i for i, record in enumerate(records, 1) if _mark(record) == mark), None)
        if begin is not None or not records:
            break
        at += len(records)
    begin = begin or 0
    part = records[begin : begin + limit]
    found: list[Listed] = []
    for record in part:
        try:
            whose, listed = decode_ended(record)
        except MalformedMessage as error:
            log.warning("an entry of a history is skipped: %s", error)
            continue
        if listed.state is state and whose[: len(path)] == path:
            found.append(listed)
    if len(records) <= limit:
        return Page(tuple(found))
    return Page(tuple(found), f"{at + begin + len(part) - 1}|{_mark(part[-1] if part else records[-1])}")


def _mark(record: bytes) -> str:
    """Return what tells one end of a job from any other."""
    return blake2s(record, digest_size=8).hexdigest()


def _of_header(header: Header, state: JobState, at: float) -> Listed:
    return Listed(header.job_id, header.task, state, header.attempts, at)
