"""A dispatcher on real servers in whose store somebody breaks something: it is found, counted and set right."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable

import anyio
import pytest

from drr.backend import Work
from drr.embedded import EmbeddedServer
from drr.model import parse_job_id
from drr_backends.redis.codec import decode_lease
from tests.contract.harness import PATIENCE
from tests.helpers.backends import Plan
from tests.helpers.vandals import RedisVandal, stray
from tests.redis.test_dispatcher import ACME, GLOBEX, QUICK, Site

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site(server: EmbeddedServer, fresh_namespace: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """A site whose dispatchers look at a page at every turn."""
    monkeypatch.setattr("drr.dispatcher.auditing.PAGE_EVERY", 0.0)
    monkeypatch.setattr("drr.dispatcher.auditing.SWEEP_EVERY", 0.0)
    found = Site(server.url, fresh_namespace)
    with anyio.fail_after(PATIENCE):
        await found.handle.prepare()
        yield found
    await found.close()


async def until(site: Site, true: Callable[[], object]) -> None:
    while not true():
        await site.raw("PING")


async def sweeps(site: Site, plan: Plan, pages: int = 40) -> None:
    """Return when so many more pages have been looked at."""
    wanted = plan.by_kind["audit"] + pages
    await until(site, lambda: plan.by_kind["audit"] >= wanted)


def watching() -> Plan:
    return Plan(only=frozenset({"audit"}))


def vandal_of(site: Site) -> RedisVandal:
    return RedisVandal(site.handle)


async def test_a_healthy_busy_site_counts_nothing(site: Site) -> None:
    plan = watching()
    async with site.dispatcher(plan=plan, **QUICK) as dispatcher:
        await site.join(slots=20)
        ids: list[str] = []

        async def produce() -> None:
            for number in range(60):
                ids.extend(await site.submit(ACME if number % 2 else GLOBEX, 10))

        async with anyio.create_task_group() as group:
            group.start_soon(produce)
            starts = await site.work(600, slots=20)
        assert starts == Counter(ids)
        await sweeps(site, plan)
        assert dispatcher.counters.mismatched == 0
        assert dispatcher.counters.succeeded == 600
        assert plan.by_kind["audit"] > 100


@pytest.mark.parametrize("active", [True, False], ids=["not announced", "in no set"])
async def test_a_job_that_nobody_was_told_of_is_run(site: Site, active: bool) -> None:
    async with site.dispatcher(**QUICK) as dispatcher:
        await site.join(slots=4)
        await dispatcher.wait_leading()
        await vandal_of(site).add_silently(stray(GLOBEX, 2**40), active=active)
        while not dispatcher.counters.dispatched:
            await site.beat("w1", 4, [])
        (attempt,) = await site.take()
        assert attempt.header.sequence == 2**40
        assert (dispatcher.counters.mismatched, dispatcher.counters.mismatched_lane) == (1, 1)
        assert await site.handle.waiting([GLOBEX.path]) == [Work()]


async def test_a_wrong_count_is_corrected(site: Site) -> None:
    plan = watching()
    async with site.dispatcher(plan=plan, **QUICK) as dispatcher:
        await dispatcher.wait_leading()
        await site.submit(ACME, 3)
        await vandal_of(site).miscount(ACME.path, 2, 7)
        await until(site, lambda: dispatcher.counters.mismatched_count)
        assert await site.handle.waiting([ACME.path, ACME.path[:1]]) == [Work(3, 0.3)] * 2
        await sweeps(site, plan)
        assert dispatcher.counters.mismatched == 1


async def test_a_lost_entry_loses_one_job_and_no_count(site: Site) -> None:
    """Nobody can run it. It is given up after one lease, and the quota of its tenant is as if it had never been."""
    plan = watching()
    async with site.dispatcher(plan=plan, **QUICK) as dispatcher:
        await site.join(slots=1)
        (job_id,) = await site.submit(ACME)
        await until(site, lambda: dispatcher.counters.dispatched)
        flat = await site.raw("HVALS", site.keys.leases)
        (lease,) = [decode_lease(value) for value in flat if b" " in value[:40]]
        await vandal_of(site).lose_entry(lease)
        while dispatcher.counters.returned + dispatcher.counters.lost == 0:
            await site.beat("w1", 1, [])
        await sweeps(site, plan)
        (letter,) = await site.handle.dead_letters()
        assert letter.header is not None
        assert letter.header.job_id == job_id
        assert dispatcher.counters.mismatched_lease == dispatcher.counters.mismatched == 1
        assert await site.handle.waiting([ACME.path]) == [Work()]


async def test_a_lost_lease_leaves_a_letter_and_everybody_else_alone(site: Site) -> None:
    async with site.dispatcher(**QUICK) as dispatcher:
        await site.join(slots=4)
        await site.submit(ACME, 2)
        first, second = await site.take(number=2)
        flat = await site.raw("HVALS", site.keys.leases)
        leases = [decode_lease(value) for value in flat if b" " in value[:40]]
        (lease,) = [lease for lease in leases if lease.token == first.token]
        await vandal_of(site).lose_lease(lease)
        while not dispatcher.counters.mismatched_entry or not dispatcher.counters.reloads:
            await site.beat("w1", 4, [first, second])
        (letter,) = await site.handle.dead_letters()
        assert letter.header is not None
        assert letter.header.job_id == first.header.job_id
        await site.finish([first, second])
        assert await site.ends(1) == [second.header.job_id]
        ids = await site.submit(GLOBEX, 5)
        assert await site.work(5) == Counter(ids)


async def test_a_delayed_job_that_would_never_be_due_is_run(site: Site) -> None:
    async with site.dispatcher(**QUICK) as dispatcher:
        await site.join(slots=4)
        (job_id,) = await site.submit(ACME, due_at=site.clock.wall() + 1e5)
        await vandal_of(site).lose_due_time(parse_job_id(job_id)[1])
        await until(site, lambda: dispatcher.counters.mismatched_place)
        while not dispatcher.counters.dispatched:
            await site.beat("w1", 4, [])
        (attempt,) = await site.take()
        assert attempt.header.job_id == job_id
