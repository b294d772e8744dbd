"""Cancelling all of a tenant's jobs while they move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from drr.backend import Page, Postpone, RequestKind
from drr.client import Client
from drr.model import JobState, TenantPath
from drr_backends.memory import MemoryBackend, open_memory
from tests.contract.harness import Leader, job
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend() -> AsyncIterator[MemoryBackend]:
    found = open_memory("memory://", "drr", ManualClock())
    yield found
    await found.close()


class Moving:
    """A tenant with two running jobs; the first fails, and waits to be tried again, after the delayed are listed."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.backend = backend
        self.listed: list[JobState] = []
        self._list = backend.list_jobs
        backend.list_jobs = self.list_jobs  # type: ignore[method-assign]

    async def start(self) -> None:
        self.leader = await Leader(self.backend).take_over()
        self.leases = await self.leader.start(job(), job())

    async def list_jobs(self, path: TenantPath, state: JobState, limit: int = 100, cursor: str = "") -> Page:
        self.listed.append(state)
        page = await self._list(path, state, limit, cursor)
        if self.listed == [JobState.DELAYED]:
            await self.leader.commit(postpones=[Postpone(self.leases[0], 1e10, 1, 0, 1)])
        return page

    async def asked(self) -> list[str]:
        facts = await self.leader.receive()
        requests: Any = facts.requests
        assert {request.kind for request in requests} == {RequestKind.CANCEL}
        return [request.subject for request in requests]


async def test_a_retry_that_waits_behind_the_listing_is_cancelled_too(backend: MemoryBackend) -> None:
    moving = Moving(backend)
    await moving.start()
    async with Client(backend) as client:
        assert await client.cancel_all("acme") == 2
        assert sorted(await moving.asked()) == sorted(lease.header.job_id for lease in moving.leases)


async def test_with_one_look_it_is_missed(backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control."""
    monkeypatch.setattr("drr.client.operations.SWEEPS", 0)
    moving = Moving(backend)
    await moving.start()
    async with Client(backend) as client:
        assert await client.cancel_all("acme") == 1


async def test_without_a_dispatcher_nobody_is_asked_twice(backend: MemoryBackend) -> None:
    """What was asked for stands where it was until somebody carries it out."""
    leader = await Leader(backend).take_over()
    await leader.start(job(), job())
    for call in (1, 2):
        await backend.submit("other", call, [job() for _ in range(750)])
    async with Client(backend) as client:
        assert await client.cancel_all("acme") == 1502
        assert await client.cancel_all("acme", states=["queued"]) == 1500
