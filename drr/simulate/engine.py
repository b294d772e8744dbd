"""Virtual time: arrivals, starts and ends of one policy on one trace, with books kept beside.

Time moves from event to event. At one instant ends come first, then faults and changes of the slots, then
arrivals; then one pass of starts fills the free slots. Nothing is random here: a run is a function of its
inputs. Memory: 24 bytes a waiting job, what the policy keeps of the active ones, and a tenant's waits (8 bytes each
up to a bound, see `drr.simulate.results`).

Overruns are charged (`Policy.accrue`) before the first pass that comes a second or more after the last time,
which is when a decision could tell the difference.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Final

from drr.model import PoolPolicy, TenantPath
from drr.simulate.books import EXACT_MOST, Book, drift_ratio
from drr.simulate.policies import Policy, PolicyOf, Project, Task
from drr.simulate.results import SMALL, PolicyResult, TenantResult, Waits
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
        self._quantum = pool.quantum
        self._policy_of = policy_of
        changes = [(at, 0, number) for at, number in slots] + [(at, 1, number) for at, number in source.faults]
        self._plan = deque(sorted(changes))
        self._accrues = accrues
        self._root = Book((), None, policy_of(()), 0.0)
        self._projects: dict[TenantPath, Project] = {}
        self._organisations: list[Book] = []
        self._known: dict[str, Book] = {}
        self._slots = 0
        self._slots_log: list[tuple[float, int]] = []
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
        self._idle_since = -1.0
        self._idle = 0.0
        self._run_of: Book | None = None
        self._run_length = 0
        self._longest_run = 0
        self._log = WindowLog(window)

    # --- the loop -------------------------------------------------------------------------------------

    def run(self, name: str, until: float = inf, progress: Progress | None = None) -> PolicyResult:
        """Go on until everything has ended, nothing can start any more, or ``until``; return what came of it."""
        began = time.perf_counter()
        arrivals: Iterator[Arrival] = iter(self._source)
        nothing = (inf, 0.0, None, ())
        at, duration, estimate, path = next(arrivals, nothing)
        events = 0
        ends, plan = self._ends, self._plan
        log = self._log
        while True:
            now = at
            if ends and ends[0][0] < now:
                now = ends[0][0]
            if plan and plan[0][0] < now:
                now = plan[0][0]
            if now > until or now == inf:
                break
            if self._idle_since >= 0.0 or now >= log.end:
                self._move_to(now)
            self._now = now
            while ends and ends[0][0] <= now:
                _, serial, task = heappop(ends)
                if task.serial == serial:
                    self._end(task, now, task.duration, lost=False)
            while plan and plan[0][0] <= now:
                self._change(now, *plan.popleft()[1:])
            while at <= now:
                self._arrive(at, duration, estimate, path)
                at, duration, estimate, path = next(arrivals, nothing)
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
            self._log.close_until(now, self._root, self._slots, self._starts)
        self._now = now

    def _change(self, now: float, kind: int, number: int) -> None:
        if kind == 1:
            self._lose(now, number)
            number = max(0, self._slots - number)
        self._slots_log.append((now, number))
        self._slots = number
        self._policy.set_slots(number)
        for project in self._projects.values():
            for book, level in project.book.chain:
                book.pass_bounds(now)
                book.resolve(number)
                book.reconsider(level, self._quantum)

    def _lose(self, now: float, slots: int) -> None:
        """The oldest attempts go down with their slots."""
        running = sorted((serial, task) for _, serial, task in self._ends if task.serial == serial)
        for _, task in running[:slots]:
            self._end(task, now, now - task.started, lost=True)

    # --- jobs -----------------------------------------------------------------------------------------

    def _arrive(self, at: float, duration: float, estimate: float | None, path: TenantPath) -> None:
        project = self._projects.get(path)
        if project is None:
            project = self._meet(path)
        self._arrived += 1
        self._policy.arrive(project, at, duration, self._pool.default_estimate if estimate is None else estimate)
        self._wait(project.book)

    def _meet(self, path: TenantPath) -> Project:
        organisation = self._known.get(path[0])
        if organisation is None:
            organisation = self._known[path[0]] = self._book(path[:1], self._root)
            self._organisations.append(organisation)
        leaf = self._book(path, organisation)
        leaf.chain = ((leaf, organisation), (organisation, self._root))
        project = leaf.project = self._projects[path] = Project(path, leaf)
        return project

    def _book(self, path: TenantPath, parent: Book) -> Book:
        book = Book(path, parent, self._policy_of(path), self._now)
        book.resolve(self._slots)
        parent.children.append(book)
        return book

    def _wait(self, leaf: Book) -> None:
        """One more job of a project waits."""
        self._root.waiting += 1
        if leaf.waiting and leaf.parent is not None:  # nothing else changes
            leaf.waiting += 1
            leaf.parent.waiting += 1
            return
        now = self._now
        for book, level in leaf.chain:
            if book.bounded:
                book.pass_bounds(now)
            book.waiting = waiting = book.waiting + 1
            if waiting == 1:
                level.clock = self._policy.clock(level.path)
                book.begin_waiting(level, now)
                if level is self._root:
                    self._log.waiting[book] = None
        for book, level in leaf.chain:
            book.reconsider(level, self._quantum)

    def _start_all(self, now: float) -> None:
        root, policy = self._root, self._policy
        if self._late and self._accrues and now - self._accrued_at >= ACCRUAL:
            self._accrue(now)
        free = self._slots - root.running
        while free > 0 and root.waiting:
            task = policy.start(now)
            if task is None:
                if free > self._pool.reserve and root.open:
                    self._idle_since = now
                return
            self._start(task, now)
            free -= 1

    def _start(self, task: Task, now: float) -> None:
        quantum, estimate = self._quantum, task.estimate
        root, leaf = self._root, task.project.book
        changed = False
        for book, level in leaf.chain:
            if level.running_at < now:  # `pass_running`, in short
                if level.running:
                    level.by_running += (now - level.running_at) / level.running
                level.running_at = now
            if book.bounded:
                book.pass_bounds(now)
                changed = True
            if book.contends:
                book.charge(estimate, level, quantum)
            else:
                book.charged += estimate / book.weight
            if estimate > book.estimate:
                book.estimate = estimate
            book.running = running = book.running + 1
            if running > book.peak:
                book.peak = running
            book.offset -= now
            book.share_offset -= level.by_running
            book.waiting = waiting = book.waiting - 1
            if not waiting:
                changed = True
                book.end_waiting(level, now)
                if level is root:
                    del self._log.waiting[book]
        root.running += 1
        root.waiting -= 1
        if changed:
            for book, level in leaf.chain:
                book.reconsider(level, quantum)
        task.charged = estimate
        task.started = now
        self._serial = task.serial = serial = self._serial + 1
        heappush(self._ends, (now + task.duration, serial, task))
        if task.duration > estimate:
            self._late += 1
        self._starts += 1
        organisation = leaf.chain[1][0]
        if not organisation.listed:
            organisation.listed = True
            self._log.listed.append(organisation)
        if not task.losses:
            wait = now - task.arrived
            leaf.waits.append(wait)
            if len(leaf.waits) > EXACT_MOST:
                leaf.fold_waits()
            organisation.starts += 1
            organisation.wait_sum += wait
            if wait > organisation.wait_max:
                organisation.wait_max = wait
        self._count_run(organisation)

    def _count_run(self, organisation: Book) -> None:
        if self._root.backlogged <= (organisation.waiting > 0):
            self._run_of = None  # nobody else waits
        elif self._run_of is organisation:
            self._run_length = length = self._run_length + 1
            if length > self._longest_run:
                self._longest_run = length
        else:
            self._run_of, self._run_length = organisation, 1
            self._longest_run = self._longest_run or 1

    def _end(self, task: Task, now: float, held: float, *, lost: bool) -> None:
        task.serial = 0
        if task.duration > task.estimate:
            self._late -= 1
        # To the bit: an exact estimate leaves nothing to correct.
        correction = (0.0 if lost and not task.losses else held) - task.charged
        self._policy.end(task, held, lost=lost)
        leaf = task.project.book
        changed = False
        for book, level in leaf.chain:
            if level.running_at < now:  # `pass_running`, in short
                if level.running:
                    level.by_running += (now - level.running_at) / level.running
                level.running_at = now
            if book.bounded:
                book.pass_bounds(now)
                changed = True
            if correction:
                book.charge(correction, level, self._quantum)
                wrong = held - task.estimate
                if wrong > book.under:
                    book.under = wrong
                elif -wrong > book.over:
                    book.over = -wrong
            book.running -= 1
            book.offset += now
            book.share_offset += level.by_running
        self._root.running -= 1
        self._last_end = now
        if changed:
            for book, level in leaf.chain:
                book.reconsider(level, self._quantum)
        if lost:
            self._wait(leaf)
        else:
            self._finished += 1
            leaf.jobs += 1

    def _accrue(self, now: float) -> None:
        self._accrued_at = now
        for task, amount in self._policy.accrue(now):
            task.charged += amount
            for book, level in task.project.book.chain:
                book.charge(amount, level, self._quantum)

    # --- the end --------------------------------------------------------------------------------------

    def _result(self, name: str, seconds: float) -> PolicyResult:
        now, root = self._now, self._root
        for organisation in self._organisations:
            below = [(project, organisation) for project in organisation.children]
            for book, level in [*below, (organisation, root)]:
                book.pass_bounds(now)
                book.close_stretch(level, self._quantum)
                if book.waiting:
                    book.end_waiting(level, now)
        windows, jain = self._log.finish(now, root, self._slots)
        rows, small, everybody, counted = [], array("d"), array("d"), Counter[float]()
        for organisation in self._organisations:
            waits, counts = _merged(organisation)
            rows.append(_row(organisation, Waits.of(waits, counts), now))
            everybody.extend(waits)
            counted.update(counts)
            if len(waits) + counts.total() <= SMALL:
                small.extend(waits)
        worst = max((row.wait_s.p95 for row in rows), default=0.0)
        for organisation in self._organisations:
            rows += [_row(p, Waits.of(p.waits, p.wait_counts), now) for p in organisation.children]
        levels = [root, *self._organisations]
        return PolicyResult(
            name=name,
            jobs=self._arrived,
            starts=self._starts,
            unfinished=self._arrived - self._finished,
            makespan_s=self._last_end,
            utilisation=self._utilisation(),
            wait_s=Waits.of(everybody, counted),
            small_orgs_p95_s=Waits.of(small).p95,
            worst_org_p95_s=worst,
            jain=jain,
            longest_run=self._longest_run,
            idle_while_runnable_s=self._idle,
            drift_over_bound=max((drift_ratio(level.children, self._quantum) for level in levels), default=0.0),
            seconds=seconds,
            tenants=rows,
            windows=windows,
        )

    def _utilisation(self) -> float:
        """Return the part of the slots' time in which they held an attempt, until the last end or the time limit."""
        end = self._now if self._root.running else self._last_end
        offered = 0.0
        times = [at for at, _ in self._slots_log[1:]] + [inf]
        for (at, slots), after in zip(self._slots_log, times, strict=True):
            offered += slots * max(0.0, min(after, end) - at)
        worked = sum(organisation.worker_seconds(end) for organisation in self._organisations)
        return worked / offered if offered else 0.0


def _merged(organisation: Book) -> tuple[array[float], Counter[float]]:
    waits, counts = array("d"), Counter[float]()
    for project in organisation.children:
        waits.extend(project.waits)
        counts.update(project.wait_counts)
        organisation.jobs += project.jobs
    return waits, counts


def _row(book: Book, waits: Waits, now: float) -> TenantResult:
    # Below a microsecond the integrals' last digits would be all there is.
    time_waiting = book.backlogged_s if book.backlogged_s > 1e-6 else 0.0
    return TenantResult(
        path=book.path,
        weight=book.weight,
        jobs=book.jobs,
        worker_seconds=book.worker_seconds(now),
        wait_s=waits,
        share=min(1.0, max(0.0, book.got / time_waiting)) if time_waiting else 0.0,
        entitled=book.entitled / time_waiting if time_waiting else 0.0,
        backlogged_s=time_waiting,
        capped_s=book.capped_s,
        borrowing_s=book.borrowing_s,
    )
