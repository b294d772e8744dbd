"""Clients in virtual time: submitting, waiting, and a store that goes away in between."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from drr.backend import Backend
from drr.client import Client, Handle
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
from drr.model import JobState, JobStatus
from tests.helpers.client_bench import LANE, ClientBench, awaiting

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[ClientBench]:
    made = ClientBench(fresh_namespace)
    yield made
    await made.store.close()


# --- submitting ---------------------------------------------------------------------------------------


async def test_submitting_needs_no_dispatcher(bench: ClientBench) -> None:
    async with bench.client() as client:
        job = await client.submit("echo", {"what": 1}, tenant="acme/web")
        assert (await job.status()).state is JobState.QUEUED
        assert await bench.queued() == 1


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_submit_that_is_repeated_adds_its_job_once(bench: ClientBench, when: str) -> None:
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


async def test_a_store_that_stays_away_is_named_after_the_patience(bench: ClientBench) -> None:
    async with bench.client(patience=10.0) as client, anyio.create_task_group() as group:
        bench.faults.away.add("submit")
        outcome = awaiting(group, lambda: client.submit("echo", tenant="acme/web"))
        took = await bench.clock.run_until(lambda: outcome.over)
        assert isinstance(outcome.error, StoreUnavailable)
        assert 4.0 < took <= 10.0


@pytest.mark.parametrize("error", [StoreFull, StoreNotPrepared])
async def test_what_repeating_does_not_cure_is_raised_at_once(bench: ClientBench, error: type[Exception]) -> None:
    async with bench.client() as client:
        bench.faults.away.add("submit")
        bench.faults.error = error
        with pytest.raises(error):
            await client.submit("echo", tenant="acme/web")
        assert bench.faults.calls.count("submit") == 1


async def test_concurrent_submits_stay_within_what_the_store_remembers(bench: ClientBench) -> None:
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


async def test_two_clients_are_strangers_to_each_other(bench: ClientBench) -> None:
    async with bench.client(1) as one, bench.client(2) as two:
        ids = [(await client.submit("echo", tenant="acme/web")).id for client in (one, two, one, two)]
        assert len(set(ids)) == 4
        assert await bench.queued() == 4


# --- waiting ------------------------------------------------------------------------------------------


async def test_a_result_comes_without_any_time_passing(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        job = await client.submit("hold", tenant="acme/web")
        outcome = awaiting(group, job.result)
        await bench.clock.advance(5.0)
        assert not outcome.over
        bench.release.set()
        await bench.clock.settle()
        assert outcome.value == "held"


async def test_an_end_that_came_before_the_wait_is_found(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("echo", ["x"], tenant="acme/web")
        await bench.clock.advance(5.0)
        assert await job.result() == "x"
        completion = await job.wait()
        assert (completion.state, completion.attempt) == (JobState.SUCCEEDED, 1)
        assert (await job.status()).state is JobState.SUCCEEDED


async def test_a_failure_is_raised_with_the_worker_s_account(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("fail", tenant="acme/web")
        await bench.clock.settle()
        with pytest.raises(JobFailed) as caught:
            await job.result()
        assert caught.value.error == "ValueError: no such user"
        assert (await job.wait()).state is JobState.FAILED


async def test_waiting_is_shared_and_asks_the_store_no_more_than_needed(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        handles = [await client.submit("hold", tenant="acme/web") for _ in range(40)]
        outcomes = [awaiting(group, handle.result) for handle in handles for _ in range(5)]
        await bench.clock.advance(20.0)
        bench.release.set()
        await bench.clock.advance(1.0)
        assert [outcome.value for outcome in outcomes] == ["held"] * 200
        assert bench.faults.calls.count("look_up") <= 10
        assert bench.faults.calls.count("replies") <= 25


async def test_nobody_waits_nothing_is_asked(bench: ClientBench) -> None:
    async with bench.client() as client:
        await client.submit("echo", tenant="acme/web")
        await bench.clock.advance(60.0)
        assert bench.faults.calls == ["submit"]


async def test_a_timeout_leaves_the_job_alone(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client, anyio.create_task_group() as group:
        job = await client.submit("hold", tenant="acme/web")
        outcome = awaiting(group, job.result, 7.0)
        assert await bench.clock.run_until(lambda: outcome.over) == 7.0
        assert isinstance(outcome.error, TimeoutError)
        assert job.id in str(outcome.error)
        assert (await job.status()).state is JobState.RUNNING


async def test_waiting_outlives_an_outage_and_lost_replies(bench: ClientBench) -> None:
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


async def test_a_job_of_another_client_is_waited_for_too(bench: ClientBench) -> None:
    async with bench.serving(), bench.client(1) as one, bench.client(2) as two, anyio.create_task_group() as group:
        job_id = (await one.submit("hold", tenant="acme/web")).id
        outcome = awaiting(group, two.handle(job_id).result)
        await bench.clock.advance(3.0)
        bench.release.set()
        await bench.clock.advance(4.0)
        assert outcome.value == "held"


async def test_an_unknown_job_is_named(bench: ClientBench) -> None:
    async with bench.client() as client:
        handle = client.handle("default:acme:web:5:99~abc")
        for question in (handle.status, handle.wait, handle.result):
            with pytest.raises(JobNotFound, match="99~abc"):
                await question()
        with pytest.raises(InvalidValue, match="job id"):
            client.handle("what")


async def test_who_kept_no_result_cannot_wait_for_it(bench: ClientBench) -> None:
    async with bench.client() as client:
        job = await client.submit("echo", tenant="acme/web", result_ttl=0)
        assert (await job.status()).state is JobState.QUEUED
        for question in (job.wait, job.result):
            with pytest.raises(ResultNotKept, match="result_ttl=0"):
                await question()


async def test_a_result_that_expired_is_not_found(bench: ClientBench) -> None:
    async with bench.serving(), bench.client() as client:
        job = await client.submit("echo", tenant="acme/web", result_ttl=60.0)
        await bench.clock.advance(100.0)
        with pytest.raises(JobNotFound):
            await job.result()


# --- life ---------------------------------------------------------------------------------------------


async def test_the_body_s_exception_comes_out_as_it_is(bench: ClientBench) -> None:
    with pytest.raises(LookupError, match="mine"):
        async with bench.client():
            raise LookupError("mine")


async def test_who_waits_elsewhere_is_told_when_the_client_closes(bench: ClientBench) -> None:
    async with anyio.create_task_group() as group:
        async with bench.client() as client:
            job = await client.submit("echo", tenant="acme/web")
            outcome = awaiting(group, job.result)
            await bench.clock.settle()
        await bench.clock.settle()
        assert isinstance(outcome.error, StoreUnavailable)
        assert "closed" in str(outcome.error)


async def test_a_client_outside_its_block_says_so(bench: ClientBench) -> None:
    client = bench.client()
    with pytest.raises(InvalidConfiguration, match="async with"):
        await client.submit("echo", tenant="acme/web")
    async with client:
        with pytest.raises(InvalidConfiguration, match="open already"):
            await client.__aenter__()
    with pytest.raises(InvalidConfiguration, match="async with"):
        await client.submit_many([])


async def test_a_store_that_was_given_stays_open(bench: ClientBench) -> None:
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


async def test_a_status_is_asked_for_again_in_a_short_outage(bench: ClientBench) -> None:
    async with bench.client(patience=10.0) as client, anyio.create_task_group() as group:
        job = await client.submit("echo", tenant="acme/web")
        bench.faults.away.add("look_up")
        found = awaiting(group, job.status)
        await bench.clock.advance(5.0)
        bench.faults.away.clear()
        await bench.clock.advance(5.0)
        assert isinstance(found.value, JobStatus)
        assert found.value.state is JobState.QUEUED
        bench.faults.away.add("look_up")
        failed = awaiting(group, job.status)
        await bench.clock.run_until(lambda: failed.over)
        assert isinstance(failed.error, StoreUnavailable)
