"""What the port promises to workers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest

from drr.backend import (
    ITEM_LIMIT,
    Attempt,
    Backend,
    Event,
    EventKind,
    Facts,
    Malformed,
    Requeue,
    Settlement,
    WorkerRecord,
)
from drr.errors import InvalidValue, WorkerNameInUse
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    PATIENCE,
    RENDERS,
    SHORT,
    Harness,
    Leader,
    completion,
    heads,
    job,
    reading,
    submit,
    succeeded,
    worker,
)

pytestmark = pytest.mark.anyio


def tokens(attempts: list[Attempt | Malformed]) -> list[str]:
    found = []
    for attempt in attempts:
        assert isinstance(attempt, Attempt)
        found.append(attempt.token)
    return found


# --- join, heartbeat, leave


async def test_a_worker_that_joined_is_on_record(backend: Backend, leader: Leader) -> None:
    record = worker(slots={"default": 4, "renders": 0}, held=("t1", "t2"), draining=True, version="1.2", renewals=77)
    record = replace(record, blocks=3)
    assert await backend.worker_record("w1") is None
    await backend.join(record)
    assert await backend.worker_record("w1") == replace(record, renewals=0)
    assert await backend.workers() == [replace(record, renewals=0)]
    assert (await leader.receive()).workers_changed


async def test_a_heartbeat_writes_the_record_and_counts(backend: Backend) -> None:
    await backend.join(worker())
    for beat in (1, 2, 3):
        assert await backend.heartbeat(worker(held=(f"t{beat}",), version="x"))
        assert await backend.worker_record("w1") == worker(held=(f"t{beat}",), version="x", renewals=beat)


async def test_a_heartbeat_without_a_record_writes_nothing(backend: Backend, leader: Leader) -> None:
    assert not await backend.heartbeat(worker())
    assert await backend.worker_record("w1") is None
    assert not (await leader.receive()).workers_changed


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({}, False),
        ({"held": ("t1",)}, False),
        ({"version": "2"}, False),
        ({"slots": {"default": 5}}, True),
        ({"slots": {"default": 4, "renders": 1}}, True),
        ({"slots": {}}, True),
        ({"draining": True}, True),
    ],
)
async def test_a_heartbeat_that_changes_slots_or_draining_is_told(
    backend: Backend, leader: Leader, changed: dict[str, Any], told: bool
) -> None:
    await backend.join(worker())
    await leader.receive()
    assert await backend.heartbeat(worker(**changed))
    assert (await leader.receive()).workers_changed == told
    assert await backend.heartbeat(worker(**changed))
    assert not (await leader.receive()).workers_changed


async def test_the_order_in_which_slots_are_named_is_no_change(backend: Backend, leader: Leader) -> None:
    await backend.join(worker(slots={"a": 1, "b": 2}))
    await leader.receive()
    assert await backend.heartbeat(worker(slots={"b": 2, "a": 1}))
    assert not (await leader.receive()).workers_changed


async def test_a_second_live_incarnation_is_refused(backend: Backend, leader: Leader) -> None:
    await backend.join(worker(incarnation="i1"))
    await leader.receive()
    for replacing in ("", "i0"):
        with pytest.raises(WorkerNameInUse) as caught:
            await backend.join(worker(incarnation="i2"), replacing)
        assert (caught.value.worker, caught.value.incarnation) == ("w1", "i1")
    assert await backend.worker_record("w1") == worker(incarnation="i1")
    assert not (await leader.receive()).workers_changed


async def test_a_dead_incarnation_is_replaced_on_demand(backend: Backend, leader: Leader) -> None:
    await backend.join(worker(incarnation="i1"))
    await backend.heartbeat(worker(incarnation="i1"))
    await leader.receive()
    await backend.join(worker(incarnation="i2"), replacing="i1")
    assert await backend.worker_record("w1") == worker(incarnation="i2", renewals=0)
    assert (await leader.receive()).workers_changed
    assert not await backend.heartbeat(worker(incarnation="i1"))
    assert await backend.heartbeat(worker(incarnation="i2"))


async def test_replacing_somebody_who_is_not_on_record_is_a_plain_join(backend: Backend) -> None:
    await backend.join(worker(incarnation="i2"), replacing="i1")
    assert await backend.worker_record("w1") == worker(incarnation="i2")


async def test_joining_again_as_oneself_is_a_heartbeat_and_told(backend: Backend, leader: Leader) -> None:
    await backend.join(worker())
    await leader.receive()
    await backend.join(worker(held=("t1",)))
    assert (await leader.receive()).workers_changed
    assert await backend.worker_record("w1") == worker(held=("t1",), renewals=1)


async def test_a_worker_that_left_is_off_the_record_and_told(backend: Backend, leader: Leader) -> None:
    await backend.join(worker())
    await backend.join(worker("w2"))
    await leader.receive()
    await backend.leave("w1", "i1")
    assert await backend.worker_record("w1") is None
    assert await backend.workers() == [worker("w2")]
    assert (await leader.receive()).workers_changed
    assert not await backend.heartbeat(worker())


async def test_a_replaced_incarnation_cannot_take_its_successor_off_the_record(
    backend: Backend, leader: Leader
) -> None:
    await backend.join(worker(incarnation="i2"))
    await leader.receive()
    await backend.leave("w1", "i1")
    await backend.leave("nobody", "i1")
    assert await backend.worker_record("w1") == worker(incarnation="i2")
    assert not (await leader.receive()).workers_changed


async def test_the_leader_forgets_workers_of_the_named_incarnation_only(backend: Backend, leader: Leader) -> None:
    for name in ("w1", "w2", "w3"):
        await backend.join(worker(name))
    await leader.receive()
    await leader.commit(forget_workers={"w1": "i1", "w2": "i0", "nobody": "i1"})
    assert sorted(record.name for record in await backend.workers()) == ["w2", "w3"]
    assert not await backend.heartbeat(worker("w1"))
    assert await backend.heartbeat(worker("w2"))


async def test_many_workers_are_all_on_record(backend: Backend) -> None:
    records = [WorkerRecord(f"w{number}", "i", {"default": number}) for number in range(150)]
    for record in records:
        await backend.join(record)
    assert sorted(await backend.workers(), key=lambda record: record.slots["default"]) == records


# --- attempts


async def test_an_attempt_carries_all_that_a_worker_needs(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(payload=b"data", estimate=2.0, timeout=3.0, result_ttl=4.0, reply_to="me"))
    (attempt,) = await backend.read_attempts("w1", "i1", "default", 1, 0)
    assert isinstance(attempt, Attempt)
    assert attempt == Attempt(attempt.delivery, lease.token, 1, lease.header, b"data")
    assert attempt.delivery


async def test_attempts_are_read_once_in_order_of_dispatch_and_per_pool(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(OTHER), job(RENDERS), job())
    order = [lease.token for lease in leases if lease.header.lane.pool == "default"]
    assert tokens(await backend.read_attempts("w1", "i1", "default", 2, 0)) == order[:2]
    assert tokens(await backend.read_attempts("w2", "i1", "default", ITEM_LIMIT, 0)) == order[2:]
    assert await backend.read_attempts("w2", "i1", "default", 1, 0) == []
    assert len(await backend.read_attempts("w2", "i1", "renders", 1, 0)) == 1


@pytest.mark.parametrize("count", [0, -1, ITEM_LIMIT + 1])
async def test_a_read_of_no_or_too_many_attempts_is_refused(backend: Backend, leader: Leader, count: int) -> None:
    await leader.start(job())
    with pytest.raises(InvalidValue):
        await backend.read_attempts("w1", "i1", "default", count, 0)
    assert len(await backend.read_attempts("w1", "i1", "default", 1, 0)) == 1


async def test_waiting_for_attempts_lapses(backend: Backend) -> None:
    assert await backend.read_attempts("w1", "i1", "default", 1, 0) == []
    assert await backend.read_attempts("w1", "i1", "default", 1, SHORT) == []


async def test_a_dispatch_wakes_a_waiting_worker(backend: Backend, leader: Leader, harness: Harness) -> None:
    reader = harness.open()
    async with reading(harness, lambda: reader.read_attempts("w1", "i1", "default", 4, LONG)) as result:
        leases = await leader.start(job(), job())
    assert tokens(result.value) == [lease.token for lease in leases]


async def test_a_dispatch_wakes_as_many_workers_as_it_needs(
    backend: Backend, leader: Leader, harness: Harness
) -> None:
    def read(name: str, pool: str) -> Callable[[], Awaitable[list[Attempt | Malformed]]]:
        reader = harness.open()
        return lambda: reader.read_attempts(name, "i1", pool, 1, LONG)

    async with reading(harness, read("w1", "default"), read("w2", "renders"), read("w3", "default")) as result:
        leases = await leader.start(job(), job(), job(RENDERS))
    assert sorted(token for found in result.values for token in tokens(found)) == sorted(
        lease.token for lease in leases
    )


async def test_what_was_read_is_pending_for_its_incarnation(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(payload=b"one"), job(), job(), job(RENDERS))
    order = [lease.token for lease in leases]
    read = await backend.read_attempts("w1", "i1", "default", 2, 0)
    await backend.read_attempts("w2", "i1", "default", 1, 0)
    await backend.read_attempts("w1", "i1", "renders", 1, 0)
    assert await backend.pending_attempts("w1", "i1", "default") == read
    assert tokens(await backend.pending_attempts("w1", "i1", "renders")) == order[3:]
    assert tokens(await backend.pending_attempts("w2", "i1", "default")) == order[2:3]
    assert await backend.pending_attempts("w2", "i1", "renders") == []
    assert await backend.pending_attempts("w3", "i1", "default") == []


async def test_a_new_incarnation_has_nothing_of_its_predecessors(backend: Backend, leader: Leader) -> None:
    await backend.join(worker(incarnation="i1"))
    (lease, _) = await leader.start(job(), job())
    await backend.read_attempts("w1", "i1", "default", 1, 0)
    await backend.join(worker(incarnation="i2"), replacing="i1")
    assert await backend.pending_attempts("w1", "i2", "default") == []
    fresh = tokens(await backend.read_attempts("w1", "i2", "default", 5, 0))
    assert lease.token not in fresh
    assert len(fresh) == 1
    assert tokens(await backend.pending_attempts("w1", "i1", "default")) == [lease.token]


async def test_the_end_of_a_lease_takes_its_attempt_off_the_pending_list(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(), job())
    await backend.read_attempts("w1", "i1", "default", 3, 0)
    await leader.commit(settlements=[Settlement(leases[0], completion())], requeues=[Requeue(leases[2], 1, 1)])
    assert tokens(await backend.pending_attempts("w1", "i1", "default")) == [leases[1].token]


async def test_the_end_of_a_lease_takes_an_unread_attempt_off_its_stream(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(), job())
    await leader.commit(settlements=[Settlement(leases[0], completion())], requeues=[Requeue(leases[2], 1, 1)])
    assert tokens(await backend.read_attempts("w1", "i1", "default", 10, 0)) == [leases[1].token]


async def test_a_requeued_job_is_dispatched_again_with_its_payload_and_counts(
    backend: Backend, leader: Leader
) -> None:
    (lease,) = await leader.start(job(payload=b"again"))
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    (head,) = await heads(backend)
    assert head == replace(lease.header, attempts=1, losses=1, returned=True)
    (second,) = await leader.dispatch(head)
    (attempt,) = await backend.read_attempts("w1", "i1", "default", 5, 0)
    assert isinstance(attempt, Attempt)
    assert (attempt.token, attempt.number, attempt.payload) == (second.token, 2, b"again")
    assert attempt.header == head


async def test_many_attempts_are_read_at_once(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job()] * 100)
    read = await backend.read_attempts("w1", "i1", "default", ITEM_LIMIT, 0)
    assert tokens(read) == [lease.token for lease in leases]
    assert await backend.pending_attempts("w1", "i1", "default") == read


# --- reports


async def test_reports_reach_the_leader_in_order_and_as_they_are(backend: Backend, leader: Leader) -> None:
    events = [
        succeeded("t1", value=bytes(range(256))),
        Event("t2", EventKind.FAILED, "w2", 0.1, error="ValueError: größer\n" + "x" * 5000),
        Event("t3", EventKind.TIMED_OUT, "w1", 1e6),
        Event("t4", EventKind.RETURNED, "w1", 0.0),
    ]
    await backend.report(events[:3])
    await backend.report(events[3:])
    facts = await leader.receive()
    assert facts.events == tuple(events)
    assert not facts.workers_changed


async def test_a_report_of_nothing_is_nothing(backend: Backend, leader: Leader) -> None:
    await backend.report([])
    assert (await leader.receive()).events == ()
    assert await leader.receive(SHORT) == Facts(leader.position)


async def test_a_report_takes_as_many_events_as_the_limit_says(backend: Backend, leader: Leader) -> None:
    events = tuple(succeeded(f"t{number}") for number in range(ITEM_LIMIT))
    await backend.report(events)
    with pytest.raises(InvalidValue):
        await backend.report([*events, succeeded("more")])
    assert (await leader.receive()).events == events
    assert (await leader.receive()).events == ()


async def test_a_worker_works_through_a_sibling_in_another_thread(backend: Backend) -> None:
    await backend.join(worker())
    sibling = backend.sibling()

    async def beat() -> bool:
        try:
            return await sibling.heartbeat(worker(held=("t1",)))
        finally:
            await sibling.close()

    with anyio.fail_after(PATIENCE):
        assert await anyio.to_thread.run_sync(anyio.run, beat)
    assert await backend.worker_record("w1") == worker(held=("t1",), renewals=1)


async def test_a_dispatch_wakes_a_worker_in_another_thread(
    backend: Backend, leader: Leader, harness: Harness
) -> None:
    sibling = backend.sibling()

    async def read() -> list[Attempt | Malformed]:
        try:
            return await sibling.read_attempts("w1", "i1", "default", 1, LONG)
        finally:
            await sibling.close()

    async with reading(harness, lambda: anyio.to_thread.run_sync(anyio.run, read)) as result:
        await submit(backend, job(LANE))
        (lease,) = await leader.dispatch(*await heads(backend))
    assert tokens(result.value) == [lease.token]
