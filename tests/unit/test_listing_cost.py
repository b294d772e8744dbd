"""What a page of a listing costs, and pages as a client and a terminal get them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from drr.backend import Settlement
from drr.client import Client
from drr.errors import InvalidValue
from drr.model import JobState
from drr_backends.memory import MemoryBackend, open_memory
from drr_backends.memory.paging import list_jobs
from tests.contract.harness import Leader, completion, job
from tests.helpers.manual_clock import ManualClock
from tests.sim.work import count_bytecodes

pytestmark = pytest.mark.anyio


@pytest.fixture
async def backend() -> AsyncIterator[MemoryBackend]:
    found = open_memory("memory://", "drr", ManualClock())
    yield found
    await found.close()


async def fill(backend: MemoryBackend, number: int, due_at: float = 0.0) -> list[str]:
    ids: list[str] = []
    while len(ids) < number:
        specs = [job(due_at=due_at) for _ in range(min(1000, number - len(ids)))]
        ids += await backend.submit("client", len(ids) + 1, specs)
    return ids


@pytest.mark.parametrize(("state", "due"), [(JobState.QUEUED, 0.0), (JobState.DELAYED, 1e10)])
async def test_a_page_in_the_middle_costs_the_same_at_any_depth(state: JobState, due: float) -> None:
    costs = []
    for depth in (100, 20_000):
        backend = open_memory("memory://", "drr", ManualClock())
        await fill(backend, depth, due_at=due)
        store, cursor = backend._store, ""
        for _ in range(depth // 100):
            cursor = list_jobs(store, ("acme",), state, 50, cursor).cursor
        costs.append(count_bytecodes(lambda: list_jobs(store, ("acme",), state, 50, cursor)))  # noqa: B023
        await backend.close()
    assert costs[1] <= 1.5 * costs[0], "but for the logarithm"


async def test_pages_are_as_long_as_asked_and_join_up(backend: MemoryBackend) -> None:
    ids = await fill(backend, 25)
    async with Client(backend) as client:
        found: list[str] = []
        cursor, sizes = "", []
        while True:
            page = await client.jobs_page("acme", limit=10, cursor=cursor)
            sizes.append(len(page.jobs))
            found += [listed.job_id for listed in page.jobs]
            cursor = page.cursor
            if not cursor:
                break
        assert (found, sizes) == (ids, [10, 10, 5])
        assert (await client.jobs_page("acme", task="other", limit=10)).jobs == ()
        assert (await client.jobs_page("acme", task="other", limit=10)).cursor != "", (
            "it goes on behind what was passed"
        )
        for limit in (0, 1001):
            with pytest.raises(InvalidValue):
                await client.jobs_page("acme", limit=limit)


async def test_letters_go_on_behind_a_number(backend: MemoryBackend) -> None:
    leader = await Leader(backend).take_over()
    for lease in await leader.start(*[job() for _ in range(3)]):
        await leader.commit(settlements=[Settlement(lease, completion(JobState.FAILED), bury="for the test")])
    async with Client(backend) as client:
        numbers = [letter.number async for letter in client.dead()]
        assert len(numbers) == 3
        assert [letter.number async for letter in client.dead(after=numbers[0])] == numbers[1:]
