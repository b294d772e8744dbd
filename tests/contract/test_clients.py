"""What the port promises to clients."""

from __future__ import annotations

from unittest.mock import ANY as ANY_ID

import anyio
import pytest

from drr.backend import ITEM_LIMIT, Backend, DeathCause, Peek, Requeue, Settlement, StoredStatus
from drr.errors import InvalidValue
from drr.model import Header, JobState, JobStatus, Lane, call_nonce, format_job_id, parse_job_id
from tests.contract.harness import (
    LANE,
    OTHER,
    RENDERS,
    SHORT,
    URGENT,
    Harness,
    Leader,
    completion,
    heads,
    job,
    reading,
    submit,
    window,
    worker,
)

pytestmark = pytest.mark.anyio


# --- submit


async def test_a_job_id_names_lane_number_and_nonce(backend: Backend) -> None:
    (job_id,) = await backend.submit("client", 7, [job()])
    lane, sequence, nonce = parse_job_id(job_id)
    assert (lane, nonce) == (LANE, call_nonce("client", 7))
    assert (await heads(backend))[0].sequence == sequence


async def test_jobs_of_one_submit_have_nonces_of_their_own(backend: Backend) -> None:
    """Numbers may be given twice by a store that lost its last moments: the id of one must not become another's."""
    ids = await backend.submit("client", 8, [job(name="a"), job(key="b"), job()])
    nonce = call_nonce("client", 8)
    assert [parse_job_id(job_id)[2] for job_id in ids] == [nonce, f"{nonce}.1", f"{nonce}.2"]
    assert await backend.submit("client", 8, [job(name="a"), job(key="b"), job()]) == ids
    assert await backend.find(LANE.path, "b") == ids[1]
    assert await backend.submit("client", 9, [job(), job(key="b")]) == [ANY_ID, ids[1]]
    found = await backend.look_up(ids)
    assert [status.job_id for status in found if status is not None] == ids


async def test_every_field_of_a_job_reaches_its_header(backend: Backend) -> None:
    full = job(task="import.v2", estimate=0.1, timeout=12.5, result_ttl=60.0, reply_to="client-9")
    plain = job()
    ids = await submit(backend, full, plain)
    for job_id, spec, header in zip(ids, (full, plain), await heads(backend), strict=True):
        lane, sequence, nonce = parse_job_id(job_id)
        assert header == Header(
            lane,
            sequence,
            nonce,
            spec.task,
            spec.submitted_at,
            spec.estimate,
            spec.timeout,
            spec.result_ttl,
            spec.reply_to,
            attempts=0,
            losses=0,
        )
        assert header.job_id == job_id


@pytest.mark.parametrize(
    "lane", [Lane("p", ("o",), 0), Lane("p", ("o", "p", "team", "x"), 9), Lane("P.1@-_", ("9", "_"))]
)
async def test_a_lane_may_lie_at_any_depth(backend: Backend, lane: Lane) -> None:
    (job_id,) = await submit(backend, job(lane))
    assert [header.job_id for header in await heads(backend, lane)] == [job_id]
    assert await backend.look_up([job_id]) == [JobStatus(job_id, JobState.QUEUED)]


async def test_paths_that_read_alike_are_different_lanes(backend: Backend) -> None:
    one, two = Lane("p", ("a", "b.5"), 1), Lane("p", ("a.b", "5"), 1)
    await submit(backend, job(one), job(one), job(two))
    assert await backend.lane_lengths([one, two]) == [2, 1]


async def test_numbers_rise_across_lanes_calls_and_clients(backend: Backend, harness: Harness) -> None:
    ids = await submit(backend, job(LANE), job(OTHER), job(LANE))
    ids += await submit(harness.open(), job(RENDERS), client="another")
    numbers = [parse_job_id(job_id)[1] for job_id in ids]
    assert numbers == sorted(set(numbers))


async def test_a_lane_is_first_in_first_out(backend: Backend) -> None:
    first = await submit(backend, job(), job(OTHER), job())
    second = await submit(backend, job(), client="another")
    assert [header.job_id for header in await heads(backend)] == [first[0], first[2], second[0]]


async def test_a_submit_of_nothing_is_nothing(backend: Backend, leader: Leader) -> None:
    assert await submit(backend) == []
    assert (await leader.receive()).lanes == ()
    assert await backend.submit("client", 10**9, []) == []
    assert len(await backend.submit("client", 10**9, [job()])) == 1


async def test_a_submit_takes_as_many_jobs_as_the_limit_says(backend: Backend) -> None:
    ids = await submit(backend, *[job()] * ITEM_LIMIT)
    assert len(set(ids)) == ITEM_LIMIT
    assert (await window(backend, count=0)).length == ITEM_LIMIT


async def test_a_submit_of_too_many_jobs_adds_none(backend: Backend) -> None:
    with pytest.raises(InvalidValue, match="1001"):
        await submit(backend, *[job()] * (ITEM_LIMIT + 1))
    assert await backend.lane_lengths([LANE]) == [0]


async def test_a_repeated_submit_adds_nothing_and_returns_the_first_ids(backend: Backend, harness: Harness) -> None:
    jobs = [job(), job(OTHER)]
    ids = await backend.submit("client", 3, jobs)
    assert await backend.submit("client", 3, jobs) == ids
    assert await harness.open().submit("client", 3, jobs) == ids
    assert await backend.lane_lengths([LANE, OTHER]) == [1, 1]


async def test_a_submit_is_repeated_only_by_its_client_and_call(backend: Backend) -> None:
    ids = [
        *await backend.submit("client", 3, [job()]),
        *await backend.submit("client", 4, [job()]),
        *await backend.submit("another", 3, [job()]),
    ]
    assert len(set(ids)) == 3
    assert await backend.lane_lengths([LANE]) == [3]


async def test_a_repeated_submit_is_recognised_after_its_job_has_ended(backend: Backend, leader: Leader) -> None:
    ids = await backend.submit("client", 1, [job()])
    (lease,) = await leader.dispatch(*await heads(backend))
    await leader.settle(lease)
    assert await backend.submit("client", 1, [job()]) == ids
    assert await backend.lane_lengths([LANE]) == [0]


async def test_the_last_64_calls_of_a_client_are_recognised(backend: Backend) -> None:
    ids = {call: await backend.submit("client", call, [job()]) for call in range(1, 66)}
    for call in range(2, 66):
        assert await backend.submit("client", call, [job()]) == ids[call]
    assert await backend.lane_lengths([LANE]) == [65]
    again = await backend.submit("client", 1, [job()])
    assert again != ids[1]
    assert await backend.lane_lengths([LANE]) == [66]


async def test_the_calls_that_are_remembered_can_be_asked_for(backend: Backend) -> None:
    assert await backend.calls("client") == []
    for call in (1, 3):
        await backend.submit("client", call, [job()])
    assert sorted(await backend.calls("client")) == [1, 3]
    assert await backend.calls("another") == []
    for call in range(4, 68):
        await backend.submit("client", call, [job()])
    assert sorted(await backend.calls("client")) == list(range(4, 68))
    for question in (backend.calls, backend.release_calls):
        with pytest.raises(InvalidValue):
            await question("{client}")


async def test_released_calls_are_remembered_for_a_while(backend: Backend) -> None:
    """And a client that goes on has its calls remembered as before."""
    (job_id,) = await backend.submit("client", 1, [job()])
    await backend.release_calls("client")
    await backend.release_calls("another")
    assert await backend.calls("client") == [1]
    assert await backend.submit("client", 1, [job()]) == [job_id]
    await backend.submit("client", 2, [job()])
    assert sorted(await backend.calls("client")) == [1, 2]


async def test_payloads_of_all_bytes_and_none_arrive_as_they_are(backend: Backend, leader: Leader) -> None:
    payloads = [b"", bytes(range(256)), b"\x00" * 5, b"x" * 256 * 1024]
    await leader.start(*[job(payload=payload) for payload in payloads])
    attempts = await backend.read_attempts("w1", "i1", "default", 10, 0)
    assert [attempt.payload for attempt in attempts if not hasattr(attempt, "raw")] == payloads


# --- look_up


async def test_a_job_is_looked_up_in_every_state(backend: Backend, leader: Leader) -> None:
    ids = await submit(backend, *[job(result_ttl=60.0)] * 4)
    assert await backend.look_up(ids) == [JobStatus(job_id, JobState.QUEUED) for job_id in ids]

    leases = await leader.dispatch(*(await heads(backend))[:3])
    assert await backend.look_up(ids) == [
        *[JobStatus(job_id, JobState.RUNNING, 1) for job_id in ids[:3]],
        JobStatus(ids[3], JobState.QUEUED),
    ]

    ends = [
        completion(JobState.SUCCEEDED, value=b"\x00value"),
        completion(JobState.FAILED, error="ValueError: größer"),
        completion(JobState.DEAD, attempt=3, error="poison"),
    ]
    await leader.commit(settlements=[Settlement(lease, end) for lease, end in zip(leases, ends, strict=True)])
    assert await backend.look_up(ids[:3]) == [
        JobStatus(job_id, end.state, end.attempt, end) for job_id, end in zip(ids[:3], ends, strict=True)
    ]
    assert await backend.look_up([ids[3]]) == [JobStatus(ids[3], JobState.QUEUED)]


async def test_a_job_that_keeps_no_result_is_unknown_after_its_end(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(result_ttl=0.0))
    await leader.settle(lease)
    assert await backend.look_up([lease.header.job_id]) == [None]
    await submit(backend, job())
    assert await backend.look_up([lease.header.job_id]) == [None]


async def test_a_result_expires(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(result_ttl=0.01))
    await leader.settle(lease)
    while await backend.look_up([lease.header.job_id]) != [None]:
        await anyio.lowlevel.checkpoint()


async def test_a_returned_job_waits_and_says_how_often_it_was_tried(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(), job())
    later = await submit(backend, job(), job())
    await leader.commit(requeues=[Requeue(leases[2], 1, 1), Requeue(leases[0], 2, 0)])
    ids = [lease.header.job_id for lease in leases]
    assert await backend.look_up([*ids, *later]) == [
        JobStatus(ids[0], JobState.QUEUED, 2),
        JobStatus(ids[1], JobState.RUNNING, 1),
        JobStatus(ids[2], JobState.QUEUED, 1),
        JobStatus(later[0], JobState.QUEUED),
        JobStatus(later[1], JobState.QUEUED),
    ]


async def test_a_job_that_ended_is_not_taken_for_one_that_waits_behind_returned_ones(
    backend: Backend, leader: Leader
) -> None:
    leases = await leader.start(job(), job())
    await leader.commit(settlements=[Settlement(leases[1], completion())], requeues=[Requeue(leases[0], 1, 0)])
    ended = leases[1].header.job_id
    assert await backend.look_up([ended]) == [None]
    await submit(backend, job())
    assert await backend.look_up([ended]) == [None]


async def test_many_returned_jobs_are_all_found(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(*[job()] * 100)
    await leader.commit(requeues=[Requeue(lease, 1, 0) for lease in leases])
    ids = [lease.header.job_id for lease in leases]
    assert await backend.look_up(ids) == [JobStatus(job_id, JobState.QUEUED, 1) for job_id in ids]


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "nonsense",
        "default:acme:web:5:1",
        "default:acme:web:5:1~",
        "default:acme:web:x:1~n",
        "a:b:c:5:{1}~n",
        "a:b:c:5:١~n",
        "~",
        "\n",
    ],
)
async def test_what_is_no_job_id_is_unknown(backend: Backend, job_id: str) -> None:
    await submit(backend, job())
    assert await backend.look_up([job_id]) == [None]


async def test_ids_of_no_job_are_unknown(backend: Backend) -> None:
    (job_id,) = await submit(backend, job())
    lane, sequence, nonce = parse_job_id(job_id)
    lanes_without_jobs = [format_job_id(other, sequence, nonce) for other in (OTHER, URGENT, RENDERS)]
    numbers_out_of_range = [format_job_id(lane, number, nonce) for number in (0, sequence - 1, 2**53 + 1)]
    ids = [*lanes_without_jobs, *numbers_out_of_range]
    assert await backend.look_up(ids) == [None] * len(ids)


async def test_a_job_under_another_nonce_is_another_job(backend: Backend, leader: Leader) -> None:
    """Two jobs get one number if the store lost its last moments; one runs or has ended, the other never does."""
    leases = await leader.start(job(result_ttl=60.0), job())
    await leader.settle(leases[0])
    foreign = [format_job_id(LANE, lease.header.sequence, "0" * 10) for lease in leases]
    assert await backend.look_up(foreign) == [None, None]


async def test_look_ups_are_answered_in_order_up_to_the_limit(backend: Backend) -> None:
    assert await backend.look_up([]) == []
    ids = await submit(backend, *[job()] * ITEM_LIMIT)
    assert [status and status.job_id for status in await backend.look_up(ids[::-1])] == ids[::-1]
    with pytest.raises(InvalidValue):
        await backend.look_up([*ids, ids[0]])


# --- replies


async def test_the_end_of_a_job_is_told_to_who_wants_it(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(reply_to="me"), job(), job(reply_to="you"), job(reply_to="me"))
    await leader.settle(*leases[:3])
    ids = [lease.header.job_id for lease in leases]
    cursor, ended = await backend.replies("me", "", 0)
    assert ended == [ids[0]]
    assert await backend.replies("me", cursor, 0) == (cursor, [])
    assert (await backend.replies("you", "", 0))[1] == [ids[2]]

    await leader.settle(leases[3])
    assert (await backend.replies("me", cursor, 0))[1] == [ids[3]]
    assert (await backend.replies("me", "", 0))[1] == [ids[0], ids[3]]


async def test_a_requeue_is_no_end(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(reply_to="me"))
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    assert await backend.replies("me", "", SHORT) == ("", [])


async def test_a_reply_wakes_its_client_only(backend: Backend, leader: Leader, harness: Harness) -> None:
    leases = await leader.start(job(reply_to="you"), job(reply_to="me"))
    mine, yours = harness.open(), harness.open()
    async with reading(harness, lambda: mine.replies("me", "", 60.0)) as result:
        await leader.settle(leases[0])
        assert (await yours.replies("you", "", 0))[1] == [leases[0].header.job_id]
        await leader.settle(leases[1])
    assert result.value[1] == [leases[1].header.job_id]


async def test_waiting_for_replies_lapses(backend: Backend) -> None:
    assert await backend.replies("me", "", 0) == ("", [])
    assert await backend.replies("me", "", SHORT) == ("", [])


async def test_many_replies_are_read_in_order(backend: Backend, leader: Leader) -> None:
    ids: list[str] = []
    for _ in range(2):
        leases = await leader.start(*[job(reply_to="me")] * ITEM_LIMIT)
        await leader.settle(*leases)
        ids += [lease.header.job_id for lease in leases]
    cursor, ended = await backend.replies("me", "", 0)
    while len(ended) < len(ids):
        cursor, more = await backend.replies("me", cursor, 0)
        assert more
        ended += more
    assert ended == ids


# --- lengths, dead letters, status


async def test_lengths_are_given_per_lane_in_order(backend: Backend) -> None:
    await submit(backend, job(), job(), job(URGENT))
    assert await backend.lane_lengths([]) == []
    assert await backend.lane_lengths([OTHER, LANE, URGENT, LANE]) == [0, 2, 1, 2]


async def test_a_buried_job_is_a_dead_letter_with_its_payload(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(payload=b"one"), job(payload=b"two"), job(OTHER, payload=b"three"))
    await leader.commit(
        settlements=[
            Settlement(leases[2], completion(JobState.DEAD), bury="poison: lost 3 times", cause=DeathCause.POISON),
            Settlement(leases[0], completion(JobState.FAILED)),
            Settlement(leases[1], completion(JobState.FAILED), bury="no retries left", cause=DeathCause.FAILED),
        ]
    )
    letters = await backend.dead_letters()
    assert [(letter.lane, letter.reason, letter.cause, letter.header, letter.payload) for letter in letters] == [
        (OTHER, "poison: lost 3 times", DeathCause.POISON, leases[2].header, b"three"),
        (LANE, "no retries left", DeathCause.FAILED, leases[1].header, b"two"),
    ]
    first, second = letters
    assert 0 < first.number < second.number
    assert await backend.dead_letters(limit=1) == [first]
    assert await backend.dead_letters(after=first.number) == [second]
    assert await backend.dead_letters(after=second.number) == []
    assert await backend.dead_letters(limit=0) == []


async def test_a_buried_job_with_a_result_is_looked_up_as_dead(backend: Backend, leader: Leader) -> None:
    (lease,) = await leader.start(job(result_ttl=60.0, reply_to="me"))
    end = completion(JobState.DEAD, error="poison")
    await leader.commit(settlements=[Settlement(lease, end, bury="poison")])
    job_id = lease.header.job_id
    assert await backend.look_up([job_id]) == [JobStatus(job_id, JobState.DEAD, 1, end)]
    assert (await backend.replies("me", "", 0))[1] == [job_id]


async def test_dead_letters_are_bounded_per_call(backend: Backend) -> None:
    for limit, after in ((ITEM_LIMIT + 1, 0), (-1, 0), (1, -1)):
        with pytest.raises(InvalidValue):
            await backend.dead_letters(limit=limit, after=after)


async def test_the_status_of_a_new_store_is_empty(backend: Backend) -> None:
    assert await backend.read_status() == StoredStatus(b"", await backend.leader(), ())


async def test_the_status_shows_blob_leader_and_workers(backend: Backend, leader: Leader) -> None:
    await backend.join(worker())
    await backend.write_status(leader.token, b"\x00tree\xff")
    await backend.write_status(leader.token, b"\x00tree\xfe")
    status = await backend.read_status()
    assert (status.blob, status.leader.token) == (b"\x00tree\xfe", leader.token)
    assert status.workers == (await backend.worker_record("w1"),)


async def test_peeking_reads_and_changes_nothing(backend: Backend) -> None:
    await submit(backend, job(), job())
    requests = [Peek(LANE, 0, 5), Peek(LANE, 0, 5)]
    one, two = await backend.peek(requests)
    assert one == two
    assert one.length == 2
