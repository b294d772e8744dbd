"""What the port promises when a caller passes something that cannot be: an error that shows it, and no effect."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from drr.backend import Backend, Peek, Position
from drr.errors import BackendError, InvalidName, InvalidValue
from drr.model import JobSpec, Lane
from tests.contract.harness import LANE, Leader, job, submit, succeeded, worker

pytestmark = pytest.mark.anyio

BAD_NAMES = ["", "a:b", "a b", "{a}", "a*", "a\n", "é", "x" * 129]

BAD_JOBS: dict[str, dict[str, Any]] = {
    "no tenant": {"lane": Lane("default", ())},
    "priority 10": {"lane": Lane("default", ("acme",), 10)},
    "priority -1": {"lane": Lane("default", ("acme",), -1)},
    "estimate 0": {"estimate": 0.0},
    "estimate nan": {"estimate": float("nan")},
    "estimate inf": {"estimate": float("inf")},
    "timeout 0": {"timeout": 0.0},
    "timeout below 0": {"timeout": -1.0},
    "timeout nan": {"timeout": float("nan")},
    "ttl below 0": {"result_ttl": -0.5},
    "ttl of 30,000 years": {"result_ttl": 1e12},
    "submitted never": {"submitted_at": float("inf")},
}


def naming(name: str) -> dict[str, Callable[[Backend], Awaitable[object]]]:
    """Every call that takes a name, with this one."""
    bad_lanes = {
        "pool": Lane(name, ("acme", "web")),
        "organisation": Lane("default", (name, "web")),
        "project": Lane("default", ("acme", name)),
    }
    calls: dict[str, Callable[[Backend], Awaitable[object]]] = {
        "client": lambda backend: backend.submit(name, 1, [job()]),
        "task": lambda backend: submit(backend, job(), job(task=name)),
        "replies": lambda backend: backend.replies(name, "", 0),
        "join": lambda backend: backend.join(worker(name)),
        "incarnation": lambda backend: backend.join(worker("w2", incarnation=name)),
        "slots": lambda backend: backend.join(worker("w3", slots={name: 1})),
        "heartbeat": lambda backend: backend.heartbeat(worker(name)),
        "worker_record": lambda backend: backend.worker_record(name),
        "leave": lambda backend: backend.leave(name, "i1"),
        "reader": lambda backend: backend.read_attempts(name, "i1", "default", 1, 0),
        "read_attempts": lambda backend: backend.read_attempts("w1", "i1", name, 1, 0),
        "pending_attempts": lambda backend: backend.pending_attempts("w1", name, "default"),
    }
    if name:
        calls["reply_to"] = lambda backend: submit(backend, job(), job(reply_to=name))
    for what, lane in bad_lanes.items():
        calls[f"submit to {what}"] = lambda backend, lane=lane: submit(backend, job(), job(lane))  # type: ignore[misc]
        calls[f"length of {what}"] = lambda backend, lane=lane: backend.lane_lengths([LANE, lane])  # type: ignore[misc]
        calls[f"peek at {what}"] = lambda backend, lane=lane: backend.peek([Peek(lane, 0, 1)])  # type: ignore[misc]
    return calls


async def assert_untouched(backend: Backend, leader: Leader) -> None:
    snapshot = await backend.load(leader.token)
    assert (snapshot.lanes, snapshot.workers) == ((), ())
    facts = await backend.receive(Position(), 0)
    assert (facts.events, facts.lanes, facts.workers_changed) == ((), (), False)


@pytest.mark.parametrize("name", BAD_NAMES)
async def test_names_outside_the_alphabet_are_refused(backend: Backend, leader: Leader, name: str) -> None:
    for call in naming(name).values():
        with pytest.raises(InvalidValue):
            await call(backend)
    await assert_untouched(backend, leader)


@pytest.mark.parametrize("name", ["x", "x" * 128, "A.z_9@-"])
async def test_names_of_the_alphabet_are_not_refused(backend: Backend, name: str) -> None:
    """The negative control of the above: the same calls with good names."""
    for call in naming(name).values():
        await call(backend)


@pytest.mark.parametrize("fields", BAD_JOBS.values(), ids=BAD_JOBS.keys())
async def test_a_job_that_cannot_be_is_refused_with_its_batch(
    backend: Backend, leader: Leader, fields: dict[str, Any]
) -> None:
    bad: JobSpec = job(**fields)
    with pytest.raises(InvalidValue):
        await submit(backend, job(), bad, job())
    await assert_untouched(backend, leader)


async def test_a_call_number_that_cannot_be_is_refused(backend: Backend, leader: Leader) -> None:
    for call in (-1, 2**53 + 1):
        with pytest.raises(InvalidValue):
            await backend.submit("client", call, [job()])
    await assert_untouched(backend, leader)


async def test_slots_that_cannot_be_are_refused(backend: Backend, leader: Leader) -> None:
    for slots in (-1, 1_000_001):
        with pytest.raises(InvalidValue):
            await backend.join(worker(slots={"default": slots}))
    await assert_untouched(backend, leader)


@pytest.mark.parametrize("cursor", ["nonsense", "-1", "1-2-3", "٣"])
async def test_cursors_that_no_store_gave_are_refused(backend: Backend, leader: Leader, cursor: str) -> None:
    """Cursors are opaque, so which error it is is the adapter's affair."""
    await backend.report([succeeded("t1")])
    calls: list[Callable[[], Awaitable[object]]] = [
        lambda: backend.replies("me", cursor, 0),
        lambda: backend.receive(Position(events=cursor), 0),
        lambda: backend.receive(Position(wake=cursor), 0),
        lambda: backend.commit(leader.next(position=Position(events=cursor))),
        lambda: backend.commit(leader.next(position=Position(wake=cursor))),
    ]
    for call in calls:
        with pytest.raises((InvalidValue, BackendError)):
            await call()
    assert (await backend.leader()).passes == 0
    assert (await leader.receive()).events == (succeeded("t1"),)


def test_a_refused_name_is_an_invalid_value() -> None:
    assert issubclass(InvalidName, InvalidValue)
