"""Submitting: repeated calls, keys, quotas. Everything is looked at before anything is added."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from drr.backend import CALLS_RELEASED, CALLS_REMEMBERED
from drr.errors import BacklogFull, JobExists, RateLimited, StoreFull, UnknownLimit
from drr.model import UNNAMED_WORK, Header, JobSpec, Quota, TenantPath, call_nonce, job_nonce
from drr_backends.memory.records import CLIENT_TTL, Bucket, Calls, Entry, Key, micro
from drr_backends.memory.store import Store

FULL_RETRY = 1.0
"""Seconds after which a tenant whose backlog is full may ask again: nobody here knows how fast it drains."""


class Added(NamedTuple):
    """Jobs of a tenant and their work in whole micro-worker-seconds, each job rounded by itself."""

    jobs: int
    micros: int


def submit(store: Store, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
    """Add jobs in order and return their ids; a repeated call gets the first one's."""
    if not jobs:
        return []
    now, wall = store.clock.monotonic(), store.clock.wall()
    calls = store.calls.get(client) or Calls()
    if call in calls.ids:
        return list(calls.ids[call])
    for job in jobs:
        for limit in job.lane.limits:
            if limit not in store.settings.limits:
                raise UnknownLimit(limit)
    known = _known(store, jobs, now)
    fresh = [job for job, taken in zip(jobs, known, strict=True) if taken is None]
    added = _work_of(fresh)
    _check_quotas(store, added, wall)
    if store.max_jobs is not None and store.queued + len(fresh) > store.max_jobs:
        raise StoreFull(f"the store holds {store.queued} of at most {store.max_jobs} waiting jobs (max_jobs)")
    _take_from_buckets(store, added, wall)
    for path, work in added.items():
        store.add_waiting(path, *work)
    ids = _add(store, jobs, known, call_nonce(client, call), now, wall)
    calls.ids[call] = ids
    calls.touched = now
    store.calls[client] = calls
    store.calls.move_to_end(client)
    while len(calls.ids) > CALLS_REMEMBERED:
        calls.ids.popitem(last=False)
    _forget(store, now)
    return list(ids)


def calls_of(store: Store, client: str) -> list[int]:
    """Return the numbers of a client's calls that are remembered."""
    _forget(store, store.clock.monotonic())
    found = store.calls.get(client)
    return list(found.ids) if found is not None else []


def release_calls(store: Store, client: str) -> None:
    """Forget a client's calls before long."""
    found = store.calls.get(client)
    if found is not None:
        found.touched = store.clock.monotonic() - CLIENT_TTL + CALLS_RELEASED
        store.calls.move_to_end(client, last=False)


def _known(store: Store, jobs: Sequence[JobSpec], now: float) -> list[str | None]:
    """Return the id of the job that has a job's key already, per job; "" for one earlier in the same call."""
    known: list[str | None] = []
    here: set[tuple[TenantPath, str]] = set()
    for job in jobs:
        text = job.key or job.name
        place = (job.lane.path, text)
        if not text:
            known.append(None)
            continue
        found = store.keys.get(place)
        taken = found.job_id if found is not None and found.expiry > now else None
        if taken is None and place in here:
            taken = ""
        if taken is not None and job.name:
            raise JobExists(job.name, taken or "(of the same call)")
        here.add(place)
        known.append(taken)
    return known


def _work_of(jobs: Sequence[JobSpec]) -> dict[TenantPath, Added]:
    added: dict[TenantPath, Added] = {}
    for job in jobs:
        before = added.get(job.lane.path, Added(0, 0))
        estimate = UNNAMED_WORK if job.estimate is None else job.estimate
        added[job.lane.path] = Added(before.jobs + 1, before.micros + micro(estimate))
    return added


def _levels(added: Mapping[TenantPath, Added]) -> list[tuple[TenantPath, Added]]:
    """Return projects, then organisations, with what is added to each."""
    organisations: dict[TenantPath, Added] = {}
    for path, work in added.items():
        before = organisations.get(path[:1], Added(0, 0))
        organisations[path[:1]] = Added(before.jobs + work.jobs, before.micros + work.micros)
    return [*added.items(), *organisations.items()]


def _check_quotas(store: Store, added: Mapping[TenantPath, Added], wall: float) -> None:
    for path, work in _levels(added):
        quota = store.settings.quota(path)
        if quota.unlimited:
            continue
        jobs, micros = store.waiting.get(path, (0, 0))
        if quota.jobs is not None and jobs + work.jobs > quota.jobs:
            room = max(0, quota.jobs - jobs)
            raise BacklogFull(path, "the backlog in jobs", quota.jobs, jobs, room, FULL_RETRY)
        if quota.worker_seconds is not None:
            left = micro(quota.worker_seconds) - micros
            if work.micros > left:
                room = max(0, min(work.jobs, left * work.jobs // max(1, work.micros)))
                what = "the backlog in worker-seconds"
                raise BacklogFull(path, what, quota.worker_seconds, micros / 1e6, room, FULL_RETRY)
        if quota.rate is not None:
            tokens = _tokens(store, path, quota, wall)
            if work.jobs > tokens:
                pause = (min(float(work.jobs), quota.bucket) - tokens) / quota.rate
                what = "the rate of submitted jobs a second"
                raise RateLimited(path, what, quota.rate, work.jobs, int(tokens), max(pause, 0.001))


def _tokens(store: Store, path: TenantPath, quota: Quota, wall: float) -> float:
    bucket = store.buckets.get(path)
    assert quota.rate is not None
    if bucket is None:
        return quota.bucket
    return min(quota.bucket, bucket.tokens + max(0.0, wall - bucket.at) * quota.rate)


def _take_from_buckets(store: Store, added: Mapping[TenantPath, Added], wall: float) -> None:
    for path, work in _levels(added):
        quota = store.settings.quota(path)
        if quota.rate is not None:
            store.buckets[path] = Bucket(_tokens(store, path, quota, wall) - work.jobs, wall)


def _add(
    store: Store, jobs: Sequence[JobSpec], known: Sequence[str | None], nonce: str, now: float, wall: float
) -> list[str]:
    ids: list[str] = []
    here: dict[tuple[TenantPath, str], str] = {}
    due_before = store.first_due
    for index, (job, taken) in enumerate(zip(jobs, known, strict=True)):
        text = job.key or job.name
        place = (job.lane.path, text)
        store.sequence += 1  # also for one that is not added: job i of a call has the i-th number
        if taken is not None:
            ids.append(taken or here[place])
            continue
        header = Header(
            job.lane,
            store.sequence,
            job_nonce(nonce, index),
            job.task,
            job.submitted_at,
            job.estimate,
            job.timeout,
            job.result_ttl,
            job.reply_to,
            retry=job.retry,
            deadline=job.deadline,
        )
        if job.due_at > wall:
            store.delay(job.due_at, Entry(header, job.payload))
        else:
            store.append(job.lane, Entry(header, job.payload))
        store.queued += 1
        ids.append(header.job_id)
        if text:
            here[place] = header.job_id
            store.keys[place] = Key(header.job_id, now + job.key_ttl)
            heapq.heappush(store.key_expiries, (now + job.key_ttl, place))
    store.announce_due(due_before)
    return ids


def _forget(store: Store, now: float) -> None:
    while store.calls and next(iter(store.calls.values())).touched <= now - CLIENT_TTL:
        store.calls.popitem(last=False)
    while store.key_expiries and store.key_expiries[0][0] <= now:
        expiry, place = heapq.heappop(store.key_expiries)
        found = store.keys.get(place)
        if found is not None and found.expiry == expiry:
            del store.keys[place]
