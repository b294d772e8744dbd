"""What waits, as far as it was read: the windows on the lanes, and the pools that they feed.

The one place where windows are opened, filled and closed, and the core's offers are kept in step with them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Final

from drr.backend import ITEM_LIMIT, Burial, Malformed, Window
from drr.dispatcher.batch import Batch
from drr.dispatcher.counters import Counters
from drr.dispatcher.pools import Pool
from drr.dispatcher.windows import MANY, SPARE, UNKNOWN, LaneWindow, Windows
from drr.model import Header, Lane, NodePolicy, PoolPolicy, Settings, TenantPath

log = logging.getLogger("drr.dispatcher")

REFUSALS_LOGGED: Final = 10
"""Lanes that are not served which are logged by name; the others are only counted."""


class Backlog:
    """Lanes and pools of one engine. ``depth``: names in a tenant path; lanes of another depth are not served."""

    def __init__(self, settings: Settings, depth: int, tally: Counters, trusting_from: float) -> None:
        """``trusting_from``: before this time an announced head is not taken at its word, its lane is read first."""
        self.windows = Windows()
        self.pools: dict[str, Pool] = {}
        self.settings = settings
        self.next_number: Callable[[], int] = count(1).__next__
        self._depth = depth
        self._tally = tally
        self._trusting_from = trusting_from
        self._refusals = 0
        self._loaded_upto = 0
        self._malformed: dict[LaneWindow, None] = {}
        """Windows that may have no job at their head."""

    # --- pools ----------------------------------------------------------------------------------------

    def pool(self, name: str) -> Pool:
        """Return the pool of this name, made on first use."""
        pool = self.pools.get(name)
        if pool is None:
            policy = self.settings.pools.get(name) or PoolPolicy()
            pool = self.pools[name] = Pool(name, policy, self.settings.nodes.get(name, {}), self.next_number)
        return pool

    def pools_in_turn(self, number: int) -> Iterator[Pool]:
        """Yield all pools, beginning with the ``number``-th: a full pass must not always favour the same one."""
        pools = list(self.pools.values())
        start = number % len(pools) if pools else 0
        yield from pools[start:]
        yield from pools[:start]

    def set_node(self, pool: str, path: TenantPath, policy: NodePolicy | None) -> None:
        """Change (or with ``None`` reset) a node's policy; binds at once."""
        self.pool(pool).scheduler.set_policy(path, policy)
        nodes = {name: dict(policies) for name, policies in self.settings.nodes.items()}
        policies = nodes.setdefault(pool, {})
        if policy is None:
            policies.pop(path, None)
        else:
            policies[path] = policy
        self.settings = Settings(self.settings.pools, nodes)

    def set_pool(self, pool: str, policy: PoolPolicy) -> None:
        """Change a pool's settings; they bind at once."""
        self.pool(pool).set_policy(policy)
        self.settings = Settings({**self.settings.pools, pool: policy}, self.settings.nodes)

    # --- lanes ----------------------------------------------------------------------------------------

    def load(self, lanes: Sequence[Lane]) -> None:
        """Open the lanes that a snapshot names."""
        target = SPARE if len(lanes) < MANY else 1
        for lane in lanes:
            if self._fits(lane):
                self._open(lane, target)

    def loaded(self, replies: Sequence[Window]) -> None:
        """Take over the first answers after a load.

        A job that was announced before the load may be dispatched before its announcement is heard; by then
        it is no head. So announcements of jobs up to the highest number seen here are not trusted.
        """
        for reply in replies:
            for entry in reply.entries:
                if isinstance(entry, Header) and entry.sequence > self._loaded_upto:
                    self._loaded_upto = entry.sequence
        self.answer(replies)

    def answer(self, replies: Sequence[Window]) -> None:
        """Take over what the store said of some lanes."""
        for reply in replies:
            window = self.windows.answer(reply)
            if window is None:
                continue
            pool = self.pools[window.lane.pool]
            if window.entries:
                pool.refill(window)
                self.note_head(window)
            else:
                self.windows.close(window)
                pool.drop(window)

    def announced(self, lane: Lane, head: Header | Malformed, now: float) -> None:
        """A lane that was empty holds jobs."""
        window = self.windows.by_lane.get(lane)
        if window is not None:
            if window.rest == 0:
                window.rest = UNKNOWN
            self.windows.want(window)
        elif self._fits(lane):
            window = self._open(lane)
            if isinstance(head, Header) and head.sequence > self._loaded_upto and now >= self._trusting_from:
                self.windows.append(window, head)
                self.pools[lane.pool].refill(window)

    def give_back(self, header: Header) -> None:
        """Put a returned job at the head of its lane, as the pass does in the store."""
        window = self.windows.by_lane.get(header.lane) or self._open(header.lane)
        self.windows.put_back(window, header)
        self.pools[header.lane.pool].give_back(window, header)

    def note_head(self, window: LaneWindow) -> None:
        """Remember a window whose head is no job, to be buried by the next pass."""
        if window.entries and window.entries[0].__class__ is Malformed:
            self._malformed[window] = None

    def bury(self, batch: Batch) -> None:
        """Bury what is no job and has come to the head of its lane; what was given back stands before it."""
        if not self._malformed:
            return
        suspects, self._malformed = self._malformed, {}
        for window in suspects:
            while window.entries and isinstance(entry := window.entries[0], Malformed):
                if len(batch.burials) >= ITEM_LIMIT:
                    self._malformed[window] = None
                    break
                self.windows.use(window)
                batch.burials.append(Burial(window.lane, entry.raw, entry.reason))
            if window.entries:
                self.pools[window.lane.pool].refill(window)
        if batch.burials:
            self._tally.malformed += len(batch.burials)
            first = batch.burials[0]
            log.warning(
                "%d entries are no jobs and are buried (lane %s: %s ...)",
                len(batch.burials),
                first.lane,
                first.reason,
            )

    def _open(self, lane: Lane, target: int | None = None) -> LaneWindow:
        window = self.windows.open(lane) if target is None else self.windows.open(lane, target)
        self.pool(lane.pool).add(window)
        return window

    def _fits(self, lane: Lane) -> bool:
        if len(lane.path) == self._depth:
            return True
        self._tally.refused += 1
        self._refusals += 1
        if self._refusals <= REFUSALS_LOGGED:
            log.error("lane %s is not served: tenant paths here have %d names", lane, self._depth)
        return False
