"""Scenarios about slots that must come free (D6, D7, D10) and S9: a dispatcher on a store in virtual time."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from drr.backend import Attempt, EventKind, Request, RequestKind
from drr.exchange import Usage
from drr.model import JobState, Lane, NodePolicy, RetryPolicy
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio

KEPT: dict[str, Any] = {"result_ttl": 1e6, "reply_to": "client"}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Planned failures are logged as any others."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A memory store in virtual time, in place of the servers of the other scenarios."""
    found = Site()
    yield found
    await found.backend.close()


async def cancel(site: Site, *ids: str) -> None:
    await site.backend.request([Request(RequestKind.CANCEL, job_id) for job_id in ids])


async def states(site: Site, ids: list[str]) -> list[JobState | None]:
    return [status.state if status is not None else None for status in await site.backend.look_up(ids)]


# --- D6: the running one of several jobs under a cap of 1 is cancelled

LEASE = 30.0
CHECK = 1.0
"""At most so late is an expired lease noticed, in seconds."""


@asynccontextmanager
async def four_under_a_cap_of_one(site: Site) -> AsyncIterator[tuple[list[str], Attempt]]:
    """Two workers with a slot each, and four jobs of a tenant with a cap of 1; the first has run for 5 s."""
    options: dict[str, Any] = {"lease": LEASE, "policies": {"default": {"acme": NodePolicy(hard_cap=1)}}}
    async with running(site, **options):
        await site.join("w1")
        await site.join("w2")
        ids = await site.submit(ACME, 4, estimate=30.0, result_ttl=1e6)
        (attempt,) = await site.take("w1")
        await site.pass_time(5.0, "w1", "w2")
        yield ids, attempt


async def spent(site: Site, tenant: str) -> Usage:
    hour = int(site.clock.wall() // 3600)
    total = Usage()
    for usage in (await site.backend.usage(tenant, hour - 1, hour + 1)).values():
        total = total.plus(usage)
    return total


async def test_D6_a_cancelled_job_that_stops_makes_room_at_once(site: Site) -> None:
    async with four_under_a_cap_of_one(site) as (ids, attempt):
        assert await site.take("w2") == [], "negative control: without the cancel the others wait"
        await cancel(site, ids[0])
        await site.clock.settle()
        await site.finish(attempt, kind=EventKind.CANCELLED, seconds=5.0)
        started = [*await site.take("w1"), *await site.take("w2")]
        assert [found.header.job_id for found in started] == ids[1:2], "in the pass of the report"
        assert (await spent(site, "acme"))[3:] == Usage(cancelled=1, held=5.0, charged=5.0)[3:]


async def test_D6_a_cancelled_job_that_goes_on_makes_room_when_its_lease_ends(site: Site) -> None:
    """On the other worker: the stubborn one is busy until it says something else."""
    async with four_under_a_cap_of_one(site) as (ids, attempt):
        await cancel(site, ids[0])
        (other,) = await site.submit(GLOBEX, estimate=1.0)
        (email,) = await site.take("w2")
        assert email.header.job_id == other
        await site.finish(email, "w2")
        await site.pass_time(LEASE - 5.0, "w1", "w2")
        assert await site.take("w2") == [], "it may still run"
        await site.pass_time(5.0 + CHECK, "w1", "w2")
        (second,) = await site.take("w2")
        assert second.header.job_id == ids[1]
        charged = (await spent(site, "acme")).charged
        assert LEASE <= charged <= LEASE + 5.0 + CHECK

        # There are two slots and one job runs, yet w1 gets nothing: it still does what was cancelled.
        await site.submit(GLOBEX, estimate=1.0)
        await site.pass_time(20.0, "w1", "w2")
        assert await site.take("w1") == []
        await site.finish(attempt, seconds=60.0)
        await site.pass_time(5.0, "w1", "w2")
        (freed,) = await site.take("w1")
        assert freed.header.lane == GLOBEX
        account = await spent(site, "acme")
        assert (account.attempts, account.cancelled, account.charged) == (1, 1, charged), "charged once"
        assert await states(site, ids) == [JobState.CANCELLED, JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]


# --- D7: the running job of a capped tenant is cancelled


@pytest.mark.parametrize("answers", [True, False])
async def test_D7_a_cancelled_job_frees_its_slot(site: Site, answers: bool) -> None:
    """At once if the worker stops it; one lease later if not, and then a late report changes nothing.

    Until then the cap of 1 holds: what was cancelled may still run.
    """
    options: dict[str, Any] = {"lease": 30.0, "policies": {"default": {"acme": NodePolicy(hard_cap=1)}}}
    async with running(site, **options) as dispatcher:
        await site.join("w1")
        await site.join("w2")
        (deleted,) = await site.submit(ACME, result_ttl=1e6)
        (attempt,) = await site.take("w1")
        await site.pass_time(5.0, "w1", "w2")
        await cancel(site, deleted)
        (follower,) = await site.submit(ACME)
        await site.clock.settle()
        assert (await site.backend.stops("", 0.0))[1] == [attempt.token]
        assert await site.take("w2") == []
        if answers:
            await site.finish(attempt, kind=EventKind.CANCELLED)
        else:
            await site.pass_time(25.0, "w1", "w2")
            assert await site.take("w2") == [], "its heartbeats list it: it may still run"
            await site.pass_time(10.0, "w1", "w2")
        (started,) = await site.take("w2")
        assert started.header.job_id == follower
        if not answers:
            await site.finish(attempt)
        await site.clock.settle()
        assert len(site.store.leases) == 1, "in flight is one, never none or two"
        assert await states(site, [deleted]) == [JobState.CANCELLED]
        assert dispatcher.counters.zombies == (0 if answers else 1)


# --- D10: faults on every path that ends an attempt

PATHS = ("complete", "retry", "final failure", "cancel", "lease expiry", "drain")
JOBS = 200
CAP = 10
FAULTY_TURNS = 100


class Round:
    """200 jobs at 10 at a time, of which ten take each of the paths, with faults of the commits on the way."""

    def __init__(self, fail_every: int, after: bool) -> None:
        self.site = Site()
        self.plan = Plan(after=after, only=frozenset({"commit"}))
        self.fail_every = fail_every
        self.path_of: dict[str, str] = {}
        self.tried: Counter[str] = Counter()
        self.stopping: list[Attempt] = []

    async def run(self) -> None:
        site = self.site
        options: dict[str, Any] = {
            "lease": 5.0,
            "leader_lease": 1.0,
            "policies": {"default": {"acme": NodePolicy(hard_cap=CAP)}},
        }
        async with running(site, backend=FaultyBackend(site.backend, self.plan), **options):
            await site.join("w1", slots=50)
            retry = RetryPolicy(attempts=2, delay=0.5, jitter=0.0)
            ids = await site.submit(ACME, 60, retry=retry, **KEPT)
            ids += await site.submit(ACME, JOBS - 60, **KEPT)
            self.path_of = {job: PATHS[number % len(PATHS)] for number, job in enumerate(ids[:60])}
            for turn in range(400):
                await self.work(turn)
                if not (site.store.leases or site.store.lanes or site.store.delayed):
                    break
            await site.clock.advance(2.0)
        await self.check(ids)
        await site.backend.close()

    async def work(self, turn: int) -> None:
        site = self.site
        # Not for ever: a dispatcher that starts anew more often than a lease takes declares nobody lost.
        if turn < FAULTY_TURNS and turn % self.fail_every == 0:
            self.plan.fail_at, self.plan.calls = 1, 0  # the next commit
        elif turn % self.fail_every == 1:
            self.plan.fail_at = 0
        for attempt in self.stopping:
            await site.finish(attempt, kind=EventKind.CANCELLED)
        self.stopping.clear()
        for attempt in await site.take("w1"):
            await self.go(attempt)
        assert len(site.store.leases) <= CAP, "the cap holds whatever fails"
        await site.clock.advance(0.25)
        await site.beat("w1")

    async def go(self, attempt: Attempt) -> None:
        """Let an attempt take its job's path."""
        site, job = self.site, attempt.header.job_id
        self.tried[job] += 1
        first = self.tried[job] == 1
        path = self.path_of.get(job, "complete")
        if (path == "retry" and first) or path == "final failure":
            await site.finish(attempt, kind=EventKind.FAILED)
        elif path == "cancel":
            await cancel(site, job)
            self.stopping.append(attempt)
        elif path == "lease expiry" and first:
            site.held["w1"].remove(attempt)  # it is no longer listed, and never reported
        elif path == "drain" and first:
            await site.finish(attempt, kind=EventKind.RETURNED)
        else:
            await site.finish(attempt)

    async def check(self, ids: list[str]) -> None:
        site = self.site
        assert (site.store.leases, site.store.lanes, site.store.delayed) == ({}, {}, {})
        _, told = await site.backend.replies("client", "", 0.0)
        assert Counter(told) == Counter(ids), "each reaches its end once"
        ends = {"cancel": JobState.CANCELLED, "final failure": JobState.FAILED}
        expected = [ends.get(self.path_of.get(job, ""), JobState.SUCCEEDED) for job in ids]
        assert await states(site, ids) == expected
        assert site.store.waiting == {}
        counts = [sum(column) for column in zip(*site.store.usage["acme"].values(), strict=True)]
        assert counts[7] == counts[8] + counts[9]
        assert sum(counts[:6]) >= JOBS + 10, "every attempt is in the account"


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("fail_every", [2, 3])
async def test_D10_no_path_leaks_a_slot(fail_every: int, after: bool) -> None:
    """Commits fail all along, before their effect or after it: all 200 end once and nothing stays held."""
    day = Round(fail_every, after)
    await day.run()
    assert len(day.plan.failed) >= 10


# --- S9: retries are charged


async def test_S9_failing_jobs_get_no_more_than_others(site: Site) -> None:
    """C's integration fails every time, five tries a job; D's jobs succeed. Both wait all the time."""
    retry = RetryPolicy(attempts=5, delay=0.0)
    async with running(site, lease=60.0):
        await site.join("w1", slots=2)
        await site.submit(ACME, 150, retry=retry, estimate=5.0)
        await site.submit(GLOBEX, 150, estimate=5.0)
        held: Counter[Lane] = Counter()
        for _ in range(100):
            attempts = await site.take("w1")
            await site.pass_time(5.0, "w1")
            for attempt in attempts:
                lane = attempt.header.lane
                held[lane] += 5
                kind = EventKind.FAILED if lane == ACME else EventKind.SUCCEEDED
                await site.finish(attempt, kind=kind)
        assert held[ACME] == pytest.approx(held[GLOBEX], rel=0.05)
        assert held[ACME] + held[GLOBEX] == 1000
