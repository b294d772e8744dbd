"""Reconciliation in virtual time: each kind of disagreement is made by hand, found, counted and set right."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drr.backend import EventKind, Mismatch, Request, RequestKind, Work
from drr.dispatcher import Dispatcher
from drr.dispatcher.auditing import SWEEP_EVERY
from drr.model import JobState, Lane, RetryPolicy, Settings, SharedLimit, parse_job_id
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.site import Site, running
from tests.helpers.vandals import Vandal, stray, vandal_of

pytestmark = pytest.mark.anyio

SWEEP = SWEEP_EVERY + 15.0
"""Seconds within which a sweep has begun and ended."""


def found(dispatcher: Dispatcher) -> dict[str, int]:
    return {
        kind.value: number
        for kind in Mismatch
        if (number := getattr(dispatcher.counters, f"mismatched_{kind.value}"))
    }


@asynccontextmanager
async def at_work(site: Site, slots: int = 4) -> AsyncIterator[tuple[Dispatcher, Vandal]]:
    async with running(site) as dispatcher:
        await site.join(slots=slots)
        await site.clock.settle()
        yield dispatcher, vandal_of(site.backend)


async def jobs_done(site: Site, number: int) -> None:
    """Jobs flow as ever."""
    before = len(site.held["w1"])
    ids = await site.submit(number=number, result_ttl=600.0)
    for _ in range(number):
        for attempt in await site.take():
            await site.finish(attempt)
    await site.clock.settle()
    assert len(site.held["w1"]) == before
    states = [status.state for status in await site.backend.look_up(ids) if status is not None]
    assert states == [JobState.SUCCEEDED] * number


async def test_a_lane_that_was_never_announced_is_opened(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    async with at_work(site) as (dispatcher, vandal):
        await vandal.add_silently(stray(GLOBEX, 77))
        await site.pass_time(20.0, "w1")
        assert found(dispatcher) == {}, "it may have been announced just now"
        with caplog.at_level(logging.WARNING, "drr.dispatcher"):
            await site.pass_time(SWEEP, "w1")
        assert found(dispatcher) == {"lane": 1}
        assert dispatcher.counters.mismatched == 1
        assert f"reconciled (lane): lane {GLOBEX} holds jobs" in caplog.text
        (attempt,) = await site.take()
        assert attempt.header.sequence == 77
        await site.finish(attempt)
        await jobs_done(site, 3)
        assert await site.backend.waiting([GLOBEX.path]) == [Work()]
        await site.pass_time(3 * SWEEP, "w1")
        assert found(dispatcher) == {"lane": 1}


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("wrong", [1, -1, 5])
async def test_a_count_that_is_off_is_corrected(site: Site, waiting: int, wrong: int) -> None:
    async with at_work(site) as (dispatcher, vandal):
        await site.submit(number=4)
        held = await site.take()
        await site.submit(number=waiting)
        await site.submit(number=2, due_at=site.clock.wall() + 1e5)
        await vandal.miscount(ACME.path, wrong, wrong)
        await site.pass_time(3 * SWEEP, "w1")
        assert found(dispatcher) == {"count": 1}
        right = Work(waiting + 2, waiting + 2.0)
        assert await site.backend.waiting([ACME.path, ACME.path[:1]]) == [right, right]
        for attempt in held:
            await site.finish(attempt)


async def test_a_lease_that_vanished_makes_the_leader_load_again(site: Site) -> None:
    async with at_work(site) as (dispatcher, vandal):
        await site.submit(number=3)
        attempts = await site.take()
        lease = site.store.leases[attempts[0].token]
        await vandal.lose_lease(lease)
        await site.pass_time(SWEEP, "w1")
        assert found(dispatcher) == {"entry": 1, "hold": 1, "place": 1}
        assert dispatcher.counters.reloads == 1
        (letter,) = await site.backend.dead_letters()
        assert letter.header is not None
        assert letter.header.job_id == lease.header.job_id
        for attempt in attempts:
            await site.finish(attempt)
        await site.clock.settle()
        assert dispatcher.counters.succeeded == 2
        assert dispatcher.counters.zombies == 1
        await jobs_done(site, 5)
        await site.pass_time(3 * SWEEP, "w1")
        assert sum(found(dispatcher).values()) == 3


@pytest.mark.parametrize("finishes", [True, False])
async def test_a_job_whose_entry_vanished_is_finished_by_its_worker_or_given_up(site: Site, finishes: bool) -> None:
    """It never goes back to its lane without its payload, and the count of what waits stays right."""
    async with at_work(site) as (dispatcher, vandal):
        await site.submit(number=1)
        (attempt,) = await site.take()
        await site.beat("w1")
        await vandal.lose_entry(site.store.leases[attempt.token])
        await site.pass_time(SWEEP, "w1")
        assert found(dispatcher) == {"lease": 1}
        await site.pass_time(SWEEP, "w1")
        assert found(dispatcher) == {"lease": 1}, "once each"
        if finishes:
            await site.finish(attempt)
            await site.clock.settle()
            assert dispatcher.counters.succeeded == 1
        else:
            await site.finish(attempt, kind=EventKind.RETURNED)
            await site.clock.settle()
            (letter,) = await site.backend.dead_letters()
            assert "was gone" in letter.reason
        assert (site.store.leases, site.store.lanes) == ({}, {})
        assert await site.backend.waiting([ACME.path]) == [Work()]
        await jobs_done(site, 3)
        await site.pass_time(3 * SWEEP, "w1")
        assert found(dispatcher) == {"lease": 1}


async def test_a_failed_job_without_an_entry_is_not_tried_again(site: Site) -> None:
    async with at_work(site) as (dispatcher, vandal):
        await site.submit(number=1, retry=RetryPolicy(5))
        (attempt,) = await site.take()
        await vandal.lose_entry(site.store.leases[attempt.token])
        await site.pass_time(SWEEP, "w1")
        await site.finish(attempt, kind=EventKind.FAILED)
        await site.clock.settle()
        assert (dispatcher.counters.failed, dispatcher.counters.retried) == (1, 0)
        assert (site.store.leases, site.store.delayed) == ({}, {})


async def test_a_delayed_job_that_would_never_be_due_is_run(site: Site) -> None:
    async with at_work(site) as (dispatcher, vandal):
        (job_id,) = await site.submit(number=1, due_at=site.clock.wall() + 100.0)
        await vandal.lose_due_time(parse_job_id(job_id)[1])
        await site.pass_time(SWEEP, "w1")
        assert found(dispatcher) == {"place": 1}
        assert await site.take() == []
        await site.pass_time(100.0, "w1")
        assert [attempt.header.job_id for attempt in await site.take()] == [job_id]


async def test_limits_that_are_counted_wrongly_make_the_leader_load_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    lane = Lane("default", ACME.path, 5, ("db",))
    site.store.settings = Settings(limits={"db": SharedLimit(5)})
    async with at_work(site) as (dispatcher, _):
        await site.submit(lane, 2)
        attempts = await site.take()
        assert len(attempts) == 2
        await site.pass_time(2 * SWEEP, "w1")
        assert found(dispatcher) == {}
        with monkeypatch.context() as patch:
            patch.setattr("drr.core.shared.LimitBook.running", lambda *_: 7)
            await site.pass_time(SWEEP, "w1")
            assert found(dispatcher)["hold"] >= 1
            assert dispatcher.counters.reloads >= 1


async def test_a_sweep_costs_little_and_an_idle_leader_pays_no_more(site: Site) -> None:
    plan = Plan(only=frozenset({"audit", "commit", "peek", "lane_lengths"}))
    async with running(site, backend=FaultyBackend(site.backend, plan)):
        await site.clock.advance(600.0)
        assert 6 * 10 <= plan.by_kind["audit"] <= 6 * (600.0 / SWEEP_EVERY)
        assert sum(plan.by_kind.values()) == plan.by_kind["audit"]


@pytest.mark.parametrize("seed", range(2))
async def test_a_busy_healthy_site_counts_nothing(site: Site, seed: int) -> None:
    """Submits to many tenants, delays, cancels, failures, lost workers, for a quarter of an hour."""
    rng = random.Random(seed)
    lanes = [Lane("default", (f"org{n % 7}", f"p{n % 3}"), n % 3) for n in range(40)]
    plan = Plan(only=frozenset({"audit"}))
    ids: list[str] = []
    async with running(site, backend=FaultyBackend(site.backend, plan)) as dispatcher:
        await site.join(slots=6)
        await site.join("w2", slots=3)
        for step in range(700):
            for _ in range(rng.randrange(4)):
                delay = rng.choice([0.0, 0.0, 3.0, 200.0])
                due_at = site.clock.wall() + delay if delay else 0.0
                ids += await site.submit(rng.choice(lanes), rng.randrange(1, 4), due_at=due_at)
            if ids and rng.random() < 0.2:
                await site.backend.request([Request(RequestKind.CANCEL, rng.choice(ids[-50:]))])
            for name in ("w1", "w2"):
                if name == "w2" and 250 <= step < 450:
                    continue  # it is silent, and dies
                if step == 450 and name == "w2":
                    await site.join("w2", slots=3, incarnation="i2")
                for attempt in [*site.held[name], *await site.take(name)]:
                    if rng.random() < (0.6 if name == "w1" else 0.15):
                        kind = rng.choice([EventKind.SUCCEEDED] * 6 + [EventKind.FAILED, EventKind.RETURNED])
                        if attempt.token in site.store.leases:
                            await site.finish(attempt, name, kind)
                        else:
                            site.held[name].remove(attempt)
                await site.beat(name)
            await site.clock.advance(rng.choice([0.3, 1.0, 2.0]))
        assert found(dispatcher) == {}
        assert dispatcher.counters.succeeded > 500
        assert dispatcher.counters.lost > 0
        assert dispatcher.counters.cancelled > 5
        assert plan.by_kind["audit"] > 70


async def test_what_moves_meanwhile_is_no_disagreement(site: Site) -> None:
    """The control of the control: the same numbers twice, but jobs have gone through in between."""
    async with at_work(site) as (dispatcher, vandal):
        await vandal.miscount(ACME.path, 1, 1)
        for _ in range(40):
            await site.pass_time(5.0, "w1")
            await jobs_done(site, 1)
        assert found(dispatcher) == {}
        await site.pass_time(3 * SWEEP, "w1")
        assert found(dispatcher) == {"count": 1}
