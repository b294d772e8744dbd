"""Reconciliation: the leader compares, a page at a time, what is stored with itself and with what it remembers.

It should never find anything. What it does find is set right, logged and counted by kind (`Counters`), so that a
fault of drr, of the store or of somebody's hand shows at once and does not last.

What is compared
    The store looks at itself (`DispatcherPort.audit`): entries of pools' streams and leases, notes and what they are
    notes of. It mends what contradicts itself. The leader compares its holds with the leases, both ways, and its
    limits with its holds; if they differ it loads again. It compares the lanes it knows with those that hold jobs,
    and what backlog limits count of a project with what waits of it.

What is under way is no disagreement
    Only commits change leases, entries and notes, and the leader looks between two of its commits: those are compared
    at once. But a client may have submitted a moment ago, and its announcement may not have come yet. So a lane is
    only reported if the next sweep finds the same job at its head and the lane is still not known; and a count only
    if the next sweep finds the same numbers on both sides and nothing of that project has moved between. Of a
    project that never rests, or has more than a thousand jobs waiting, the count is not judged.

Cost
    One page every `PAGE_EVERY` seconds, of at most `AUDIT_LIMIT` items, in a few round trips; a sweep begins every
    `SWEEP_EVERY` seconds at most. So what is found was wrong for a sweep or two.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from drr.backend import (
    ITEM_LIMIT,
    Audit,
    Backend,
    Commit,
    Facts,
    Malformed,
    Mismatch,
    Peek,
    Repair,
    Struck,
    Window,
    Work,
)
from drr.clock import Clock
from drr.dispatcher.engine import Engine
from drr.errors import CommitRefused
from drr.model import UNNAMED_WORK, Header, Lane, TenantPath

log = logging.getLogger("drr.dispatcher")

PAGE_EVERY: Final = 1.0
SWEEP_EVERY: Final = 30.0
SUSPECTS_LIMIT: Final = 1000
"""Lanes, and projects, that are looked at again by the next sweep; more wait for the one after."""

Counts: TypeAlias = tuple[Work, Work]
"""What is counted of a project, and what was found of it."""


class Auditor:
    """Audits one engine after another."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.start()

    def start(self) -> None:
        """Begin with a new engine."""
        self._due_at = self._clock.monotonic() + PAGE_EVERY
        self._sweep_at = float("-inf")
        self._cursor = ""
        self._reported: set[str] = set()
        """Tokens of leases without entries that were counted."""
        self._strangers: dict[Lane, str] = {}
        """Lanes that were not known at the last sweep, and what stood at their heads."""
        self._doubts: dict[TenantPath, Counts] = {}
        """Projects whose counts were wrong at the last sweep, of which nothing has moved since."""
        self._begin()

    def _begin(self) -> None:
        self._expected: set[str] = set()
        self._delayed: dict[TenantPath, Work] = {}
        self._new_strangers: dict[Lane, str] = {}
        self._new_doubts: dict[TenantPath, Counts] = {}

    # --- what moves -----------------------------------------------------------------------------------

    def heard(self, facts: Facts) -> None:
        """News came."""
        self._moved(lane.path for lane, _ in facts.lanes)

    def committed(self, commit: Commit) -> None:
        """A pass was committed."""
        self._moved(commit.waiting)

    def _moved(self, paths: Iterable[TenantPath]) -> None:
        if self._doubts or self._new_doubts:
            for path in paths:
                self._doubts.pop(path, None)
                self._new_doubts.pop(path, None)

    # --- pages ----------------------------------------------------------------------------------------

    async def go_on(self, engine: Engine, backend: Backend) -> None:
        """Look at the next page, if it is time for one.

        Raises `CommitRefused` if the leader's memory is wrong: it is to be dropped.
        """
        now = self._clock.monotonic()
        if now < self._due_at or (not self._cursor and now < self._sweep_at):
            return
        self._due_at = now + PAGE_EVERY
        if not self._cursor:
            self._sweep_at = now + SWEEP_EVERY
            self._begin()
            self._expected = set(engine.liveness.holds)
        page = await backend.audit(engine.token, sorted(engine.backlog.pools), self._cursor)
        self._cursor = page.cursor
        self._note(engine, page.repaired)
        self._compare_leases(engine, page)
        await self._compare_lanes(engine, backend, page.lanes)
        for path, work in page.delayed.items():
            before = self._delayed.get(path, Work())
            self._delayed[path] = Work(before.jobs + work.jobs, before.worker_seconds + work.worker_seconds)
        await self._compare_counts(engine, backend, page)
        if not page.cursor:
            self._strangers, self._doubts = self._new_strangers, self._new_doubts
            self._begin()

    def _note(self, engine: Engine, repairs: Iterable[Repair]) -> None:
        for kind, what in repairs:
            engine.counters.count_mismatch(kind)
            log.warning("reconciled (%s): %s", kind.value, what)

    # --- leases ---------------------------------------------------------------------------------------

    def _compare_leases(self, engine: Engine, page: Audit) -> None:
        holds = engine.liveness.holds
        for token in page.bare:
            if token not in self._reported and token in holds:
                self._reported.add(token)
                job = holds[token].lease.header.job_id
                what = f"lease of job {job} without its entry; given up unless a worker finishes it"
                self._note(engine, [Repair(Mismatch.LEASE, what)])
            engine.entry_gone(token)
        strangers = [token for token in page.tokens if token not in holds]
        self._expected.difference_update(page.tokens)
        missing = [token for token in self._expected if token in holds] if page.leases_done else []
        if page.leases_done:
            self._reported.intersection_update(holds)
        if strangers or missing:
            what = f"{len(strangers)} leases are not held here, {len(missing)} held here are no leases"
            self._reload(engine, f"{what} ({(strangers + missing)[0]} ...)")
        if page.leases_done:
            self._compare_limits(engine)

    def _compare_limits(self, engine: Engine) -> None:
        held = Counter(limit for hold in engine.liveness.holds.values() for limit in hold.lease.header.lane.limits)
        for name in engine.entitlement.limits:
            known = engine.backlog.book.running(name)
            if known != held[name]:
                self._reload(engine, f"limit {name} is held {held[name]} times, and {known} are counted")

    def _reload(self, engine: Engine, what: str) -> None:
        self._note(engine, [Repair(Mismatch.HOLD, f"{what}; loading again")])
        raise CommitRefused(f"the dispatcher's memory contradicts the store: {what}")

    # --- lanes ----------------------------------------------------------------------------------------

    async def _compare_lanes(self, engine: Engine, backend: Backend, lanes: Iterable[Lane]) -> None:
        known, depth = engine.backlog.windows.by_lane, engine.rules.depth
        unknown = [lane for lane in lanes if lane not in known and len(lane.path) == depth]
        unknown = unknown[: SUSPECTS_LIMIT - len(self._new_strangers)]
        if not unknown:
            return
        for window in await backend.peek([Peek(lane, 0, 1) for lane in unknown]):
            lane, head = window.lane, _name_of(window)
            if not head:
                continue
            if self._strangers.get(lane) == head:
                self._note(engine, [Repair(Mismatch.LANE, f"lane {lane} holds jobs, and was not known; opened")])
                engine.lane_found(lane, self._clock.monotonic())
            else:
                self._new_strangers[lane] = head

    # --- counts ---------------------------------------------------------------------------------------

    async def _compare_counts(self, engine: Engine, backend: Backend, page: Audit) -> None:
        """Count what waits of the projects on this page, as far as a first look says that it is worth it."""
        suspects: dict[TenantPath, list[Lane]] = {}
        lanes = {path: _lanes_of(engine, path) for path in page.waiting if len(path) == engine.rules.depth}
        every = [lane for of_path in lanes.values() for lane in of_path]
        lengths = dict(zip(every, await backend.lane_lengths(every), strict=True)) if every else {}
        left = ITEM_LIMIT
        for path, of_path in lanes.items():
            waiting = sum(lengths[lane] for lane in of_path)
            expected = waiting + self._delayed.get(path, Work()).jobs
            if expected != page.waiting[path].jobs and waiting <= left:
                suspects[path] = of_path
                left -= waiting
        if not suspects or len(self._new_doubts) >= SUSPECTS_LIMIT:
            return
        peeks = [Peek(lane, 0, lengths[lane]) for of_path in suspects.values() for lane in of_path]
        windows = {window.lane: window for window in await backend.peek(peeks)} if peeks else {}
        for path, of_path in suspects.items():
            found = self._delayed.get(path, Work())
            for lane in of_path:
                found = _plus(found, windows[lane])
            counted = page.waiting[path]
            if found.jobs != counted.jobs:
                await self._judge(engine, backend, path, (counted, found))

    async def _judge(self, engine: Engine, backend: Backend, path: TenantPath, counts: Counts) -> None:
        if self._doubts.get(path) != counts:
            self._new_doubts[path] = counts
            return
        counted, found = counts
        change = Work(found.jobs - counted.jobs, found.worker_seconds - counted.worker_seconds)
        if await backend.correct_waiting(engine.token, path, counted, change):
            what = f"{counted.jobs} jobs of {'/'.join(path)} were counted, and {found.jobs} wait; corrected"
            self._note(engine, [Repair(Mismatch.COUNT, what)])


def _lanes_of(engine: Engine, path: TenantPath) -> list[Lane]:
    """Return the lanes of a project that are known, in all pools."""
    found: list[Lane] = []
    for pool in engine.backlog.pools.values():
        project = pool.projects.get(path)
        if project is not None:
            found += [window.lane for window in project.windows]
    return found


def _name_of(window: Window) -> str:
    """Return what tells the head of a lane from all others, or "" if the lane is empty."""
    if not window.entries:
        return ""
    head = window.entries[0]
    if isinstance(head, Header):
        return f"{head.job_id} {head.attempts}"
    return repr(head.raw if isinstance(head, Malformed) else head.sequence)


def _plus(work: Work, window: Window) -> Work:
    """Add what a lane holds, as backlog limits count it: a struck job is none, and what is no job has no estimate."""
    jobs, seconds = work
    for entry in window.entries:
        if not isinstance(entry, Struck):
            jobs += 1
            seconds += entry.work if isinstance(entry, Header) else UNNAMED_WORK
    return Work(jobs, seconds)
