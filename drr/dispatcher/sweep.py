"""Counting what waits, a slice at a time: with a hundred thousand projects one look at all takes too long.

A dispatcher that describes itself must not stop dispatching for it. So the description is made from a
sweep over all projects with open lanes that is done in slices between passes; what it says may be some
passes old, which is good enough for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heappush, heappushpop
from typing import Final, TypeAlias

from drr.dispatcher.engine import Engine
from drr.dispatcher.pools import Pool, Project
from drr.model import Header, Lane, TenantPath

SLICE: Final = 2000
"""Projects looked at in one go: about 5 ms."""
KEPT: Final = 1000
"""Longest backlogs remembered by name, per pool; and longest lanes in all."""

Top: TypeAlias = list[tuple[int, TenantPath]]


class Sweep:
    """Backlogs by pool and node: ``queued`` jobs, and when the ``oldest`` of those that start next was submitted."""

    def __init__(self, engine: Engine) -> None:
        self._todo = [(pool, path) for pool in engine.backlog.pools.values() for path in pool.projects]
        self.queued: dict[str, dict[TenantPath, int]] = {name: {} for name in engine.backlog.pools}
        self.oldest: dict[str, dict[TenantPath, float]] = {name: {} for name in engine.backlog.pools}
        self._longest: dict[str, Top] = {name: [] for name in engine.backlog.pools}
        self._lanes: list[tuple[int, Lane]] = []
        self._known: dict[Lane, int] = {}

    def go_on(self, limit: int = SLICE) -> bool:
        """Look at the next ``limit`` projects; return whether that were the last."""
        for _ in range(min(limit, len(self._todo))):
            pool, path = self._todo.pop()
            project = pool.projects.get(path)
            if project is not None:
                self._count(pool, project)
        return not self._todo

    def _count(self, pool: Pool, project: Project) -> None:
        waiting, since = 0, float("inf")
        for window in project.windows:
            length = len(window.entries) + max(0, window.rest)
            waiting += length
            if window.rest != 0:
                self._known[window.lane] = length
                _keep(self._lanes, (length, window.lane))
            if window.entries and isinstance(window.entries[0], Header):
                since = min(since, window.entries[0].submitted_at)
        self._add(pool.name, project.path, waiting)
        oldest = self.oldest[pool.name]
        for depth in range(len(project.path) + 1):
            node = project.path[:depth]
            oldest[node] = min(oldest.get(node, since), since)
        _keep(self._longest[pool.name], (waiting, project.path))

    def _add(self, pool: str, path: TenantPath, number: int) -> None:
        queued = self.queued[pool]
        for depth in range(len(path) + 1):
            node = path[:depth]
            queued[node] = queued.get(node, 0) + number

    def longest(self, pool: str) -> Iterable[TenantPath]:
        """Return the projects of a pool with the longest backlogs."""
        return (path for _, path in sorted(self._longest.get(pool, ()), reverse=True))

    def lanes(self) -> list[Lane]:
        """Return the longest lanes that hold more than was read: what the store says of them is worth asking."""
        return [lane for _, lane in sorted(self._lanes, reverse=True)]

    def correct(self, lengths: Mapping[Lane, int]) -> None:
        """Take the present lengths of some lanes into account."""
        for lane, length in lengths.items():
            if length > self._known[lane]:
                self._add(lane.pool, lane.path, length - self._known[lane])


def _keep(top: list[tuple[int, TenantPath]] | list[tuple[int, Lane]], item: tuple[int, TenantPath | Lane]) -> None:
    if len(top) < KEPT:
        heappush(top, item)  # type: ignore[misc]
    else:
        heappushpop(top, item)  # type: ignore[misc]
