"""The interleavings that the protocol must survive."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from drr.backend import Commit, Dispatch, Peek, Position, Requeue, Settlement
from drr.embedded import EmbeddedServer
from drr.errors import NotLeader, StoreUnavailable, WorkerNameInUse
from drr.model import JobState, Lane
from drr_backends.redis import RedisBackend
from drr_backends.redis.passes import PassEncoder
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    PATIENCE,
    Leader,
    completion,
    header_of,
    heads,
    job,
    submit,
    succeeded,
    window,
    worker,
)
from tests.redis.harness import RedisHarness
from tests.redis.proxy import proxy

pytestmark = [pytest.mark.anyio, pytest.mark.redis]


# --- lanes that empty and fill while the leader looks elsewhere


async def test_a_submit_between_peek_and_commit_keeps_the_lane_active(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    seen = await heads(store.handle)
    await submit(store.open(), job())
    await leader.dispatch(*seen)
    assert await store.raw("SMEMBERS", store.keys.active) == [str(LANE).encode()]


async def test_a_submit_right_after_the_emptying_commit_announces_its_lane(
    store: RedisHarness, leader: Leader
) -> None:
    await leader.start(job())
    assert await store.raw("SMEMBERS", store.keys.active) == []
    await leader.receive()
    (job_id,) = await submit(store.handle, job())
    ((lane, head),) = (await leader.receive()).lanes
    assert (lane, header_of(head).job_id) == (LANE, job_id)
    assert await store.raw("SMEMBERS", store.keys.active) == [str(LANE).encode()]


async def test_another_lane_of_an_active_project_is_announced_too(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    await leader.receive()
    urgent = LANE._replace(priority=0)
    await submit(store.handle, job(urgent))
    assert [lane for lane, _ in (await leader.receive()).lanes] == [urgent]


class _Interrupted(RedisBackend):
    """Lets somebody submit in the middle of a load."""

    stage = ""
    other: RedisBackend

    async def _active_lanes(self) -> list[Lane]:
        if self.stage == "before":
            await submit(self.other, job(OTHER))
        lanes = await super()._active_lanes()
        if self.stage == "after":
            await submit(self.other, job(OTHER))
        return lanes


@pytest.mark.parametrize("stage", ["before", "after"])
async def test_a_submit_during_a_load_is_seen_by_the_scan_or_announced(store: RedisHarness, stage: str) -> None:
    handle = _Interrupted(store.handle.address, store.keys)
    handle.stage, handle.other = stage, store.handle
    await submit(store.handle, job())
    leader = await Leader(handle).take_over()
    snapshot = await handle.load(leader.token)
    facts = await handle.receive(snapshot.position, 0)
    await handle.close()
    assert {LANE, OTHER} == {*snapshot.lanes, *(lane for lane, _ in facts.lanes)}


# --- commits that land late, twice, or without an answer


async def test_a_commit_that_lands_after_a_new_election_is_refused(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    (head,) = await heads(store.handle)
    late = leader.next(dispatches=[Dispatch(head, leader.lease(head))])
    await Leader(store.handle, "2:other").take_over()
    before = await store.dump()
    with pytest.raises(NotLeader):
        await store.handle.commit(late)
    assert await store.dump() == before


async def test_a_commit_that_lands_twice_is_refused_the_second_time(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    (head,) = await heads(store.handle)
    commit = leader.next(dispatches=[Dispatch(head, leader.lease(head))])
    await store.handle.commit(commit)
    before = await store.dump()
    with pytest.raises(NotLeader):
        await store.handle.commit(commit)
    assert await store.dump() == before


async def test_a_commit_whose_reply_is_lost_is_found_by_the_next_load(
    server: EmbeddedServer, store: RedisHarness
) -> None:
    """The adapter must not send it again by itself: the store would refuse it, and hide that it was applied."""
    async with proxy(str(server.socket_path)) as between:
        handle = RedisHarness(between.url, store.namespace)
        leader = await Leader(handle.handle).take_over()
        await submit(handle.handle, job())
        (head,) = await heads(handle.handle)
        lease = leader.lease(head)
        between.lose = 1
        with pytest.raises(StoreUnavailable):
            await leader.commit(dispatches=[Dispatch(head, lease)])
        assert between.lose == 0
        successor = await Leader(handle.handle, "2:leader").take_over()
        snapshot = await handle.handle.load(successor.token)
        await handle.close()
    assert (snapshot.leases, snapshot.lanes) == ((lease,), ())


async def test_a_submit_whose_reply_is_lost_is_repeated_without_doubling(
    server: EmbeddedServer, store: RedisHarness
) -> None:
    async with proxy(str(server.socket_path)) as between:
        handle = RedisHarness(between.url, store.namespace)
        await handle.handle.lane_lengths([LANE])  # so that it is the submit's reply that is lost
        between.lose = 1
        ids = await handle.handle.submit("client", 1, [job(), job()])
        assert between.lose == 0
        await handle.close()
    assert [header.job_id for header in await heads(store.handle)] == ids


async def test_a_read_that_dies_leaves_its_attempts_pending(server: EmbeddedServer, store: RedisHarness) -> None:
    """A lost reply strands entries: they are the incarnation's own, and it finds them again."""
    leader = await Leader(store.handle).take_over()
    async with proxy(str(server.socket_path)) as between:
        handle = RedisHarness(between.url, store.namespace)
        await handle.handle.join(worker())
        assert await handle.handle.read_attempts("w1", "i1", "default", 1, 0) == []
        await leader.start(job())
        between.lose = 1
        with pytest.raises(StoreUnavailable):
            await handle.handle.read_attempts("w1", "i1", "default", 1, 0)
        assert await handle.handle.read_attempts("w1", "i1", "default", 1, 0) == []
        assert len(await handle.handle.pending_attempts("w1", "i1", "default")) == 1
        await handle.close()


# --- attempts that nobody claims, and workers that are replaced


async def test_the_requeue_of_an_unclaimed_attempt_takes_its_entry_out_of_the_pool(
    store: RedisHarness, leader: Leader
) -> None:
    (lease,) = await leader.start(job())
    assert await store.pool_length() == 1
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    assert await store.pool_length() == 0
    await store.handle.join(worker())
    assert await store.handle.read_attempts("w1", "i1", "default", 10, 0) == []
    (head,) = await heads(store.handle)
    assert (head.sequence, head.attempts, head.losses) == (lease.header.sequence, 1, 1)


async def test_a_new_incarnation_never_sees_what_its_predecessor_was_given(
    store: RedisHarness, leader: Leader
) -> None:
    await store.handle.join(worker())
    (old,) = await leader.start(job())
    assert len(await store.handle.read_attempts("w1", "i1", "default", 1, 0)) == 1
    await store.handle.join(worker(incarnation="i2"), replacing="i1")
    assert await store.handle.pending_attempts("w1", "i2", "default") == []
    assert await store.handle.read_attempts("w1", "i2", "default", 10, 0) == []
    await leader.commit(requeues=[Requeue(old, 1, 1)])
    (head,) = await heads(store.handle)
    (new,) = await leader.dispatch(head)
    (attempt,) = await store.handle.read_attempts("w1", "i2", "default", 10, 0)
    assert (attempt.token, attempt.number) == (new.token, 2)  # type: ignore[union-attr]


async def test_what_a_zombie_reads_after_its_replacement_is_not_pending_for_the_successor(
    store: RedisHarness, leader: Leader
) -> None:
    await store.handle.join(worker())
    await store.handle.join(worker(incarnation="i2"), replacing="i1")
    await leader.start(job())
    assert len(await store.handle.read_attempts("w1", "i1", "default", 1, 0)) == 1
    assert await store.handle.pending_attempts("w1", "i2", "default") == []
    assert not await store.handle.heartbeat(worker())


async def test_of_two_live_incarnations_the_second_is_refused(store: RedisHarness) -> None:
    await store.handle.join(worker())
    before = await store.dump()
    with pytest.raises(WorkerNameInUse) as refused:
        await store.open().join(worker(incarnation="i2"))
    assert refused.value.incarnation == "i1"
    assert await store.dump() == before


async def test_consumers_do_not_pile_up(store: RedisHarness, leader: Leader) -> None:
    for number in range(20):
        record = worker(incarnation=f"i{number}")
        await store.handle.join(record, replacing=f"i{number - 1}")
        await store.handle.read_attempts("w1", record.incarnation, "default", 1, 0)
    assert set(await store.consumers()) <= {"w1:i19"}  # Redis 7.0 makes none for a read that finds nothing
    await leader.commit(forget_workers={"w1": "i19"})
    assert await store.consumers() == []


async def test_a_consumer_with_something_pending_stays_until_that_is_settled(
    store: RedisHarness, leader: Leader
) -> None:
    await store.handle.join(worker())
    (lease,) = await leader.start(job())
    await store.handle.read_attempts("w1", "i1", "default", 1, 0)
    await leader.commit(forget_workers={"w1": "i1"})
    assert await store.consumers() == ["w1:i1"]
    await store.handle.join(worker("w2"))
    assert "w1:i1" in await store.consumers()
    await leader.settle(lease)
    await store.handle.leave("w2", "i1")
    assert await store.consumers() == []


async def test_an_outcome_travels_with_its_event_until_the_commit(store: RedisHarness, leader: Leader) -> None:
    """The value is in the event stream until the pass that settles it, which removes one and writes the other."""
    (lease,) = await leader.start(job(result_ttl=60.0))
    await store.handle.report([succeeded(lease.token, value=b"value")])
    facts = await leader.receive()
    assert await store.raw("XLEN", store.keys.events) == 1
    ended = Settlement(lease, completion(value=facts.events[0].value))  # type: ignore[union-attr]
    await leader.commit(settlements=[ended])
    assert await store.raw("XLEN", store.keys.events) == 0
    (status,) = await store.handle.look_up([lease.header.job_id])
    assert status is not None
    assert status.completion is not None
    assert (status.state, status.completion.value) == (JobState.SUCCEEDED, b"value")


async def test_an_unread_event_survives_the_commit(store: RedisHarness, leader: Leader) -> None:
    leases = await leader.start(job(), job(OTHER))
    await store.handle.report([succeeded(leases[0].token)])
    await leader.receive()
    await store.handle.report([succeeded(leases[1].token)])
    await leader.settle(leases[0])
    assert [event.token for event in (await leader.receive()).events] == [leases[1].token]  # type: ignore[union-attr]


# --- cancellation


async def test_a_cancelled_read_ends_at_once_and_loses_nothing(store: RedisHarness, leader: Leader) -> None:
    await store.handle.join(worker())
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(store.handle.read_attempts, "w1", "i1", "default", 1, LONG)
            await store.until_blocked(1)
            group.cancel_scope.cancel()
    (lease,) = await leader.start(job())
    (attempt,) = await store.handle.read_attempts("w1", "i1", "default", 1, 0)
    assert attempt.token == lease.token  # type: ignore[union-attr]


async def test_a_cancelled_receive_can_be_repeated(store: RedisHarness, leader: Leader) -> None:
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(store.handle.receive, Position(), LONG)
            await store.until_blocked(1)
            group.cancel_scope.cancel()
    await submit(store.handle, job())
    assert len((await leader.receive(LONG)).lanes) == 1


async def test_a_cancelled_call_leaves_no_stale_reply_behind(store: RedisHarness) -> None:
    await submit(store.handle, job())
    for _ in range(50):
        async with anyio.create_task_group() as group:
            group.start_soon(store.handle.lane_lengths, [OTHER] * 100)
            await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert await store.handle.lane_lengths([LANE]) == [1]


# --- limits


async def test_the_store_itself_refuses_more_than_a_thousand_items(store: RedisHarness, leader: Leader) -> None:
    await store.handle.submit("client", 1, [job() for _ in range(1000)])
    await store.handle.submit("client", 2, [job()])
    found = [
        header_of(entry) for offset in (0, 1000) for entry in (await window(store.handle, LANE, offset, 500)).entries
    ]
    lease = leader.lease(found[0])
    dispatches = [Dispatch(found[0], replace(lease, token=f"t{number}")) for number in range(1001)]
    commit: Commit = leader.next(dispatches=dispatches)
    before = await store.dump()
    with pytest.raises(Exception, match="at most 1000 items"):
        await store.raw(*PassEncoder(store.keys).encode(commit))
    assert await store.dump() == before


async def test_a_full_pass_of_every_kind_works(store: RedisHarness, leader: Leader) -> None:
    lanes = [Lane("default", (f"org{number}", "p"), 5) for number in range(1000)]
    for call in range(3):
        await store.handle.submit("client", call, [job(lane, result_ttl=5.0, reply_to="me") for lane in lanes])
    peeks = [Peek(lane, 0, 1) for lane in lanes]
    first = await leader.dispatch(*[header_of(found.entries[0]) for found in await store.handle.peek(peeks)])
    second = await leader.dispatch(*[header_of(found.entries[0]) for found in await store.handle.peek(peeks)])
    third = [header_of(found.entries[0]) for found in await store.handle.peek(peeks)]
    windows = await leader.commit(
        peeks,
        settlements=[Settlement(lease, completion(), bury="x") for lease in first],
        requeues=[Requeue(lease, 1, 0) for lease in second],
        dispatches=[
            Dispatch(again, leader.lease(again))
            for again in (replace(e.header, attempts=1, returned=True) for e in second)
        ],
    )
    assert [header_of(found.entries[0]) for found in windows] == third
    assert len(await store.handle.dead_letters(limit=1000)) == 1000
    assert len((await store.handle.replies("me", "", 0))[1]) == 1000
    assert await store.pool_length() == 1000
