"""Shared limits: what they bound, who gets a unit that is released, and who waits for what."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import TypeAlias

import pytest

from drr.core.invariants import check
from drr.core.lines import PATIENCE
from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.core.shared import LimitBook
from drr.core.turns import Account, Waiter
from drr.model import NodePolicy, Outcome, PoolPolicy, SharedLimit
from tests.core.example import Bench
from tests.sim.work import count_bytecodes

DB = ("db",)
Spent: TypeAlias = dict[str, float]
BOTH = ("api", "db")


def test_a_limit_bounds_what_runs_at_once_and_a_release_lets_the_next_in() -> None:
    bench = Bench(10, limits={"db": SharedLimit(concurrency=2)})
    bench.offer("acme", 1, 1, 1, limits=DB)
    bench.offer("globex", 1, limits=DB)
    first, second = bench.start(), bench.start()
    assert first is not None
    assert second is not None
    assert bench.start() is None
    assert (bench.book.running("db"), bench.book.waiting("db")) == (2, 1 if second.job.path[0] == "globex" else 2)
    bench.finish(first)
    assert bench.start() is not None
    assert bench.start() is None


def test_a_job_that_waits_for_a_limit_holds_back_no_other_of_its_project() -> None:
    bench = Bench(10, limits={"db": SharedLimit(concurrency=1)})
    held, waits = bench.offer("acme", 1, 1, limits=DB)
    plain, other = bench.offer("acme", 1), bench.offer("acme", 1, limits=("api",))
    started = [lease.job.id for lease in iter(bench.start, None)]
    assert started == [held, *plain, *other]
    assert waits not in started


def test_priority_goes_first_then_arrival_across_sets_of_limits() -> None:
    bench = Bench(10, limits={"db": SharedLimit(concurrency=9)})
    (late,) = bench.offer("acme", 1, priority=7, limits=DB)
    (one,) = bench.offer("acme", 1)
    (two,) = bench.offer("acme", 1, limits=DB)
    (three,) = bench.offer("acme", 1)
    (back,) = bench.offer("acme", 1, front=True, limits=("api",))
    (urgent,) = bench.offer("acme", 1, priority=0, limits=DB)
    assert [lease.job.id for lease in iter(bench.start, None)] == [urgent, back, one, two, three, late]


def test_bounds_per_organisation_and_per_project() -> None:
    limits = {"db": SharedLimit(concurrency=10, per_organisation=3, per_project=2)}
    bench = Bench(20, limits=limits)
    bench.offer("acme/a", *[1] * 5, limits=DB)
    bench.offer("acme/b", *[1] * 5, limits=DB)
    bench.offer("globex/a", *[1] * 5, limits=DB)
    leases = list(iter(bench.start, None))
    assert Counter(lease.job.path[0] for lease in leases) == {"acme": 3, "globex": 2}
    assert max(Counter(lease.job.path for lease in leases).values()) == 2
    bench.finish(next(lease for lease in leases if lease.job.path[0] == "acme"))
    (again,) = iter(bench.start, None)
    assert again.job.path[0] == "acme"


def test_a_rate_lets_starts_in_as_time_passes() -> None:
    bench = Bench(10, limits={"db": SharedLimit(rate=2.0, burst=2)})
    bench.offer("acme", *[1] * 5, limits=DB)
    assert len(bench.start_all()) == 2
    assert bench.book.next_start(bench.now) == pytest.approx(0.5)
    bench.now = 0.4
    bench.book.advance(bench.now)
    assert bench.start_all() == []
    bench.now = 0.5
    bench.book.advance(bench.now)
    assert len(bench.start_all()) == 1
    bench.now = 100.0
    bench.book.advance(bench.now)
    assert len(bench.start_all()) == 2, "the bucket holds no more than its burst"
    assert bench.book.next_start(bench.now) is None, "nobody waits"


def test_waiting_for_a_rate_ends_at_the_time_that_was_named() -> None:
    """However large the clock's numbers and however many roundings: the named time is never too early."""
    book = LimitBook({"db": SharedLimit(rate=0.3)})
    scheduler = Scheduler(limits=book)
    scheduler.set_slots(100)
    for number in range(50):
        scheduler.offer(Job(number, ("acme", "main"), 1.0, limits=DB))
    now, started = 1.7e9 + 0.1, 0
    while scheduler.queued:
        book.advance(now)
        if scheduler.take(("t", started), now) is not None:
            started += 1
        elif scheduler.queued:
            later = book.next_start(now)
            assert later is not None
            assert later > now
            now = later
    assert now - 1.7e9 == pytest.approx(49 / 0.3, rel=1e-3)


def test_an_unknown_name_limits_nothing_and_binds_once_it_is_known() -> None:
    bench = Bench(10)
    bench.offer("acme", *[1] * 8, limits=DB)
    leases = [bench.start() for _ in range(3)]
    bench.book.set_limits({"db": SharedLimit(concurrency=4)})
    check(bench.scheduler)
    assert len(bench.start_all()) == 1
    bench.book.set_limits({"db": SharedLimit(concurrency=1)})
    for lease in leases:
        assert lease is not None
        bench.finish(lease)
        assert bench.start() is None, "more are held than there are now"
    bench.book.set_limits({})
    assert len(bench.start_all()) == 4


def test_a_limit_is_forgotten_with_its_last_job() -> None:
    bench = Bench(4, limits={"db": SharedLimit(concurrency=1)})
    for name in ("db", "no-such", "other"):
        bench.offer("acme", 1.0, limits=(name,))
    assert len(bench.book.known) == 3
    for lease in list(iter(bench.start, None)):
        bench.finish(lease)
    assert not bench.book.known


def test_adopted_leases_hold_their_limits() -> None:
    book = LimitBook({"db": SharedLimit(concurrency=1)})
    scheduler = Scheduler(limits=book)
    scheduler.set_slots(5)
    scheduler.adopt(Job(1, ("acme", "main"), 1.0, limits=DB), "old", 0.0, 1.0)
    scheduler.offer(Job(2, ("acme", "main"), 1.0, limits=DB))
    check(scheduler)
    assert scheduler.take("new", 0.0) is None
    scheduler.settle("old", Outcome.LOST, 3.0)
    assert scheduler.take("new", 0.0) is not None
    check(scheduler)


def test_who_is_capped_does_not_keep_a_unit_from_others() -> None:
    bench = Bench(10, limits={"db": SharedLimit(concurrency=1)}, acme=NodePolicy(hard_cap=1, weight=1000.0))
    bench.offer("acme/a", 1.0, limits=DB)
    first = bench.start()
    assert first is not None
    bench.offer("acme/b", 9.0)
    bench.offer("acme/c", 1.0, limits=DB)
    bench.offer("globex", 1.0, limits=DB)
    bench.finish(first)
    held = bench.start()
    assert held is not None
    if held.job.path == ("globex", "main"):
        return
    other = bench.start()
    assert other is not None
    assert other.job.path == ("globex", "main")


def test_pools_share_a_limit() -> None:
    book = LimitBook({"db": SharedLimit(concurrency=2)})
    pools = [Bench(5, limits=book), Bench(5, limits=book)]
    for pool in pools:
        pool.offer("acme", 1, 1, 1, limits=DB)
    leases = [(pool, pool.start()) for pool in pools for _ in range(2)]
    running = [(pool, lease) for pool, lease in leases if lease is not None]
    assert len(running) == 2
    assert book.running("db") == 2
    pool, lease = running[0]
    pool.finish(lease)
    assert pools[1].start() is not None, "a pool with slots takes what another released"
    assert pools[0].start() is None


# --- fairness under a scarce limit -----------------------------------------------------------------------


def share(bench: Bench, seconds: float, tenants: list[str], cost: Callable[[str], float]) -> Spent:
    """Keep ``tenants`` backlogged under one limit; return the worker-seconds of each by ``seconds``."""
    for tenant in tenants:
        bench.offer(tenant, *[cost(tenant)] * 2, limits=DB)
    spent: Spent = defaultdict(float)
    running: list[tuple[float, str, RunningLease]] = []
    while bench.now < seconds:
        while (lease := bench.scheduler.take(next(bench._numbers), bench.now)) is not None:
            tenant = "/".join(lease.job.path)
            if not lease.job.limits:
                tenant = "plain"
            running.append((bench.now + lease.job.estimate, tenant, lease))
            if lease.job.limits:
                bench.offer(tenant, cost(tenant), limits=DB)
        running.sort(key=lambda item: item[0])
        ends, tenant, lease = running.pop(0)
        bench.now = ends
        spent[tenant] += lease.job.estimate
        bench.scheduler.settle(lease.token, Outcome.SUCCEEDED, lease.job.estimate)
        if not lease.job.limits:
            bench.offer("plain", lease.job.estimate)
    check(bench.scheduler)
    return spent


WEIGHTS = {"a/x": 1.0, "b/x": 2.0, "c/x": 4.0}
COSTS = {"a/x": 0.5, "b/x": 3.0, "c/x": 1.0}


def weighted_shares() -> Spent:
    weights = {name[0]: NodePolicy(weight=weight) for name, weight in WEIGHTS.items()}
    bench = Bench(50, None, limits={"db": SharedLimit(concurrency=2)}, **weights)
    return share(bench, 3000.0, list(WEIGHTS), COSTS.__getitem__)


def furthest_apart(spent: Spent) -> float:
    per_weight = [spent[name] / weight for name, weight in WEIGHTS.items()]
    return max(per_weight) - min(per_weight)


BOUND = 3 * (3.0 + 3.0 + 2 * 3.0)
"""The bound of start-time fair queueing with two units: some jobs of the largest cost, at weight 1."""


def test_a_scarce_limit_is_shared_by_weight_in_worker_seconds() -> None:
    spent = weighted_shares()
    assert sum(spent.values()) == pytest.approx(6000.0, rel=0.01), "the limit is always full"
    assert furthest_apart(spent) <= BOUND


@pytest.mark.source
def test_the_check_fails_for_waking_in_order_of_arrival(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: the same without tags, first in, first out."""
    monkeypatch.setattr(Account, "serve", lambda self, path, amount: self.open(path))
    assert furthest_apart(weighted_shares()) > BOUND


@pytest.mark.source
def test_the_check_fails_for_waking_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: whoever is first in the alphabet."""

    def first(self: Waiter) -> Waiter | None:
        return min((child for child in self.below.values() if child.stamp), key=lambda c: c.path, default=None)

    monkeypatch.setattr(Waiter, "first", first)
    assert furthest_apart(weighted_shares()) > BOUND


def test_forty_projects_get_no_more_of_a_limit_than_one() -> None:
    bench = Bench(50, limits={"db": SharedLimit(concurrency=2)})
    tenants = [*(f"many/p{number}" for number in range(40)), "one/main"]
    spent = share(bench, 1000.0, tenants, lambda tenant: 1.0)
    many = sum(amount for tenant, amount in spent.items() if tenant.startswith("many"))
    assert many == pytest.approx(spent["one/main"], abs=10.0)
    assert min(spent[f"many/p{number}"] for number in range(40)) >= 20.0


def test_wrong_estimates_do_not_change_the_shares_of_a_limit() -> None:
    bench = Bench(50, limits={"db": SharedLimit(concurrency=1)})
    spent: Spent = defaultdict(float)
    for tenant, estimate in (("under/x", 0.1), ("over/x", 10.0)):
        bench.offer(tenant, *[estimate] * 400, limits=DB)
    for _ in range(600):
        lease = bench.scheduler.take(next(bench._numbers), bench.now)
        assert lease is not None
        spent[lease.job.path[0]] += 1
        bench.scheduler.settle(lease.token, Outcome.SUCCEEDED, 1.0)
    assert spent["under"] == pytest.approx(300, abs=12)


def test_a_release_costs_the_same_with_many_waiting_tenants() -> None:
    """Lines opened per release: one, however many wait."""

    def cost(tenants: int) -> int:
        scheduler = Scheduler(limits=LimitBook({"db": SharedLimit(concurrency=1)}))
        scheduler.set_slots(50)
        for number in range(tenants):
            for turn in range(4):
                scheduler.offer(Job((number, turn), (f"org{number}", "main"), 1.0, limits=DB))
        for token in range(20):
            assert scheduler.take(token, 0.0) is not None
            scheduler.settle(token, Outcome.SUCCEEDED, 1.0)

        def cycles() -> None:
            for number in range(100, 150):
                assert scheduler.take(number, 0.0) is not None
                assert scheduler.take("none", 0.0) is None
                scheduler.settle(number, Outcome.SUCCEEDED, 1.0)

        return count_bytecodes(cycles)

    assert cost(5000) < 1.5 * cost(50)


# --- several limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("patient", [True, pytest.param(False, marks=pytest.mark.source)])
def test_a_job_of_two_limits_starts_though_they_are_never_free_together(
    patient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of one limit end alternately; without units kept back the job of both would never start."""
    if not patient:
        monkeypatch.setattr("drr.core.lines.PATIENCE", 10**9)
    bench = Bench(50, limits={"api": SharedLimit(concurrency=1), "db": SharedLimit(concurrency=1)})
    for name in ("api", "db"):
        bench.offer(f"{name}-user", *[1.0] * 200, limits=(name,))
    ends = {}
    for offset in (0.0, 0.5):
        lease = bench.start()
        assert lease is not None
        ends[lease] = offset + 1.0
    (wanted,) = bench.offer("both", 1.0, limits=BOTH)
    for step in range(100):
        lease = min(ends, key=ends.__getitem__)
        bench.now = ends.pop(lease)
        bench.finish(lease)
        while (lease := bench.start()) is not None:
            if lease.job.id == wanted:
                assert patient, "they were free together: this control controls nothing"
                assert step <= 3 * PATIENCE
                assert bench.book.claimant is None
                return
            ends[lease] = bench.now + 1.0
    assert not patient


def test_histories_with_several_limits_leak_nothing_and_start_everything() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        names = ("a", "b", "c", "d")
        limits = {
            name: SharedLimit(
                concurrency=rng.choice([1, 2, 5]),
                per_organisation=rng.choice([None, 1, 2]),
                per_project=rng.choice([None, 1]),
            )
            for name in names
        }
        caps = {f"o{n}": NodePolicy(hard_cap=rng.choice([None, 1, 3]), floor=0) for n in range(4)}
        bench = Bench(rng.choice([2, 8]), PoolPolicy(reserve=rng.choice([0, 1])), limits=limits, **caps)
        for _ in range(60):
            chosen = tuple(sorted(rng.sample(names, rng.randint(0, 4))))
            tenant = f"o{rng.randrange(4)}/p{rng.randrange(3)}"
            bench.offer(tenant, rng.choice([0.5, 1, 3]), priority=rng.choice([1, 5]), limits=chosen)
        for _ in range(1000):
            bench.start_all()
            if not bench.scheduler.running:
                break
            bench.finish(rng.choice(list(bench.scheduler.leases.values())), rng.choice([0.1, 1.0, 5.0]))
        assert not bench.scheduler.queued, f"seed {seed}: something never started"
        assert not bench.book.known, f"seed {seed}: a limit is still held"
        assert bench.book.claimant is None
