"""What is kept beside the jobs: settings, changes, usage, estimates, histories, requests, progress, stops."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from drr.backend import (
    CHANGES_KEPT,
    PROGRESS_LIMIT,
    Backend,
    ChangeRecord,
    DropDelayed,
    EstimateKey,
    Event,
    EventKind,
    Listed,
    Request,
    RequestKind,
    Requeue,
    Settlement,
    Strike,
    Usage,
    UsageKey,
)
from drr.errors import InvalidValue
from drr.model import (
    ANY,
    JobState,
    NodePolicy,
    PoolPolicy,
    Quota,
    Settings,
    Share,
    SharedLimit,
)
from tests.contract.harness import LANE, LONG, OTHER, URGENT, Harness, Leader, completion, heads, job, reading, submit

pytestmark = pytest.mark.anyio

WEB = ("acme", "web")


# --- settings, changes, estimates -------------------------------------------------------------------------


async def test_all_settings_come_back(backend: Backend, leader: Leader) -> None:
    settings = Settings(
        pools={"gpu": PoolPolicy(2.0, 30.0, 1, 5.0, lease=12.5)},
        nodes={"gpu": {("acme",): NodePolicy(2.0, soft_cap=Share(0.5), hard_cap=7)}},
        plans="[plans.pro]\nweight = 2\n",
        assigned={"acme": "pro"},
        quotas={(ANY,): Quota(5, 10.0, 2.0, 7), (ANY, ANY): Quota(), ("acme", ANY): Quota(rate=0.5)},
        limits={"db": SharedLimit(50, 2.5, 3, 5, 2), "x": SharedLimit()},
    )
    await leader.commit(settings=settings)
    assert await backend.settings() == settings
    assert (await backend.load(leader.token)).settings == settings


async def test_the_log_of_changes_is_latest_first_and_bounded(backend: Backend, leader: Leader) -> None:
    lines = [ChangeRecord(float(number), f"r{number}", "me", f"change {number}") for number in range(3)]
    lines.append(ChangeRecord(3.0, "", "", "nothing", "it makes no sense"))
    await leader.commit(changes=lines[:2])
    await leader.commit(changes=lines[2:])
    assert await backend.changes() == lines[::-1]
    assert await backend.changes(1) == lines[-1:]
    assert await backend.changes(0) == []
    many = [ChangeRecord(float(number), "", "", "x") for number in range(1000)]
    await leader.commit(changes=many)
    assert len(await backend.changes(1000)) == CHANGES_KEPT


async def test_estimates_are_kept_and_forgotten(backend: Backend, leader: Leader) -> None:
    task, project, pool = (
        EstimateKey("default", WEB, "mail"),
        EstimateKey("default", WEB, ""),
        EstimateKey("gpu", (), ""),
    )
    await leader.commit(estimates={task: b"\x00a", project: b"b", pool: b"c"})
    assert (await backend.load(leader.token)).estimates == {task: b"\x00a", project: b"b", pool: b"c"}
    await leader.commit(estimates={task: b"d", project: None})
    assert (await backend.load(leader.token)).estimates == {task: b"d", pool: b"c"}


# --- usage ------------------------------------------------------------------------------------------------


async def test_usage_adds_up_by_hour_and_project(backend: Backend, leader: Leader) -> None:
    hour = int(time.time() // 3600)
    web, other = UsageKey(hour, WEB, "default"), UsageKey(hour - 30, ("acme", "mail"), "gpu")
    mine = Usage(succeeded=1, failed=2, lost=1, held=1.5, charged=1.0, refunded=0.5)
    await leader.commit(usage={web: mine, other: Usage(expired=1)})
    await leader.commit(usage={web: Usage(succeeded=1, cancelled=1, timed_out=1, returned=1, held=0.1, charged=0.1)})
    total = Usage(2, 2, 1, 1, 1, 1, 0, 1.6, 1.1, 0.5)
    assert await backend.usage("acme", hour, hour + 1) == {web: total}
    assert await backend.usage("acme", hour - 48, hour + 1) == {web: total, other: Usage(expired=1)}
    assert await backend.usage("acme", hour - 48, hour) == {other: Usage(expired=1)}
    assert await backend.usage("globex", hour - 48, hour + 1) == {}
    assert await backend.usage("acme", 0, 10**7) == {web: total, other: Usage(expired=1)}
    with pytest.raises(InvalidValue):
        await backend.usage("acme", -1, hour)
    assert total.attempts == 8


async def test_worker_seconds_are_exact_to_the_microsecond(backend: Backend, leader: Leader) -> None:
    hour = int(time.time() // 3600)
    key = UsageKey(hour, WEB, "default")
    for _ in range(30):
        await leader.commit(usage={key: Usage(succeeded=1, held=0.1, charged=0.1)})
    assert (await backend.usage("acme", hour, hour + 1))[key] == Usage(succeeded=30, held=3.0, charged=3.0)


# --- listings ---------------------------------------------------------------------------------------------


async def listed(backend: Backend, path: tuple[str, ...], state: JobState, limit: int = 100) -> list[Listed]:
    """All pages of a listing."""
    found: list[Listed] = []
    cursor, pages = "", 0
    while True:
        page = await backend.list_jobs(path, state, limit, cursor)
        found += page.jobs
        cursor, pages = page.cursor, pages + 1
        assert pages < 100
        if not cursor:
            return found


@pytest.mark.parametrize("limit", [1, 2, 100])
async def test_jobs_are_listed_by_tenant_and_state(backend: Backend, leader: Leader, limit: int) -> None:
    a, b = await leader.start(job(task="one"), job(OTHER, task="two"))
    queued = await submit(backend, job(task="three"), job(URGENT), job(OTHER), job(LANE._replace(pool="gpu")))
    due = time.time() + 1e6
    late = await submit(backend, job(task="four", due_at=due), job(OTHER, due_at=due + 1))
    ours = await listed(backend, ("acme",), JobState.QUEUED, limit)
    assert sorted(item.job_id for item in ours) == sorted([queued[0], queued[1], queued[3]])
    assert {item.task for item in ours} == {"three", "work"}
    assert [item.job_id for item in await listed(backend, ("globex", "mail"), JobState.QUEUED, limit)] == [queued[2]]
    assert await listed(backend, ("globex", "other"), JobState.QUEUED, limit) == []
    [running] = await listed(backend, ("acme",), JobState.RUNNING, limit)
    assert running == Listed(a.header.job_id, "one", JobState.RUNNING, 1, a.header.submitted_at)
    [delayed] = await listed(backend, WEB, JobState.DELAYED, limit)
    assert (delayed.job_id, delayed.task) == (late[0], "four")
    assert delayed.at == pytest.approx(due)
    await leader.settle(a, b)
    [done] = await listed(backend, ("globex",), JobState.SUCCEEDED, limit)
    assert done == Listed(b.header.job_id, "two", JobState.SUCCEEDED, 1, 1_700_000_001.5, 0.25)


async def test_every_way_to_end_is_in_the_history_latest_first(backend: Backend, leader: Leader) -> None:
    a, b = await leader.start(job(), job())
    await leader.commit(settlements=[Settlement(a, completion(JobState.FAILED, error="e" * 500))])
    await leader.settle(b)
    await submit(backend, job(), job())
    first, second = await heads(backend)
    await leader.commit(strikes=[Strike(second, completion(JobState.CANCELLED))])
    [failed] = await listed(backend, ("acme",), JobState.FAILED)
    assert failed.error == "e" * 200
    assert [item.job_id for item in await listed(backend, WEB, JobState.CANCELLED)] == [second.job_id]
    assert await listed(backend, ("acme", "other"), JobState.CANCELLED) == []
    assert [item.job_id for item in await listed(backend, WEB, JobState.QUEUED)] == [first.job_id]


async def pages(backend: Backend, state: JobState, between: Callable[[int], Awaitable[object]]) -> list[str]:
    """Turn the pages of a listing, two jobs each, and let something happen after each of them."""
    found: list[str] = []
    cursor, number = "", 0
    while True:
        page = await backend.list_jobs(("acme",), state, 2, cursor)
        found += [item.job_id for item in page.jobs]
        cursor, number = page.cursor, number + 1
        if not cursor:
            return found
        assert number < 50
        await between(number)


async def leave_alone(number: int) -> None:
    pass


async def test_a_queue_that_moves_while_its_pages_are_turned_hides_no_job(backend: Backend, leader: Leader) -> None:
    ids = await submit(backend, *[job() for _ in range(12)])

    async def start_three(number: int) -> None:
        if number < 3:
            await leader.dispatch(*(await heads(backend))[:3])

    # Two are listed, then three have started, of which the third was not listed, and so on.
    assert await pages(backend, JobState.QUEUED, start_three) == [*ids[:2], *ids[3:5], *ids[6:]]


async def test_jobs_that_come_back_while_pages_are_turned_hide_none_that_waits(
    backend: Backend, leader: Leader
) -> None:
    ids = await submit(backend, *[job() for _ in range(10)])
    leases = await leader.dispatch(*(await heads(backend))[:4])

    async def two_come_back(number: int) -> None:
        if number < 3:
            await leader.commit(requeues=[Requeue(leases.pop(), 1, 0), Requeue(leases.pop(), 1, 0)])

    found = await pages(backend, JobState.QUEUED, two_come_back)
    assert [job_id for job_id in found if job_id in ids[4:]] == ids[4:]
    assert await pages(backend, JobState.QUEUED, leave_alone) == ids
    started: list[str] = []

    async def start_one(number: int) -> None:
        if number < 4:
            [lease] = await leader.dispatch(*(await heads(backend))[:1])
            started.append(lease.header.job_id)

    assert await pages(backend, JobState.QUEUED, start_one) == ids, "those that came back, too"
    assert started == ids[:3]


async def test_delayed_jobs_are_listed_though_earlier_ones_go(backend: Backend, leader: Leader) -> None:
    due = time.time() + 1e6
    ids = await submit(backend, *[job(due_at=due + number // 3) for number in range(9)])

    async def drop_two(number: int) -> None:
        first = (await backend.due(due + 100, 2)).jobs if number < 3 else ()
        ends = [DropDelayed(header, completion(JobState.CANCELLED)) for header in first]
        await leader.commit(drops_delayed=ends)

    assert await pages(backend, JobState.DELAYED, drop_two) == ids


async def test_a_history_that_grows_repeats_nothing(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job() for _ in range(10)])
    await leader.settle(*leases[:6])

    async def end_another(number: int) -> None:
        if number < 4:
            await leader.settle(leases[5 + number])

    expected = [lease.header.job_id for lease in reversed(leases[:6])]
    assert await pages(backend, JobState.SUCCEEDED, end_another) == expected


async def test_bad_cursors_and_limits_are_refused(backend: Backend) -> None:
    for state in JobState:
        with pytest.raises(InvalidValue):
            await backend.list_jobs(("acme",), state, 10, "nonsense")
        with pytest.raises(InvalidValue):
            await backend.list_jobs(("acme",), state, 0)
    with pytest.raises(InvalidValue):
        await backend.list_jobs((), JobState.QUEUED)


# --- requests ---------------------------------------------------------------------------------------------


async def test_what_is_asked_reaches_the_leader_in_order_and_once(
    backend: Backend, harness: Harness, leader: Leader
) -> None:
    asked = [
        Request(RequestKind.CANCEL, "default:acme:web:5:1~n", id="r1", by="Ada"),
        Request(RequestKind.REVIVE, "7"),
        Request(RequestKind.ASSIGN, "acme pro"),
    ]
    async with reading(harness, lambda: backend.receive(leader.position, LONG)) as result:
        await harness.open().request(asked)
    assert result.value.requests[0] == asked[0], "the first wakes"
    assert (await backend.receive(leader.position, 0)).requests == tuple(asked)
    plans = Request(RequestKind.PLANS, "plans.toml", b"[plans.pro]\n")
    await backend.request([plans])
    again = await leader.receive()
    assert again.requests == (*asked, plans), "until a commit says that they were read"
    await leader.commit()
    assert (await leader.receive()).requests == ()
    assert (await backend.load(leader.token)).position.requests == leader.position.requests
    await backend.request([])


@pytest.mark.parametrize(
    "wrong",
    [
        [Request(RequestKind.CANCEL, "x" * 5000)],
        [Request(RequestKind.CANCEL, "x", id="a b")],
        [Request(RequestKind.CANCEL, "x", by="x" * 201)],
        [Request(RequestKind.PLANS, "x", b"x" * (1024 * 1024 + 1))],
        [Request(RequestKind.PLANS, "x", b"x")] * 2,
        [Request(RequestKind.CANCEL, "x")] * 1001,
    ],
)
async def test_requests_have_limits(backend: Backend, wrong: list[Request]) -> None:
    with pytest.raises(InvalidValue):
        await backend.request(wrong)


# --- running jobs -----------------------------------------------------------------------------------------


async def test_a_marked_lease_and_its_token_reach_leader_and_workers(
    backend: Backend, harness: Harness, leader: Leader
) -> None:
    a, b = await leader.start(job(), job())
    cursor, tokens = await backend.stops("", 0)
    assert tokens == []
    async with reading(harness, lambda: backend.stops(cursor, LONG)) as result:
        marked = replace(a, cancelled=True)
        await Leader.commit(leader, charges={a.token: marked}, stops=[a.token])
    assert result.value[1] == [a.token]
    assert set((await backend.load(leader.token)).leases) == {marked, b}
    assert (await backend.stops("", 0))[1] == [a.token]
    assert (await backend.stops(result.value[0], 0))[1] == []
    await leader.settle(marked, state=JobState.CANCELLED)
    assert (await backend.stops("", 0))[1] == []


async def test_what_is_put_back_need_not_stop(backend: Backend, leader: Leader) -> None:
    [lease] = await leader.start(job())
    await leader.commit(charges={lease.token: replace(lease, cancelled=True)}, stops=[lease.token])
    await leader.commit(requeues=[Requeue(lease, 1, 0)])
    assert (await backend.stops("", 0))[1] == []


async def test_progress_is_kept_while_the_lease_lives(backend: Backend, leader: Leader) -> None:
    [lease] = await leader.start(job())
    job_id = lease.header.job_id
    assert await backend.progress([job_id]) == [None]
    assert await backend.report_progress(lease.token, job_id, b"half")
    assert await backend.report_progress(lease.token, job_id, b"more")
    assert await backend.progress([job_id]) == [b"more"]
    assert not await backend.report_progress("another", job_id, b"x")
    assert not await backend.report_progress(lease.token, "default:acme:web:5:999~n", b"x")
    with pytest.raises(InvalidValue):
        await backend.report_progress(lease.token, job_id, b"x" * (PROGRESS_LIMIT + 1))
    await leader.settle(lease)
    assert not await backend.report_progress(lease.token, job_id, b"late")
    assert await backend.progress([]) == []


async def test_a_pause_travels_with_its_event(backend: Backend, leader: Leader) -> None:
    event = Event("t", EventKind.FAILED, "w1", 0.5, b"", "busy", retry_after=30.0)
    await backend.report([event, Event("u", EventKind.CANCELLED, "w1", 0.5)])
    assert (await leader.receive()).events == (event, Event("u", EventKind.CANCELLED, "w1", 0.5))
