"""A handler that computes without awaiting, in a real worker process and under a real dispatcher.

Time is counted in heartbeats that the store saw, so that a slow machine makes these tests longer and nothing else.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import anyio
import anyio.to_thread
import pytest

from drr.backend import Backend, WorkerRecord, open_backend
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher
from drr.embedded import EmbeddedServer
from tests.processes.test_worker_process import begun, submit, until, worker_process

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 2.0
BEAT = 0.2
PATIENCE = 60.0


@asynccontextmanager
async def dispatching(server: EmbeddedServer, namespace: str) -> AsyncIterator[tuple[Dispatcher, Backend]]:
    """A dispatcher that leads, and a handle on its store."""
    backend = open_backend(server.url, namespace=namespace, clock=SystemClock())
    with anyio.fail_after(PATIENCE):
        try:
            async with Dispatcher(server.url, namespace=namespace, lease=LEASE) as dispatcher:
                await dispatcher.wait_leading()
                yield dispatcher, backend
        finally:
            await backend.close()


async def record_of(backend: Backend) -> WorkerRecord:
    record = await backend.worker_record("w1")
    assert record is not None
    return record


async def after_beats(backend: Backend, renewals: float) -> WorkerRecord:
    """Return the worker's record when its counter of heartbeats has reached a number."""
    while (record := await record_of(backend)).renewals < renewals:  # noqa: ASYNC110  # no event crosses processes
        await anyio.sleep(0.02)
    return record


async def line_of(stream: IO[str] | None, words: str) -> str:
    """Return the first line of a process's log that holds ``words``."""
    assert stream is not None
    while words not in (line := await anyio.to_thread.run_sync(stream.readline)):
        assert line, f"the log ended without {words!r}"
    return line


async def test_a_blocked_loop_keeps_lease_and_heartbeat_and_is_told_of(
    valkey_server: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    settings = {"lease": LEASE, "heartbeat": BEAT, "blocked_after": 0.5}
    async with dispatching(valkey_server, fresh_namespace) as (dispatcher, backend):
        with worker_process(valkey_server, fresh_namespace, **settings) as process:
            [job_id] = await submit(backend, 1, "block", release)
            await begun(release)
            first = (await record_of(backend)).renewals
            record = await after_beats(backend, first + 2 * LEASE / BEAT)
            assert record.blocks == 1, "counted while it lasts"
            assert (dispatcher.counters.lost, dispatcher.counters.succeeded) == (0, 0)
            warning = await line_of(process.stderr, "the event loop has been blocked")
            assert f"by job {job_id} (task block), in " in warning
            assert "worker_app.py:" in warning
            release.touch()
            ended = await line_of(process.stderr, "the event loop turns again")
            assert f"blocked by job {job_id} (task block)" in ended
            await until(lambda: dispatcher.counters.succeeded)
            assert (dispatcher.counters.lost, dispatcher.counters.dispatched) == (0, 1)


async def test_negative_control_without_its_thread_the_heartbeat_stops_and_the_lease_is_lost(
    valkey_server: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    settings = {"lease": LEASE, "heartbeat": BEAT, "blocked_after": 0.5, "heartbeat_in_thread": False}
    async with dispatching(valkey_server, fresh_namespace) as (dispatcher, backend):
        with worker_process(valkey_server, fresh_namespace, **settings):
            await submit(backend, 1, "block", release)
            await begun(release)
            await until(lambda: dispatcher.counters.lost)
            assert dispatcher.counters.succeeded == 0
            release.touch()


async def test_a_handler_in_a_thread_blocks_nothing(
    valkey_server: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    release = tmp_path / "release"
    settings = {"lease": LEASE, "heartbeat": BEAT, "blocked_after": 0.5}
    async with dispatching(valkey_server, fresh_namespace) as (dispatcher, backend):
        with worker_process(valkey_server, fresh_namespace, **settings):
            await submit(backend, 1, "stick", release)
            await begun(release)
            first = (await record_of(backend)).renewals
            assert (await after_beats(backend, first + 5)).blocks == 0
            release.touch()
            await until(lambda: dispatcher.counters.succeeded)
