"""Listings of jobs, part by part. A cursor says where in which of the store's own collections to go on."""

from __future__ import annotations

from typing import Any

from drr.backend import ITEM_LIMIT, Listed, Page
from drr.errors import InvalidValue, MalformedMessage
from drr.model import Header, JobState, Lane, TenantPath
from drr_backends.redis.accounts import decode_ended
from drr_backends.redis.codec import decode_delayed, decode_entry, decode_lease
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
    name, _, offset = cursor.rpartition("|")
    at = _number(offset)
    lanes = sorted(lane for lane in await _lanes_of(store, path) if str(lane) >= name)
    found: list[Listed] = []
    for lane in sorted(lanes, key=str):
        skipped = at if str(lane) == name else 0
        while len(found) < limit:
            count = min(limit - len(found), ITEM_LIMIT)
            [window] = await store.link.call(
                "FCALL_RO", function("peek"), 1, store.keys.lane(lane), skipped, count, repeatable=True
            )
            entries = [decode_entry(entry, lane) for entry in window[1:]]
            found += [_of_header(e, JobState.QUEUED, e.submitted_at) for e in entries if isinstance(e, Header)]
            skipped += len(entries)
            if len(entries) < count:
                break
        else:
            return Page(tuple(found), f"{lane}|{skipped}")
    return Page(tuple(found))


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
    first = _number(cursor)
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
    return Page(tuple(found), str(first + limit) if len(flat) == 2 * limit else "")


async def _ended(store: Store, path: TenantPath, state: JobState, limit: int, cursor: str) -> Page:
    first = _number(cursor)
    records = await store.link.call("LRANGE", store.keys.history(path[0]), first, first + limit - 1, repeatable=True)
    found: list[Listed] = []
    for record in records:
        try:
            whose, listed = decode_ended(record)
        except MalformedMessage as error:
            log.warning("an entry of a history is skipped: %s", error)
            continue
        if listed.state is state and whose[: len(path)] == path:
            found.append(listed)
    return Page(tuple(found), str(first + limit) if len(records) == limit else "")


def _of_header(header: Header, state: JobState, at: float) -> Listed:
    return Listed(header.job_id, header.task, state, header.attempts, at)
