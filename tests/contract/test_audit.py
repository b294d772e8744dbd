"""What a store finds wrong with itself, and what it shows the leader to compare."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from drr.backend import Audit, Backend, Mismatch, Requeue, Settlement, Work
from drr.errors import InvalidValue, NotLeader
from drr.model import Lane, Lease, TenantPath, parse_job_id
from drr_backends.redis import RedisBackend
from tests.contract.harness import LANE, OTHER, RENDERS, Leader, completion, heads, job, submit, worker
from tests.helpers.vandals import RedisVandal, stray, vandal_of

pytestmark = pytest.mark.anyio


@dataclass
class Sweep:
    """All pages of an audit together."""

    found: Counter[Mismatch] = field(default_factory=Counter)
    tokens: list[str] = field(default_factory=list)
    bare: list[str] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)
    delayed: dict[TenantPath, int] = field(default_factory=dict)
    waiting: dict[TenantPath, Work] = field(default_factory=dict)
    pages: int = 0


async def sweep(leader: Leader, limit: int = 500, pools: Sequence[str] = ("default", "renders")) -> Sweep:
    whole, cursor, done = Sweep(), "", []
    while True:
        page = await leader.backend.audit(leader.token, pools, cursor, limit)
        whole.pages += 1
        whole.found.update(repair.kind for repair in page.repaired)
        whole.tokens += page.tokens
        whole.bare += page.bare
        whole.lanes += page.lanes
        for path, work in page.delayed.items():
            assert not whole.waiting, "what is put off comes before what is counted"
            whole.delayed[path] = whole.delayed.get(path, 0) + work.jobs
        whole.waiting |= page.waiting
        done.append(page.leases_done)
        cursor = page.cursor
        if not cursor:
            assert done.count(True) == 1
            return whole
        assert whole.pages < 1000


async def running(leader: Leader, number: int = 1, lane: Lane = LANE) -> list[Lease]:
    await submit(leader.backend, *[job(lane)] * number)
    await leader.backend.join(worker(slots={"default": 50, "renders": 50}))
    leases = await leader.dispatch(*await heads(leader.backend, lane))
    await leader.backend.read_attempts("w1", "i1", lane.pool, 50, 0)
    return list(leases)


async def test_a_healthy_store_has_nothing_to_repair(backend: Backend, leader: Leader) -> None:
    leases = [*await running(leader, 7), *await running(leader, 2, RENDERS)]
    later = time.time() + 1e6
    await submit(backend, job(), job(OTHER), *[job(OTHER, due_at=later)] * 5)
    for limit in (500, 2, 1):
        found = await sweep(leader, limit)
        assert not found.found
        assert Counter(found.tokens) == Counter(lease.token for lease in leases)
        assert found.bare == []
        assert set(found.lanes) == {LANE, OTHER}
        assert found.delayed == {OTHER.path: 5}
        assert {path: work.jobs for path, work in found.waiting.items()} == {LANE.path: 10, OTHER.path: 6}


async def test_an_entry_without_a_lease_is_buried(backend: Backend, leader: Leader) -> None:
    first, second = await running(leader, 2)
    await vandal_of(backend).lose_lease(first)
    found = await sweep(leader)
    assert found.found[Mismatch.ENTRY] == 1
    assert found.tokens == [second.token]
    (letter,) = await backend.dead_letters(LANE.path[0])
    assert letter.header is not None
    assert letter.header.job_id == first.header.job_id
    assert "no lease" in letter.reason
    assert [attempt.token for attempt in await backend.pending_attempts("w1", "i1", "default")] == [second.token]  # type: ignore[union-attr]
    assert not (await sweep(leader)).found


async def test_a_lease_without_an_entry_is_shown_and_can_be_ended(backend: Backend, leader: Leader) -> None:
    first, second = await running(leader, 2)
    await vandal_of(backend).lose_entry(first)
    assert (await sweep(leader)).bare == [first.token]
    await leader.commit(settlements=[Settlement(first, completion(), bury="gone")])
    found = await sweep(leader)
    assert (found.bare, found.tokens) == ([], [second.token])
    assert not found.found
    assert [letter.reason for letter in await backend.dead_letters()] == ["gone"]


async def test_a_delayed_job_without_a_due_time_gets_one(backend: Backend, leader: Leader) -> None:
    ids = await submit(backend, *[job(due_at=time.time() + 1e6)] * 2)
    _, number, _ = parse_job_id(ids[0])
    await vandal_of(backend).lose_due_time(number)
    assert (await sweep(leader)).found == Counter({Mismatch.PLACE: 1})
    found = await backend.due(time.time() + 2e6)
    assert sorted(header.job_id for header in found.jobs) == sorted(ids)
    assert not (await sweep(leader)).found


async def test_a_due_time_of_no_job_is_forgotten(backend: Backend, leader: Leader) -> None:
    ids = await submit(backend, *[job(due_at=time.time() + 1e6)] * 2)
    await vandal_of(backend).lose_delayed(parse_job_id(ids[0])[1])
    assert (await sweep(leader)).found == Counter({Mismatch.PLACE: 1})
    assert [header.job_id for header in (await backend.due(time.time() + 2e6)).jobs] == ids[1:]
    assert not (await sweep(leader)).found


async def test_a_lane_that_nobody_announced_is_shown(backend: Backend, leader: Leader) -> None:
    await vandal_of(backend).add_silently(stray(OTHER, 77))
    found = await sweep(leader)
    assert (found.lanes, found.waiting[OTHER.path].jobs) == ([OTHER], 1)


async def test_a_count_is_corrected_unless_it_has_changed(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(estimate=2.5), job(OTHER))
    await vandal_of(backend).miscount(LANE.path, 2, 3)
    counted = (await sweep(leader)).waiting[LANE.path]
    assert counted == Work(3, 5.5)
    assert not await backend.correct_waiting(leader.token, LANE.path, Work(3, 5.0), Work(-2, -3.0))
    assert await backend.correct_waiting(leader.token, LANE.path, counted, Work(-2, -3.0))
    assert await backend.waiting([LANE.path, LANE.path[:1]]) == [Work(1, 2.5)] * 2
    with pytest.raises(NotLeader):
        await backend.correct_waiting("another", LANE.path, Work(1, 2.5), Work(-1, -2.5))


async def test_only_the_leader_audits(backend: Backend, leader: Leader) -> None:
    with pytest.raises(NotLeader):
        await backend.audit("another", ["default"])
    for cursor in ("nonsense", "nonsense|1"):
        with pytest.raises(InvalidValue, match="cursor"):
            await backend.audit(leader.token, ["default"], cursor)
    for limit in (0, 501):
        with pytest.raises(InvalidValue, match="limit"):
            await backend.audit(leader.token, ["default"], "", limit)
    assert isinstance(await backend.audit(leader.token, []), Audit)


# --- what only a server can have --------------------------------------------------------------------------


@pytest.fixture
def vandal(backend: Backend) -> RedisVandal:
    if not isinstance(backend, RedisBackend):
        pytest.skip("a store in memory keeps no such notes")
    return RedisVandal(backend)


async def test_a_delivery_to_a_vanished_reader_of_a_vanished_entry_is_acknowledged(
    backend: Backend, leader: Leader, vandal: RedisVandal
) -> None:
    """And its reader, which belongs to no worker, goes with it."""
    (lease,) = await running(leader)
    await vandal.lose_entry(lease)
    await vandal.lose_lease(lease)
    await backend.leave("w1", "i1")
    assert (await sweep(leader)).found[Mismatch.ENTRY] == 1
    assert (await vandal.call("XPENDING", vandal.keys.pool("default"), "workers"))[0] == 0
    assert not (await sweep(leader)).found


async def test_an_entry_that_a_vanished_reader_has_is_buried_and_the_reader_removed(
    backend: Backend, leader: Leader, vandal: RedisVandal
) -> None:
    (lease,) = await running(leader)
    await vandal.lose_lease(lease)
    await vandal.call("DEL", vandal.keys.workers)
    assert (await sweep(leader)).found[Mismatch.ENTRY] == 1
    assert await vandal.call("XINFO", "CONSUMERS", vandal.keys.pool("default"), "workers") == []
    assert not (await sweep(leader)).found


async def test_a_lane_that_nothing_leads_to_is_announced(leader: Leader, vandal: RedisVandal) -> None:
    await leader.receive()
    await vandal.add_silently(stray(OTHER, 77), active=False)
    assert (await sweep(leader)).found == Counter({Mismatch.LANE: 1})
    assert [lane for lane, _ in (await leader.receive()).lanes] == [OTHER]
    found = await sweep(leader)
    assert (found.lanes, found.found) == ([OTHER], Counter())


async def test_a_lane_that_is_said_to_hold_jobs_and_does_not_is_forgotten(
    leader: Leader, vandal: RedisVandal
) -> None:
    await vandal.call("SADD", vandal.keys.active, str(OTHER))
    assert (await sweep(leader)).found == Counter({Mismatch.PLACE: 1})
    assert await vandal.call("SMEMBERS", vandal.keys.active) == []


async def test_a_job_that_is_said_to_be_put_back_and_is_not_there_is_forgotten(
    backend: Backend, leader: Leader, vandal: RedisVandal
) -> None:
    (lease,) = await running(leader)
    await leader.commit(requeues=[Requeue(lease, 1, 0)])
    job_id = lease.header.job_id
    assert not (await sweep(leader)).found
    await vandal.call("DEL", vandal.keys.lane(LANE))
    await vandal.call("SREM", vandal.keys.active, str(LANE))
    assert (await backend.look_up([job_id]))[0] is not None
    assert (await sweep(leader)).found == Counter({Mismatch.PLACE: 1})
    assert (await backend.look_up([job_id]))[0] is None
    assert await vandal.call("HLEN", vandal.keys.back) == 0


async def test_what_leads_from_jobs_to_leases_is_set_right(leader: Leader, vandal: RedisVandal) -> None:
    (lease,) = await running(leader)
    number = b"#" + lease.header.sequence.to_bytes(8, "big")
    await vandal.call("HDEL", vandal.keys.leases, number)
    await vandal.call("HSET", vandal.keys.leases, b"#" + bytes(7) + b"\x99", lease.token)
    assert (await sweep(leader)).found == Counter({Mismatch.PLACE: 2})
    assert await vandal.call("HGET", vandal.keys.leases, number) == lease.token.encode()
    assert await vandal.call("HLEN", vandal.keys.leases) == 2
