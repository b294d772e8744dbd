"""What the port promises of a pass: all or nothing, in order, and only if everything is as it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drr.backend import (
    ITEM_LIMIT,
    Backend,
    Burial,
    Commit,
    Dispatch,
    Peek,
    Position,
    Requeue,
    Settlement,
    Window,
)
from drr.errors import CommitRefused, InvalidValue, NotLeader
from drr.model import (
    Header,
    JobState,
    JobStatus,
    Lane,
    Lease,
    NodePolicy,
    NodeState,
    PoolPolicy,
    Settings,
    Share,
)
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    RENDERS,
    URGENT,
    Harness,
    Leader,
    completion,
    header_of,
    heads,
    job,
    other,
    reading,
    submit,
    succeeded,
    window,
    worker,
)

pytestmark = pytest.mark.anyio


async def picture(backend: Backend, token: str) -> dict[str, Any]:
    """Everything that the port shows of a store in one value: two pictures are equal if nothing was changed."""
    snapshot = await backend.load(token)
    lanes = sorted(snapshot.lanes)
    status = await backend.read_status()
    return {
        "leases": sorted(snapshot.leases, key=lambda lease: lease.token),
        "nodes": dict(snapshot.nodes),
        "settings": snapshot.settings,
        "passes": snapshot.passes,
        "position": snapshot.position,
        "windows": await backend.peek([Peek(lane, 0, 50) for lane in lanes]),
        "workers": sorted(snapshot.workers, key=lambda record: record.name),
        "leader": status.leader,
        "blob": status.blob,
        "dead": await backend.dead_letters(),
        "pending": await backend.pending_attempts("w1", "i1", "default"),
        "news": await backend.receive(Position(), 0),
        "replies": await backend.replies("me", "", 0),
    }


# --- dispatch


async def test_a_dispatch_moves_the_head_and_writes_its_lease(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(), job())
    first, second = await heads(backend)
    (lease,) = await leader.dispatch(first)
    assert await heads(backend) == [second]
    assert (await backend.load(leader.token)).leases == (lease,)


async def test_dispatches_of_one_lane_take_successive_heads(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(), job(OTHER), job(), job(URGENT), job())
    mine, others, urgent = await heads(backend), await heads(backend, OTHER), await heads(backend, URGENT)
    await leader.dispatch(mine[0], others[0], mine[1], urgent[0])
    assert await backend.lane_lengths([LANE, OTHER, URGENT]) == [1, 0, 0]
    assert await heads(backend) == mine[2:]


async def test_a_lane_is_active_exactly_while_it_holds_jobs(backend: Backend, leader: Leader) -> None:
    async def active() -> set[Lane]:
        return set((await backend.load(leader.token)).lanes)

    assert await active() == set()
    await submit(backend, job(), job(), job(OTHER))
    assert await active() == {LANE, OTHER}
    (lease, _) = await leader.dispatch((await heads(backend))[0], *await heads(backend, OTHER))
    assert await active() == {LANE}
    await leader.dispatch(*await heads(backend))
    assert await active() == set()
    await leader.commit(requeues=[Requeue(lease, 1, 0)])
    assert await active() == {LANE}


async def test_leases_come_back_as_they_were_written(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(estimate=1 / 3, timeout=0.1, result_ttl=1e9, reply_to="me"), job())
    one, two = await heads(backend)
    leases = [
        Lease("t1", one, 1, 1_700_000_000.123456, 0.1 + 0.2, "w1", (0.25, 1e-9, 3.0)),
        Lease("t2", two, 7, 0.0, 1e8),
    ]
    await leader.commit(dispatches=[Dispatch(lease.header, lease) for lease in leases])
    snapshot = await backend.load(leader.token)
    assert sorted(snapshot.leases, key=lambda lease: lease.token) == leases


# --- settle, requeue, bury, charge


async def test_a_settlement_ends_a_lease(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job())
    await leader.settle(leases[0])
    assert (await backend.load(leader.token)).leases == (leases[1],)


async def test_a_lease_is_settled_whoever_holds_it_by_now(backend: Backend, leader: Leader) -> None:
    """The dispatcher's copy may have learnt of the worker and of charges that the ledger has not."""
    (lease,) = await leader.start(job())
    await leader.settle(replace(lease, worker="w1", charged=9.0, excused=(1.0,)))
    assert (await backend.load(leader.token)).leases == ()


async def test_returned_jobs_go_to_the_head_of_their_lanes(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(), job(OTHER))
    await submit(backend, job())
    (waiting,) = await heads(backend)
    await leader.commit(requeues=[Requeue(leases[1], 1, 0), Requeue(leases[2], 5, 3), Requeue(leases[0], 2, 1)])
    assert await heads(backend) == [
        replace(leases[0].header, attempts=2, losses=1, returned=True),
        replace(leases[1].header, attempts=1, losses=0, returned=True),
        waiting,
    ]
    assert await heads(backend, OTHER) == [replace(leases[2].header, attempts=5, losses=3, returned=True)]
    assert (await backend.load(leader.token)).leases == ()


async def test_counts_of_a_returned_job_have_a_range(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    for attempts, losses in ((0, 0), (-1, 0), (1, -1), (2**16, 0), (1, 2**16)):
        with pytest.raises(InvalidValue):
            await leader.commit(requeues=[Requeue(lease, attempts, losses)])
    await leader.commit(requeues=[Requeue(lease, 2**16 - 1, 2**16 - 1)])
    assert await heads(backend) == [replace(lease.header, attempts=2**16 - 1, losses=2**16 - 1, returned=True)]


async def test_one_pass_may_requeue_a_job_and_dispatch_it_again(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(payload=b"same"))
    await submit(backend, job(), job())
    first, second = await heads(backend)
    returned = replace(lease.header, attempts=1, losses=1, returned=True)
    again, behind = leader.lease(returned), leader.lease(first)
    await leader.commit(
        requeues=[Requeue(lease, 1, 1)], dispatches=[Dispatch(returned, again), Dispatch(first, behind)]
    )
    assert await heads(backend) == [second]
    read = await backend.read_attempts("w1", "i1", "default", 5, 0)
    assert [(attempt.token, attempt.payload) for attempt in read if not hasattr(attempt, "raw")] == [
        (again.token, b"same"),
        (behind.token, b"payload"),
    ]


async def test_one_pass_may_requeue_into_an_empty_lane_and_empty_it(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    returned = replace(lease.header, attempts=1, returned=True)
    again = leader.lease(returned)
    await leader.commit(requeues=[Requeue(lease, 1, 0)], dispatches=[Dispatch(returned, again)])
    snapshot = await backend.load(leader.token)
    assert (snapshot.lanes, snapshot.leases) == ((), (again,))
    assert await backend.lane_lengths([LANE]) == [0]


async def test_charges_replace_what_the_ledger_says_of_a_lease(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job())
    charged = replace(leases[0], charged=12.5, worker="w1", excused=(0.5, 0.25))
    await leader.commit(charges={charged.token: charged})
    snapshot = await backend.load(leader.token)
    assert {lease.token: lease for lease in snapshot.leases} == {charged.token: charged, leases[1].token: leases[1]}
    assert await backend.look_up([charged.header.job_id]) == [JobStatus(charged.header.job_id, JobState.RUNNING, 1)]
    await leader.settle(charged)
    assert (await backend.load(leader.token)).leases == (leases[1],)


# --- accounts, settings, position


async def test_accounts_are_written_replaced_and_forgotten(backend: Backend, leader: Leader) -> None:
    root, org, project = ("default", ()), ("default", ("acme",)), ("default", ("acme", "web"))
    elsewhere = ("renders", ("acme",))
    states = {
        root: NodeState(round=2**40),
        org: NodeState(-0.1 - 0.2, 3, -2, True, 4, 1e-12, 5, 6, 7, 8, 9, 10),
        project: NodeState(credit=1 / 3, drained=True, round=7, floor_turn=9),
        elsewhere: NodeState(credit=5.0),
    }
    await leader.commit(nodes=states)
    assert (await backend.load(leader.token)).nodes == states
    await leader.commit(nodes={project: None, org: NodeState(credit=2.0), ("default", ("nobody",)): None})
    states[org] = NodeState(credit=2.0)
    del states[project]
    assert (await backend.load(leader.token)).nodes == states


async def test_one_pass_may_touch_more_accounts_than_jobs(backend: Backend, leader: Leader) -> None:
    states = {("default", (f"t{number}",)): NodeState(credit=number / 7) for number in range(2 * ITEM_LIMIT + 1)}
    await leader.commit(nodes=states)
    assert (await backend.load(leader.token)).nodes == states


async def test_settings_stay_until_others_replace_them(backend: Backend, leader: Leader) -> None:
    assert (await backend.load(leader.token)).settings == Settings()
    settings = Settings(
        pools={
            "default": PoolPolicy(quantum=0.5, ceiling=10.0, reserve=2, default_estimate=0.1),
            "renders": PoolPolicy(),
        },
        nodes={
            "default": {
                ("acme",): NodePolicy(weight=2.5, soft_cap=Share(0.25), hard_cap=Share(1.0), floor=Share(0.1)),
                ("acme", "web"): NodePolicy(hard_cap=3, floor=1, ceiling=7.0),
            }
        },
    )
    await leader.commit(settings=settings)
    await leader.commit()
    assert (await backend.load(leader.token)).settings == settings
    await leader.commit(settings=Settings())
    assert (await backend.load(leader.token)).settings == Settings()


async def test_what_lies_before_the_committed_position_is_gone(backend: Backend, leader: Leader) -> None:
    await submit(backend, job())
    await backend.report([succeeded("t1")])
    facts = await leader.receive()
    await backend.report([succeeded("t2")])
    await submit(backend, job(OTHER))
    await leader.commit()
    kept = await backend.receive(Position(), 0)
    assert kept.events == (succeeded("t2"),)
    assert [lane for lane, _ in kept.lanes] == [OTHER]
    assert kept == await backend.receive(facts.position, 0)


async def test_news_that_was_read_but_not_committed_is_kept(backend: Backend, leader: Leader) -> None:
    await backend.report([succeeded("t1")])
    start = leader.position
    facts = await leader.receive()
    await leader.commit(position=start)
    assert await backend.receive(start, 0) == facts
    snapshot = await backend.load(leader.token)
    assert (await backend.receive(snapshot.position, 0)).events == facts.events


# --- read-ahead


async def test_windows_show_offset_count_and_length(backend: Backend) -> None:
    await submit(backend, *[job()] * 10)
    everything = await heads(backend)
    for offset, count in ((0, 3), (3, 3), (8, 5), (10, 1), (50, 1), (0, 0), (9, 1)):
        assert await window(backend, LANE, offset, count) == Window(
            LANE, offset, tuple(everything[offset : offset + count]), 10
        )
    assert await window(backend, OTHER) == Window(OTHER, 0, (), 0)
    assert await backend.peek([]) == []


async def test_a_commit_reads_ahead_what_it_leaves(backend: Backend, leader: Leader) -> None:
    await submit(backend, *[job()] * 5)
    first, *others = await heads(backend)
    lease = leader.lease(first)
    peeks = [Peek(LANE, 1, 2), Peek(OTHER, 0, 4), Peek(LANE, 0, 0)]
    assert await leader.commit(peeks, dispatches=[Dispatch(first, lease)]) == [
        Window(LANE, 1, tuple(others[1:3]), 4),
        Window(OTHER, 0, (), 0),
        Window(LANE, 0, (), 4),
    ]
    (found,) = await leader.commit([Peek(LANE, 0, 10)], requeues=[Requeue(lease, 1, 1)])
    assert found.entries == (replace(first, attempts=1, losses=1, returned=True), *others)
    assert found.length == 5


async def test_peeks_are_bounded(backend: Backend, leader: Leader) -> None:
    await submit(backend, *[job()] * ITEM_LIMIT)
    found = await backend.peek([Peek(LANE, 0, ITEM_LIMIT - 1), Peek(LANE, ITEM_LIMIT - 1, 1)])
    assert [len(each.entries) for each in found] == [ITEM_LIMIT - 1, 1]
    for peeks in (
        [Peek(LANE, 0, ITEM_LIMIT + 1)],
        [Peek(LANE, 0, ITEM_LIMIT), Peek(OTHER, 0, 1)],
        [Peek(LANE, -1, 1)],
        [Peek(LANE, 0, -1)],
    ):
        with pytest.raises(InvalidValue):
            await backend.peek(peeks)
        with pytest.raises(InvalidValue):
            await backend.commit(leader.next(), peeks)
    assert (await backend.leader()).passes == 0


# --- size


async def test_a_pass_moves_as_many_jobs_as_the_limit_says(backend: Backend, leader: Leader) -> None:
    await submit(backend, *[job()] * ITEM_LIMIT)
    (found,) = await backend.peek([Peek(LANE, 0, ITEM_LIMIT)])
    leases = [leader.lease(header_of(entry)) for entry in found.entries]
    await leader.commit(dispatches=[Dispatch(lease.header, lease) for lease in leases])
    await submit(backend, *[job(OTHER)] * ITEM_LIMIT)
    (found,) = await backend.peek([Peek(OTHER, 0, ITEM_LIMIT)])
    more = [leader.lease(header_of(entry)) for entry in found.entries]
    await leader.commit(
        requeues=[Requeue(lease, 1, 0) for lease in leases],
        dispatches=[Dispatch(lease.header, lease) for lease in more],
    )
    await leader.settle(*more)
    assert await backend.lane_lengths([LANE, OTHER]) == [ITEM_LIMIT, 0]
    assert (await backend.load(leader.token)).leases == ()


async def test_a_pass_with_too_many_items_of_a_kind_is_refused(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    over = ITEM_LIMIT + 1
    kinds: dict[str, Any] = {
        "settlements": [Settlement(lease, completion())] * over,
        "requeues": [Requeue(lease, 1, 0)] * over,
        "removals": [Burial(LANE, b"x", "why")] * over,
        "dispatches": [Dispatch(lease.header, lease)] * over,
    }
    before = await picture(backend, leader.token)
    for kind, items in kinds.items():
        with pytest.raises(InvalidValue, match=kind):
            await leader.commit(**{kind: items})
    assert await picture(backend, leader.token) == before


# --- refusals


async def test_a_pass_that_does_nothing_counts(backend: Backend, leader: Leader) -> None:
    before = await backend.leader()
    await leader.commit()
    after = await backend.leader()
    assert after.passes == before.passes + 1
    assert after.renewals > before.renewals


class Scene:
    """A store with a bit of everything, and one commit that would touch all of it."""

    def __init__(self, backend: Backend, leader: Leader) -> None:
        self.backend, self.leader = backend, leader

    async def set(self) -> Scene:
        self.leases = await self.leader.start(*[job(result_ttl=60.0, reply_to="me")] * 3)
        await self.backend.read_attempts("w1", "i1", "default", 2, 0)
        await submit(self.backend, job(), job(), job(OTHER))
        self.mine, self.others = await heads(self.backend), await heads(self.backend, OTHER)
        await self.backend.join(worker())
        await self.backend.report([succeeded(self.leases[0].token)])
        facts = await self.backend.receive(self.leader.position, 0)
        settled, returned, kept = self.leases
        new = [
            self.leader.lease(header)
            for header in (*self.others, replace(returned.header, attempts=1, returned=True))
        ]
        self.commit = self.leader.next(
            position=facts.position,
            settlements=[Settlement(settled, completion(), bury="for the test")],
            requeues=[Requeue(returned, 1, 0)],
            dispatches=[Dispatch(lease.header, lease) for lease in new],
            charges={kept.token: replace(kept, charged=99.0)},
            nodes={("default", ("acme",)): NodeState(credit=4.0)},
            settings=Settings(pools={"default": PoolPolicy(quantum=3.0)}),
            forget_workers={"w1": "i1"},
        )
        return self


def altered(**changes: Callable[[Scene], Any]) -> Callable[[Scene], Commit]:
    """The scene's commit with some fields computed anew."""
    return lambda scene: replace(scene.commit, **{name: change(scene) for name, change in changes.items()})


def more(kind: str, make: Callable[[Scene], Any]) -> Callable[[Scene], Commit]:
    """The scene's commit with one more item of a kind at the end."""
    return altered(**{kind: lambda scene: [*getattr(scene.commit, kind), make(scene)]})


def dispatch(scene: Scene, header: Header, **more: Any) -> Dispatch:
    return Dispatch(header, scene.leader.lease(header, **more))


STALE = {
    "another token": altered(token=lambda scene: "1:another"),
    "a token that is a prefix": altered(token=lambda scene: scene.leader.token[:-1]),
    "no token": altered(token=lambda scene: ""),
    "the last pass again": altered(pass_number=lambda scene: scene.commit.pass_number - 1),
    "a pass that skips one": altered(pass_number=lambda scene: scene.commit.pass_number + 1),
    "pass 0": altered(pass_number=lambda scene: 0),
}

WRONG = {
    "settles an unknown token": more(
        "settlements", lambda s: Settlement(replace(s.leases[2], token="?"), completion())
    ),
    "settles twice": more("settlements", lambda s: s.commit.settlements[0]),
    "settles and requeues": more("settlements", lambda s: Settlement(s.leases[1], completion())),
    "requeues an unknown token": more("requeues", lambda s: Requeue(replace(s.leases[2], token="?"), 1, 0)),
    "requeues twice": more("requeues", lambda s: s.commit.requeues[0]),
    "buries a good job": more("removals", lambda s: Burial(LANE, b"raw", "why")),
    "buries in an empty lane": more("removals", lambda s: Burial(RENDERS, b"raw", "why")),
    "dispatches the second": more("dispatches", lambda s: dispatch(s, s.mine[1])),
    "dispatches past a returned job": altered(dispatches=lambda s: [dispatch(s, s.mine[0])]),
    "dispatches from an empty lane": more("dispatches", lambda s: dispatch(s, replace(s.mine[0], lane=RENDERS))),
    "dispatches from a lane it emptied": more("dispatches", lambda s: dispatch(s, s.others[0])),
    "dispatches one twice": more("dispatches", lambda s: dispatch(s, s.leases[1].header)),
    "dispatches under a live token": more("dispatches", lambda s: dispatch(s, s.mine[0], token=s.leases[2].token)),
    "dispatches under an ended token": more("dispatches", lambda s: dispatch(s, s.mine[0], token=s.leases[0].token)),
    "dispatches two under one token": more(
        "dispatches", lambda s: dispatch(s, s.mine[0], token=s.commit.dispatches[0].lease.token)
    ),
    "has another count of attempts": more("dispatches", lambda s: dispatch(s, other(s.mine[0], attempts=1))),
    "has another count of losses": more("dispatches", lambda s: dispatch(s, other(s.mine[0], losses=1))),
    "has another number": more("dispatches", lambda s: dispatch(s, other(s.mine[0], sequence=2**40))),
    "has another nonce": more("dispatches", lambda s: dispatch(s, other(s.mine[0], nonce="0" * 10))),
    "has another estimate": more("dispatches", lambda s: dispatch(s, other(s.mine[0], estimate=0.5))),
    "has another task": more("dispatches", lambda s: dispatch(s, other(s.mine[0], task="other"))),
    "charges an unknown token": altered(charges=lambda s: {**s.commit.charges, "?": replace(s.leases[2], token="?")}),
    "charges what it settles": altered(charges=lambda s: {s.leases[0].token: s.leases[0]}),
    "charges what it requeues": altered(charges=lambda s: {s.leases[1].token: s.leases[1]}),
}


async def test_the_whole_of_a_pass_is_applied(backend: Backend, leader: Leader) -> None:
    """The negative control of the refusals below: unaltered, their commit passes and changes everything."""
    scene = await Scene(backend, leader).set()
    before = await picture(backend, leader.token)
    await backend.commit(scene.commit)
    after = await picture(backend, leader.token)
    assert {key for key in after if after[key] == before[key]} == {"blob"}


@pytest.mark.parametrize("alter", STALE.values(), ids=STALE.keys())
async def test_a_fenced_commit_changes_nothing(
    backend: Backend, leader: Leader, alter: Callable[[Scene], Commit]
) -> None:
    scene = await Scene(backend, leader).set()
    before = await picture(backend, leader.token)
    with pytest.raises(NotLeader):
        await backend.commit(alter(scene), [Peek(LANE, 0, 1)])
    assert await picture(backend, leader.token) == before
    await backend.commit(scene.commit)


@pytest.mark.parametrize("alter", WRONG.values(), ids=WRONG.keys())
async def test_a_commit_that_contradicts_the_store_changes_nothing(
    backend: Backend, leader: Leader, alter: Callable[[Scene], Commit]
) -> None:
    scene = await Scene(backend, leader).set()
    before = await picture(backend, leader.token)
    with pytest.raises(CommitRefused):
        await backend.commit(alter(scene), [Peek(LANE, 0, 1)])
    assert await picture(backend, leader.token) == before
    await backend.commit(scene.commit)


async def test_a_refused_commit_wakes_nobody(backend: Backend, leader: Leader, harness: Harness) -> None:
    scene = await Scene(backend, leader).set()
    await backend.read_attempts("w1", "i1", "default", 5, 0)
    reader = harness.open()
    async with reading(harness, lambda: reader.read_attempts("w2", "i1", "default", 5, LONG)) as result:
        with pytest.raises(CommitRefused):
            await backend.commit(WRONG["dispatches the second"](scene))
        await backend.commit(scene.commit)
    assert len(result.value) >= 1


async def test_a_repeated_commit_is_refused(backend: Backend, leader: Leader) -> None:
    scene = await Scene(backend, leader).set()
    await backend.commit(scene.commit)
    after = await picture(backend, leader.token)
    with pytest.raises(NotLeader):
        await backend.commit(scene.commit)
    assert await picture(backend, leader.token) == after


async def test_a_late_commit_is_refused_after_a_new_election(backend: Backend, leader: Leader) -> None:
    """The interleaving that the pass number and the token are for: a reply was lost, the leader has loaded again."""
    scene = await Scene(backend, leader).set()
    again = await Leader(backend, "2:leader").take_over()
    before = await picture(backend, again.token)
    with pytest.raises(NotLeader):
        await backend.commit(scene.commit)
    assert await picture(backend, again.token) == before
    await again.commit()
