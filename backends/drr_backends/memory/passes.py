"""Carrying out the commit of one pass, after `drr_backends.memory.checks` has found nothing wrong with it.

Nothing here may raise: there is no rollback.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from drr.backend import (
    HISTORY_SECONDS,
    USAGE_KEPT_DAYS,
    Burial,
    Commit,
    DeadLetter,
    DeathCause,
    Dispatch,
    Drop,
    Listed,
    Position,
    Struck,
)
from drr.model import Completion, Header, Lane
from drr_backends.memory.checks import put_back, revived
from drr_backends.memory.records import (
    COUNTS,
    REPLIES_KEPT,
    REPLIES_TTL,
    STOPS,
    STOPS_KEPT,
    Delivery,
    Entry,
    History,
    Replies,
    attempts_topic,
    cursor,
    micro,
    replies_topic,
)
from drr_backends.memory.store import Store
from drr_backends.memory.waiting import Log

K = TypeVar("K")
V = TypeVar("V")

ERROR_LISTED: Final = 200
"""Characters of an error that a listing shows."""


def apply(store: Store, commit: Commit) -> None:
    """Carry out a validated commit."""
    now = store.clock.monotonic()
    _end_attempts(store, commit, now)
    _put_back(store, commit)
    for dropped in commit.drops_delayed:
        store.undelay(dropped.header.sequence)
        store.queued -= 1
        _record(store, dropped.header, dropped.completion, now)
    for strike in commit.strikes:
        _strike(store, strike.header)
        _record(store, strike.header, strike.completion, now)
    for removal in commit.removals:
        _remove(store, removal, now)
    for dispatch in commit.dispatches:
        _start(store, dispatch)
    store.leases.update(commit.charges)
    for token in commit.stops:
        _stop(store, token)
    _update(store.nodes, commit.nodes.items())
    _update(store.estimates, commit.estimates.items())
    if commit.settings is not None:
        store.settings = commit.settings
    store.changes.extendleft(commit.changes)
    _account(store, commit)
    _forget_workers(store, commit)
    _advance(store, commit.position)
    leader = store.leader
    store.leader = replace(leader, renewals=leader.renewals + 1, passes=commit.pass_number)
    _expire(store, now)


def _update(kept: dict[K, V], items: Iterable[tuple[K, V | None]]) -> None:
    for key, value in items:
        if value is None:
            kept.pop(key, None)
        else:
            kept[key] = value


def _end_attempts(store: Store, commit: Commit, now: float) -> None:
    for settlement in commit.settlements:
        delivery = _end(store, settlement.lease.token)
        _record(store, delivery.header, settlement.completion, now)
        if settlement.bury:
            header = delivery.header
            _bury(store, header.lane, settlement.bury, settlement.cause, header, delivery.payload)
    for postpone in commit.postpones:
        delivery = _end(store, postpone.lease.token)
        store.delay(postpone.due_at, Entry(put_back(delivery.header, postpone), delivery.payload))
        store.queued += 1


def _put_back(store: Store, commit: Commit) -> None:
    """Put jobs at the heads of their lanes: what is put last stands in front."""
    for revival in commit.revivals:
        letter = store.dead.pop(revival.number)
        assert letter.header is not None
        store.results.pop(letter.header.job_id, None)
        _push(store, Entry(revived(letter.header), letter.payload))
        store.queued += 1
    for mature in commit.matures:
        entry = store.undelay(mature.header.sequence)
        _push(store, Entry(replace(mature.header, returned=True), entry.payload))
    for requeue in commit.requeues:
        delivery = _end(store, requeue.lease.token)
        _push(store, Entry(put_back(delivery.header, requeue), delivery.payload))
        store.queued += 1


def _push(store: Store, entry: Entry) -> None:
    store.lanes.setdefault(entry.head.lane, deque()).appendleft(entry)


def _strike(store: Store, header: Header) -> None:
    entries = store.lanes[header.lane]
    place = next(number for number, entry in enumerate(entries) if entry.head == header)
    entries[place] = Entry(Struck(header.lane, header.sequence), b"")
    store.struck[header.sequence] = header.returned
    store.queued -= 1


def _remove(store: Store, removal: Burial | Drop | Struck, now: float) -> None:
    if isinstance(removal, Struck):
        _pop(store, removal.lane)
        store.struck.pop(removal.sequence, None)
        store.queued += 1  # it did not count any more
    elif isinstance(removal, Drop):
        _pop(store, removal.header.lane)
        _record(store, removal.header, removal.completion, now)
    else:
        _pop(store, removal.lane)
        _bury(store, removal.lane, removal.reason, DeathCause.MALFORMED, None, removal.raw)


def _bury(store: Store, lane: Lane, reason: str, cause: DeathCause, header: Header | None, payload: bytes) -> None:
    number = next(store.letter_numbers)
    store.dead[number] = DeadLetter(number, lane, reason, cause, store.clock.wall(), header, payload)


def _stop(store: Store, token: str) -> None:
    if token in store.leases:
        store.stopping[token] = None
        store.stops.append(token)
        store.stops.trim(store.stops.last - STOPS_KEPT)
        store.waiters.notify(STOPS)


def _account(store: Store, commit: Commit) -> None:
    for path, work in commit.waiting.items():
        store.add_waiting(path, work.jobs, micro(work.worker_seconds))
    for key, usage in commit.usage.items():
        kept = store.usage.setdefault(key.path[0], {})
        counts = kept.setdefault(key, [0] * len(usage))
        for place, value in enumerate(usage):
            counts[place] += int(value) if place < COUNTS else micro(value)
        oldest = key.hour - USAGE_KEPT_DAYS * 24
        for old in [old for old in islice(kept, 10) if old.hour < oldest]:
            del kept[old]


def _end(store: Store, token: str) -> Delivery:
    """Take a lease and its entry of the pool's stream away."""
    lease = store.leases.pop(token)
    delivery = store.deliveries.pop(token, None)
    store.stopping.pop(token, None)
    if delivery is None:  # its entry is gone, and the payload with it
        store.running.pop(lease.header.sequence, None)
        return Delivery("", lease.header, b"", lease.attempt)
    store.running.pop(delivery.header.sequence, None)
    pool = delivery.header.lane.pool
    if delivery.reader is None:
        del store.undelivered[pool][token]
        if not store.undelivered[pool]:
            del store.undelivered[pool]
    else:
        held = store.pending[delivery.reader, pool]
        del held[token]
        if not held:
            del store.pending[delivery.reader, pool]
    return delivery


def _start(store: Store, dispatch: Dispatch) -> None:
    entry = _pop(store, dispatch.header.lane)
    lease, header = dispatch.lease, dispatch.header
    store.leases[lease.token] = lease
    store.running[header.sequence] = lease.token
    name = str(next(store.delivery_names))
    store.deliveries[lease.token] = Delivery(name, header, entry.payload, lease.attempt)
    pool = header.lane.pool
    store.undelivered.setdefault(pool, OrderedDict())[lease.token] = None
    store.waiters.notify(attempts_topic(pool))


def _pop(store: Store, lane: Lane) -> Entry:
    entries = store.lanes[lane]
    entry = entries.popleft()
    if not entries:
        del store.lanes[lane]
    store.queued -= 1
    return entry


def _record(store: Store, header: Header, completion: Completion, now: float) -> None:
    """Keep the outcome, and tell who asked for it."""
    job_id = header.job_id
    history = store.history.setdefault(header.lane.path[0], History())
    history.touched = now
    listed = Listed(
        job_id,
        header.task,
        completion.state,
        completion.attempt,
        completion.finished_at,
        completion.seconds,
        completion.error[:ERROR_LISTED],
    )
    history.jobs.appendleft((header.lane.path, listed))
    if header.result_ttl > 0:
        expiry = now + header.result_ttl
        store.results[job_id] = (expiry, completion)
        heapq.heappush(store.expiries, (expiry, job_id))
    if header.reply_to:
        _reply(store, header.reply_to, job_id, now)


def _reply(store: Store, client: str, job_id: str, now: float) -> None:
    replies = store.replies.get(client)
    if replies is None:
        replies = store.replies[client] = Replies(Log(store.replies_forgotten))
    replies.log.append(job_id)
    replies.log.trim(replies.log.last - REPLIES_KEPT)
    replies.touched = now
    store.replies.move_to_end(client)
    store.waiters.notify(replies_topic(client))


def _forget_workers(store: Store, commit: Commit) -> None:
    for name, incarnation in commit.forget_workers.items():
        known = store.workers.get(name)
        if known is not None and known.incarnation == incarnation:
            del store.workers[name]


def _advance(store: Store, position: Position) -> None:
    store.position = position
    store.events.trim(cursor("event position", position.events))
    store.announced.trim(cursor("announcement position", position.wake))
    store.requests.trim(cursor("request position", position.requests))


def _expire(store: Store, now: float) -> None:
    while store.expiries and store.expiries[0][0] <= now:
        expiry, job_id = heapq.heappop(store.expiries)
        if store.results.get(job_id, (None, None))[0] == expiry:
            del store.results[job_id]
    for organisation in [name for name in islice(store.history, 1) if _is_old(store, name, now)]:
        del store.history[organisation]
    while store.replies and next(iter(store.replies.values())).touched <= now - REPLIES_TTL:
        _, replies = store.replies.popitem(last=False)
        store.replies_forgotten = max(store.replies_forgotten, replies.log.last)


def _is_old(store: Store, organisation: str, now: float) -> bool:
    return store.history[organisation].touched <= now - HISTORY_SECONDS
