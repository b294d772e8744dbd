"""Dead letters and accounts as a client sees them, over a memory store in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import anyio
import pytest

from drr.backend import EventKind, Malformed, Usage
from drr.client import Client
from drr.errors import DeadLetterNotFound, DeadlinePassed, InvalidValue, StoreUnavailable
from drr.model import JobState, Lane
from drr_backends.memory.records import Entry
from tests.helpers.client_bench import ClientBench, awaiting
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    yield found
    await found.backend.close()


async def fail(site: Site, lane: Lane = ACME, **fields: Any) -> None:
    """Let a job of a worker that is there fail for good."""
    await site.submit(lane, **fields)
    [attempt] = await site.take("w1")
    await site.pass_time(1.0, "w1")
    await site.finish(attempt, kind=EventKind.FAILED)
    await site.clock.settle()


async def test_one_letter_is_read_and_not_all(site: Site) -> None:
    async with running(site), Client(site.backend, clock=site.clock) as client:
        await site.join("w1")
        for _ in range(3):
            await fail(site)
        numbers = [letter.number async for letter in client.dead()]
        await client.purge_dead([numbers[1]])
        asked: list[int] = []
        read = site.backend.dead_letters

        async def counted(*args: Any) -> Any:
            letters = await read(*args)
            asked.append(len(letters))
            return letters

        site.backend.dead_letters = counted  # type: ignore[method-assign, assignment]
        assert (await client.letter(numbers[2])).number == numbers[2]
        assert asked == [1]
        for number in (numbers[1], numbers[2] + 1):
            with pytest.raises(DeadLetterNotFound):
                await client.letter(number)


async def test_what_cannot_be_queued_again_is_told_and_nothing_is_asked(site: Site) -> None:
    async with running(site), Client(site.backend, clock=site.clock) as client:
        await site.join("w1")
        await fail(site)
        await fail(site, deadline=site.clock.wall() + 60.0)
        site.store.append(ACME, Entry(Malformed(ACME, b"no job", "it is none"), b""))
        await site.pass_time(1.0, "w1")
        letters = {letter.number: letter async for letter in client.dead()}
        [alive, dated, none] = letters
        assert letters[none].header is None
        assert await client.requeue_dead([dated]) == 1, "negative control: it is not over yet"
        [attempt] = await site.take("w1")
        await site.finish(attempt, kind=EventKind.FAILED)
        await site.pass_time(61.0, "w1")
        [dated] = [number async for number in numbers_of(client) if number not in (alive, none)]
        for number, error in ((999, DeadLetterNotFound), (dated, DeadlinePassed), (none, InvalidValue)):
            with pytest.raises(error):
                await client.requeue_dead([alive, number])
        await site.pass_time(1.0, "w1")
        assert await site.take("w1") == []
        assert await client.requeue_dead([alive]) == 1
        [attempt] = await site.take("w1")
        assert attempt.header.deadline is None


async def numbers_of(client: Client) -> AsyncIterator[int]:
    async for letter in client.dead():
        yield letter.number


async def test_an_account_is_added_up(site: Site) -> None:
    async with running(site), Client(site.backend, clock=site.clock) as client:
        await site.join("w1")
        for lane in (ACME, ACME, ACME._replace(path=("acme", "other")), GLOBEX):
            await fail(site, lane)
        day = timedelta(days=1)
        assert await client.usage_total("acme", since=day) == pytest.approx(Usage(failed=3, held=3.0, charged=3.0))
        project = await client.usage_total("/".join(ACME.path), since=day, pool="default")
        assert project == pytest.approx(Usage(failed=2, held=2.0, charged=2.0))
        assert await client.usage_total("acme", since=day, pool="renders") == Usage()
        rows = await client.usage("acme", since=day)
        assert sum(row.charged for row in rows.values()) == pytest.approx(3.0)


async def test_where_a_job_stands_is_asked_again_in_a_short_outage(fresh_namespace: str) -> None:
    bench = ClientBench(fresh_namespace)
    async with bench.client(patience=10.0) as client, anyio.create_task_group() as group:
        job = await client.submit("echo", tenant="acme/web")
        bench.faults.away.add("look_up")
        outcome = awaiting(group, job.status)
        await bench.clock.advance(2.0)
        bench.faults.away.clear()
        await bench.clock.advance(5.0)
        assert outcome.value.state is JobState.QUEUED
        bench.faults.away.add("look_up")
        outcome = awaiting(group, job.status)
        await bench.clock.run_until(lambda: outcome.over)
        assert isinstance(outcome.error, StoreUnavailable), "not for ever"
    await bench.store.close()
