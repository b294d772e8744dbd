"""Submitting many jobs: in order, in bounded memory, without holding the event loop."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence

import anyio
import anyio.lowlevel
import pytest

from drr.backend import open_backend
from drr.client import Client, Submission
from drr.client.bulk import STRETCH
from drr.errors import (
    InvalidName,
    StoreFull,
)
from tests.helpers.client_bench import ClientBench, awaiting, jobs
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[ClientBench]:
    made = ClientBench(fresh_namespace)
    yield made
    await made.store.close()


async def test_many_jobs_keep_their_order_and_are_counted(bench: ClientBench) -> None:
    batches: list[Sequence[str]] = []
    async with bench.client() as client:
        assert await client.submit_many(jobs(2_500), accepted=batches.append) == 2_500
    assert max(map(len, batches)) <= 1_000
    ids = list(itertools.chain.from_iterable(batches))
    numbers = [int(job_id.rpartition("~")[0].rpartition(":")[2]) for job_id in ids]
    assert numbers == sorted(numbers)
    assert await bench.queued() == 2_500


async def test_an_async_source_is_not_waited_for_with_jobs_in_hand(bench: ClientBench) -> None:
    counts: list[int] = []

    async def trickle() -> AsyncIterator[Submission]:
        for job in jobs(3):
            yield job
            await bench.clock.sleep(10.0)
            counts.append(await bench.queued())

    async with bench.client() as client, anyio.create_task_group() as group:
        outcome = awaiting(group, lambda: client.submit_many(trickle()))
        await bench.clock.advance(30.0)
        assert outcome.value == 3
        assert counts == [1, 2, 3]


async def test_memory_is_bounded_while_the_store_is_slow(bench: ClientBench) -> None:
    drawn = 0

    def source() -> Iterator[Submission]:
        nonlocal drawn
        for job in jobs(50_000):
            drawn += 1
            yield job

    async with bench.client(patience=600.0) as client, anyio.create_task_group() as group:
        bench.faults.away.add("submit")
        outcome = awaiting(group, lambda: client.submit_many(source()))
        await bench.clock.advance(60.0)
        assert not outcome.over
        assert drawn <= 3_001, "two batches ahead of the one under way"
        group.cancel_scope.cancel()


async def test_a_bulk_submit_does_not_hold_the_event_loop(fresh_namespace: str) -> None:
    """The clock moves by a millisecond at each look at it, so a stretch is some twenty looks, on any machine."""

    class Ticking(ManualClock):
        def monotonic(self) -> float:
            self._now += 0.001
            return self._now

    clock, longest, last = Ticking(), 0.0, 0.0
    store = open_backend("memory://ticking", namespace=fresh_namespace, clock=clock)

    async def pulse() -> None:
        nonlocal longest, last
        last = clock._now
        while True:
            await anyio.lowlevel.checkpoint()
            longest, last = max(longest, clock._now - last), clock._now

    async with Client(store, clock=clock) as client, anyio.create_task_group() as group:
        group.start_soon(pulse)
        await anyio.lowlevel.checkpoint()
        await client.submit_many(jobs(5_000))
        group.cancel_scope.cancel()
    await store.close()
    assert 0.0 < longest <= 2 * STRETCH + 0.01


async def test_a_bad_job_ends_the_run_after_those_before_it(bench: ClientBench) -> None:
    def source() -> Iterator[Submission]:
        yield from jobs(1_234)
        yield Submission("echo", tenant="no project")
        raise AssertionError("nothing is drawn after the bad one")

    async with bench.client() as client:
        with pytest.raises(InvalidName) as caught:
            await client.submit_many(source())
    assert caught.value.__notes__ == ["1234 jobs before this were submitted"]
    assert await bench.queued() == 1_234


async def test_what_the_source_raises_is_raised_as_it_is(bench: ClientBench) -> None:
    def source() -> Iterator[Submission]:
        yield from jobs(3)
        raise LookupError("the caller's own trouble")

    async with bench.client() as client:
        with pytest.raises(LookupError, match="own trouble"):
            await client.submit_many(source())
    assert await bench.queued() == 3


async def test_a_store_that_fills_up_says_how_many_fitted(fresh_namespace: str) -> None:
    clock = ManualClock()
    store = open_backend("memory://full?max_jobs=1500", namespace=fresh_namespace, clock=clock)
    async with Client(store, clock=clock) as client:
        with pytest.raises(StoreFull) as caught:
            await client.submit_many(jobs(5_000))
    await store.close()
    assert caught.value.__notes__ == ["1000 jobs before this were submitted"]
