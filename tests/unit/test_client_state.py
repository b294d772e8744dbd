"""The client's state machines: descriptions, call numbers, waiters, the buffer of a bulk submit."""

from __future__ import annotations

from typing import Any

import pytest

from drr.backend import CALLS_REMEMBERED, ITEM_LIMIT
from drr.client import Submission
from drr.client.bulk import BUFFERED_BATCHES, Buffer
from drr.client.submission import REMEMBERED_LANES, SpecMaker
from drr.client.waiters import FOREIGN_FIRST, FOREIGN_LONGEST, OWN_PERIOD, Waiter, Waiters
from drr.client.window import CallWindow
from drr.errors import BackendError, InvalidName, InvalidValue, PayloadTooLarge
from drr.model import Completion, JobSpec, JobState, JobStatus, Lane
from drr.payload import Call, unpack_arguments

pytestmark = pytest.mark.anyio  # events need a loop to belong to


def make(task: Any = "work", arguments: Any = (), **fields: Any) -> JobSpec:
    return SpecMaker("client", 1000).make(Submission(task, arguments, **{"tenant": "acme/web", **fields}), 12.5)


# --- descriptions -------------------------------------------------------------------------------------


def test_defaults_of_a_submission() -> None:
    spec = make()
    assert spec == JobSpec(
        Lane("default", ("acme", "web"), 5), "work", spec.payload, 12.5, result_ttl=3600.0, reply_to="client"
    )
    assert unpack_arguments(spec.payload) == ([], {})


@pytest.mark.parametrize(
    ("task", "arguments", "packed"),
    [
        ("work", {"to": "ada"}, ([], {"to": "ada"})),
        ("work", ["ada", 1], (["ada", 1], {})),
        ("work", ("ada",), (["ada"], {})),
        ("work", range(2), ([0, 1], {})),
        (Call("work", (1,), {"b": 2}), (), ([1], {"b": 2})),
    ],
)
def test_arguments_go_by_name_or_by_position(task: Any, arguments: Any, packed: Any) -> None:
    spec = make(task, arguments)
    assert spec.task == "work"
    assert unpack_arguments(spec.payload) == packed


@pytest.mark.parametrize("arguments", ["ada", b"ada", 42, None, {1, 2}])
def test_arguments_that_are_neither_are_refused(arguments: Any) -> None:
    with pytest.raises(InvalidValue, match="mapping by name or a list by position"):
        make("work", arguments)


def test_a_bound_call_takes_no_further_arguments() -> None:
    with pytest.raises(InvalidValue, match="already"):
        make(Call("work"), {"a": 1})


@pytest.mark.parametrize("tenant", ["acme/web", ("acme", "web"), ["acme", "web"]])
def test_a_tenant_is_written_in_one_or_two_parts(tenant: Any) -> None:
    assert make(tenant=tenant).lane.path == ("acme", "web")


@pytest.mark.parametrize(
    ("fields", "error", "what"),
    [
        ({"tenant": "acme"}, InvalidName, "tenant path"),
        ({"tenant": "acme/web/more"}, InvalidName, "tenant path"),
        ({"tenant": ""}, InvalidName, "tenant path"),
        ({"tenant": None}, InvalidName, "tenant path"),
        ({"tenant": "ac me/web"}, InvalidName, "organisation"),
        ({"tenant": "acme/w:b"}, InvalidName, "project"),
        ({"pool": "{x}"}, InvalidName, "pool"),
        ({"pool": ["x"]}, InvalidName, "pool"),
        ({"task": "a b"}, InvalidName, "task"),
        ({"priority": 10}, InvalidValue, "priority"),
        ({"priority": -1}, InvalidValue, "priority"),
        ({"priority": True}, InvalidValue, "priority"),
        ({"priority": 5.0}, InvalidValue, "priority"),
        ({"estimate": 0}, InvalidValue, "estimate"),
        ({"estimate": float("nan")}, InvalidValue, "estimate"),
        ({"estimate": float("inf")}, InvalidValue, "estimate"),
        ({"timeout": 0}, InvalidValue, "timeout"),
        ({"timeout": "5"}, InvalidValue, "timeout"),
        ({"result_ttl": -1}, InvalidValue, "result_ttl"),
        ({"result_ttl": float("nan")}, InvalidValue, "result_ttl"),
        ({"arguments": [object()]}, InvalidValue, "value"),
        ({"arguments": {1: 2}}, InvalidValue, "name of a keyword argument"),
        ({"arguments": [bytes(2000)]}, PayloadTooLarge, "payload"),
    ],
)
def test_what_is_not_allowed_is_refused_by_name(fields: dict[str, Any], error: type[InvalidValue], what: str) -> None:
    with pytest.raises(error) as caught:
        make(**fields)
    assert caught.value.what == what


def test_a_payload_over_the_limit_names_size_and_limit() -> None:
    with pytest.raises(PayloadTooLarge, match=r"2007 bytes.*limit is 1000 bytes"):
        make("work", [bytes(2000)])


def test_a_name_that_was_good_once_does_not_excuse_another() -> None:
    maker = SpecMaker("client", 1000)
    maker.make(Submission("work", tenant="acme/web", priority=1), 0.0)
    with pytest.raises(InvalidValue, match="priority"):
        maker.make(Submission("work", tenant="acme/web", priority=True), 0.0)
    for number in range(REMEMBERED_LANES + 10):
        assert maker.make(Submission(f"t{number}", tenant=f"acme/p{number}"), 0.0).lane.path[1] == f"p{number}"


def test_who_keeps_no_result_wants_no_reply() -> None:
    assert make(result_ttl=0).reply_to == ""


# --- call numbers -------------------------------------------------------------------------------------


def test_no_number_runs_so_far_ahead_that_the_store_forgets_an_unfinished_one() -> None:
    window = CallWindow()
    oldest = window.begin()
    issued = [oldest]

    def go_on() -> None:
        while True:
            number = window.begin()
            issued.append(number)
            window.end(number)

    with pytest.raises(AssertionError):
        go_on()
    assert issued == list(range(oldest, oldest + len(issued)))
    assert len(issued) < CALLS_REMEMBERED
    window.end(oldest)
    assert window.has_room
    assert window.begin() == issued[-1] + 1


def test_any_number_may_follow_when_nothing_is_under_way() -> None:
    window = CallWindow(ahead=1)
    for number in range(1, 200):
        assert window.begin() == number
        assert not window.has_room
        window.end(number)


# --- waiters ------------------------------------------------------------------------------------------


def status(job_id: str, state: JobState = JobState.QUEUED) -> JobStatus:
    return JobStatus(job_id, state, 1, Completion(state, 1, 0.0, 1.0) if state.final else None)


def look(waiters: Waiters, now: float, **states: JobState) -> list[str]:
    """Look at what is due; what is not named is queued."""
    due = waiters.due(now)
    waiters.looked(due, [status(w.job_id, states.get(w.job_id, JobState.QUEUED)) for w in due], now)
    return [waiter.job_id for waiter in due]


def done(*waiters: Waiter) -> list[bool]:
    return [waiter.done.is_set() for waiter in waiters]


async def test_who_begins_to_wait_causes_a_look_at_once() -> None:
    waiters = Waiters()
    waiter = waiters.add("a", own=True)
    assert look(waiters, 0.0, a=JobState.SUCCEEDED) == ["a"]
    assert done(waiter) == [True]
    assert waiter.status == status("a", JobState.SUCCEEDED)
    assert len(waiters) == 0


async def test_a_reply_causes_a_look_and_nothing_else_does_for_long() -> None:
    waiters = Waiters()
    waiter = waiters.add("a", own=True)
    look(waiters, 0.0)
    assert look(waiters, 10.0) == []
    assert waiters.pause(10.0) == OWN_PERIOD - 10.0
    assert waiters.replied(["x", "a"])
    assert waiters.pause(10.0) == 0.0
    assert look(waiters, 10.0, a=JobState.FAILED) == ["a"]
    assert done(waiter) == [True]
    assert not waiters.replied(["a"])


async def test_a_reply_while_a_look_is_under_way_causes_another() -> None:
    """The look saw the job queued, and it ended before the answer was here."""
    waiters = Waiters()
    waiter = waiters.add("a", own=True)
    due = waiters.due(0.0)
    assert waiters.due(0.0) == [], "one look at a time"
    waiters.replied(["a"])
    waiters.looked(due, [status("a")], 0.1)
    assert look(waiters, 0.1, a=JobState.SUCCEEDED) == ["a"]
    assert done(waiter) == [True]


async def test_a_reply_that_was_lost_delays_by_one_period_at_most() -> None:
    waiters = Waiters()
    waiters.add("a", own=True)
    look(waiters, 0.0)
    assert look(waiters, OWN_PERIOD, a=JobState.SUCCEEDED) == ["a"]


async def test_jobs_of_other_clients_are_looked_at_with_growing_pauses() -> None:
    waiters = Waiters()
    waiters.add("a", own=False)
    assert not waiters.own
    now, pauses = 0.0, []
    for _ in range(8):
        assert look(waiters, now) == ["a"]
        pause = waiters.pause(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
    assert pauses[0] == FOREIGN_FIRST
    assert pauses[-1] == FOREIGN_LONGEST
    assert pauses == sorted(pauses)


async def test_doubt_looks_at_everything() -> None:
    waiters = Waiters()
    for name in "abc":
        waiters.add(name, own=True)
    look(waiters, 0.0)
    waiters.doubt()
    assert look(waiters, 1.0) == ["a", "b", "c"]


async def test_a_look_that_failed_is_due_again_and_one_that_cannot_succeed_ends_the_wait() -> None:
    waiters = Waiters()
    waiter = waiters.add("a", own=True)
    waiters.missed(waiters.due(0.0))
    error = BackendError("no")
    waiters.missed(waiters.due(0.0), error)
    assert done(waiter) == [True]
    assert waiter.error is error


async def test_an_unknown_job_ends_the_wait() -> None:
    waiters = Waiters()
    waiter = waiters.add("a", own=True)
    waiters.looked(waiters.due(0.0), [None], 0.0)
    assert done(waiter) == [True]
    assert waiter.status is None


async def test_all_who_wait_for_one_job_share_a_look_and_the_last_to_go_takes_it_along() -> None:
    waiters = Waiters()
    first, second = waiters.add("a", own=True), waiters.add("a", own=True)
    assert first is second
    assert look(waiters, 0.0) == ["a"]
    waiters.drop(first)
    assert len(waiters) == 1
    waiters.drop(second)
    assert len(waiters) == 0
    assert waiters.pause(0.0) is None


async def test_a_look_is_as_large_as_a_call_may_be() -> None:
    waiters = Waiters()
    for number in range(ITEM_LIMIT + 1):
        waiters.add(str(number), own=True)
    assert len(look(waiters, 0.0)) == ITEM_LIMIT
    assert len(look(waiters, 0.0)) == 1


# --- the buffer ---------------------------------------------------------------------------------------


def spec(size: int, task: str = "work") -> JobSpec:
    return JobSpec(Lane("default", ("acme", "web")), task, bytes(size), 0.0)


def test_a_batch_is_bounded_in_items_and_in_bytes_and_in_order() -> None:
    buffer = Buffer(items=3, size=100)
    for number in range(5):
        buffer.put(spec(10, str(number)))
    assert [job.task for job in buffer.take()] == ["0", "1", "2"]
    buffer.put(spec(90))
    assert [len(job.payload) for job in buffer.take()] == [10, 10]
    assert [len(job.payload) for job in buffer.take()] == [90]
    assert buffer.take() == []


def test_a_job_over_the_bytes_of_a_batch_goes_alone() -> None:
    buffer = Buffer(items=3, size=100)
    for size in (500, 1):
        buffer.put(spec(size))
    assert [len(job.payload) for job in buffer.take()] == [500]
    assert [len(job.payload) for job in buffer.take()] == [1]


@pytest.mark.parametrize(("items", "size"), [(3, 10**6), (10**6, 30)])
def test_a_buffer_is_full_some_batches_ahead(items: int, size: int) -> None:
    buffer = Buffer(items=items, size=size)
    while not buffer.full:
        buffer.put(spec(10))
    assert len(buffer) == BUFFERED_BATCHES * 3
    buffer.take()
    assert not buffer.full
