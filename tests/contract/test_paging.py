"""Contract: a listing that is read page by page while the queues move skips nothing and tells nothing twice."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import pytest

from drr.backend import Backend, Mature, Requeue, Strike
from drr.errors import InvalidValue
from drr.model import Header, JobState
from tests.contract.harness import (
    LANE,
    OTHER,
    RENDERS,
    URGENT,
    Harness,
    Leader,
    completion,
    heads,
    job,
    submit,
    window,
)

pytestmark = pytest.mark.anyio

ACME = ("acme",)


async def pages(
    backend: Backend,
    state: JobState,
    limit: int,
    between: Callable[[int], Awaitable[None]],
    path: tuple[str, ...] = ACME,
) -> list[str]:
    """The ids of a listing; ``between`` is done after each page."""
    found: list[str] = []
    cursor = ""
    for number in range(100):
        page = await backend.list_jobs(path, state, limit, cursor)
        assert len(page.jobs) <= limit
        found += [listed.job_id for listed in page.jobs]
        cursor = page.cursor
        if not cursor:
            return found
        await between(number)
    raise AssertionError("the listing does not end")


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_a_head_that_leaves_between_pages_skips_nothing(backend: Backend, leader: Leader, limit: int) -> None:
    ids = await submit(backend, *[job() for _ in range(8)])

    async def pop(_: int) -> None:
        if first := await heads(backend):
            await leader.dispatch(first[0])

    found = await pages(backend, JobState.QUEUED, limit, pop)
    assert len(found) == len(set(found))
    waiting = [header.job_id for header in await heads(backend)]
    assert set(waiting) <= set(found), "what waits to the end is told"
    assert found == sorted(found, key=ids.index)


async def test_what_is_put_back_between_pages_repeats_nothing(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job() for _ in range(6)])
    fresh = await submit(backend, *[job() for _ in range(3)])
    await leader.commit(requeues=[Requeue(lease, 1, 0) for lease in leases[:4]])
    standing = [header.job_id for header in await heads(backend)]

    async def put_back(number: int) -> None:
        if number < 2:
            await leader.commit(requeues=[Requeue(leases[4 + number], 1, 0)])

    found = await pages(backend, JobState.QUEUED, 2, put_back)
    assert found == standing
    assert found[-3:] == fresh


async def test_put_back_jobs_that_leave_between_pages_skip_nothing(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job() for _ in range(5)])
    await submit(backend, *[job() for _ in range(2)])
    await leader.commit(requeues=[Requeue(lease, 1, 0) for lease in leases])
    standing = [header.job_id for header in await heads(backend)]

    async def pop(_: int) -> None:
        await leader.dispatch((await heads(backend))[0])

    assert await pages(backend, JobState.QUEUED, 2, pop) == standing


async def test_the_listing_goes_on_where_a_lane_has_gone(backend: Backend, leader: Leader) -> None:
    lanes = sorted([LANE, URGENT, RENDERS], key=str)
    ids = await submit(backend, *[job(lane) for lane in lanes for _ in range(2)], job(OTHER))

    async def drain(number: int) -> None:
        if number == 0:
            await leader.dispatch(*await heads(backend, lanes[0]))

    assert await pages(backend, JobState.QUEUED, 1, drain) == [ids[0], *ids[2:6]]


async def test_cancelled_jobs_and_foreign_bytes_between_pages(
    backend: Backend, leader: Leader, harness: Harness
) -> None:
    ids = await submit(backend, *[job() for _ in range(3)])
    for _ in range(5):
        await harness.plant_entry(LANE, b"no job at all")
    ids += await submit(backend, *[job() for _ in range(3)])

    async def strike(number: int) -> None:
        if number == 0:
            standing = {header.job_id: header for header in await jobs_of(backend)}
            await leader.commit(strikes=[Strike(standing[ids[1]], completion(JobState.CANCELLED))])
        if number == 2:
            await leader.dispatch((await jobs_of(backend))[0])

    assert await pages(backend, JobState.QUEUED, 2, strike) == [*ids[:2], *ids[2:]]


async def jobs_of(backend: Backend) -> list[Header]:
    return [entry for entry in (await window(backend)).entries if isinstance(entry, Header)]


@pytest.mark.parametrize("limit", [1, 2])
async def test_delayed_jobs_go_by_due_time_then_number(backend: Backend, leader: Leader, limit: int) -> None:
    due = time.time() + 1e5
    ids = await submit(backend, *[job(due_at=due) for _ in range(5)], job(due_at=due - 1), job(due_at=due + 1))

    async def mature(number: int) -> None:
        if number == 0:
            headers = (await backend.due(due + 10)).jobs
            await leader.commit(matures=[Mature(header) for header in headers[:2]])

    assert await pages(backend, JobState.DELAYED, limit, mature) == [ids[5], *ids[2 - limit : 5], ids[6]]


async def test_ends_between_pages_repeat_nothing(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job() for _ in range(9)])
    for lease in leases[:5]:
        await leader.settle(lease)

    async def more(number: int) -> None:
        if number < 2:
            await leader.settle(leases[5 + 2 * number], leases[6 + 2 * number])

    found = await pages(backend, JobState.SUCCEEDED, 2, more)
    assert found == [lease.header.job_id for lease in reversed(leases[:5])]


async def test_running_jobs_that_end_between_pages_skip_nothing(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job() for _ in range(6)])

    async def end(number: int) -> None:
        if number < 2:
            await leader.settle(leases[number])

    found = await pages_of_running(backend, end)
    assert set(found) >= {lease.header.job_id for lease in leases[2:]}


async def pages_of_running(backend: Backend, between: Callable[[int], Awaitable[None]]) -> list[str]:
    found: list[str] = []
    cursor, number = "", 0
    while number == 0 or cursor:
        page = await backend.list_jobs(ACME, JobState.RUNNING, 2, cursor)
        found += [listed.job_id for listed in page.jobs]
        cursor = page.cursor
        await between(number)
        number += 1
    return found


@pytest.mark.parametrize(
    ("state", "cursor"),
    [
        (JobState.QUEUED, "default:acme:web:5|x1"),
        (JobState.QUEUED, "default:acme:web:5|b"),
        (JobState.QUEUED, "7"),
        (JobState.DELAYED, "nan|1"),
        (JobState.DELAYED, "1.0|x"),
    ],
)
async def test_cursors_of_no_listing_are_refused(backend: Backend, state: JobState, cursor: str) -> None:
    with pytest.raises(InvalidValue, match="cursor of a listing"):
        await backend.list_jobs(ACME, state, 10, cursor)
