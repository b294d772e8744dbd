"""Client and worker together on a real server: what is submitted is run, and who waits is told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import anyio
import pytest

from drr.backend import open_backend
from drr.client import Client, Submission
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import JobFailed, StoreNotPrepared, StoreUnavailable
from drr.model import JobState, Lane
from drr.worker import Context, Worker
from tests.helpers.hand import HandDispatcher

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

PATIENCE = 60.0


@asynccontextmanager
async def dispatching(server: EmbeddedServer, namespace: str) -> AsyncIterator[HandDispatcher]:
    backend = open_backend(server.url, namespace=namespace, clock=SystemClock())
    hand = HandDispatcher(backend, SystemClock())
    try:
        await hand.start()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(hand.serve)
                yield hand
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await backend.close()


async def test_results_come_back_over_a_real_server(server: EmbeddedServer, fresh_namespace: str) -> None:
    worker = Worker(server.url, namespace=fresh_namespace, slots=8)

    @worker.task()
    async def greet(context: Context, name: str, *, loud: bool = False) -> str:
        text = f"hello {name} of {context.organisation}, attempt {context.attempt}"
        return text.upper() if loud else text

    @worker.task()
    def halve(number: int) -> float:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return number / 2

    async with (
        dispatching(server, fresh_namespace),
        anyio.create_task_group() as group,
        Client(server.url, namespace=fresh_namespace) as client,
    ):
        group.start_soon(worker.run)
        greeting = await client.submit(greet.bind("ada", loud=True), tenant="acme/web")
        halves = [await client.submit("halve", [number], tenant="globex/mail") for number in range(4)]
        assert await greeting.result() == "HELLO ADA OF ACME, ATTEMPT 1"
        assert [await halves[0].result(), await halves[2].result()] == [0.0, 1.0]
        for odd in (1, 3):
            with pytest.raises(JobFailed, match=f"ValueError: {odd} is odd"):
                await halves[odd].result()
        assert (await client.handle(greeting.id).status()).state is JobState.SUCCEEDED
        worker.stop()


async def test_fifty_thousand_jobs_are_submitted_in_order(server: EmbeddedServer, fresh_namespace: str) -> None:
    ids: list[str] = []

    def accepted(batch: Sequence[str]) -> None:
        ids.extend(batch)

    lanes = [Lane("default", (f"org{number}", "p"), 5) for number in range(10)]
    async with (
        dispatching(server, fresh_namespace),
        Client(server.url, namespace=fresh_namespace) as client,
    ):
        jobs = (Submission("noop", tenant=f"org{number % 10}/p", result_ttl=0) for number in range(50_000))
        assert await client.submit_many(jobs, accepted=accepted) == 50_000
        backend = open_backend(server.url, namespace=fresh_namespace, clock=SystemClock())
        assert await backend.lane_lengths(lanes) == [5_000] * 10
        await backend.close()
    numbers = [int(job_id.rpartition("~")[0].rpartition(":")[2]) for job_id in ids]
    assert numbers == sorted(set(numbers))
    assert len(numbers) == 50_000


async def test_a_store_that_was_never_prepared_says_so(server: EmbeddedServer, fresh_namespace: str) -> None:
    """Functions belong to the server, so this one is fresh."""
    with EmbeddedServer(binary=server.binary, appendfsync=None) as fresh:
        async with Client(fresh.url, namespace=fresh_namespace) as client:
            with pytest.raises(StoreNotPrepared, match="drr init"):
                await client.submit("noop", tenant="acme/web")
        with pytest.raises(StoreNotPrepared):
            await Worker(fresh.url, namespace=fresh_namespace, patience=0.0).run()


async def test_a_server_that_is_not_there_is_named() -> None:
    url = "redis://127.0.0.1:1"
    async with Client(url, patience=0.0) as client:
        with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
            await client.submit("noop", tenant="acme/web")
    with pytest.raises(StoreUnavailable, match=r"127\.0\.0\.1:1"):
        await Worker(url, patience=0.0).run()
