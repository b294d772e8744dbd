"""What the port promises when somebody writes bytes into the store that are none of drr's."""

from __future__ import annotations

import pytest

from drr.backend import Backend, Burial, DeathCause, Dispatch, Malformed, MalformedEvent, Peek
from drr.errors import CommitRefused
from drr.model import JobState, JobStatus
from tests.contract.harness import LANE, OTHER, Harness, Leader, header_of, job, submit, succeeded, window

pytestmark = pytest.mark.anyio

RAW = [b"", b"\x00", b"garbage", b"\xc1" * 40, bytes(range(256)), b"\x93" * 5000]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
async def test_bytes_in_a_lane_are_seen_and_buried(
    backend: Backend, leader: Leader, harness: Harness, raw: bytes
) -> None:
    await harness.plant_entry(LANE, raw)
    ((lane, head),) = (await leader.receive()).lanes
    (found,) = (await window(backend)).entries
    for entry in (head, found):
        assert isinstance(entry, Malformed)
        assert (entry.lane, raw.startswith(entry.raw)) == (LANE, True)
        assert entry.reason
    assert lane == LANE
    assert isinstance(found, Malformed)
    await leader.commit(removals=[Burial(LANE, found.raw, "not a job")])
    assert await backend.lane_lengths([LANE]) == [0]
    assert (await backend.load(leader.token)).lanes == ()
    (letter,) = await backend.dead_letters()
    assert (letter.lane, letter.reason, letter.cause) == (LANE, "not a job", DeathCause.MALFORMED)
    assert letter.header is None
    assert raw.startswith(letter.payload)
    assert bool(letter.payload) == bool(raw)


async def test_bytes_between_jobs_do_no_harm_to_them(backend: Backend, leader: Leader, harness: Harness) -> None:
    before = await submit(backend, job(payload=b"one"))
    await harness.plant_entry(LANE, b"garbage")
    behind = await submit(backend, job(payload=b"two"))
    assert await backend.look_up([*before, *behind]) == [
        JobStatus(job_id, JobState.QUEUED) for job_id in (*before, *behind)
    ]
    one, bad, two = (await window(backend)).entries
    assert isinstance(bad, Malformed)

    with pytest.raises(CommitRefused):
        await leader.commit(removals=[Burial(LANE, bad.raw, "not the head yet")])
    await leader.dispatch(header_of(one))
    assert await backend.look_up(behind) == [JobStatus(behind[0], JobState.QUEUED)]
    with pytest.raises(CommitRefused):
        await leader.dispatch(header_of(two))
    with pytest.raises(CommitRefused):
        await leader.commit(removals=[Burial(LANE, b"another", "other bytes")])

    lease = leader.lease(header_of(two))
    (left,) = await leader.commit(
        [Peek(LANE, 0, 5)], removals=[Burial(LANE, bad.raw, "not a job")], dispatches=[Dispatch(lease.header, lease)]
    )
    assert left.length == 0
    attempts = await backend.read_attempts("w1", "i1", "default", 5, 0)
    assert [attempt.payload for attempt in attempts if not isinstance(attempt, Malformed)] == [b"one", b"two"]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
async def test_bytes_behind_jobs_do_not_hide_them(
    backend: Backend, leader: Leader, harness: Harness, raw: bytes
) -> None:
    ids = await submit(backend, job(), job())
    await harness.plant_entry(LANE, raw)
    assert await backend.look_up(ids) == [JobStatus(job_id, JobState.QUEUED) for job_id in ids]
    await leader.dispatch(header_of((await window(backend)).entries[0]))
    assert await backend.look_up(ids[1:]) == [JobStatus(ids[1], JobState.QUEUED)]


async def test_several_bad_entries_are_buried_in_one_pass(backend: Backend, leader: Leader, harness: Harness) -> None:
    for raw in (b"one", b"two"):
        await harness.plant_entry(LANE, raw)
    await harness.plant_entry(OTHER, b"three")
    burials = [
        Burial(lane, entry.raw, "bad")
        for lane in (OTHER, LANE)
        for entry in (await window(backend, lane)).entries
        if isinstance(entry, Malformed)
    ]
    await leader.commit(removals=burials)
    assert [letter.payload for letter in await backend.dead_letters()] == [b"three", b"one", b"two"]
    assert await backend.lane_lengths([LANE, OTHER]) == [0, 0]


@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
async def test_bytes_among_the_events_are_seen_and_skipped(
    backend: Backend, leader: Leader, harness: Harness, raw: bytes
) -> None:
    await backend.report([succeeded("t1")])
    await harness.plant_event(raw)
    await backend.report([succeeded("t2")])
    facts = await leader.receive()
    first, bad, second = facts.events
    assert (first, second) == (succeeded("t1"), succeeded("t2"))
    assert isinstance(bad, MalformedEvent)
    assert raw.startswith(bad.raw)
    assert bad.reason
    await leader.commit()
    assert (await leader.receive()).events == ()
