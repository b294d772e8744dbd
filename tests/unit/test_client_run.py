"""Clients over the memory store in virtual time: submitting, waiting, and a store that goes away in between."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from drr.backend import Backend, open_backend
from drr.client import Client, Handle, Submission
from drr.client.bulk import STRETCH
from drr.errors import (
    InvalidConfiguration,
    InvalidName,
    InvalidValue,
    JobFailed,
    JobNotFound,
    ResultNotKept,
    StoreFull,
    StoreNotPrepared,
    StoreUnavailable,
    UnknownBackend,
)
from drr.model import JobState, Lane
from drr.worker import Worker
from tests.helpers.faults import Faults, FaultyBackend
from tests.helpers.hand import HandDispatcher
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LANE = Lane("default", ("acme", "web"), 5)


class Bench:
    """A store, clients, and if wanted somebody who runs the jobs."""

    def __init__(self, namespace: str) -> None:
        self.clock = ManualClock()
        self.store = open_backend("memory://clients", namespace=namespace, clock=self.clock)
        self.faults = Faults()
        self.release = anyio.Event()

    def client(self, seed: int = 1, **settings: Any) -> Client:
        backend: Any = FaultyBackend(self.store.sibling(), self.faults)
        return Client(backend, clock=self.clock, rng=Random(seed), **settings)

    async def queued(self, lane: Lane = LANE) -> int:
        [length] = await self.store.lane_lengths([lane])
        return length

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """A dispatcher and a worker run jobs meanwhile; those named "hold" until `release` is set."""
        worker = Worker(self.store.sibling(), name="w1", slots=50, clock=self.clock, heartbeat_in_thread=False)

        @worker.task("echo")
        async def echo(what: Any = None) -> Any:
            return what

        @worker.task("fail")
        async def fail() -> None:
            raise ValueError("no such user")

        @worker.task("hold")
        async def hold() -> str:
            await self.release.wait()
            return "held"

        hand = HandDispatcher(self.store, self.clock)
        async with anyio.create_task_group() as group:
            group.start_soon(hand.serve)
            group.start_soon(worker.run)
            await self.clock.settle()
            try:
                yield
            finally:
                worker.stop()
                worker.stop()
                await self.clock.advance(10.0)
                group.cancel_scope.cancel()


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[Bench]:
    made = Bench(fresh_namespace)
    yield made
    await made.store.close()


class Outcome:
    """What awaiting something has come to, while time is moved by the test."""

    def __init__(self) -> None:
        self.value: Any = None
        self.error: Exception | None = None
        self.over = False


def awaiting(group: anyio.abc.TaskGroup, function: Any, *args: Any) -> Outcome:
    outcome = Outcome()

    async def run() -> None:
        try:
            outcome.value = await function(*args)
        except Exception as error:
            outcome.error = error
        outcome.over = True

    group.start_soon(run)
    return outcome


# --- submitting ---------------------------------------------------------------------------------------


async def test_submitting_needs_no_dispatcher(bench: Bench) -> None:
    async with bench.client() as client:
        job = await client.submit("echo", {"what": 1}, tenant="acme/web")
        assert (await job.status()).state is JobState.QUEUED
        assert await bench.queued() == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_submit_that_is_repeated_adds_its_job_once(bench: Bench, when: str) -> None:
    async with bench.client(patience=10.0) as client, anyio.create_task_group() as group:
        if when == "before":
            bench.faults.away.add("submit")
        else:
            bench.faults.lost.add("submit")
        outcome = awaiting(group, lambda: client.submit("echo", tenant="acme/web"))
        await bench.clock.advance(1.0)
        bench.faults.away.clear()
        await bench.clock.advance(5.0)
        assert isinstance(outcome.value, Handle)
        assert bench.faults.calls.count("submit") > 1
        assert await bench.queued() == 1


async def test_a_store_that_stays_away_is_named_after_the_patience(bench: Bench) -> None:
    async with bench.client(patience=10.0) as client, anyio.create_task_group() as group:
        bench.faults.away.add("submit")
        outcome = awaiting(group, lambda: client.submit("echo", tenant="acme/web"))
        took = await bench.clock.run_until(lambda: outcome.over)
        assert isinstance(outcome.error, StoreUnavailable)
        assert 4.0 < took <= 10.0


@pytest.mark.parametrize("error", [StoreFull, StoreNotPrepared])
async def test_what_repeating_does_not_cure_is_raised_at_once(bench: Bench, error: type[Exception]) -> None:
    async with bench.client() as client:
        bench.faults.away.add("submit")
        bench.faults.error = error
        with pytest.raises(error):
            await client.submit("echo", tenant="acme/web")
        assert bench.faults.calls.count("submit") == 1


async def test_concurrent_submits_stay_within_what_the_store_remembers(bench: Bench) -> None:
    """One call is stuck while hundreds of others go through; when it is repeated, it is still known."""
    async with bench.client(patience=600.0) as client, anyio.create_task_group() as group:
        bench.faults.lost.add("submit")
        stuck = awaiting(group, lambda: client.submit("echo", tenant="acme/web"))
        await bench.clock.settle()
        others = [awaiting(group, lambda: client.submit("echo", tenant="acme/web")) for _ in range(300)]
        await bench.clock.advance(60.0)
        assert stuck.error is None
        assert all(outcome.value for outcome in [stuck, *others])
        assert await bench.queued() == 301


async def test_two_clients_are_strangers_to_each_other(bench: Bench) -> None:
    async with bench.client(1) as one, bench.client(2) as two:
        ids = [(await client.submit("echo", tenant="acme/web")).id for client in (one, two, one, two)]
        assert len(set(ids)) == 4
        assert await bench.queued() == 4


# --- in bulk ------------------------------------------------------------------------------------------


def jobs(count: int, **fields: Any) -> Iterator[Submission]:
    for number in range(count):
        yield Submission("echo", [number], **{"tenant": "acme/web", **fields})


async def test_many_jobs_keep_their_order_and_are_counted(bench: Bench) -> None:
    batches: list[Sequence[str]] = []
    async with bench.client() as client:
        assert await client.submit_many(jobs(2_500), accepted=batches.append) == 2_500
    assert max(map(len, batches)) <= 1_000
    ids = list(itertools.chain.from_iterable(batches))
    numbers = [int(job_id.rpartition("~")[0].rpartition(":")[2]) for job_id in ids]
    assert numbers == sorted(numbers)
    assert await bench.queued() == 2_500


async def test_an_async_source_is_not_waited_for_with_jobs_in_hand(bench: Bench) -> None:
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


async def test_memory_is_bounded_while_the_store_is_slow(bench: Bench) -> None:
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


async def test_a_bad_job_ends_the_run_after_those_before_it(bench: Bench) -> None:
    def source() -> Iterator[Submission]:
        yield from jobs(1_234)
        yield Submission("echo", tenant="no project")
        raise AssertionError("nothing is drawn after the bad one")

    async with bench.client() as client:
        with pytest.raises(InvalidName) as caught:
            await client.submit_many(source())
    assert caught.value.__notes__ == ["1234 jobs before this were submitted"]
    assert await bench.queued() == 1_234


async def test_what_the_source_raises_is_raised_as_it_is(bench: Bench) -> None:
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


# --- waiting ------------------------------------------------------------------------------------------


async def test_a_result_comes_without_any_time_passing(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        job = await client.submit("hold", tenant="acme/web")
        outcome = awaiting(group, job.result)
        await bench.clock.advance(5.0)
        assert not outcome.over
        bench.release.set()
        await bench.clock.settle()
        assert outcome.value == "held"


async def test_an_end_that_came_before_the_wait_is_found(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("echo", ["x"], tenant="acme/web")
        await bench.clock.advance(5.0)
        assert await job.result() == "x"
        completion = await job.wait()
        assert (completion.state, completion.attempt) == (JobState.SUCCEEDED, 1)
        assert (await job.status()).state is JobState.SUCCEEDED


async def test_a_failure_is_raised_with_the_worker_s_account(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("fail", tenant="acme/web")
        await bench.clock.settle()
        with pytest.raises(JobFailed) as caught:
            await job.result()
        assert caught.value.error == "ValueError: no such user"
        assert (await job.wait()).state is JobState.FAILED


async def test_waiting_is_shared_and_asks_the_store_no_more_than_needed(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        handles = [await client.submit("hold", tenant="acme/web") for _ in range(40)]
        outcomes = [awaiting(group, handle.result) for handle in handles for _ in range(5)]
        await bench.clock.advance(20.0)
        bench.release.set()
        await bench.clock.advance(1.0)
        assert [outcome.value for outcome in outcomes] == ["held"] * 200
        assert bench.faults.calls.count("look_up") <= 10
        assert bench.faults.calls.count("replies") <= 25


async def test_nobody_waits_nothing_is_asked(bench: Bench) -> None:
    async with bench.client() as client:
        await client.submit("echo", tenant="acme/web")
        await bench.clock.advance(60.0)
        assert bench.faults.calls == ["submit"]


async def test_a_timeout_leaves_the_job_alone(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        job = await client.submit("hold", tenant="acme/web")
        outcome = awaiting(group, job.result, 7.0)
        assert await bench.clock.run_until(lambda: outcome.over) == 7.0
        assert isinstance(outcome.error, TimeoutError)
        assert job.id in str(outcome.error)
        assert (await job.status()).state is JobState.RUNNING


async def test_waiting_outlives_an_outage_and_lost_replies(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        job = await client.submit("hold", tenant="acme/web")
        outcome = awaiting(group, job.result)
        await bench.clock.advance(3.0)
        bench.faults.away.add("*")
        bench.release.set()
        await bench.clock.advance(20.0)
        assert not outcome.over
        bench.faults.away.clear()
        await bench.clock.advance(6.0)
        assert outcome.value == "held"


async def test_a_job_of_another_client_is_waited_for_too(bench: Bench) -> None:
    async with bench.serving(), bench.client(1) as one, bench.client(2) as two, anyio.create_task_group() as group:
        job_id = (await one.submit("hold", tenant="acme/web")).id
        outcome = awaiting(group, two.handle(job_id).result)
        await bench.clock.advance(3.0)
        bench.release.set()
        await bench.clock.advance(4.0)
        assert outcome.value == "held"


async def test_an_unknown_job_is_named(bench: Bench) -> None:
    async with bench.client() as client:
        handle = client.handle("default:acme:web:5:99~abc")
        for question in (handle.status, handle.wait, handle.result):
            with pytest.raises(JobNotFound, match="99~abc"):
                await question()
        with pytest.raises(InvalidValue, match="job id"):
            client.handle("what")


async def test_who_kept_no_result_cannot_wait_for_it(bench: Bench) -> None:
    async with bench.client() as client:
        job = await client.submit("echo", tenant="acme/web", result_ttl=0)
        assert (await job.status()).state is JobState.QUEUED
        for question in (job.wait, job.result):
            with pytest.raises(ResultNotKept, match="result_ttl=0"):
                await question()


async def test_a_result_that_expired_is_not_found(bench: Bench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("echo", tenant="acme/web", result_ttl=60.0)
        await bench.clock.advance(100.0)
        with pytest.raises(JobNotFound):
            await job.result()


# --- life ---------------------------------------------------------------------------------------------


async def test_the_body_s_exception_comes_out_as_it_is(bench: Bench) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with bench.client():
            raise LookupError("mine")


async def test_who_waits_elsewhere_is_told_when_the_client_closes(bench: Bench) -> None:
    async with anyio.create_task_group() as group:
        async with bench.client() as client:
            job = await client.submit("echo", tenant="acme/web")
            outcome = awaiting(group, job.result)
            await bench.clock.settle()
        await bench.clock.settle()
        assert isinstance(outcome.error, StoreUnavailable)
        assert "closed" in str(outcome.error)


async def test_a_client_outside_its_block_says_so(bench: Bench) -> None:
    client = bench.client()
    with pytest.raises(InvalidConfiguration, match="async with"):
        await client.submit("echo", tenant="acme/web")
    async with client:
        with pytest.raises(InvalidConfiguration, match="open already"):
            await client.__aenter__()
    with pytest.raises(InvalidConfiguration, match="async with"):
        await client.submit_many([])


async def test_a_store_that_was_given_stays_open(bench: Bench) -> None:
    store: Backend = bench.store.sibling()
    async with Client(store, clock=bench.clock) as client:
        await client.submit("echo", tenant="acme/web")
    assert await store.lane_lengths([LANE]) == [1]
    await store.close()


async def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidName):
        Client("memory://", namespace="a b")
    with pytest.raises(InvalidConfiguration):
        Client("memory://", patience=-1)
    with pytest.raises(InvalidConfiguration):
        Client("memory://", payload_limit=0)
    with pytest.raises(UnknownBackend, match="nosql"):
        async with Client("nosql://somewhere"):
            pass
