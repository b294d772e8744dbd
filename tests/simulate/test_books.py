"""The books against a reference that keeps no running totals: it looks at every moment between two events."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from drr.core.limits import resolve
from drr.model import NodePolicy, PoolPolicy, TenantPath
from drr.simulate.books import EXACT_MOST, Book, drift_ratio
from drr.simulate.engine import Simulation
from drr.simulate.policies import POLICIES, Policy, Project, Task, make_policy
from drr.simulate.results import PolicyResult, Waits
from drr.simulate.trace import Arrival, Demand

PATHS: Sequence[TenantPath] = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "x"), ("c", "y"), ("c", "z")]


@dataclass
class Listed:
    """A source with its jobs in a list."""

    jobs: Sequence[Arrival]
    faults: Sequence[tuple[float, int]] = ()
    slots: Sequence[tuple[float, int]] = ()
    name: str = "listed"

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self.jobs)

    def demand(self) -> Demand:
        raise AssertionError("an engine does not ask")


@dataclass
class Diary:
    """A policy that writes down what it is told and says: when each job waited and ran."""

    policy: Policy
    now: float = 0.0
    waiting: list[tuple[TenantPath, float, float]] = field(default_factory=list)
    """Path, from, until."""
    running: list[tuple[TenantPath, float, float]] = field(default_factory=list)
    starts: list[tuple[float, TenantPath, float]] = field(default_factory=list)
    """When, whose, and its estimate."""
    accruals: list[tuple[float, float]] = field(default_factory=list)
    """When overruns were charged, and how much."""
    _since: dict[TenantPath, list[float]] = field(default_factory=dict)
    _began: dict[Task, float] = field(default_factory=dict)

    def set_slots(self, slots: int) -> None:
        self.policy.set_slots(slots)

    def arrive(self, project: Project, arrived: float, duration: float, estimate: float) -> None:
        self._since.setdefault(project.path, []).append(arrived)
        self.policy.arrive(project, arrived, duration, estimate)

    def start(self, now: float) -> Task | None:
        task = self.policy.start(now)
        if task is not None:
            # Which of a project's jobs it is makes no difference to when the project had one waiting.
            since = self._since[task.path]
            self.waiting.append((task.path, since.pop(0), now))
            self.starts.append((now, task.path, task.estimate))
            self._began[task] = now
        return task

    def end(self, task: Task, held: float, *, lost: bool) -> None:
        began = self._began.pop(task)
        self.running.append((task.path, began, began + held))
        if lost:
            self._since[task.path].append(began + held)
        self.policy.end(task, held, lost=lost)

    def accrue(self, now: float) -> list[tuple[Task, float]]:
        charged = self.policy.accrue(now)
        self.accruals.append((now, sum(amount for _, amount in charged)))
        return charged

    def clock(self, level: TenantPath) -> object:
        return self.policy.clock(level)


@dataclass
class Row:
    worker_seconds: float = 0.0
    backlogged: float = 0.0
    share: float = 0.0
    entitled: float = 0.0
    capped: float = 0.0
    borrowing: float = 0.0


def rows(diary: Diary, policies: dict[TenantPath, NodePolicy], slots: int) -> dict[TenantPath, Row]:
    """Return every tenant's figures, moment by moment: between two events nothing changes."""
    times = sorted({at for _, start, end in [*diary.waiting, *diary.running] for at in (start, end)})
    tenants = sorted({path[:depth] for path, _, _ in diary.running for depth in (1, 2)})
    found = {tenant: Row() for tenant in tenants}
    for start, end in pairwise(times):
        middle, length = (start + end) / 2, end - start

        def count(what: Sequence[tuple[TenantPath, float, float]], tenant: TenantPath, at: float = middle) -> int:
            return sum(a < at < b for path, a, b in what if path[: len(tenant)] == tenant)

        for tenant, row in found.items():
            policy = policies.get(tenant, NodePolicy())
            soft, hard, _ = resolve(policy, slots)
            running = count(diary.running, tenant)
            row.worker_seconds += running * length
            row.borrowing += length if running > soft else 0.0
            if not count(diary.waiting, tenant):
                continue
            level = [other for other in tenants if other[:-1] == tenant[:-1]]
            weights = sum(policies.get(o, NodePolicy()).weight for o in level if count(diary.waiting, o))
            row.backlogged += length
            row.entitled += length * policy.weight / weights
            everybody = sum(count(diary.running, other) for other in level)
            row.share += length * running / everybody if everybody else 0.0
            row.capped += length if running >= hard else 0.0
    return found


def play(
    name: str,
    jobs: Sequence[Arrival],
    policies: dict[TenantPath, NodePolicy],
    slots: int,
    faults: Sequence[float] = (),
) -> tuple[Diary, PolicyResult, Simulation]:
    def policy_of(path: TenantPath) -> NodePolicy:
        return policies.get(path, NodePolicy())

    pool = PoolPolicy()
    diary = Diary(make_policy(name, pool, policy_of))
    times = [(0.0, slots), *((at + 0.5, slots) for at in faults)]
    source = Listed(jobs, faults=[(at, 1) for at in faults])
    simulation = Simulation(source, diary, pool, policy_of, times, accrues=name == "drr", window=5.0)  # type: ignore[arg-type]
    return diary, simulation.run(name), simulation


# Quarters of a second, so that no two sums of them differ in their last bits; estimates may be wrong.
QUARTERS = st.integers(1, 40).map(lambda quarters: quarters / 4)
JOBS = st.lists(
    st.tuples(st.integers(0, 60).map(lambda q: q / 4), QUARTERS, st.none() | QUARTERS, st.sampled_from(PATHS)),
    min_size=1,
    max_size=30,
).map(lambda found: [Arrival(*job) for job in sorted(found, key=lambda job: job[0])])
BOUNDS = st.builds(
    NodePolicy,
    weight=st.sampled_from([1.0, 2.0, 5.0]),
    soft_cap=st.none() | st.integers(1, 2),
    hard_cap=st.none() | st.integers(2, 3),
)
TENANTS = sorted({path[:depth] for path in PATHS for depth in (1, 2)})
FAULTS = st.lists(st.integers(1, 20), max_size=2, unique=True)
POLICY = st.dictionaries(st.sampled_from(TENANTS), BOUNDS, max_size=4)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(POLICIES), JOBS, POLICY, st.integers(1, 4), st.lists(st.integers(1, 20), max_size=2, unique=True)
)
@example("drr", [Arrival(0.0, 1.0, 1.0, ("a", "x"))] * 3, {("a",): NodePolicy(hard_cap=1)}, 2, [])
def test_the_books_say_what_every_moment_says(
    name: str, jobs: list[Arrival], policies: dict[TenantPath, NodePolicy], slots: int, faults: list[int]
) -> None:
    """Times, shares, caps and worker-seconds of every tenant, under every policy, with lost attempts."""
    # An eighth: no job begins or ends then, so that a loss falls together with nothing else.
    lost = [at + 0.125 for at in sorted(faults)] if slots > 1 else []
    diary, result, _ = play(name, jobs, policies, slots, lost)
    assert result.unfinished == 0
    assert result.starts == len(diary.starts)
    reference = rows(diary, policies, slots)
    assert sorted(reference) == sorted(row.path for row in result.tenants)
    for row in result.tenants:
        wanted = reference[row.path]
        assert row.worker_seconds == pytest.approx(wanted.worker_seconds, abs=1e-6)
        assert row.backlogged_s == pytest.approx(wanted.backlogged, abs=1e-6)
        assert row.share * row.backlogged_s == pytest.approx(wanted.share, abs=1e-6)
        assert row.entitled * row.backlogged_s == pytest.approx(wanted.entitled, abs=1e-6)
        if not lost:  # caps as counts do not follow the slots, but a lost slot moves no bound either
            assert row.capped_s == pytest.approx(wanted.capped, abs=1e-6)
            assert row.borrowing_s == pytest.approx(wanted.borrowing, abs=1e-6)
    if not lost:
        held = sum(end - start for _, start, end in diary.running)
        assert result.utilisation == pytest.approx(held / (slots * result.makespan_s))


@settings(max_examples=100, deadline=None)
@given(JOBS, POLICY, st.integers(1, 4))
def test_the_core_leaves_no_slot_idle_and_keeps_every_cap(
    jobs: list[Arrival], policies: dict[TenantPath, NodePolicy], slots: int
) -> None:
    """Judged from the diary alone: at no moment more running than a hard cap; and the engine saw no idle slot."""
    diary, result, _ = play("drr", jobs, policies, slots)
    assert result.idle_while_runnable_s == 0.0
    times = sorted({at for _, start, end in diary.running for at in (start, end)})
    for start, end in pairwise(times):
        middle = (start + end) / 2
        live = [path for path, a, b in diary.running if a < middle < b]
        assert len(live) <= slots
        for tenant, policy in policies.items():
            _, hard, _ = resolve(policy, slots)
            assert sum(path[: len(tenant)] == tenant for path in live) <= hard


@settings(max_examples=100, deadline=None)
@given(JOBS, st.integers(1, 4))
def test_the_measured_drift_is_at_least_that_of_every_pair(jobs: list[Arrival], slots: int) -> None:
    """The range of what two tenants were charged, over each stretch in which both had jobs waiting, by hand."""
    exact = [job._replace(estimate=job.duration) for job in jobs]
    diary, result, simulation = play("drr", exact, {}, slots)
    organisations = {book.path: book for book in simulation._organisations}
    for one in organisations.values():
        for other in organisations.values():
            if one.path >= other.path:
                continue
            bound = one.bound(1.0) + other.bound(1.0)
            drift = widest(diary, one.path, other.path)
            assert drift / bound <= result.drift_over_bound + 1e-9


def widest(diary: Diary, one: TenantPath, other: TenantPath) -> float:
    """Return the most by which charges of two tenants differed in any stretch in which both waited.

    Stretches of time only, strictly inside: what is charged at a stretch's very ends is left out.
    """

    def waits(tenant: TenantPath, at: float) -> bool:
        return any(a < at < b for path, a, b in diary.waiting if path[:1] == tenant)

    times = sorted({at for _, a, b in [*diary.waiting, *diary.running] for at in (a, b)})
    most = low = high = lag = 0.0
    before = False
    for start, end in pairwise(times):
        both = waits(one, (start + end) / 2) and waits(other, (start + end) / 2)
        if both and not before:
            low = high = lag = 0.0
        elif both:
            for at, path, cost in diary.starts:
                if at == start:
                    lag += cost if path[:1] == one else -cost if path[:1] == other else 0.0
            low, high = min(low, lag), max(high, lag)
            most = max(most, high - low)
        before = both
    return most


def test_overruns_are_charged_while_they_happen_and_only_then() -> None:
    """A job of 10 s that said 2.5: a second's charge each second from then on; nothing for one that was exact."""
    ticks = [Arrival(at / 2, 0.25, 0.25, ("b", "x")) for at in range(24)]
    late, _, simulation = play("drr", [Arrival(0.0, 10.0, 2.5, ("a", "x")), *ticks], {}, 2)
    charged = [(at, amount) for at, amount in late.accruals if amount]
    assert charged == [(3.0, 0.5), *((float(at), 1.0) for at in range(4, 10))]
    (book,) = [book for book in simulation._organisations if book.path == ("a",)]
    assert book.charged == 10.0
    true, _, _ = play("drr", [Arrival(0.0, 10.0, 10.0, ("a", "x")), *ticks], {}, 2)
    assert not true.accruals


def test_the_worst_pair_is_found_without_trying_all() -> None:
    """Ranges and bounds drawn at random: the same as trying every pair."""
    from random import Random

    rng = Random(5)
    for _ in range(50):
        books = []
        for number in range(rng.randrange(2, 9)):
            book = Book((f"o{number}",), None, NodePolicy(), 0.0)
            book.peak, book.estimate, book.spread = rng.randrange(1, 5), rng.random() * 9, rng.random() * 50
            books.append(book)
        pairs = [(a.spread + b.spread) / (a.bound(1.0) + b.bound(1.0)) for a in books for b in books if a is not b]
        assert drift_ratio(books, 1.0) == pytest.approx(max(pairs))


def test_many_waits_are_kept_by_count_to_four_digits() -> None:
    """Beyond a bound they are folded: percentiles to four digits, the longest as it was, in little memory."""
    waits = array("d", (number / 7 for number in range(EXACT_MOST + 1)))
    book = Book(("a", "x"), None, NodePolicy(), 0.0)
    book.waits.extend(waits)
    exact = Waits.of(waits)
    book.fold_waits()
    assert sum(book.wait_counts.values()) + len(book.waits) == len(waits)
    assert len(book.wait_counts) < 60_000
    folded = Waits.of(book.waits, book.wait_counts)
    assert folded.max == exact.max
    assert (folded.p50, folded.p95, folded.p99) == pytest.approx((exact.p50, exact.p95, exact.p99), rel=5e-4)
    assert folded != exact


def test_percentiles_of_counts_are_those_of_what_they_count() -> None:
    """Counts and single values together, by nearest rank."""
    counts = {1.0: 50, 3.0: 45}
    alone = Waits.of(array("d", [1.0] * 50 + [3.0] * 45 + [2.0] * 4 + [9.0]))
    assert Waits.of(array("d", [2.0] * 4 + [9.0]), counts) == alone
    assert Waits.of(array("d"), {5.0: 1}) == Waits(5.0, 5.0, 5.0, 5.0)
    assert Waits.of(array("d"), {5.0: 0}) == Waits(0.0, 0.0, 0.0, 0.0)
