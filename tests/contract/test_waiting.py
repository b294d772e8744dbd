"""Jobs that wait in other ways than at the tail of a lane: delayed, put off, put back, struck out."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from drr.backend import (
    STRIKE_LIMIT,
    Attempt,
    Backend,
    DeathCause,
    Dispatch,
    Drop,
    DropDelayed,
    Located,
    Mature,
    Peek,
    Postpone,
    Requeue,
    Revival,
    Settlement,
    Strike,
    Struck,
)
from drr.errors import CommitRefused, InvalidValue
from drr.model import Header, JobState, JobStatus, RetryPolicy, Settings, SharedLimit
from tests.contract.harness import (
    LANE,
    LONG,
    OTHER,
    Harness,
    Leader,
    completion,
    heads,
    job,
    other,
    reading,
    submit,
    window,
    worker,
)

pytestmark = pytest.mark.anyio

SOON = 1e9
"""Longer than any test, in seconds from now."""


def later(seconds: float = SOON) -> float:
    return time.time() + seconds


CANCELLED = completion(JobState.CANCELLED, attempt=0)
EXPIRED = completion(JobState.EXPIRED, attempt=0)


async def delayed(backend: Backend, *due: float, **fields: Any) -> list[Header]:
    """Submit jobs that are delayed; return their headers."""
    await submit(backend, *(job(due_at=at, **fields) for at in due))
    return list((await backend.due(1e11)).jobs)


async def state(backend: Backend, header: Header) -> JobState | None:
    [status] = await backend.look_up([header.job_id])
    return None if status is None else status.state


# --- headers ----------------------------------------------------------------------------------------------


async def test_everything_a_job_says_of_itself_comes_back(backend: Backend, leader: Leader) -> None:
    spec = job(
        estimate=2.5,
        timeout=3.0,
        result_ttl=4.0,
        retry=RetryPolicy(5, 1.0, 3.0, 60.0, 0.25),
        deadline=1_800_000_000.5,
    )
    await submit(backend, spec)
    [header] = await heads(backend)
    assert (header.retry, header.deadline, header.failures, header.returned) == (spec.retry, spec.deadline, 0, False)
    [lease] = await leader.dispatch(header)
    [kept] = (await backend.load(leader.token)).leases
    assert kept.header == header == lease.header


async def test_a_lane_may_be_one_of_jobs_that_need_limits(backend: Backend, leader: Leader) -> None:
    await leader.commit(settings=Settings(limits={"db": SharedLimit(3), "gpu": SharedLimit(2)}))
    lane = LANE._replace(limits=("db", "gpu"))
    [job_id] = await submit(backend, job(lane))
    assert job_id.startswith("default:acme:web:5+db+gpu:")
    assert (await leader.receive()).lanes[0][0] == lane
    [header] = await heads(backend, lane)
    assert header.job_id == job_id
    assert await backend.lane_lengths([LANE, lane]) == [0, 1]
    [lease] = await leader.dispatch(header)
    assert (await backend.load(leader.token)).leases == (lease,)


# --- delayed ----------------------------------------------------------------------------------------------


async def test_a_delayed_job_is_in_no_lane(backend: Backend, leader: Leader) -> None:
    [header] = await delayed(backend, later())
    assert await backend.lane_lengths([LANE]) == [0]
    assert (await leader.receive()).lanes == ()
    assert await backend.look_up([header.job_id]) == [JobStatus(header.job_id, JobState.DELAYED, 0)]
    assert (await backend.load(leader.token)).lanes == ()


async def test_one_that_was_due_before_it_came_is_not_delayed(backend: Backend) -> None:
    await submit(backend, job(due_at=1_600_000_000.0))
    assert await backend.lane_lengths([LANE]) == [1]


async def test_the_earliest_due_time_is_announced(backend: Backend, harness: Harness, leader: Leader) -> None:
    first, second, third = later(200), later(300), later(100)
    async with reading(harness, lambda: backend.receive(leader.position, LONG)) as result:
        await submit(harness.open(), job(due_at=first))
    assert result.value.due_at == pytest.approx(first)
    leader.position = result.value.position
    await submit(backend, job(due_at=second))
    assert (await leader.receive()).due_at is None, "an earlier one is known"
    await submit(backend, job(due_at=third))
    assert (await leader.receive()).due_at == pytest.approx(third)
    assert (await backend.load(leader.token)).due_at == pytest.approx(third)


async def test_what_is_due_is_read_in_order_and_in_part(backend: Backend) -> None:
    times = [later(300), later(100), later(200)]
    await submit(backend, *(job(due_at=at, task=f"t{number}") for number, at in enumerate(times)))
    found = await backend.due(times[2] + 1, limit=10)
    assert [header.task for header in found.jobs] == ["t1", "t2"]
    assert found.next_at == pytest.approx(times[0])
    assert (await backend.due(times[2] + 1, limit=1)).next_at == pytest.approx(times[2])
    assert (await backend.due(0.0)).jobs == ()
    assert (await backend.due(1e11)).next_at is None


async def test_a_due_job_matures_to_the_head_of_its_lane(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(task="fresh"))
    old, older = await delayed(backend, later(100), later(200), payload=b"late")
    await leader.commit(matures=[Mature(old), Mature(older)])
    found = await heads(backend)
    assert found[:2] == [replace(older, returned=True), replace(old, returned=True)], "the last is in front"
    assert [header.task for header in found] == ["work", "work", "fresh"]
    assert (await backend.due(1e11)).jobs == ()
    assert await state(backend, old) is JobState.QUEUED
    [lease] = await leader.dispatch(found[0])
    assert (await backend.load(leader.token)).leases == (lease,)


async def test_a_lane_that_a_due_job_fills_is_active(backend: Backend, leader: Leader) -> None:
    [header] = await delayed(backend, later())
    await leader.commit(matures=[Mature(header)])
    assert (await backend.load(leader.token)).lanes == (LANE,)
    await leader.dispatch(replace(header, returned=True))
    assert (await backend.load(leader.token)).lanes == ()


@pytest.mark.parametrize("item", [Mature, lambda header: DropDelayed(header, CANCELLED)])
async def test_what_is_not_delayed_or_another_job_refuses_the_commit(
    backend: Backend, leader: Leader, item: type[Mature]
) -> None:
    kind = "matures" if item is Mature else "drops_delayed"
    [header] = await delayed(backend, later())
    number = header.sequence + 5
    for wrong in (other(header, sequence=number), other(header, nonce="other"), other(header, attempts=1)):
        with pytest.raises(CommitRefused):
            await leader.commit((), **{kind: [item(wrong)]})
    with pytest.raises(CommitRefused):
        await leader.commit((), **{kind: [item(header), item(header)]})
    assert (await backend.due(1e11)).jobs == (header,)


async def test_a_delayed_job_may_be_dropped(backend: Backend, leader: Leader) -> None:
    [header] = await delayed(backend, later(), result_ttl=60.0, reply_to="me")
    await leader.commit(drops_delayed=[DropDelayed(header, CANCELLED)])
    assert (await backend.due(1e11)).jobs == ()
    assert await state(backend, header) is JobState.CANCELLED
    assert (await backend.replies("me", "", 0))[1] == [header.job_id]


async def test_an_attempt_may_be_put_off(backend: Backend, leader: Leader) -> None:
    [lease] = await leader.start(job(payload=b"again"))
    due = later()
    await leader.commit(postpones=[Postpone(lease, due, 3, 1, 2)])
    assert (await backend.load(leader.token)).leases == ()
    found = await backend.due(1e11)
    assert found.jobs == (replace(lease.header, attempts=3, losses=1, failures=2),)
    assert await backend.look_up([lease.header.job_id]) == [JobStatus(lease.header.job_id, JobState.DELAYED, 3)]
    assert (await backend.load(leader.token)).due_at == pytest.approx(due)
    await leader.commit(matures=[Mature(found.jobs[0])])
    [head] = await heads(backend)
    assert (head.attempts, head.losses, head.failures, head.returned) == (3, 1, 2, True)
    await leader.dispatch(head)
    await backend.join(worker())
    [attempt] = await backend.read_attempts("w1", "i1", "default", 10, 0)
    assert isinstance(attempt, Attempt)
    assert attempt.payload == b"again"


async def test_put_back_jobs_stand_in_the_order_of_the_port(backend: Backend, leader: Leader) -> None:
    dead, a, b = await leader.start(job(task="dead"), job(task="a"), job(task="b"))
    await leader.commit(settlements=[Settlement(dead, completion(JobState.FAILED), bury="why")])
    await submit(backend, job(task="fresh"))
    [letter] = await backend.dead_letters()
    m, n = await delayed(backend, later(1), later(2))
    assert letter.header is not None
    await leader.commit(
        requeues=[Requeue(a, 1, 0), Requeue(b, 1, 0)],
        matures=[Mature(m), Mature(n)],
        revivals=[Revival(letter.number, letter.header)],
    )
    found = [header.sequence for header in await heads(backend)]
    assert found[:5] == [b.header.sequence, a.header.sequence, n.sequence, m.sequence, dead.header.sequence]
    assert len(found) == 6


# --- struck -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 1, 7, 14])
async def test_a_job_is_struck_out_wherever_it_waits(backend: Backend, leader: Leader, place: int) -> None:
    """Fifteen jobs wait, the first three of them put back: one of them goes, its place stays."""
    leases = await leader.start(*[job(result_ttl=60.0)] * 3)
    await submit(backend, *[job(result_ttl=60.0)] * 12)
    await leader.commit(requeues=[Requeue(lease, 1, 0) for lease in leases])
    waiting = await heads(backend)
    victim = waiting[place]
    await leader.commit(strikes=[Strike(victim, CANCELLED)])
    entries = (await window(backend)).entries
    assert entries[place] == Struck(LANE, victim.sequence)
    assert [entry for entry in entries if isinstance(entry, Header)] == [h for h in waiting if h != victim]
    assert await state(backend, victim) is JobState.CANCELLED
    assert await backend.locate([victim.job_id]) == [None]
    others = [header for header in waiting if header != victim]
    assert await backend.locate([h.job_id for h in others]) == [Located(h, False) for h in others]
    assert [await state(backend, h) for h in others] == [JobState.QUEUED] * 14

    for entry in entries:
        if isinstance(entry, Header):
            await leader.dispatch(entry)
        else:
            await leader.commit(removals=[Struck(LANE, victim.sequence)])
    assert await backend.lane_lengths([LANE]) == [0]
    assert (await backend.load(leader.token)).lanes == ()


async def test_a_struck_place_may_go_with_other_heads(backend: Backend, leader: Leader) -> None:
    await submit(backend, *[job()] * 3)
    first, second, third = await heads(backend)
    await leader.commit(strikes=[Strike(second, EXPIRED)])
    lease = leader.lease(third)
    await leader.commit(
        removals=[Drop(first, EXPIRED), Struck(LANE, second.sequence)], dispatches=[Dispatch(third, lease)]
    )
    assert (await backend.load(leader.token)).leases == (lease,)


@pytest.mark.parametrize("wrong", ["number", "nonce", "twice", "gone", "attempts"])
async def test_a_strike_of_what_does_not_wait_refuses_the_commit(
    backend: Backend, leader: Leader, wrong: str
) -> None:
    await submit(backend, *[job()] * 3)
    first, second, _ = await heads(backend)
    if wrong == "gone":
        await leader.dispatch(first)
    strikes = {
        "number": [Strike(other(second, sequence=second.sequence + 50), CANCELLED)],
        "nonce": [Strike(other(second, nonce="zzz"), CANCELLED)],
        "twice": [Strike(second, CANCELLED)] * 2,
        "gone": [Strike(first, CANCELLED)],
        "attempts": [Strike(other(second, attempts=1), CANCELLED)],
    }[wrong]
    before = await window(backend)
    with pytest.raises(CommitRefused):
        await leader.commit(strikes=strikes)
    assert await window(backend) == before


async def test_the_number_of_strikes_is_bounded(leader: Leader, backend: Backend) -> None:
    await submit(backend, job())
    [header] = await heads(backend)
    with pytest.raises(InvalidValue):
        await leader.commit(strikes=[Strike(header, CANCELLED)] * (STRIKE_LIMIT + 1))
    with pytest.raises(InvalidValue):
        await backend.locate([header.job_id] * (STRIKE_LIMIT + 1))


async def test_a_head_is_dropped(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(result_ttl=60.0, reply_to="me"), job(result_ttl=60.0))
    first, second = await heads(backend)
    with pytest.raises(CommitRefused):
        await leader.commit(removals=[Drop(second, EXPIRED)])
    [found] = await leader.commit([Peek(LANE, 0, 5)], removals=[Drop(first, EXPIRED)])
    assert found.entries == (second,)
    assert await state(backend, first) is JobState.EXPIRED
    assert (await backend.replies("me", "", 0))[1] == [first.job_id]
    assert await backend.dead_letters() == []


async def test_only_what_is_struck_can_be_cleared_away(backend: Backend, leader: Leader) -> None:
    await submit(backend, job(), job())
    first, second = await heads(backend)
    for wrong in (Struck(LANE, first.sequence), Struck(LANE, second.sequence), Struck(OTHER, first.sequence)):
        with pytest.raises(CommitRefused):
            await leader.commit(removals=[wrong])
    await leader.commit(strikes=[Strike(second, CANCELLED)])
    with pytest.raises(CommitRefused):
        await leader.commit(removals=[Struck(LANE, second.sequence)])


async def test_located_jobs_are_the_ones_asked_for(backend: Backend) -> None:
    ids = await submit(backend, *[job()] * 5)
    [late] = await delayed(backend, later())
    others = ["nonsense", ids[0].replace("web", "other"), ids[1][:-1] + "x", "default:acme:web:5:99~n"]
    found = await backend.locate([ids[3], late.job_id, *others])
    assert [item and (item.header.job_id, item.delayed) for item in found] == [
        (ids[3], False),
        (late.job_id, True),
        *[None] * 4,
    ]


# --- the dead ---------------------------------------------------------------------------------------------


async def test_a_dead_job_comes_back_as_if_never_tried(backend: Backend, leader: Leader) -> None:
    [lease] = await leader.start(job(payload=b"again", result_ttl=60.0))
    end = completion(JobState.FAILED)
    await leader.commit(settlements=[Settlement(lease, end, bury="why", cause=DeathCause.FAILED)])
    [letter] = await backend.dead_letters()
    [seen] = await backend.letters([letter.number])
    assert seen == replace(letter, payload=b"")
    assert seen is not None
    assert seen.header is not None
    await leader.commit(revivals=[Revival(letter.number, seen.header)])
    assert await backend.dead_letters() == []
    assert await backend.letters([letter.number]) == [None]
    assert await state(backend, lease.header) is JobState.QUEUED
    [head] = await heads(backend)
    assert head == replace(lease.header, attempts=0, losses=0, failures=0, returned=True)
    with pytest.raises(CommitRefused):
        await leader.commit(revivals=[Revival(letter.number, seen.header)])


async def test_a_letter_of_another_job_is_not_revived(backend: Backend, leader: Leader) -> None:
    lease, other = await leader.start(job(), job())
    await leader.commit(settlements=[Settlement(lease, completion(JobState.FAILED), bury="why")])
    [letter] = await backend.dead_letters()
    with pytest.raises(CommitRefused):
        await leader.commit(revivals=[Revival(letter.number, other.header)])
    assert await backend.dead_letters() == [letter]


async def test_dead_letters_by_organisation_and_their_purge(backend: Backend, leader: Leader) -> None:
    leases = await leader.start(job(), job(), job(OTHER))
    await leader.commit(settlements=[Settlement(lease, completion(JobState.FAILED), bury="why") for lease in leases])
    ours, theirs = await backend.dead_letters("acme"), await backend.dead_letters("globex")
    assert [letter.lane for letter in (*ours, *theirs)] == [LANE, LANE, OTHER]
    assert await backend.dead_letters("acme", limit=1, after=ours[0].number) == [ours[1]]
    assert await backend.dead_letters("nobody") == []
    assert await backend.purge_dead([ours[0].number, theirs[0].number, 999]) == 2
    assert await backend.dead_letters() == [ours[1]]
    assert await backend.dead_letters("globex") == []
    assert await backend.purge_dead([]) == 0
