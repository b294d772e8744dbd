"""Virtual time: arrivals, starts and ends of one policy on one trace, with books kept beside.

Time moves from event to event. At one instant ends come first, then faults and changes of the slots, then
arrivals; then one pass of starts fills the free slots. Nothing is random here: a run is a function of its
inputs. Memory: 24 bytes a waiting job, 8 a finished one (its wait), and what the policy keeps of the active ones.

Overruns are charged (`Policy.accrue`) before the first pass that comes a second or more after the last time,
which is when a decision could tell the difference.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Final

from drr.model import PoolPolicy, TenantPath
from drr.simulate.books import Book, drift_ratio
from drr.simulate.policies import Policy, PolicyOf, Task
from drr.simulate.results import SMALL, PolicyResult, TenantResult, TimeWindow, Waits
from drr.simulate.trace import Arrival, Source
from drr.simulate.windows import WindowLog

ACCRUAL: Final = 1.0
PROGRESS_EVERY: Final = 4096
"""Events between two calls of a progress hook."""

Progress = Callable[[int, float], None]
"""Told the jobs that have arrived, and the virtual time."""


class Simulation:
    """One policy on one trace. Make it, `run` it, and throw it away."""

    def __init__(
        self,
        source: Source,
        policy: Policy,
        pool: PoolPolicy,
        policy_of: PolicyOf,
        slots: Sequence[tuple[float, int]],
        *,
        accrues: bool,
        window: float,
    ) -> None:
        """``slots``: live slots from each time on, the first at 0. ``window``: seconds per chart point."""
        self._source = source
        self._policy = policy
        self._pool = pool
        self._policy_of = policy_of
        changes = [(at, 0, number) for at, number in slots] + [(at, 1, number) for at, number in source.faults]
        self._plan = deque(sorted(changes))
        self._accrues = accrues
        self._root = Book((), None, policy_of(()), 0.0)
        self._books: dict[TenantPath, Book] = {}
        self._organisations: list[Book] = []
        self._slots = 0
        self._bounded = False
        self._running: dict[Task, float] = {}
        self._ends: list[tuple[float, int, Task]] = []
        self._serial = 0
        self._late = 0
        """Running tasks that will outlive their estimate: only they have anything to accrue."""
        self._accrued_at = 0.0
        self._now = 0.0
        self._starts = 0
        self._arrived = 0
        self._finished = 0
        self._last_end = 0.0
        self._offered_slot_seconds = 0.0
        self._slots_at = 0.0
        self._idle_since = -1.0
        self._idle = 0.0
        self._run_of: Book | None = None
        self._run_length = 0
        self._longest_run = 0
        self._backlogged = 0
        self._log = WindowLog(window, self._organisations)

    # --- the loop -------------------------------------------------------------------------------------

    def run(self, name: str, until: float = inf, progress: Progress | None = None) -> PolicyResult:
        """Go on until everything has ended, nothing can start any more, or ``until``; return what came of it."""
        began = time.perf_counter()
        arrivals: Iterator[Arrival] = iter(self._source)
        upcoming = next(arrivals, None)
        events = 0
        ends, plan = self._ends, self._plan
        while True:
            now = upcoming.at if upcoming is not None else inf
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if plan and plan[0][0] < now:
                now = plan[0][0]
            if now == inf or now > until:
                break
            self._move_to(now)
            while ends and ends[0][0] <= now:
                _, serial, task = heappop(ends)
                if task.serial == serial:
                    self._end(task, now, lost=False)
            while plan and plan[0][0] <= now:
                self._change(now, *plan.popleft()[1:])
            while upcoming is not None and upcoming.at <= now:
                self._arrive(upcoming, now)
                upcoming = next(arrivals, None)
            self._start_all(now)
            events += 1
            if progress is not None and events % PROGRESS_EVERY == 0:
                progress(self._arrived, now)
        if until < inf:
            self._move_to(until)
        return self._result(name, time.perf_counter() - began)

    def _move_to(self, now: float) -> None:
        if self._idle_since >= 0.0:
            self._idle += now - self._idle_since
            self._idle_since = -1.0
        if now >= self._log.end:
            self._log.close_until(now, self._root, self._slots)
        self._now = now

    def _change(self, now: float, kind: int, number: int) -> None:
        if kind == 1:
            self._lose(now, number)
            number = max(0, self._slots - number)
        self._offered_slot_seconds += self._slots * (now - self._slots_at)
        self._slots_at = now
        self._slots = number
        self._policy.set_slots(number)
        for book in self._books.values():
            if book.bounded:
                level = self._settle(book, now)
                book.resolve(number)
                book.reconsider(level, self._policy.due(level.path))

    def _lose(self, now: float, slots: int) -> None:
        """The oldest attempts go down with their slots."""
        for task in list(self._running)[:slots]:
            self._end(task, now, lost=True)

    # --- jobs -----------------------------------------------------------------------------------------

    def _arrive(self, arrival: Arrival, now: float) -> None:
        at, duration, estimate, path = arrival
        if estimate is None:
            estimate = self._pool.default_estimate
        book = self._books.get(path)
        if book is None:
            book = self._meet(path, now)
        self._arrived += 1
        self._policy.arrive(path, at, duration, estimate)
        self._wait(book, now)

    def _meet(self, path: TenantPath, now: float) -> Book:
        book = self._books.get(path)
        if book is None:
            parent = self._meet(path[:-1], now) if len(path) > 1 else self._root
            book = self._books[path] = Book(path, parent, self._policy_of(path), now)
            book.resolve(self._slots)
            self._bounded |= book.bounded
            parent.children.append(book)
            if parent is self._root:
                self._organisations.append(book)
        return book

    def _settle(self, book: Book, now: float) -> Book:
        level = book.parent
        assert level is not None
        level.advance_level(now)
        book.settle(now, level)
        return level

    def _wait(self, leaf: Book, now: float) -> None:
        """One more job of a project waits."""
        due = self._policy.due
        book = leaf
        level = book.parent
        while level is not None:
            if book.waiting:
                book.waiting += 1
            else:
                level.advance_level(now)
                book.settle(now, level)
                book.waiting = 1
                book.waiting_since = now
                level.weights += book.weight
                if level is self._root:
                    self._backlogged += 1
                book.reconsider(level, due(level.path))
            book = level
            level = book.parent
        book.waiting += 1

    def _start_all(self, now: float) -> None:
        root, policy = self._root, self._policy
        if self._late and self._accrues and now - self._accrued_at >= ACCRUAL:
            self._accrue(now)
        free = self._slots - root.running
        while free > 0 and root.waiting:
            task = policy.start(now)
            if task is None:
                if free > self._pool.reserve and self._may_start():
                    self._idle_since = now
                return
            self._start(task, now)
            free -= 1

    def _start(self, task: Task, now: float) -> None:
        due = self._policy.due
        estimate, duration = task.estimate, task.duration
        leaf = book = self._books[task.path]
        wait = now - task.arrived
        first = task.losses == 0
        level = book.parent
        while level is not None:
            level.advance_level(now)
            book.settle(now, level)
            if book.contends:
                book.charge(estimate, level, due(level.path))
            else:
                book.charged += estimate / book.weight
            if estimate > book.estimate:
                book.estimate = estimate
            book.running = running = book.running + 1
            if running > book.peak:
                book.peak = running
            book.waiting = waiting = book.waiting - 1
            if not waiting:
                level.weights = level.weights - book.weight if level.waiting > 1 else 0.0
                if level is self._root:
                    self._backlogged -= 1
            if not waiting or book.bounded:
                book.reconsider(level, due(level.path))
            book = level
            level = book.parent
        organisation = leaf.parent or leaf
        book.running += 1
        book.waiting -= 1
        task.charged = estimate
        self._running[task] = now
        self._serial = task.serial = self._serial + 1
        heappush(self._ends, (now + duration, self._serial, task))
        if duration > estimate:
            self._late += 1
        self._starts += 1
        if first:
            leaf.waits.append(wait)
            self._log.started(organisation, wait)
        self._count_run(organisation)

    def _count_run(self, organisation: Book) -> None:
        if self._backlogged - (organisation.waiting > 0) <= 0:
            self._run_of = None  # nobody else waits
            return
        if self._run_of is organisation:
            self._run_length += 1
        else:
            self._run_of, self._run_length = organisation, 1
        if self._run_length > self._longest_run:
            self._longest_run = self._run_length

    def _end(self, task: Task, now: float, *, lost: bool) -> None:
        due = self._policy.due
        held = now - self._running.pop(task)
        task.serial = 0
        if task.duration > task.estimate:
            self._late -= 1
        refunded = lost and task.losses == 0
        correction = (0.0 if refunded else held) - task.charged
        self._policy.end(task, held, lost=lost)
        wrong = held - task.estimate
        leaf = book = self._books[task.path]
        level = book.parent
        while level is not None:
            level.advance_level(now)
            book.settle(now, level)
            if correction:
                if book.contends:
                    book.charge(correction, level, due(level.path))
                else:
                    book.charged += correction / book.weight
                if wrong > book.under:
                    book.under = wrong
                elif -wrong > book.over:
                    book.over = -wrong
            book.running -= 1
            book.worker_seconds += held
            if book.bounded:
                book.reconsider(level, due(level.path))
            book = level
            level = book.parent
        book.running -= 1
        book.worker_seconds += held
        self._last_end = now
        if lost:
            self._wait(leaf, now)
        else:
            self._finished += 1
            leaf.jobs += 1

    def _accrue(self, now: float) -> None:
        due = self._policy.due
        self._accrued_at = now
        for task, amount in self._policy.accrue(now):
            task.charged += amount
            book = self._books[task.path]
            level = book.parent
            while level is not None:
                if book.contends:
                    book.charge(amount, level, due(level.path))
                else:
                    book.charged += amount / book.weight
                book = level
                level = book.parent

    def _may_start(self) -> bool:
        """Return whether any waiting job is under all of its hard caps."""
        if not self._bounded:
            return True
        return any(
            project.waiting and project.running < project.hard
            for organisation in self._organisations
            if organisation.waiting and organisation.running < organisation.hard
            for project in organisation.children
        )

    # --- the end --------------------------------------------------------------------------------------

    def _result(self, name: str, seconds: float) -> PolicyResult:
        now, root = self._now, self._root
        for book in self._books.values():
            level = self._settle(book, now)
            book.close_stretch(level, self._policy.due(level.path))
        windows, jain = self._log.finish(now, root, self._slots)
        self._offered_slot_seconds += self._slots * max(0.0, self._last_end - self._slots_at)
        by_organisation = [(book, _merged(book)) for book in self._organisations]
        small = array("d", chain.from_iterable(w for book, w in by_organisation if len(w) <= SMALL))
        everybody = array("d", chain.from_iterable(w for _, w in by_organisation))
        rows = [_row(book, waits) for book, waits in by_organisation]
        worst = max((row.wait_s.p95 for row in rows), default=0.0)
        rows += [_row(p, p.waits) for organisation in self._organisations for p in organisation.children]
        levels = [root, *self._organisations]
        return PolicyResult(
            name=name,
            jobs=self._arrived,
            starts=self._starts,
            unfinished=self._arrived - self._finished,
            makespan_s=self._last_end,
            utilisation=root.worker_seconds / self._offered_slot_seconds if self._offered_slot_seconds else 0.0,
            wait_s=Waits.of(everybody),
            small_orgs_p95_s=Waits.of(small).p95,
            worst_org_p95_s=worst,
            jain=jain,
            longest_run=self._longest_run,
            idle_while_runnable_s=self._idle,
            drift_over_bound=max((drift_ratio(level.children, self._pool.quantum) for level in levels), default=0.0),
            seconds=seconds,
            tenants=rows,
            windows=windows,
        )


def _merged(organisation: Book) -> array[float]:
    waits = array("d")
    for project in organisation.children:
        waits.extend(project.waits)
        organisation.jobs += project.jobs
    return waits


def _row(book: Book, waits: array[float]) -> TenantResult:
    time_waiting = book.backlogged_s
    return TenantResult(
        path=book.path,
        weight=book.weight,
        jobs=book.jobs,
        worker_seconds=book.worker_seconds,
        wait_s=Waits.of(waits),
        share=book.got / time_waiting if time_waiting else 0.0,
        entitled=book.entitled / time_waiting if time_waiting else 0.0,
        backlogged_s=time_waiting,
        capped_s=book.capped_s,
        borrowing_s=book.borrowing_s,
    )


def windows_for(span: float, points: int = 100) -> float:
    """Return the length of a time window such that ``span`` has about ``points`` of them."""
    return max(span / points, 1e-3)


__all__ = ["Progress", "Simulation", "TimeWindow", "windows_for"]
