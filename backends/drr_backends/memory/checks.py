"""What a commit must satisfy: everything is checked against a picture of the store, and nothing is changed.

Checks that depend on the order of effects (a dispatch of a job that the same pass requeues) walk iterators over the
untouched lanes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from drr.backend import Burial, Commit, Dispatch, Drop, Malformed, Postpone, Requeue, Settlement, Struck
from drr.errors import CommitRefused, NotLeader
from drr.model import Header, Lane
from drr_backends.memory.records import cursor
from drr_backends.memory.store import Store


def check_fence(store: Store, commit: Commit) -> None:
    """Raise `NotLeader` unless the commit's token leads and its pass is the next one."""
    store.check_leads(commit.token)
    if commit.pass_number != store.leader.passes + 1:
        raise NotLeader(f"pass {commit.pass_number} of {commit.token!r} is not the one after {store.leader.passes}")


def validate(store: Store, commit: Commit) -> None:
    """Raise `CommitRefused` if anything that the commit names is not so."""
    cursor("event position", commit.position.events)
    cursor("announcement position", commit.position.wake)
    cursor("request position", commit.position.requests)
    ended = _check_endings(store, commit)
    _check_delayed(store, commit)
    _check_revivals(store, commit)
    heads = _Heads(store, commit)
    for removal in commit.removals:
        heads.check_removal(removal)
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
    endings: list[Settlement | Requeue | Postpone] = [*commit.settlements, *commit.requeues, *commit.postpones]
    for token in [ending.lease.token for ending in endings]:
        if token in ended or token not in store.leases:
            raise CommitRefused(f"end of token {token!r}, which names no live lease")
        ended.add(token)
    return ended


def _check_delayed(store: Store, commit: Commit) -> None:
    gone: set[int] = set()
    for header in [*(item.header for item in commit.matures), *(item.header for item in commit.drops_delayed)]:
        found = store.delayed.get(header.sequence)
        if found is None or header.sequence in gone or found[1].head != header:
            raise CommitRefused(f"job {header.job_id} is not delayed, or not as the commit says")
        gone.add(header.sequence)


def _check_revivals(store: Store, commit: Commit) -> None:
    gone: set[int] = set()
    for revival in commit.revivals:
        letter = store.dead.get(revival.number)
        header = letter.header if letter is not None else None
        if header is None or revival.number in gone or header.job_id != revival.header.job_id:
            raise CommitRefused(f"dead letter {revival.number} is gone, or is not of job {revival.header.job_id}")
        gone.add(revival.number)


class _Heads:
    """The lanes as the removals and dispatches of one commit will find them, without touching them."""

    def __init__(self, store: Store, commit: Commit) -> None:
        self._store = store
        self._front: dict[Lane, deque[Header]] = {}
        self._walks: dict[Lane, Iterator[Header | Malformed | Struck]] = {}
        self._struck: set[int] = set()
        for revival in commit.revivals:
            letter = store.dead[revival.number]
            assert letter.header is not None
            self._put(revived(letter.header))
        for mature in commit.matures:
            self._put(replace(mature.header, returned=True))
        for requeue in commit.requeues:
            self._put(put_back(store.deliveries[requeue.lease.token].header, requeue))
        for strike in commit.strikes:
            self._check_strike(strike.header)

    def _put(self, header: Header) -> None:
        self._front.setdefault(header.lane, deque()).appendleft(header)

    def _check_strike(self, header: Header) -> None:
        stored = self._store.lanes.get(header.lane, ())
        if header.sequence in self._struck or not any(entry.head == header for entry in stored):
            raise CommitRefused(f"job {header.job_id} does not wait in its lane, or not as the commit says")
        self._struck.add(header.sequence)

    def _next(self, lane: Lane) -> Header | Malformed | Struck | None:
        walk = self._walks.get(lane)
        if walk is None:
            stored = (self._seen(entry.head) for entry in self._store.lanes.get(lane, ()))
            walk = self._walks[lane] = chain(self._front.get(lane, ()), stored)
        return next(walk, None)

    def _seen(self, head: Header | Malformed | Struck) -> Header | Malformed | Struck:
        if isinstance(head, Header) and head.sequence in self._struck:
            return Struck(head.lane, head.sequence)
        return head

    def check_removal(self, removal: Burial | Drop | Struck) -> None:
        if isinstance(removal, Struck):
            if self._next(removal.lane) != removal:
                raise CommitRefused(f"job {removal.sequence} was not struck, or is not the head of {removal.lane}")
        elif isinstance(removal, Drop):
            self._check_job(removal.header, "end")
        else:
            head = self._next(removal.lane)
            if not isinstance(head, Malformed) or head.raw != removal.raw:
                raise CommitRefused(f"burial of another entry than the head of lane {removal.lane}")

    def check_dispatch(self, dispatch: Dispatch) -> None:
        self._check_job(dispatch.header, "dispatch")

    def _check_job(self, header: Header, what: str) -> None:
        head = self._next(header.lane)
        if head != header:
            found = head.job_id if isinstance(head, Header) else head and "no job"
            raise CommitRefused(
                f"{what} of {header.job_id} with {header.attempts} attempts, but the head of its "
                f"lane is {found or 'nothing'}"
            )


def put_back(header: Header, item: Requeue | Postpone) -> Header:
    """Return a job's header with the counts that it comes back with."""
    return replace(
        header, attempts=item.attempts, losses=item.losses, failures=item.failures, returned=isinstance(item, Requeue)
    )


def revived(header: Header) -> Header:
    """Return the header of a job that begins anew."""
    return replace(header, attempts=0, losses=0, failures=0, returned=True)
