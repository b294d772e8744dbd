"""What the port promises of who leads."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from drr.backend import ATTENDANCE_MAX, Backend, LeaderRecord, Position
from drr.errors import InvalidName, InvalidValue, NotLeader
from drr.model import Settings
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    PATIENCE,
    SHORT,
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


async def test_nobody_leads_a_new_store(backend: Backend) -> None:
    assert await backend.leader() == LeaderRecord()


async def test_an_election_is_a_compare_and_swap(backend: Backend) -> None:
    assert not await backend.elect("0:x", "1:a")
    assert (await backend.leader()).token == ""
    assert await backend.elect("", "1:a")
    assert not await backend.elect("", "1:b")
    assert not await backend.elect("1:", "1:b")
    assert (await backend.leader()).token == "1:a"
    assert await backend.elect("1:a", "2:b")
    assert ((await backend.leader()).token, (await backend.leader()).passes) == ("2:b", 0)


async def test_passes_are_counted_from_each_election(backend: Backend, leader: Leader) -> None:
    for passes in (1, 2, 3):
        await leader.commit()
        assert (await backend.leader()).passes == passes
        assert (await backend.load(leader.token)).passes == passes
    again = await Leader(backend, "2:again").take_over()
    assert (await backend.load(again.token)).passes == 0
    await again.commit()


async def test_the_leader_and_only_the_leader_renews(backend: Backend, leader: Leader) -> None:
    before = await backend.leader()
    await backend.renew(leader.token)
    await backend.renew(leader.token)
    after = await backend.leader()
    assert (after.token, after.renewals, after.passes) == (leader.token, before.renewals + 2, 0)
    for token in ("1:another", ""):
        with pytest.raises(NotLeader):
            await backend.renew(token)
    assert await backend.leader() == after


@pytest.mark.parametrize("token", ["", "1:another", "1:leaderX"])
async def test_who_does_not_lead_neither_loads_nor_writes_the_status(
    backend: Backend, leader: Leader, token: str
) -> None:
    await backend.write_status(leader.token, b"mine")
    with pytest.raises(NotLeader):
        await backend.load(token)
    with pytest.raises(NotLeader):
        await backend.write_status(token, b"theirs")
    assert (await backend.read_status()).blob == b"mine"


async def test_nobody_leads_with_the_empty_token(backend: Backend) -> None:
    leader = Leader(backend, "")
    for attempt in (
        backend.load(""),
        backend.renew(""),
        backend.write_status("", b""),
        backend.commit(leader.next()),
    ):
        with pytest.raises(NotLeader):
            await attempt


async def test_who_resigned_leads_no_more(backend: Backend, leader: Leader) -> None:
    await backend.resign(leader.token)
    assert (await backend.leader()).token == ""
    with pytest.raises(NotLeader):
        await leader.commit()
    assert await backend.elect("", "2:b")


async def test_only_the_leader_resigns(backend: Backend, leader: Leader) -> None:
    await backend.resign("1:another")
    await backend.resign("")
    assert (await backend.leader()).token == leader.token
    assert not await backend.await_resignation(SHORT)


async def test_a_resignation_wakes_every_standby(backend: Backend, leader: Leader, harness: Harness) -> None:
    one, two = harness.open(), harness.open()
    async with reading(harness, lambda: one.await_resignation(LONG), lambda: two.await_resignation(LONG)) as result:
        await backend.resign(leader.token)
    assert result.values == [True, True]


async def test_a_resignation_is_noticed_though_somebody_leads_again(
    backend: Backend, leader: Leader, harness: Harness
) -> None:
    standby = harness.open()
    async with reading(harness, lambda: standby.await_resignation(LONG)) as result:
        await backend.resign(leader.token)
        await backend.elect("", "2:quick")
    assert result.value


async def test_a_resignation_just_before_waiting_is_not_missed(backend: Backend, leader: Leader) -> None:
    await backend.resign(leader.token)
    assert await backend.await_resignation(LONG)
    assert await backend.await_resignation(0)


async def test_an_old_resignation_says_nothing_of_the_new_leader(backend: Backend, leader: Leader) -> None:
    await backend.resign(leader.token)
    await Leader(backend, "2:next").take_over()
    assert not await backend.await_resignation(SHORT)
    assert not await backend.await_resignation(0)


async def test_work_of_the_leader_is_no_resignation(backend: Backend, leader: Leader, harness: Harness) -> None:
    standby = harness.open()
    async with reading(harness, lambda: standby.await_resignation(LONG)) as result:
        await backend.renew(leader.token)
        await leader.commit()
        assert result.values == []
        await backend.resign(leader.token)
    assert result.value


async def test_an_empty_store_is_loaded_empty(backend: Backend, leader: Leader) -> None:
    snapshot = await backend.load(leader.token)
    assert (snapshot.passes, snapshot.leases, snapshot.workers, snapshot.lanes) == (0, (), (), ())
    assert (snapshot.nodes, snapshot.settings) == ({}, Settings())
    assert (await backend.receive(snapshot.position, 0)).position == snapshot.position


async def test_a_takeover_finds_everything_as_of_the_last_pass(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job())
    await submit(backend, job(), job(OTHER))
    await backend.join(worker())
    await backend.report([succeeded(leases[0].token)])
    again = await Leader(backend, "2:again").take_over()
    snapshot = await backend.load(again.token)
    assert sorted(snapshot.leases, key=lambda lease: lease.token) == leases
    assert set(snapshot.lanes) == {LANE, OTHER}
    assert snapshot.workers == (worker(),)
    facts = await backend.receive(snapshot.position, 0)
    assert facts.events == (succeeded(leases[0].token),)
    assert facts.workers_changed


async def test_what_comes_after_a_load_is_announced_or_was_loaded(backend: Backend, leader: Leader) -> None:
    await submit(backend, job())
    snapshot = await backend.load(leader.token)
    await submit(backend, job(), job(OTHER))
    announced = {lane for lane, _ in (await backend.receive(snapshot.position, 0)).lanes}
    assert {LANE, OTHER} == announced | set(snapshot.lanes)
    assert OTHER in announced


async def test_a_snapshot_is_big_enough_for_a_big_pool(backend: Backend, leader: Leader) -> None:
    for start in range(0, 2400, 800):
        await submit(backend, *[job(LANE._replace(path=("acme", f"p{start + number}"))) for number in range(800)])
    snapshot = await backend.load(leader.token)
    assert len(snapshot.lanes) == len(set(snapshot.lanes)) == 2400
    first = snapshot.lanes[0]
    (lease,) = await leader.dispatch(*await heads(backend, first))
    again = await backend.load(leader.token)
    assert set(again.lanes) == set(snapshot.lanes) - {first}
    assert again.leases == (lease,)


async def test_preparing_twice_is_preparing_once(backend: Backend, leader: Leader, harness: Harness) -> None:
    await submit(backend, job())
    await leader.commit()
    await harness.open().prepare()
    assert (await backend.leader()).passes == 1
    assert await backend.lane_lengths([LANE]) == [1]
    assert (await backend.load(leader.token)).position != Position("x", "x")


# --- who is there


async def test_signs_of_life_are_counted_by_dispatcher(backend: Backend) -> None:
    assert await backend.attendance("d1") is None
    for _ in range(3):
        await backend.attend("d1", 60.0)
    await backend.attend("d2", 60.0)
    assert [await backend.attendance(name) for name in ("d1", "d2", "d3")] == [3, 1, None]


async def test_a_dispatcher_that_is_not_heard_of_again_is_forgotten(backend: Backend) -> None:
    await backend.attend("d1", 0.001)
    await backend.attend("d2", 60.0)
    with anyio.fail_after(PATIENCE):
        while await backend.attendance("d1") is not None:
            await anyio.lowlevel.checkpoint()
    assert await backend.attendance("d2") == 1
    await backend.attend("d1", 60.0)
    assert await backend.attendance("d1") == 1, "it begins anew"


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf"), ATTENDANCE_MAX * 1.01])
async def test_attendance_without_a_sensible_end_is_refused(backend: Backend, seconds: float) -> None:
    with pytest.raises(InvalidValue, match="seconds of attendance"):
        await backend.attend("d1", seconds)
    with pytest.raises(InvalidName):
        await backend.attend("d:1", 1.0)
    assert await backend.attendance("d1") is None
