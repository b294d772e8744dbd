"""Outboxes against real servers that are killed and come back with less than they had acknowledged."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from drr.backend import open_backend
from drr.client import Client, Outbox, Submission
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import ServerNotFound
from drr.model import JobState
from drr.worker import Worker
from tests.helpers.hand import HandDispatcher
from tests.redis.harness import RedisHarness

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

PATIENCE = 60.0
SAVED, AFTER = 150, 350
"""Jobs before the server wrote its data to disk, and jobs that it only had in memory."""


@pytest.fixture(params=["valkey-server", "redis-server"])
def forgetful(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A server that keeps on disk what it is told to save, and nothing else."""
    try:
        server = EmbeddedServer(binary=request.param, appendfsync=None)
    except ServerNotFound as missing:
        pytest.skip(str(missing))
    with server:
        yield server


async def prepared(server: EmbeddedServer, namespace: str) -> None:
    backend = open_backend(server.url, namespace=namespace, clock=SystemClock())
    await backend.prepare()
    await backend.close()


async def submitted(client: Client, numbers: range) -> list[str]:
    """Submit jobs one by one from several tasks; return their ids in the order of the numbers."""
    ids: dict[int, str] = {}

    async def part(mine: range) -> None:
        for number in mine:
            ids[number] = (await client.submit("note", [number], tenant="acme/web")).id

    async with anyio.create_task_group() as group:
        for first in range(8):
            group.start_soon(part, numbers[first::8])
    return [ids[number] for number in numbers]


async def save(server: EmbeddedServer) -> None:
    store = RedisHarness(server.url, "any")
    await store.raw("SAVE")
    await store.close()


async def run_everything(server: EmbeddedServer, namespace: str, wanted: int) -> Counter[int]:
    """Have all jobs run; return how often each number was."""
    seen: Counter[int] = Counter()
    worker = Worker(server.url, namespace=namespace, slots=50)

    @worker.task("note")
    async def note(number: int) -> None:
        seen[number] += 1
        if len(seen) >= wanted:
            worker.stop()

    backend = open_backend(server.url, namespace=namespace, clock=SystemClock())
    hand = HandDispatcher(backend, SystemClock())
    await hand.start()
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(hand.serve)
            await worker.run()
            group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await backend.close()
    return seen


@asynccontextmanager
async def client_of(server: EmbeddedServer, namespace: str, path: Path):  # type: ignore[no-untyped-def]
    outbox = Outbox(path, horizon=2.0)
    async with Client(server.url, namespace=namespace, outbox=outbox, patience=30.0) as client:
        yield client


async def test_what_a_killed_server_had_acknowledged_and_lost_is_submitted_again(
    forgetful: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    server, total = forgetful, SAVED + AFTER
    with anyio.fail_after(PATIENCE):
        await prepared(server, fresh_namespace)
        async with client_of(server, fresh_namespace, tmp_path / "outbox") as client:
            ids = await submitted(client, range(SAVED))
            await save(server)
            ids += await submitted(client, range(SAVED, total))
            server.kill()
            server.restart()
            await client.submit("note", [total], tenant="acme/web")
            await client.confirmed()
            assert client._outbox is not None
            assert (len(client._outbox), client._outbox.aside()) == (0, [])
            for job_id in ids:
                status = await client.look_up(job_id)
                assert status is not None
                assert status.state is JobState.QUEUED
        seen = await run_everything(server, fresh_namespace, total + 1)
    assert seen == Counter(range(total + 1))


async def test_a_client_that_died_with_the_server_has_it_all_in_its_outbox(
    forgetful: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    """The server comes back with nothing at all, not even its functions; they are loaded after the client's start."""
    server = forgetful
    with anyio.fail_after(PATIENCE):
        await prepared(server, fresh_namespace)
        outbox = Outbox(tmp_path / "outbox", horizon=600.0)
        async with Client(server.url, namespace=fresh_namespace, outbox=outbox) as client:
            await client.submit_many(Submission("note", [number], tenant="acme/web") for number in range(2500))
            assert outbox.jobs == 2500
        server.kill()
        server.restart()
        async with client_of(server, fresh_namespace, tmp_path / "outbox") as client:
            await prepared(server, fresh_namespace)
            await client.confirmed()
        seen = await run_everything(server, fresh_namespace, 2500)
    assert seen == Counter(range(2500))


async def test_without_an_outbox_the_jobs_are_lost(forgetful: EmbeddedServer, fresh_namespace: str) -> None:
    """The control of the tests above."""
    server = forgetful
    with anyio.fail_after(PATIENCE):
        await prepared(server, fresh_namespace)
        async with Client(server.url, namespace=fresh_namespace, patience=30.0) as client:
            await submitted(client, range(SAVED))
            await save(server)
            await submitted(client, range(SAVED, SAVED + AFTER))
            server.kill()
            server.restart()
            await client.submit("note", [SAVED], tenant="acme/web")
        seen = await run_everything(server, fresh_namespace, SAVED + 1)
    assert sorted(seen) == list(range(SAVED + 1))
