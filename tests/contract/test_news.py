"""What the port promises of news: announcements, events, and reads that wait for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from drr.backend import ITEM_LIMIT, Backend, Facts, Position, Requeue
from drr.errors import InvalidValue
from drr.model import Lane
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    SHORT,
    URGENT,
    Harness,
    Leader,
    heads,
    job,
    reading,
    submit,
    succeeded,
    worker,
)

pytestmark = pytest.mark.anyio


async def announced(leader: Leader) -> list[Lane]:
    return [lane for lane, _ in (await leader.receive()).lanes]


# --- announcements


async def test_a_job_in_an_empty_lane_is_announced_with_its_header(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(estimate=0.5), job())
    facts = await leader.receive()
    assert facts.lanes == ((LANE, (await heads(backend))[0]),)


async def test_a_job_in_a_lane_with_jobs_is_not_announced(backend: Backend, leader: Leader) -> None:
    await submit(backend, job())
    assert await announced(leader) == [LANE]
    await submit(backend, job(), job())
    assert await announced(leader) == []


async def test_every_empty_lane_of_a_batch_is_announced_once(backend: Backend, leader: Leader) -> None:
    await submit(backend, job())
    await announced(leader)
    await submit(backend, job(OTHER), job(), job(URGENT), job(OTHER))
    assert await announced(leader) == [OTHER, URGENT]


async def test_an_active_project_is_announced_for_each_of_its_lanes(backend: Backend, leader: Leader) -> None:
    await submit(backend, job())
    await submit(backend, job(URGENT))
    assert await announced(leader) == [LANE, URGENT]


async def test_a_lane_that_was_emptied_is_announced_again(backend: Backend, leader: Leader) -> None:
    await leader.start(job())
    await announced(leader)
    await submit(backend, job())
    facts = await leader.receive()
    assert facts.lanes == ((LANE, (await heads(backend))[0]),)


async def test_a_returned_job_is_not_announced(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    await announced(leader)
    await leader.commit(requeues=[Requeue(lease, 1, 0)])
    assert await announced(leader) == []
    await submit(backend, job())
    assert await announced(leader) == []


async def test_a_repeated_submit_announces_nothing(backend: Backend, leader: Leader) -> None:
    await backend.submit("client", 1, [job()])
    await leader.dispatch(*await heads(backend))
    await announced(leader)
    await backend.submit("client", 1, [job()])
    assert await announced(leader) == []


# --- reading


async def test_nothing_new_leaves_the_position_where_it_is(backend: Backend) -> None:
    assert await backend.receive(Position(), 0) == Facts(Position())
    await backend.report([succeeded("t1")])
    await submit(backend, job())
    position = (await backend.receive(Position(), 0)).position
    assert await backend.receive(position, 0) == Facts(position)
    assert await backend.receive(position, SHORT) == Facts(position)


async def test_a_position_holds_for_every_reader_as_often_as_wanted(backend: Backend, harness: Harness) -> None:
    await backend.report([succeeded("t1")])
    await submit(backend, job())
    facts = await backend.receive(Position(), 0)
    assert await backend.receive(Position(), 0) == facts
    assert await harness.open().receive(Position(), 0) == facts
    await backend.report([succeeded("t2")])
    assert (await backend.receive(facts.position, 0)).events == (succeeded("t2"),)


async def test_both_cursors_move_on_their_own(backend: Backend, leader: Leader) -> None:
    await backend.report([succeeded("t1")])
    first = await leader.receive()
    await submit(backend, job())
    second = await leader.receive()
    assert second.position.events == first.position.events
    assert second.position.wake != first.position.wake
    assert (second.events, len(second.lanes)) == ((), 1)


async def test_a_batch_holds_no_more_events_than_its_limit(backend: Backend, leader: Leader) -> None:
    reports = [[succeeded(f"r{report}e{event}") for event in range(4)] for report in range(5)]
    for report in reports:
        await backend.report(report)
    read = [(await leader.receive(limit=9)).events for _ in range(4)]
    assert read == [(*reports[0], *reports[1]), (*reports[2], *reports[3]), tuple(reports[4]), ()]


async def test_a_report_beyond_the_limit_comes_all_the_same(backend: Backend, leader: Leader) -> None:
    events = tuple(succeeded(f"t{number}") for number in range(7))
    await backend.report(events[:5])
    await backend.report(events[5:])
    assert [(await leader.receive(limit=1)).events for _ in range(3)] == [events[:5], events[5:], ()]


async def test_full_reports_never_make_more_than_one_pass_can_settle(backend: Backend, leader: Leader) -> None:
    events = [succeeded(f"t{number}") for number in range(ITEM_LIMIT + 1)]
    await backend.report(events[:1])
    await backend.report(events[1:])
    read: list[object] = []
    while batch := (await leader.receive()).events:
        assert len(batch) <= ITEM_LIMIT
        read += batch
    assert read == events


async def test_reports_of_big_results_arrive(backend: Backend, leader: Leader) -> None:
    """A worker with 30 slots may report 30 results of the greatest size at once: more than one message may hold."""
    events = [succeeded(f"t{number}", value=bytes([number]) * 256 * 1024) for number in range(30)]
    await backend.report(events)
    read: list[object] = []
    while batch := (await leader.receive()).events:
        read += batch
    assert read == events


async def test_a_batch_holds_no_more_announcements_than_its_limit(backend: Backend, leader: Leader) -> None:
    lanes = [Lane("default", ("acme", f"p{number}")) for number in range(5)]
    await submit(backend, *[job(lane) for lane in lanes])
    read = [[lane for lane, _ in (await leader.receive(limit=2)).lanes] for _ in range(4)]
    assert read == [lanes[:2], lanes[2:4], lanes[4:], []]


async def test_a_change_of_workers_between_reports_is_told_once(backend: Backend, leader: Leader) -> None:
    await backend.report([succeeded("t1")])
    await backend.join(worker())
    await backend.report([succeeded("t2")])
    await backend.leave("w1", "i1")
    facts = await leader.receive()
    assert (facts.events, facts.workers_changed) == ((succeeded("t1"), succeeded("t2")), True)
    assert not (await leader.receive()).workers_changed


@pytest.mark.parametrize("limit", [0, -1, ITEM_LIMIT + 1])
async def test_limits_of_a_batch_have_a_range(backend: Backend, limit: int) -> None:
    with pytest.raises(InvalidValue):
        await backend.receive(Position(), 0, limit)


# --- waiting


async def test_a_submit_wakes_the_leader(backend: Backend, leader: Leader, harness: Harness) -> None:
    reader = harness.open()
    async with reading(harness, lambda: reader.receive(leader.position, LONG)) as result:
        await submit(backend, job())
    assert [lane for lane, _ in result.value.lanes] == [LANE]


async def test_a_report_wakes_the_leader(backend: Backend, leader: Leader, harness: Harness) -> None:
    reader = harness.open()
    async with reading(harness, lambda: reader.receive(leader.position, LONG)) as result:
        await backend.report([succeeded("t1")])
    assert result.value.events == (succeeded("t1"),)


async def test_workers_wake_the_leader(backend: Backend, leader: Leader, harness: Harness) -> None:
    reader = harness.open()

    async def told(position: Position) -> Facts:
        async with reading(harness, lambda: reader.receive(position, LONG)) as result:
            await changes.pop(0)()
        return result.value

    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: backend.join(worker()),
        lambda: backend.heartbeat(worker(draining=True)),
        lambda: backend.join(worker(incarnation="i2"), replacing="i1"),
        lambda: backend.leave("w1", "i2"),
    ]
    position = leader.position
    while changes:
        facts = await told(position)
        assert facts.workers_changed
        position = facts.position


async def test_waiting_does_not_end_for_what_is_no_news(backend: Backend, leader: Leader, harness: Harness) -> None:
    await submit(backend, job())
    await backend.join(worker())
    await leader.receive()
    reader = harness.open()
    async with reading(harness, lambda: reader.receive(leader.position, LONG)) as result:
        await submit(backend, job())
        await backend.heartbeat(worker())
        await backend.report([])
        await leader.commit()
        assert result.values == []
        await backend.report([succeeded("t1")])
    assert result.value.events == (succeeded("t1"),)


async def test_news_before_the_wait_need_no_waiting(backend: Backend) -> None:
    await submit(backend, job())
    assert len((await backend.receive(Position(), LONG)).lanes) == 1
