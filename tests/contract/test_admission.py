"""Who may submit how much, and what is recognised: quotas, keys, names, limits."""

from __future__ import annotations

import time
from typing import Any

import pytest

from drr.backend import Backend, Dispatch, Drop, Work
from drr.errors import BacklogFull, InvalidValue, JobExists, RateLimited, UnknownLimit
from drr.model import ANY, JobState, Lane, Quota, Settings, SharedLimit
from tests.contract.harness import LANE, OTHER, URGENT, Leader, completion, heads, job, submit

pytestmark = pytest.mark.anyio

ACME, WEB = ("acme",), ("acme", "web")
MAIL = Lane("default", ("acme", "mail"), 5)


async def limit(leader: Leader, quotas: dict[tuple[str, ...], Quota], **fields: object) -> None:
    await leader.commit(settings=Settings(quotas=quotas, **fields))  # type: ignore[arg-type]


# --- what waits -------------------------------------------------------------------------------------------


async def test_what_waits_is_counted_by_project_and_organisation(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(estimate=2.5), job(), job(URGENT, estimate=0.25), job(MAIL), job(OTHER))
    await submit(backend, job(due_at=time.time() + 1e6))
    assert await backend.waiting([ACME, WEB, ("acme", "mail"), ("globex",), ("nobody",)]) == [
        Work(5, 5.75),
        Work(4, 4.75),
        Work(1, 1.0),
        Work(1, 1.0),
        Work(),
    ]
    first, _ = await heads(backend)
    lease = leader.lease(first)
    await leader.commit(dispatches=[Dispatch(first, lease)], waiting={WEB: Work(-1, -2.5)})
    assert await backend.waiting([ACME, WEB]) == [Work(4, 3.25), Work(3, 2.25)]


async def test_counts_are_exact_whatever_the_numbers(backend: Backend, leader: Leader) -> None:
    for _ in range(50):
        await submit(backend, job(estimate=0.1), job(estimate=1.6e-6), job(estimate=1.6e-6))
    while header := next(iter(await heads(backend)), None):
        await leader.commit(
            removals=[Drop(header, completion(JobState.EXPIRED))], waiting={WEB: Work(-1, -header.work)}
        )
    assert await backend.waiting([ACME, WEB]) == [Work(), Work()]


# --- quotas -----------------------------------------------------------------------------------------------


async def test_the_first_job_over_a_project_s_backlog_is_refused(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=3)})
    await submit(backend, job(), job())
    with pytest.raises(BacklogFull) as refused:
        await submit(backend, job(), job())
    error = refused.value
    assert (error.tenant, error.limit, error.depth, error.room) == (WEB, 3, 2, 1)
    assert error.retry_after > 0
    assert "acme/web" in str(error)
    assert await backend.lane_lengths([LANE]) == [2], "all or nothing"
    await submit(backend, job())
    await submit(backend, job(MAIL), job(OTHER))


async def test_delayed_jobs_count(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=1)})
    await submit(backend, job(due_at=time.time() + 1e6))
    with pytest.raises(BacklogFull):
        await submit(backend, job())


async def test_work_is_limited_by_estimates(backend: Backend, leader: Leader) -> None:
    await limit(leader, {ACME: Quota(worker_seconds=10.0)})
    await submit(backend, job(estimate=7.5), job(MAIL))
    with pytest.raises(BacklogFull) as refused:
        await submit(backend, job(estimate=1.0), job(estimate=1.0))
    assert (refused.value.tenant, refused.value.limit, refused.value.depth, refused.value.room) == (
        ACME,
        10.0,
        8.5,
        1,
    )
    await submit(backend, job(estimate=1.5))


async def test_a_project_is_asked_before_its_organisation(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=2), ACME: Quota(jobs=1)})
    with pytest.raises(BacklogFull) as refused:
        await submit(backend, job(), job(), job())
    assert refused.value.tenant == WEB
    with pytest.raises(BacklogFull) as refused:
        await submit(backend, job(), job())
    assert refused.value.tenant == ACME


@pytest.mark.parametrize(
    ("quotas", "refused"),
    [
        ({(ANY,): Quota(jobs=1)}, True),
        ({(ANY, ANY): Quota(jobs=1)}, True),
        ({("acme", ANY): Quota(jobs=1)}, True),
        ({("globex", ANY): Quota(jobs=1)}, False),
        ({(ANY,): Quota(jobs=1), ACME: Quota()}, False),
        ({(ANY, ANY): Quota(jobs=1), ("acme", ANY): Quota(jobs=9)}, False),
        ({("acme", ANY): Quota(jobs=1), WEB: Quota(jobs=9)}, False),
    ],
)
async def test_the_nearest_quota_holds(
    backend: Backend, leader: Leader, quotas: dict[tuple[str, ...], Quota], refused: bool
) -> None:
    await limit(leader, quotas)
    if refused:
        with pytest.raises(BacklogFull):
            await submit(backend, job(), job())
    else:
        await submit(backend, job(), job())


async def test_a_rate_allows_a_burst_and_then_no_more(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(rate=0.001, burst=3)})
    await submit(backend, job(), job())
    with pytest.raises(RateLimited) as refused:
        await submit(backend, job(), job())
    assert (refused.value.tenant, refused.value.limit, refused.value.room) == (WEB, 0.001, 1)
    assert 900 < refused.value.retry_after <= 1000
    await submit(backend, job())
    with pytest.raises(RateLimited):
        await submit(backend, job())


async def test_a_bucket_fills_again(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(rate=1e6, burst=1)})
    for _ in range(20):
        await submit(backend, job())


async def test_new_quotas_take_the_place_of_all_old_ones(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=1)})
    await limit(leader, {("globex",): Quota(jobs=1)})
    await submit(backend, job(), job())
    with pytest.raises(BacklogFull):
        await submit(backend, job(OTHER), job(OTHER))
    await limit(leader, {})
    await submit(backend, job(OTHER), job(OTHER))


async def test_a_repeated_call_is_not_asked_again(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=1)})
    ids = await backend.submit("again", 1, [job()])
    assert await backend.submit("again", 1, [job()]) == ids
    with pytest.raises(BacklogFull):
        await backend.submit("again", 2, [job()])


# --- keys and names ---------------------------------------------------------------------------------------


async def test_a_key_yields_the_first_job(backend: Backend) -> None:
    [first] = await submit(backend, job(key="order-1"))
    assert await submit(backend, job(), job(key="order-1"), job(key="order-2")) != []
    assert await backend.lane_lengths([LANE]) == [3]
    [again] = await submit(backend, job(URGENT, key="order-1"))
    assert again == first
    assert await backend.find(WEB, "order-1") == first
    assert await backend.find(("globex", "mail"), "order-1") is None
    assert await backend.waiting([WEB]) == [Work(3, 3.0)], "what was not added does not count"


async def test_keys_are_a_project_s_own(backend: Backend) -> None:
    [ours] = await submit(backend, job(key="k"))
    [theirs] = await submit(backend, job(OTHER, key="k"))
    assert ours != theirs


async def test_a_key_twice_in_one_call(backend: Backend) -> None:
    first, other, second = await submit(backend, job(key="k"), job(), job(key="k"))
    assert first == second != other
    assert await backend.lane_lengths([LANE]) == [2]


async def test_a_repeated_call_returns_the_same_ids_with_keys(backend: Backend) -> None:
    await submit(backend, job(key="k"))
    ids = await backend.submit("twice", 7, [job(), job(key="k")])
    assert await backend.submit("twice", 7, [job(), job(key="k")]) == ids


async def test_a_key_is_forgotten_after_its_time(backend: Backend) -> None:
    [first] = await submit(backend, job(key="k", key_ttl=0.001))
    deadline = time.monotonic() + 30
    while await backend.find(WEB, "k") is not None:
        assert time.monotonic() < deadline
    [second] = await submit(backend, job(key="k"))
    assert second != first


async def test_a_taken_name_refuses_the_call(backend: Backend) -> None:
    [first] = await submit(backend, job(name="invoice-7"))
    with pytest.raises(JobExists) as refused:
        await submit(backend, job(), job(name="invoice-7"))
    assert (refused.value.name, refused.value.job_id) == ("invoice-7", first)
    assert await backend.lane_lengths([LANE]) == [1]
    assert await backend.find(WEB, "invoice-7") == first
    with pytest.raises(JobExists):
        await submit(backend, job(name="n"), job(name="n"))
    assert await backend.find(WEB, "n") is None


async def test_what_was_not_added_does_not_use_up_a_quota(backend: Backend, leader: Leader) -> None:
    await limit(leader, {WEB: Quota(jobs=2, rate=0.001, burst=2)})
    await submit(backend, job(key="k"))
    await submit(backend, job(key="k"), job())
    with pytest.raises(BacklogFull):
        await submit(backend, job())
    await submit(backend, job(key="k"))


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "with space"},
        {"name": "a:b"},
        {"key": "k", "name": "n"},
        {"key": "k", "key_ttl": 0.0},
        {"due_at": float("nan")},
        {"due_at": -1.0},
        {"deadline": float("inf")},
    ],
)
async def test_nonsense_is_refused(backend: Backend, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        await submit(backend, job(**fields))
    assert await backend.lane_lengths([LANE]) == [0]


# --- limits -----------------------------------------------------------------------------------------------


async def test_a_limit_that_is_not_defined_is_refused(backend: Backend, leader: Leader) -> None:
    lane = LANE._replace(limits=("db",))
    with pytest.raises(UnknownLimit, match="db"):
        await submit(backend, job(), job(lane))
    assert await backend.lane_lengths([LANE]) == [0]
    await limit(leader, {}, limits={"db": SharedLimit(concurrency=3)})
    await submit(backend, job(lane))
    for wrong in (("db", "a"), ("db", "db"), ("a b",)):
        with pytest.raises(InvalidValue):
            await submit(backend, job(LANE._replace(limits=wrong)))
