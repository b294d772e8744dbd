"""Clients with an outbox in virtual time: replies that are lost, stores that go back in time, clients that die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from drr.backend import CALLS_KEPT_SECONDS
from drr.client import Client, Handle, Outbox
from drr.client.replay import LEAST_PAUSE
from drr.errors import (
    BacklogFull,
    InvalidConfiguration,
    JobExists,
    JobNotFound,
    OutboxFailed,
    OutboxFull,
    OutboxInUse,
    StoreFull,
    StoreUnavailable,
    SubmitPending,
)
from drr.model import JobState, call_nonce
from tests.helpers.client_bench import ClientBench, awaiting, jobs
from tests.helpers.rollback import rolled_back, saved, store_of

pytestmark = pytest.mark.anyio

HORIZON = 5.0


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[ClientBench]:
    made = ClientBench(fresh_namespace)
    yield made
    await made.store.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def boxed(bench: ClientBench, path: Path, seed: int = 1, patience: float = 10.0, **settings: Any) -> Client:
    return bench.client(seed, patience=patience, outbox=Outbox(path, horizon=HORIZON, in_thread=False, **settings))


def held(client: Client) -> int:
    assert client._outbox is not None
    return len(client._outbox)


async def submit(client: Client, what: str = "x", **options: Any) -> Handle[Any]:
    return await client.submit("echo", [what], tenant="acme/web", **options)


# --- the plain way --------------------------------------------------------------------------------------


async def test_a_submit_is_held_for_its_horizon_and_then_let_go(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        await submit(client)
        await bench.clock.advance(HORIZON - 0.01)
        assert held(client) == 1
        await bench.clock.advance(LEAST_PAUSE + 0.02)
        assert held(client) == 0
        assert await bench.queued() == 1
        assert bench.faults.calls.count("submit") == 1


async def test_many_submits_cost_the_store_few_questions_and_leave_nothing(bench: ClientBench, path: Path) -> None:
    """What the store keeps of the calls is let go as well."""
    async with boxed(bench, path) as client:
        for _ in range(200):
            await submit(client)
            await bench.clock.advance(0.01)
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 200)
        assert bench.faults.calls.count("calls") <= 100
        segments = len(store_of(bench.store).calls)
        assert segments >= 200 / 64
        assert bench.faults.calls.count("release_calls") == segments
        await bench.clock.advance(700.0)
        await submit(client)
        assert len(bench.store._store.calls) == 1  # type: ignore[attr-defined]


async def test_confirmed_waits_for_the_last_horizon(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client, anyio.create_task_group() as group:
        assert await client.submit_many(jobs(2500)) == 2500
        waiting = awaiting(group, client.confirmed)
        took = await bench.clock.run_until(lambda: waiting.over)
        assert HORIZON <= took <= HORIZON + 1.0
        assert held(client) == 0
        await submit(client)
        hasty = awaiting(group, client.confirmed, 1.0)
        await bench.clock.run_until(lambda: hasty.over)
        assert isinstance(hasty.error, TimeoutError)


async def test_a_refused_submit_leaves_nothing_behind(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        await submit(client, id="mine")
        with pytest.raises(JobExists):
            await submit(client, id="mine")
        assert held(client) == 1
    async with boxed(bench, path, seed=2) as client:
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 1)


# --- a reply, a client or a store is lost -----------------------------------------------------------------


@pytest.mark.parametrize("reached", [True, False], ids=["reached the store", "never left"])
async def test_an_unknown_submit_is_pending_and_ends_up_in_the_store_once(
    bench: ClientBench, path: Path, reached: bool
) -> None:
    async with boxed(bench, path, patience=0.0) as client:
        if reached:
            bench.faults.lost.add("submit")
        else:
            bench.faults.away.add("submit")
        with pytest.raises(SubmitPending, match="do not submit them again"):
            await submit(client)
        bench.faults.away.clear()
        await bench.clock.advance(2.0)
        assert await bench.queued() == 1
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 1)


@pytest.mark.parametrize("reached", [True, False], ids=["reached the store", "never left"])
async def test_what_a_dead_client_left_is_submitted_by_the_next(
    bench: ClientBench, path: Path, reached: bool
) -> None:
    async with boxed(bench, path, patience=0.0) as client:
        if reached:
            bench.faults.lost.add("submit")
        bench.faults.away.update({"submit"} if not reached else ())
        with pytest.raises(StoreUnavailable):
            await submit(client)
    bench.faults.away.clear()
    await bench.clock.advance(3600.0)
    async with boxed(bench, path, seed=2) as client:
        await bench.clock.settle()
        assert await bench.queued() == 1
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 1)


async def test_a_submit_that_is_cancelled_half_way_is_not_forgotten(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        bench.faults.away.add("submit")
        async with anyio.create_task_group() as group:
            group.start_soon(submit, client)
            await bench.clock.settle()
            group.cancel_scope.cancel()
        bench.faults.away.clear()
        await bench.clock.advance(6.0)
        assert await bench.queued() == 1


async def test_acknowledged_jobs_that_the_store_has_lost_are_submitted_again(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        for _ in range(10):
            await submit(client)
        image = saved(bench.store)
        lost = [await submit(client) for _ in range(100)]
        rolled_back(bench.store, image)
        assert await bench.queued() == 10
        await submit(client)  # the connection was made anew, nobody has noticed anything yet
        assert await bench.queued() == 11
        await bench.clock.advance(HORIZON + 1.0)
        assert await bench.queued() == 111
        assert client._replay is not None
        assert client._replay.lost == 100
        statuses = [await job.status() for job in lost]
        assert {status.state for status in statuses} == {JobState.QUEUED}
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 111)


async def test_without_an_outbox_they_are_lost(bench: ClientBench) -> None:
    """The control of the test above."""
    async with bench.client() as client:
        await submit(client)
        image = saved(bench.store)
        for _ in range(10):
            await submit(client)
        rolled_back(bench.store, image)
        await bench.clock.advance(60.0)
        assert await bench.queued() == 1


async def test_a_store_that_was_away_is_looked_at_without_waiting_for_the_horizon(
    bench: ClientBench, path: Path
) -> None:
    async with boxed(bench, path) as client, anyio.create_task_group() as group:
        image = saved(bench.store)
        await submit(client)
        rolled_back(bench.store, image)
        bench.faults.away.add("*")
        outcome = awaiting(group, submit, client)
        await bench.clock.advance(0.02)
        bench.faults.away.clear()
        await bench.clock.advance(1.0)
        assert outcome.value
        assert await bench.queued() == 2


async def test_a_lost_job_is_followed_to_its_new_id(bench: ClientBench, path: Path) -> None:
    """Somebody waits for it, and another job has taken its number."""
    async with boxed(bench, path) as client, bench.client(9) as other, anyio.create_task_group() as group:
        image = saved(bench.store)
        job = await submit(client, "found")
        waiting = awaiting(group, job.result)
        await bench.clock.advance(1.0)
        rolled_back(bench.store, image)
        await submit(other, "another")
        await bench.clock.advance(HORIZON + 1.0)
        assert client._current(job.id) != job.id
        async with bench.serving():
            await bench.clock.advance(40.0)
        assert waiting.value == "found"
        assert await job.result() == "found"


async def test_a_look_at_a_lost_job_brings_it_back_at_once(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        image = saved(bench.store)
        job = await submit(client)
        rolled_back(bench.store, image)
        assert (await job.status()).state is JobState.QUEUED
        assert await bench.queued() == 1
        with pytest.raises(JobNotFound):
            await client.handle(f"default:acme:api:5:77~{call_nonce('x', 1)}").status()


# --- how often a job can run ------------------------------------------------------------------------------


async def test_a_job_that_ended_and_was_forgotten_is_not_submitted_again(bench: ClientBench, path: Path) -> None:
    """The store remembers the call for a day, whatever has become of its job."""
    async with boxed(bench, path, patience=0.0) as client:
        bench.faults.lost.add("submit")
        with pytest.raises(SubmitPending):
            await client.submit("echo", tenant="acme/web", result_ttl=0)
    async with bench.serving():
        await bench.clock.advance(300.0)
    assert await bench.queued() == 0
    async with boxed(bench, path, seed=2) as client:
        await bench.clock.advance(HORIZON + 1.0)
        assert (held(client), await bench.queued()) == (0, 0)


async def test_what_the_store_may_have_forgotten_is_set_aside(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path, patience=0.0) as client:
        bench.faults.lost.add("submit")
        with pytest.raises(SubmitPending):
            await submit(client)
    await bench.clock.advance(CALLS_KEPT_SECONDS + 1.0)
    async with boxed(bench, path, seed=2) as client:
        await bench.clock.advance(60.0)
        assert await bench.queued() == 1, "it would be there twice"
        assert client._outbox is not None
        (entry,) = client._outbox.aside()
        assert "too old" in entry.reason
        await client._outbox.retry([entry.number])
    async with boxed(bench, path, seed=3) as client:
        await bench.clock.advance(60.0)
        assert (held(client), await bench.queued()) == (0, 2)


async def test_a_clock_that_jumps_sets_nothing_aside_while_the_client_lives(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path, patience=0.0) as client:
        bench.faults.away.add("submit")
        with pytest.raises(SubmitPending):
            await submit(client)
        wall = bench.clock.wall
        bench.clock.wall = lambda: wall() + 1e6  # type: ignore[method-assign]
        bench.faults.away.clear()
        await bench.clock.advance(6.0)
        assert await bench.queued() == 1


# --- refusals of what nobody waits for any more -----------------------------------------------------------


@pytest.mark.parametrize("error", [StoreFull("full"), BacklogFull(("acme",), "jobs", 1, 1, 0, 3.0)])
async def test_what_passes_is_waited_for(
    bench: ClientBench, path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with boxed(bench, path, patience=0.0) as client:
        bench.faults.away.add("submit")
        with pytest.raises(SubmitPending):
            await submit(client)
        monkeypatch.setattr(bench.faults, "error", lambda _: error)
        await bench.clock.advance(60.0)
        assert held(client) == 1
        bench.faults.away.clear()
        await bench.clock.advance(4.0)
        assert await bench.queued() == 1


async def test_what_is_refused_for_good_is_set_aside_and_holds_up_nobody(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path, patience=0.0) as client, bench.client(9) as other:
        bench.faults.away.add("submit")
        for options in ({"id": "mine"}, {}):
            with pytest.raises(SubmitPending):
                await submit(client, **options)
        bench.faults.away.clear()
        await submit(other, id="mine")
        await bench.clock.advance(HORIZON + 10.0)
        assert await bench.queued() == 2
        assert client._outbox is not None
        (entry,) = client._outbox.aside()
        assert "'mine' is taken" in entry.reason


# --- limits and files -------------------------------------------------------------------------------------


async def test_bulk_waits_for_room(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path, max_jobs=2000) as client, anyio.create_task_group() as group:
        outcome = awaiting(group, client.submit_many, jobs(5000))
        took = await bench.clock.run_until(lambda: outcome.over)
        assert outcome.value == 5000
        assert 2 * HORIZON <= took <= 2 * HORIZON + 2.0
        assert await bench.queued() == 5000


async def test_no_room_is_said_after_the_patience_and_nothing_was_sent(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path, patience=2.0, max_jobs=1000) as client, anyio.create_task_group() as group:
        await client.submit_many(jobs(1000))
        outcome = awaiting(group, submit, client)
        assert 1.9 <= await bench.clock.run_until(lambda: outcome.over) <= 2.1
        assert isinstance(outcome.error, OutboxFull)
        assert await bench.queued() == 1000


async def test_a_disk_that_fails_sends_nothing(
    bench: ClientBench, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with boxed(bench, path) as client:
        assert client._outbox is not None

        def fail(*_: object) -> None:
            raise OutboxFailed(path, "be written", "disk full")

        with monkeypatch.context() as patch:
            patch.setattr(client._outbox._journal, "write", fail)
            with pytest.raises(OutboxFailed):
                await submit(client)
        assert (held(client), await bench.queued()) == (0, 0)
        await submit(client)
        assert await bench.queued() == 1


async def test_a_file_and_an_outbox_serve_one_client(bench: ClientBench, path: Path) -> None:
    async with boxed(bench, path) as client:
        with pytest.raises(OutboxInUse):
            async with boxed(bench, path, seed=2):
                pass
        with pytest.raises(InvalidConfiguration, match="make another"):
            async with bench.client(3, outbox=client._outbox):
                pass
        await submit(client)
    async with boxed(bench, path, seed=2):
        await bench.clock.advance(1.0)
    assert await bench.queued() == 1


async def test_submits_at_one_time_share_a_flush(bench: ClientBench, path: Path) -> None:
    """In threads, as it is outside simulations."""
    outbox = Outbox(path)
    async with bench.client(outbox=outbox) as client:
        flushes = 0
        write = outbox._journal.write

        def counted(*args: Any) -> None:
            nonlocal flushes
            flushes += 1
            write(*args)

        outbox._journal.write = counted  # type: ignore[method-assign,assignment]
        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(submit, client)
        assert await bench.queued() == 50
        assert flushes <= 10
        assert len(outbox) == 50


async def test_cancelling_a_task_while_a_thread_writes_tears_nothing(bench: ClientBench, path: Path) -> None:
    async with bench.client(outbox=Outbox(path)) as client:
        rng = Random(5)
        for _ in range(30):
            tasks = [asyncio.ensure_future(submit(client)) for _ in range(5)]
            for _ in range(rng.randrange(6)):
                await asyncio.sleep(0)
            for task in tasks[:3]:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(not task.cancelled() for task in tasks[3:])
    queued = await bench.queued()
    assert 60 <= queued <= 150
    async with boxed(bench, path, seed=2) as client:
        await bench.clock.advance(HORIZON + 1.0)
        assert held(client) == 0
    assert queued <= await bench.queued() <= 150
