"""All of a pass or nothing: after a refusal every key holds what it held before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drr.backend import Burial, Dispatch, Position, Requeue, Settlement
from drr.errors import BackendError, CommitRefused, NotLeader
from drr.model import Header, Lease, NodeState
from tests.contract.harness import LANE, OTHER, Leader, completion, heads, job, submit, worker
from tests.redis.harness import SETTINGS, RedisHarness

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

Change = Callable[[list[Lease], list[Header], dict[str, Any]], object]


def full_pass(leader: Leader, leases: list[Lease], waiting: list[Header]) -> dict[str, Any]:
    """Fields of a commit that would change every key there is."""
    back = replace(leases[2].header, attempts=1, losses=1, returned=True)
    return {
        "position": Position("5-0", "5-0"),
        "settlements": [Settlement(leases[0], completion(), bury="why"), Settlement(leases[1], completion())],
        "requeues": [Requeue(leases[2], 1, 1)],
        "removals": [Burial(OTHER, b"rubbish", "it is")],
        "dispatches": [Dispatch(back, leader.lease(back)),
                       Dispatch(waiting[0], leader.lease(waiting[0]))],
        "charges": {leases[3].token: replace(leases[3], charged=9.0)},
        "nodes": {("default", ("acme",)): NodeState(1.0), ("default", ("globex",)): None},
        "settings": SETTINGS,
        "forget_workers": {"w1": "i1"},
    }  # fmt: skip


REFUSALS: dict[str, Change] = {
    "a settled lease that is not live": lambda leases, waiting, fields: fields["settlements"].append(
        Settlement(replace(leases[0], token="gone"), completion())
    ),
    "a lease settled twice": lambda leases, waiting, fields: fields["settlements"].append(
        Settlement(leases[0], completion())
    ),
    "a lease settled and requeued": lambda leases, waiting, fields: fields["requeues"].append(
        Requeue(leases[0], 1, 0)
    ),
    "a requeued lease that is not live": lambda leases, waiting, fields: fields["requeues"].append(
        Requeue(replace(leases[0], token="gone"), 1, 0)
    ),
    "a charged lease that is not live": lambda leases, waiting, fields: fields["charges"].update(gone=leases[0]),
    "a charged lease that ends": lambda leases, waiting, fields: fields["charges"].update(
        {leases[0].token: leases[0]}
    ),
    "another head": lambda leases, waiting, fields: fields["dispatches"].append(
        Dispatch(waiting[2], replace(leases[0], token="new"))
    ),
    "a head with other counts": lambda leases, waiting, fields: fields["dispatches"].append(
        Dispatch(replace(waiting[1], losses=1), replace(leases[0], token="new"))
    ),
    "more than the lane holds": lambda leases, waiting, fields: fields["dispatches"].extend(
        Dispatch(head, replace(leases[0], token=f"new{number}"))
        for number, head in enumerate([*waiting[1:], waiting[-1]])
    ),
    "a token that is live": lambda leases, waiting, fields: fields["dispatches"].append(
        Dispatch(waiting[1], replace(leases[0], token=leases[3].token))
    ),
    "a token that was live until now": lambda leases, waiting, fields: fields["dispatches"].append(
        Dispatch(waiting[1], replace(leases[0], token=leases[0].token))
    ),
    "another entry to bury": lambda leases, waiting, fields: fields["removals"].append(Burial(OTHER, b"rubbish", "")),
}


async def prepared(store: RedisHarness, leader: Leader) -> tuple[list[Lease], list[Header]]:
    """Four leases and four waiting jobs in one lane, and rubbish in another."""
    await store.handle.join(worker())
    leases = await leader.start(*[job(result_ttl=9.0, reply_to="me") for _ in range(4)])
    await submit(store.handle, *[job(payload=bytes([65 + number])) for number in range(4)])
    await store.plant_entry(OTHER, b"rubbish")
    return leases, await heads(store.handle)


async def test_the_full_pass_is_accepted(store: RedisHarness, leader: Leader) -> None:
    """Else the refusals below would prove nothing."""
    leases, waiting = await prepared(store, leader)
    before = await store.dump()
    await leader.commit(**full_pass(leader, leases, waiting))
    after = await store.dump()
    kinds = ("leader", "position", "leases", "nodes", "settings", "dead", "workers", f"lane:{LANE}", "pool:default")
    for kind in kinds:
        assert before.get(key := (store.keys.prefix + kind).encode()) != after.get(key), kind


@pytest.mark.parametrize("change", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_refused_commit_changes_nothing(store: RedisHarness, leader: Leader, change: Change) -> None:
    leases, waiting = await prepared(store, leader)
    fields = full_pass(leader, leases, waiting)
    change(leases, waiting, fields)
    before = await store.dump()
    with pytest.raises(CommitRefused):
        await leader.commit(**fields)
    assert await store.dump() == before


@pytest.mark.parametrize(("token", "ahead"), [("2:other", 0), ("", 0), ("1:leader", 1), ("1:leader", -1)])
async def test_a_commit_with_another_token_or_number_changes_nothing(
    store: RedisHarness, leader: Leader, token: str, ahead: int
) -> None:
    leases, waiting = await prepared(store, leader)
    commit = leader.next(**full_pass(leader, leases, waiting))
    before = await store.dump()
    with pytest.raises(NotLeader):
        await store.handle.commit(replace(commit, token=token, pass_number=commit.pass_number + ahead))
    assert await store.dump() == before


@pytest.mark.parametrize(
    "kind",
    ["leases", "active", "events", "wake", "nodes", "dead", "workers", "pool:default", f"lane:{LANE}", "reply:me"],
)
async def test_a_key_of_the_wrong_type_refuses_the_commit_whole(
    store: RedisHarness, leader: Leader, kind: str
) -> None:
    """There is no rollback, so every key's type is checked before the first write."""
    leases, waiting = await prepared(store, leader)
    key = store.keys.prefix + kind
    await store.raw("DEL", key)
    await store.raw("SET", key, "x")
    before = await store.dump()
    with pytest.raises(BackendError):
        await leader.commit(**full_pass(leader, leases, waiting))
    assert await store.dump() == before


async def test_a_pool_stream_without_ids_left_refuses_the_commit_whole(store: RedisHarness, leader: Leader) -> None:
    """Its entries are written first, and taken back when one is refused."""
    last = 2**64 - 1
    leases, waiting = await prepared(store, leader)
    await store.raw("XADD", store.keys.pool("default"), f"{last}-{last - 1}", "token", "x")
    before = await store.dump()
    with pytest.raises(BackendError, match="takes no entry"):
        await leader.commit(**full_pass(leader, leases, waiting))
    assert await store.dump() == before


async def test_a_refused_submit_changes_nothing(store: RedisHarness) -> None:
    await submit(store.handle, job())
    await store.raw("SET", store.keys.lane(OTHER), "x")
    before = await store.dump()
    with pytest.raises(BackendError):
        await submit(store.handle, job(), job(OTHER))
    assert await store.dump() == before


async def test_a_refused_join_changes_nothing(store: RedisHarness) -> None:
    await store.raw("SET", store.keys.pool("renders"), "x")
    before = await store.dump()
    with pytest.raises(BackendError):
        await store.handle.join(worker(slots={"default": 1, "renders": 1}))
    assert await store.dump() == before
