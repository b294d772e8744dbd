"""Describing an engine for people: which nodes are worth showing, and what is said of them.

The cost is bounded: `NODES_SHOWN` nodes per pool, backlogs counted a slice at a time (`drr.dispatcher.sweep`),
and at most a twentieth of the dispatcher's time.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from heapq import nlargest
from itertools import chain, islice
from typing import Final

from drr.backend import ITEM_LIMIT, Backend
from drr.clock import Clock
from drr.core.limits import UNLIMITED
from drr.core.scheduler import NodeView
from drr.dispatcher.engine import Engine
from drr.dispatcher.pools import Pool
from drr.dispatcher.status import BacklogStatus, LimitStatus, NodeStatus, PoolStatus, Status, encode_status
from drr.dispatcher.sweep import Sweep
from drr.dispatcher.vitals import Vitals
from drr.model import TenantPath

log = logging.getLogger("drr.dispatcher")

NODES_SHOWN: Final = 1000
"""Most nodes described per pool."""
INTERVAL: Final = 1.0
"""Seconds between two refreshes while anything changes."""
MOST_OF_THE_TIME: Final = 0.05
"""Share of the dispatcher's time that may go into descriptions."""
SHARE_WINDOW: Final = 60.0
SHARE_STEP: Final = 5.0


class Ledger:
    """What each node of a pool was charged when, coarsely, over the last minute."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[TenantPath, float]]] = deque()

    def shares(self, charged: Mapping[TenantPath, float], now: float) -> dict[TenantPath, float]:
        """Return each path's fraction of what the pool (the paths of one name together) was charged lately."""
        while len(self._marks) > 1 and self._marks[1][0] <= now - SHARE_WINDOW:
            self._marks.popleft()
        before = self._marks[0][1] if self._marks else {}
        spent = {path: max(0.0, total - before.get(path, 0.0)) for path, total in charged.items()}
        if not self._marks or now - self._marks[-1][0] >= SHARE_STEP:
            self._marks.append((now, dict(charged)))
        whole = sum(amount for path, amount in spent.items() if len(path) == 1)
        return {path: amount / whole if whole > 0.0 else 0.0 for path, amount in spent.items()}


class Describer:
    """Describes one engine again and again."""

    def __init__(self, name: str, version: str, since: float) -> None:
        self._name = name
        self._version = version
        self._since = since
        self._ledgers: dict[str, Ledger] = {}

    def describe(self, engine: Engine, sweep: Sweep, now: float, wall: float) -> Status:
        """Return the description of ``engine``, with backlogs as ``sweep`` has counted them."""
        capacities = engine.liveness.capacities(now)
        pools = tuple(
            self._pool(pool, engine, sweep, capacities.get(name, (0, 0))[1], now, wall)
            for name, pool in sorted(engine.backlog.pools.items())
        )
        counters = engine.counters.as_dict()
        return Status(wall, self._name, self._version, now - self._since, counters, pools, _limits(engine))

    def _pool(self, pool: Pool, engine: Engine, sweep: Sweep, withheld: int, now: float, wall: float) -> PoolStatus:
        scheduler = pool.scheduler
        queued = sweep.queued.get(pool.name, {})
        oldest = sweep.oldest.get(pool.name, {})
        shown = _relevant(pool, queued, sweep.longest(pool.name))
        shares = self._ledgers.setdefault(pool.name, Ledger()).shares(
            {view.path: view.charged for view in shown if view.path}, now
        )
        free = scheduler.free
        children = scheduler.tree.root.children.values()
        return PoolStatus(
            name=pool.name,
            workers=sum(1 for record in engine.liveness.workers.values() if pool.name in record.slots),
            slots=scheduler.slots,
            free=free,
            idle_capped=free if scheduler.queued else 0,
            withheld=withheld,
            queued=queued.get((), 0),
            running=scheduler.running,
            active=len(pool.projects),
            charged=sum(child.charged for child in children),
            nodes=tuple(_node(view, pool, queued, oldest, shares, engine, wall) for view in shown),
            omitted=len(scheduler.tree.nodes) - len(shown),
        )


def _limits(engine: Engine) -> tuple[LimitStatus, ...]:
    book, limits = engine.backlog.book, engine.entitlement.limits
    return tuple(
        LimitStatus(name, limit.concurrency, limit.rate, book.running(name), book.waiting(name))
        for name, limit in sorted(limits.items())
    )


def _organisations(status: Status) -> dict[str, int]:
    """Return the organisations that are shown, with how many jobs of theirs stand in lanes of all pools."""
    queued: dict[str, int] = {}
    for node in chain.from_iterable(pool.nodes for pool in status.pools):
        if len(node.path) == 1:
            queued[node.path[0]] = queued.get(node.path[0], 0) + node.queued
    return queued


def _relevant(pool: Pool, queued: Mapping[TenantPath, int], longest: Iterable[TenantPath]) -> list[NodeView]:
    """Return the nodes to show with their ancestors: those that run most, then those that wait most."""
    scheduler = pool.scheduler
    running: dict[TenantPath, int] = {}
    for lease in scheduler.leases.values():
        running[lease.job.path] = running.get(lease.job.path, 0) + 1
    candidates = dict.fromkeys(chain(running, longest, scheduler.policies))
    if len(candidates) < NODES_SHOWN:
        candidates.update(dict.fromkeys(islice(scheduler.tree.nodes, NODES_SHOWN)))
    best = nlargest(NODES_SHOWN, candidates, key=lambda path: (running.get(path, 0), queued.get(path, 0)))
    shown: set[TenantPath] = {()}
    for path in best:
        lineage = {path[:depth] for depth in range(1, len(path) + 1)}
        if len(shown) + len(lineage - shown) > NODES_SHOWN:
            break
        shown |= lineage
    views = [scheduler.view(path) for path in sorted(shown)]
    return [view for view in views if view is not None]


def _node(
    node: NodeView,
    pool: Pool,
    queued: Mapping[TenantPath, int],
    oldest: Mapping[TenantPath, float],
    shares: Mapping[TenantPath, float],
    engine: Engine,
    wall: float,
) -> NodeStatus:
    path = node.path
    waiting = queued.get(path, 0)
    return NodeStatus(
        path=path,
        weight=node.weight,
        queued=waiting,
        running=node.running,
        credit=node.credit,
        charged=node.charged,
        lost=node.lost,
        starts=node.starts,
        losses=node.losses,
        share=shares.get(path, 0.0) if path else 1.0,
        lane=node.lane,
        waits=_why(node, pool) if waiting else "",
        soft_cap=None if node.soft_cap >= UNLIMITED else node.soft_cap,
        hard_cap=None if node.hard_cap >= UNLIMITED else node.hard_cap,
        floor=node.floor,
        oldest_wait=max(0.0, wall - oldest.get(path, wall)) if waiting else 0.0,
        wait_target=engine.entitlement.wait_target(path) if path else None,
    )


def _why(node: NodeView, pool: Pool) -> str:
    """Return why nothing of a node with waiting jobs starts now."""
    scheduler = pool.scheduler
    if scheduler.slots == 0:
        return "no workers"
    for depth in range(len(node.path), 0, -1):
        above = scheduler.view(node.path[:depth])
        if above is not None and above.running >= above.hard_cap:
            return "capped"
    if node.path and node.lane == "parked" and node.queued > 0:
        return "capped"  # not itself, but all that waits below it
    if scheduler.free <= 0:
        return "no free slot"
    if not node.path and node.queued > 0:
        return "capped"
    if node.lane == "borrowing" and scheduler.free <= scheduler.pool.reserve:
        return "reserve"
    return ""


class StatusWriter:
    """Writes the description of the leading engine about once a second, if anything has changed."""

    def __init__(self, clock: Clock, name: str, version: str, vitals: Vitals) -> None:
        self._clock = clock
        self._vitals = vitals
        self._name = name
        self._version = version
        self.start()

    def start(self) -> None:
        """Begin to describe a new engine."""
        self._describer = Describer(self._name, self._version, self._clock.monotonic())
        self._sweep: Sweep | None = None
        self._deserted: set[str] = set()
        """Pools of which was said that nobody works there."""
        self._due_at = float("-inf")
        self._commits = -1
        self._spent = 0.0

    async def go_on(self, engine: Engine, backend: Backend) -> bool:
        """Do the next slice of a description, if it is time for one; return whether it is not finished."""
        began = self._clock.monotonic()
        if self._sweep is None:
            if began < self._due_at:
                return False
            quiet = engine.counters.commits == self._commits
            self._commits = engine.counters.commits
            self._due_at = began + INTERVAL
            if quiet and not engine.liveness.holds and not engine.backlog.windows.by_lane:
                return False
            self._sweep, self._spent = Sweep(engine), 0.0
        finished = self._sweep.go_on()
        self._spent += self._clock.monotonic() - began
        if finished:
            sweep, self._sweep = self._sweep, None
            await self._write(engine, backend, sweep)
        return not finished

    async def _write(self, engine: Engine, backend: Backend, sweep: Sweep) -> None:
        lanes = sweep.lanes()
        if lanes:
            sweep.correct(dict(zip(lanes, await backend.lane_lengths(lanes), strict=True)))
        began = self._clock.monotonic()
        status = self._describer.describe(engine, sweep, began, self._clock.wall())
        self._warn_of_deserted(status)
        organisations = dict(islice(_organisations(status).items(), ITEM_LIMIT))
        works = await backend.waiting([(name,) for name in organisations]) if organisations else []
        backlogs = tuple(
            BacklogStatus(name, work.jobs, work.worker_seconds, max(0, work.jobs - queued))
            for (name, queued), work in zip(organisations.items(), works, strict=True)
        )
        store, committed_at = self._vitals.store(), self._vitals.committed_at()
        blob = encode_status(replace(status, backlogs=backlogs, store=store, committed_at=committed_at))
        now = self._clock.monotonic()
        self._due_at = max(self._due_at, now + (self._spent + now - began) / MOST_OF_THE_TIME)
        await backend.write_status(engine.token, blob)

    def _warn_of_deserted(self, status: Status) -> None:
        """Say in the log, once, that jobs wait in a pool in which nobody works."""
        for pool in status.pools:
            if pool.workers:
                self._deserted.discard(pool.name)
            elif pool.queued and pool.name not in self._deserted:
                self._deserted.add(pool.name)
                log.warning("%d jobs wait in pool %s, but no worker serves it", pool.queued, pool.name)
