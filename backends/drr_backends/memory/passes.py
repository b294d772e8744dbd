"""The commit of one pass: everything is checked against a picture of the store, then everything is done.

`validate` reads only and may raise; `apply` writes only and may not. Checks that depend on the order of
effects (a dispatch of a job that the same pass requeues) walk iterators over the untouched lanes.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from drr.backend import Burial, Commit, DeadLetter, Dispatch, Malformed, Position, Requeue, Settlement
from drr.errors import CommitRefused, NotLeader
from drr.model import Completion, Header, Lane
from drr_backends.memory.records import (
    REPLIES_KEPT,
    REPLIES_TTL,
    Delivery,
    Entry,
    Replies,
    attempts_topic,
    cursor,
    replies_topic,
)
from drr_backends.memory.store import Store
from drr_backends.memory.waiting import Log


def check_fence(store: Store, commit: Commit) -> None:
    """Raise `NotLeader` unless the commit's token leads and its pass is the next one."""
    store.check_leads(commit.token)
    if commit.pass_number != store.leader.passes + 1:
        raise NotLeader(f"pass {commit.pass_number} of {commit.token!r} is not the one after {store.leader.passes}")


def validate(store: Store, commit: Commit) -> None:
    """Raise `CommitRefused` if anything that the commit names is not so."""
    cursor("event position", commit.position.events)
    cursor("announcement position", commit.position.wake)
    ended = _check_endings(store, commit)
    heads = _Heads(store, commit)
    for burial in commit.burials:
        heads.check_burial(burial)
    started: set[str] = set()
    for dispatch in commit.dispatches:
        token = dispatch.lease.token
        if token in store.leases or token in started:
            raise CommitRefused(f"dispatch under token {token!r}, which names another lease")
        started.add(token)
        heads.check_dispatch(dispatch)
    for token in commit.charges:
        if token not in started and (token in ended or token not in store.leases):
            raise CommitRefused(f"charge of token {token!r}, which names no live lease")


def _check_endings(store: Store, commit: Commit) -> set[str]:
    ended: set[str] = set()
    endings: list[Settlement | Requeue] = [*commit.settlements, *commit.requeues]
    for token in [ending.lease.token for ending in endings]:
        if token in ended or token not in store.leases:
            raise CommitRefused(f"end of token {token!r}, which names no live lease")
        ended.add(token)
    return ended


class _Heads:
    """The lanes as the burials and dispatches of one commit will find them, without touching them."""

    def __init__(self, store: Store, commit: Commit) -> None:
        self._store = store
        self._front: dict[Lane, deque[Header]] = {}
        self._walks: dict[Lane, Iterator[Header | Malformed]] = {}
        for requeue in commit.requeues:
            header = store.deliveries[requeue.lease.token].header
            returned = replace(header, attempts=requeue.attempts, losses=requeue.losses)
            self._front.setdefault(header.lane, deque()).appendleft(returned)

    def _next(self, lane: Lane) -> Header | Malformed | None:
        walk = self._walks.get(lane)
        if walk is None:
            stored = (entry.head for entry in self._store.lanes.get(lane, ()))
            walk = self._walks[lane] = chain(self._front.get(lane, ()), stored)
        return next(walk, None)

    def check_burial(self, burial: Burial) -> None:
        head = self._next(burial.lane)
        if not isinstance(head, Malformed) or head.raw != burial.raw:
            raise CommitRefused(f"burial of another entry than the head of lane {burial.lane}")

    def check_dispatch(self, dispatch: Dispatch) -> None:
        head = self._next(dispatch.header.lane)
        if head != dispatch.header:
            found = head.job_id if isinstance(head, Header) else head and "a malformed entry"
            raise CommitRefused(
                f"dispatch of {dispatch.header.job_id} with {dispatch.header.attempts} attempts, but the head of its "
                f"lane is {found or 'nothing'}"
            )


def apply(store: Store, commit: Commit) -> None:
    """Carry out a validated commit."""
    now = store.clock.monotonic()
    for settlement in commit.settlements:
        delivery = _end(store, settlement.lease.token)
        _record(store, delivery.header, settlement.completion, now)
        if settlement.bury:
            header = delivery.header
            store.dead.append(DeadLetter(header.lane, settlement.bury, header, delivery.payload))
    for requeue in commit.requeues:
        delivery = _end(store, requeue.lease.token)
        returned = replace(delivery.header, attempts=requeue.attempts, losses=requeue.losses)
        store.lanes.setdefault(returned.lane, deque()).appendleft(Entry(returned, delivery.payload))
        store.queued += 1
    for burial in commit.burials:
        _pop(store, burial.lane)
        store.dead.append(DeadLetter(burial.lane, burial.reason, None, burial.raw))
    for dispatch in commit.dispatches:
        _start(store, dispatch)
    store.leases.update(commit.charges)
    for node, state in commit.nodes.items():
        if state is None:
            store.nodes.pop(node, None)
        else:
            store.nodes[node] = state
    if commit.settings is not None:
        store.settings = commit.settings
    _forget_workers(store, commit)
    _advance(store, commit.position)
    leader = store.leader
    store.leader = replace(leader, renewals=leader.renewals + 1, passes=commit.pass_number)
    _expire(store, now)


def _end(store: Store, token: str) -> Delivery:
    """Take a lease and its entry of the pool's stream away."""
    del store.leases[token]
    delivery = store.deliveries.pop(token)
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


def _expire(store: Store, now: float) -> None:
    while store.expiries and store.expiries[0][0] <= now:
        expiry, job_id = heapq.heappop(store.expiries)
        if store.results.get(job_id, (None, None))[0] == expiry:
            del store.results[job_id]
    while store.replies and next(iter(store.replies.values())).touched <= now - REPLIES_TTL:
        _, replies = store.replies.popitem(last=False)
        store.replies_forgotten = max(store.replies_forgotten, replies.log.last)
