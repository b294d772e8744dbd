"""Whoever may submit may write raw keys: nothing that is found in one may stop a reader."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from drr.backend import (
    ITEM_LIMIT,
    Burial,
    DeadLetter,
    Event,
    Malformed,
    MalformedEvent,
    Peek,
    Position,
    Postpone,
    Requeue,
    Settlement,
    Work,
)
from drr.errors import MalformedMessage, StoreCorrupt
from drr.model import Header, JobState, Lane, NodeState
from drr_backends.redis.codec import HEADER_LIMIT
from drr_backends.redis.settings import decode_settings
from tests.contract.harness import (
    LANE,
    OTHER,
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
from tests.redis.harness import SETTINGS, RedisHarness

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

ROUNDS = 1000


def mutations(seeds: list[bytes], count: int, seed: int) -> list[bytes]:
    """Bytes that are nearly right, or not at all; the same every time."""
    chance = random.Random(seed)

    def mutate(data: bytes) -> bytes:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            match chance.randrange(5):
                case 0 if changed:
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
                case 1 if changed:
                    del changed[chance.randrange(len(changed)) :]
                case 2:
                    at = chance.randrange(len(changed) + 1)
                    changed[at:at] = chance.randbytes(chance.randrange(1, 20))
                case 3 if changed:
                    at = chance.randrange(len(changed))
                    del changed[at : at + chance.randrange(1, 8)]
                case _:
                    nested = b"\x91" * chance.choice((1, 40, 2000))
                    changed = bytearray(
                        chance.choice((chance.randbytes(chance.randrange(64)), nested, b"\xdd\xff" * 4))
                    )
        return bytes(changed)

    return [mutate(chance.choice(seeds)) for _ in range(count)]


async def frames(store: RedisHarness, lane: Lane = LANE) -> list[bytes]:
    return list(await store.raw("LRANGE", store.keys.lane(lane), 0, -1))


async def test_rubbish_in_a_lane_is_buried_and_the_jobs_behind_it_run(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job(), job(task="import", estimate=2.0, timeout=3.0, result_ttl=1.0, reply_to="me"))
    rubbish = mutations(await frames(store), ROUNDS, 1)
    await store.raw("RPUSH", store.keys.lane(LANE), *rubbish)
    (last,) = await submit(store.handle, job())
    left, buried, started = ROUNDS + 3, 0, 0
    while left:
        found = await window(store.handle, LANE, 0, 300)
        assert found.length == left
        burials, leases = [], []
        for entry in found.entries:
            if not isinstance(entry, Header):
                burials.append(Burial(LANE, entry.raw, entry.reason) if isinstance(entry, Malformed) else entry)
                continue
            if burials:
                break  # burials come first within a pass
            leases.append(leader.lease(entry))
        if burials and not leases:
            await leader.commit(removals=burials)
        else:
            for lease in leases:
                await leader.dispatch(lease.header)
        buried, started = buried + (0 if leases else len(burials)), started + len(leases)
        left -= len(leases) or len(burials)
    assert buried + started == ROUNDS + 3
    assert buried > ROUNDS // 2
    letters: list[DeadLetter] = []
    while more := await store.handle.dead_letters(limit=200, after=letters[-1].number if letters else 0):
        letters += more
    # Some rubbish looks like what is left of a job that was struck out, and goes without a trace.
    assert buried - 20 < len(letters) <= buried
    assert await store.raw("HLEN", store.keys.dead) == len(letters)
    assert all(letter.lane == LANE and letter.reason and letter.header is None for letter in letters)
    assert {letter.payload for letter in letters} <= set(rubbish)
    assert last in {lease.header.job_id for lease in (await store.handle.load(leader.token)).leases}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"x",
        b"\0" * 20,
        b"\xff" * 20,
        b"\xff" * 100_000,
        b"\0" * 16 + (HEADER_LIMIT + 1).to_bytes(4, "big") * 2000,
    ],
    ids=["empty", "short", "zeros", "ones", "huge", "long header"],
)
async def test_an_entry_that_is_no_frame_can_be_buried(store: RedisHarness, leader: Leader, raw: bytes) -> None:
    await store.plant_entry(LANE, raw)
    ((_, announced),) = (await leader.receive()).lanes
    (entry,) = (await window(store.handle)).entries
    assert isinstance(entry, Malformed)
    assert announced == entry
    assert len(entry.raw) <= 4096
    assert raw.startswith(entry.raw)
    await leader.commit(removals=[Burial(LANE, entry.raw, entry.reason)])
    (letter,) = await store.handle.dead_letters()
    assert (letter.payload, letter.header) == (raw, None)


async def test_a_frame_of_another_lane_is_malformed(store: RedisHarness) -> None:
    await submit(store.handle, job(OTHER))
    await store.plant_entry(LANE, (await frames(store, OTHER))[0])
    (entry,) = (await window(store.handle)).entries
    assert isinstance(entry, Malformed)
    assert "another lane" in entry.reason


async def test_a_header_in_another_encoding_is_dispatched_as_it_is(store: RedisHarness, leader: Leader) -> None:
    """Another program may write floats as ints or strings as long ones: the commit compares its bytes."""
    fields = [1, "default", ["acme", "web"], 5, [], "work", "nonce", 1_700_000_000, 1, None, 0, "", None, None]
    header = msgpack.packb(fields).replace(b"\xa4work", b"\xd9\x04work")
    await store.plant_entry(
        LANE, (7).to_bytes(8, "big") + b"\0" * 8 + len(header).to_bytes(4, "big") + header + b"body"
    )
    (lease,) = await leader.dispatch(*await heads(store.handle))
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    (head,) = await heads(store.handle)
    assert (head.attempts, head.losses, head.task) == (1, 1, "work")
    await leader.dispatch(head)
    await store.handle.join(worker())
    (attempt,) = await store.handle.read_attempts("w1", "i1", "default", 1, 0)
    assert attempt.payload == b"body"  # type: ignore[union-attr]


async def test_rubbish_among_the_events_is_skipped(store: RedisHarness, leader: Leader) -> None:
    await store.handle.report([_event("t1"), _event("t2")])
    (entry,) = await store.raw("XRANGE", store.keys.events, "-", "+")
    for raw in mutations([entry[1][1]], ROUNDS, 2):
        await store.plant_event(raw)
    await store.raw("XADD", store.keys.events, "*", "nothing", "known")
    await store.handle.report([_event("last")])
    events: list[Event | MalformedEvent] = []
    while True:
        facts = await leader.receive(limit=100)
        if not facts.events:
            break
        events += facts.events
    assert sum(isinstance(event, MalformedEvent) for event in events) > ROUNDS // 2
    assert events[-1] == _event("last")


def _event(token: str) -> Event:
    return succeeded(token, value=b"value")


async def test_rubbish_on_the_wake_stream_is_skipped(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    (entry,) = await store.raw("XRANGE", store.keys.wake, "-", "+")
    for lane, head in zip(mutations([entry[1][1]], 300, 3), mutations([entry[1][3]], 300, 4), strict=True):
        await store.raw("XADD", store.keys.wake, "*", "lane", lane, "head", head)
    await store.raw("XADD", store.keys.wake, "*", "lane", str(LANE), "head", b"forged")
    facts = await leader.receive()
    # A forged head of a real lane is replaced by the real one; lanes that hold nothing are not announced.
    assert LANE in dict(facts.lanes)
    assert header_of(dict(facts.lanes)[LANE]) == (await heads(store.handle))[0]
    await leader.commit()
    assert await store.raw("XLEN", store.keys.wake) == 0


async def test_rubbish_in_the_pool_stream_reaches_the_worker_as_such(store: RedisHarness, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    await store.handle.join(worker())
    ((_, fields),) = await store.raw("XRANGE", store.keys.pool("default"), "-", "+")
    for frame in mutations([fields[5]], ROUNDS, 5):
        await store.raw("XADD", store.keys.pool("default"), "*", "token", "t", "attempt", "1", "frame", frame)
    await store.raw("XADD", store.keys.pool("default"), "*", "nothing", "known")
    await store.raw("XADD", store.keys.pool("default"), "*", *fields[:2], "attempt", "-1", *fields[4:])
    await store.raw("XADD", store.keys.pool("default"), "*", "token", b"\xff", *fields[2:])
    read = []
    while found := await store.handle.read_attempts("w1", "i1", "default", ITEM_LIMIT, 0):
        read += found
    assert len(read) == ROUNDS + 4
    assert read[0].token == lease.token  # type: ignore[union-attr]
    assert sum(isinstance(attempt, Malformed) for attempt in read) > ROUNDS // 2
    assert all(isinstance(attempt, Malformed) for attempt in read[-3:])
    assert len(await store.handle.pending_attempts("w1", "i1", "default")) == ROUNDS + 4


async def test_a_lease_that_cannot_be_decoded_goes_to_the_dead_letters(store: RedisHarness, leader: Leader) -> None:
    (lease,) = await leader.start(job())
    record = await store.raw("HGET", store.keys.leases, lease.token)
    rubbish = mutations([record], 300, 6)
    for number, raw in enumerate(rubbish):
        await store.raw("HSET", store.keys.leases, f"t{number}", raw)
    snapshot = await store.handle.load(leader.token)
    assert snapshot.leases == (lease,)
    assert await store.raw("HLEN", store.keys.leases) == 2
    letters = await store.handle.dead_letters(limit=1000)
    assert sorted(letter.payload for letter in letters) == sorted(raw[:4096] for raw in rubbish)
    await leader.settle(lease)
    assert await store.raw("EXISTS", store.keys.leases) == 0


async def test_a_lease_that_is_damaged_while_it_runs_can_still_be_ended(store: RedisHarness, leader: Leader) -> None:
    leases = await leader.start(job(), job(result_ttl=9.0, reply_to="me"))
    for lease in leases:
        await store.raw("HSET", store.keys.leases, lease.token, b"rubbish")
    await leader.commit(
        settlements=[Settlement(leases[0], completion(), bury="why")], requeues=[Requeue(leases[1], 1, 1)]
    )
    letters = await store.handle.dead_letters()
    assert [letter.payload for letter in letters] == [b"rubbish", b"rubbish"]
    assert await store.handle.lane_lengths([LANE]) == [0]
    assert (await store.handle.load(leader.token)).leases == ()


@pytest.mark.parametrize("how", ["trimmed", "replaced"])
async def test_a_job_whose_pool_entry_is_gone_ends_as_dead_when_it_should_go_back(
    store: RedisHarness, leader: Leader, how: str
) -> None:
    """The payload was there only: what the lease knows is kept, and whoever waits is told."""
    (lease,) = await leader.start(job(result_ttl=60.0, reply_to="me"))
    await store.raw("XTRIM", store.keys.pool("default"), "MAXLEN", 0)
    if how == "replaced":
        record = await store.raw("HGET", store.keys.leases, lease.token)
        entry = await store.raw("XADD", store.keys.pool("default"), "*", "frame", b"\0" * 200)
        await store.raw("HSET", store.keys.leases, lease.token, entry + record[record.index(b" ") :])
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    assert await store.handle.lane_lengths([LANE]) == [0]
    (letter,) = await store.handle.dead_letters()
    assert letter.header == lease.header
    assert letter.payload == b""
    assert "gone" in letter.reason
    (status,) = await store.handle.look_up([lease.header.job_id])
    assert status is not None
    assert status.state is JobState.DEAD
    assert (await store.handle.replies("me", "", 0))[1] == [lease.header.job_id]


@pytest.mark.parametrize("back", ["requeued", "put off"])
async def test_a_job_that_cannot_go_back_is_not_counted_as_waiting(
    store: RedisHarness, leader: Leader, back: str
) -> None:
    await submit(store.handle, job(estimate=2.5), job(estimate=2.5))
    first, second = await heads(store.handle)
    (lease,) = await leader.dispatch(first)
    await leader.commit(waiting={LANE.path: Work(-1, -2.5)})
    await store.raw("DEL", store.keys.pool("default"))
    changes: dict[str, Any] = (
        {"requeues": [Requeue(lease, 1, 0)]}
        if back == "requeued"
        else {"postpones": [Postpone(lease, 1e10, 1, 0, 1)]}
    )
    await leader.commit(waiting={LANE.path: Work(1, 2.5)}, **changes)
    assert await heads(store.handle) == [second]
    assert await store.handle.waiting([LANE.path, LANE.path[:1]]) == [Work(1, 2.5)] * 2


async def test_a_grave_whose_pool_entry_is_gone_holds_what_the_lease_knows(
    store: RedisHarness, leader: Leader
) -> None:
    (lease,) = await leader.start(job())
    await store.raw("DEL", store.keys.pool("default"))
    await leader.commit(settlements=[Settlement(lease, completion(), bury="why")])
    (letter,) = await store.handle.dead_letters()
    assert (letter.header, letter.payload, letter.reason) == (lease.header, b"", "why")


async def test_rubbish_among_the_accounts_is_forgotten(store: RedisHarness, leader: Leader) -> None:
    state = NodeState(1.5, 3)
    await leader.commit(nodes={("default", ("acme",)): state})
    record = await store.raw("HGET", store.keys.nodes, "default:acme")
    for number, raw in enumerate(mutations([record], 300, 7)):
        await store.raw("HSET", store.keys.nodes, f"default:t{number}", raw)
    await store.raw("HSET", store.keys.nodes, b"\xff{}", record)
    nodes = (await store.handle.load(leader.token)).nodes
    assert nodes["default", ("acme",)] == state
    assert all(len(path) == 1 for _, path in nodes)


async def test_rubbish_among_the_workers_is_skipped(store: RedisHarness, leader: Leader) -> None:
    await store.handle.join(worker(held=("a", "b")))
    seeds = [await store.raw("HGET", store.keys.workers, f"w1:{part}") for part in ("shape", "held")]
    for number, raw in enumerate(mutations(seeds, 300, 8)):
        part = ("shape", "held", "renewals", "incarnation")[number % 4]
        await store.raw("HSET", store.keys.workers, f"x{number}:{part}", raw)
    await store.raw("HSET", store.keys.workers, b"\xff:\xff", b"\xff", "", "")
    assert [record.name for record in await store.handle.workers()] == ["w1"]
    assert [record.name for record in (await store.handle.read_status()).workers] == ["w1"]


async def test_rubbish_in_the_set_of_active_lanes_is_skipped(store: RedisHarness, leader: Leader) -> None:
    await submit(store.handle, job())
    for raw in mutations([str(LANE).encode()], 300, 9):
        await store.raw("SADD", store.keys.active, raw)
    lanes = (await store.handle.load(leader.token)).lanes
    assert LANE in lanes
    await store.handle.peek([Peek(lane, 0, 1) for lane in lanes[:1000]])


@pytest.mark.parametrize("seed", range(20))
async def test_settings_that_cannot_be_read_stop_the_dispatcher_and_say_why(
    store: RedisHarness, leader: Leader, seed: int
) -> None:
    """Going on with the defaults would lift every cap without a word."""
    await leader.commit(settings=SETTINGS)
    (raw,) = mutations([await store.raw("GET", store.keys.settings)], 1, 100 + seed)
    await store.raw("SET", store.keys.settings, raw)
    try:
        decode_settings(raw)
    except MalformedMessage:
        with pytest.raises(StoreCorrupt, match="settings"):
            await store.handle.load(leader.token)
    else:
        # A changed byte can make other valid settings.
        assert (await store.handle.load(leader.token)).settings != SETTINGS


ATTACKS: dict[str, Callable[[RedisHarness], list[str | bytes | int]]] = {
    "outcome": lambda store: ["SET", store.keys.outcome(1, "x"), b"rubbish"],
    "dead letters": lambda store: [
        *("HSET", store.keys.dead, 1, b"", 2, b"rubbish", 3, b"\xff" * 5000, 4, b"\0" * 11 + b"\1\x90")
    ],
    "graves": lambda store: ["ZADD", store.keys.graves, 1, 1, 2, 2, 3, 3, 4, 4],
    "replies": lambda store: ["XADD", store.keys.reply("me"), "*", "jobs", b"\xff\nx", "other", "y"],
}


async def test_rubbish_in_what_clients_read_is_said_or_shown(store: RedisHarness) -> None:
    for attack in ATTACKS.values():
        await store.raw(*attack(store))
    assert len(await store.handle.dead_letters()) == 4
    assert len((await store.handle.replies("me", "", 0))[1]) == 2
    with pytest.raises(StoreCorrupt, match="default:acme:web:5:1~x"):
        await store.handle.look_up(["default:acme:web:5:1~x"])


async def test_a_report_whose_attempt_is_unknown_is_only_an_event(store: RedisHarness, leader: Leader) -> None:
    await store.handle.report([_event("never-dispatched")])
    assert (await leader.receive()).events == (_event("never-dispatched"),)
    assert (await store.handle.load(leader.token)).position == Position("", "")
