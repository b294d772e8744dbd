"""Whose turn it is under a scarce limit: start-time fair queueing of worker-seconds, organisations before projects.

Rules of this file: no I/O, no clock, no jobs, no caps. It orders waiters by tags.

Theory of operation
    Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996): an account's *tag* grows by cost / weight with
    what it was served. The waiter with the least tag is next; the level's clock follows the tags of those
    that are served; who comes back, or comes new, begins at the clock at the least. What was charged too much or
    too little is put right in the tag when it is known.

    Tags sit in a heap and are corrected when they surface: a tag that has grown since is put back at its
    present place, one that has shrunk gets a second entry and the first is passed over. Cost: O(log n).
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import TYPE_CHECKING

from drr.model import TenantPath

if TYPE_CHECKING:
    from drr.core.jobs import Line

_stamps = count(1)
_SWEEP_AT = 32


class Account:
    """What a tenant was served under one limit. ``tag``: worker-seconds / weight; ``clock``: of the level below."""

    __slots__ = ("below", "clock", "tag")

    def __init__(self, tag: float) -> None:
        self.tag = tag
        self.clock = 0.0
        self.below: dict[TenantPath, Account] = {}

    def open(self, path: TenantPath) -> Account:
        """Return the account of ``path`` one level below; a new one begins at the clock."""
        account = self.below.get(path)
        if account is None:
            account = self.below[path] = Account(self.clock)
        return account

    def serve(self, path: TenantPath, amount: float) -> Account:
        """Charge ``amount`` (worker-seconds / weight) to ``path`` for a start; the clock follows."""
        account = self.open(path)
        self.clock = max(self.clock, account.tag)
        account.tag += amount
        return account


class Waiter:
    """A tenant that waits for a limit: the pool as a whole, an organisation, or a project with its lines.

    ``stamp``: names its entry in the parent's heap, 0 while it has none. ``away``: the list of those that are held up
    by the same cap, if something other than the limit is in its way.
    """

    __slots__ = ("account", "away", "below", "entries", "lines", "parent", "path", "stamp")

    def __init__(self, path: TenantPath, parent: Waiter | None, account: Account) -> None:
        self.path = path
        self.parent = parent
        self.account = account
        self.stamp = 0
        self.away: dict[Waiter, None] | None = None
        self.below: dict[TenantPath, Waiter] = {}
        self.lines: dict[Line, None] = {}
        self.entries: list[tuple[float, int, Waiter]] = []

    def child(self, path: TenantPath, *, fresh: bool) -> Waiter:
        """Return the waiter ``path`` one level below. ``fresh``: it did not wait or run until now, so it begins at
        the clock; one that goes on waiting keeps what it lags behind.
        """
        waiter = self.below.get(path)
        if waiter is None:
            account = self.account.open(path)
            if fresh:
                account.tag = max(account.tag, self.account.clock)
            waiter = self.below[path] = Waiter(path, self, account)
        return waiter

    def queue(self) -> None:
        """Stand in the order again, and its organisation with it, unless that is held up itself."""
        parent = self.parent
        if self.away is not None:
            del self.away[self]
            self.away = None
            self._catch_up()
            if parent is not None and not parent.stamp and parent.away is None:
                parent._catch_up()
        if parent is None or self.stamp:
            return
        self.stamp = next(_stamps)
        parent.insert(self)
        if not parent.stamp and parent.away is None:
            parent.queue()

    def _catch_up(self) -> None:
        """Begin at the clock at the least: what it missed while something else held it up is its own affair."""
        if self.parent is not None:
            self.account.tag = max(self.account.tag, self.parent.account.clock)

    def insert(self, child: Waiter) -> None:
        """Give ``child`` an entry at its present tag; sweep entries that were passed over."""
        heappush(self.entries, (child.account.tag, child.stamp, child))
        if len(self.entries) > 2 * len(self.below) + _SWEEP_AT:
            live = {(c.stamp): c for c in self.below.values() if c.stamp}
            self.entries = [(c.account.tag, stamp, c) for stamp, c in live.items()]
            heapify(self.entries)

    def favour(self) -> None:
        """Its tag has shrunk: bring it forward."""
        if self.stamp and self.parent is not None:
            self.stamp = next(_stamps)
            self.parent.insert(self)

    def step_aside(self, those: dict[Waiter, None]) -> None:
        """Leave the order until ``those`` are let in again."""
        self.stamp = 0
        self.away = those
        those[self] = None

    def first(self) -> Waiter | None:
        """Return the waiter below whose turn it is, or ``None`` if all there are held up."""
        entries = self.entries
        while entries:
            tag, stamp, child = entries[0]
            if child.stamp != stamp:
                heappop(entries)
            elif child.account.tag > tag:
                heapreplace(entries, (child.account.tag, stamp, child))
            else:
                return child
        return None

    def leave(self) -> None:
        """It waits no longer; nor does its organisation, if it was the last."""
        if self.away is not None:
            del self.away[self]
            self.away = None
        self.stamp = 0
        parent = self.parent
        if parent is not None:
            parent.below.pop(self.path, None)
            if not parent.below:
                parent.leave()
