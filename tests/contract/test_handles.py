"""What the port promises of handles: siblings, closing, cancelling."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine

import anyio
import pytest

from drr.backend import Attempt, Backend, Commit, Peek, Position, Request, RequestKind, Work
from drr.errors import StoreUnavailable
from drr.model import JobState
from tests.contract.harness import LANE, LONG, PATIENCE, SHORT, Harness, Leader, heads, job, submit, succeeded, worker

pytestmark = pytest.mark.anyio

METHODS: dict[str, Callable[[Backend], Awaitable[object]]] = {
    "submit": lambda backend: backend.submit("c", 1, [job()]),
    "calls": lambda backend: backend.calls("c"),
    "release_calls": lambda backend: backend.release_calls("c"),
    "look_up": lambda backend: backend.look_up(["default:a:b:5:1~n"]),
    "replies": lambda backend: backend.replies("c", "", SHORT),
    "lane_lengths": lambda backend: backend.lane_lengths([LANE]),
    "attend": lambda backend: backend.attend("d1", 60.0),
    "attendance": lambda backend: backend.attendance("d1"),
    "survey": lambda backend: backend.survey(),
    "read_status": lambda backend: backend.read_status(),
    "find": lambda backend: backend.find(("a", "b"), "x"),
    "request": lambda backend: backend.request([Request(RequestKind.CANCEL, "default:a:b:5:1~n")]),
    "progress": lambda backend: backend.progress(["default:a:b:5:1~n"]),
    "list_jobs": lambda backend: backend.list_jobs(("a",), JobState.QUEUED),
    "waiting": lambda backend: backend.waiting([("a",)]),
    "usage": lambda backend: backend.usage("a", 0, 24),
    "changes": lambda backend: backend.changes(),
    "settings": lambda backend: backend.settings(),
    "purge_dead": lambda backend: backend.purge_dead([1]),
    "stops": lambda backend: backend.stops("", SHORT),
    "report_progress": lambda backend: backend.report_progress("t1", "default:a:b:5:1~n", b""),
    "due": lambda backend: backend.due(0.0),
    "locate": lambda backend: backend.locate(["default:a:b:5:1~n"]),
    "letters": lambda backend: backend.letters([1]),
    "dead_letters": lambda backend: backend.dead_letters(),
    "join": lambda backend: backend.join(worker()),
    "worker_record": lambda backend: backend.worker_record("w1"),
    "heartbeat": lambda backend: backend.heartbeat(worker()),
    "leave": lambda backend: backend.leave("w1", "i1"),
    "read_attempts": lambda backend: backend.read_attempts("w1", "i1", "default", 1, SHORT),
    "pending_attempts": lambda backend: backend.pending_attempts("w1", "i1", "default"),
    "report": lambda backend: backend.report([succeeded("t1")]),
    "prepare": lambda backend: backend.prepare(),
    "leader": lambda backend: backend.leader(),
    "elect": lambda backend: backend.elect("", "1:a"),
    "renew": lambda backend: backend.renew("1:leader"),
    "resign": lambda backend: backend.resign("1:leader"),
    "await_resignation": lambda backend: backend.await_resignation(SHORT),
    "load": lambda backend: backend.load("1:leader"),
    "receive": lambda backend: backend.receive(Position(), SHORT),
    "peek": lambda backend: backend.peek([Peek(LANE, 0, 1)]),
    "commit": lambda backend: backend.commit(Commit("1:leader", 1, Position())),
    "workers": lambda backend: backend.workers(),
    "audit": lambda backend: backend.audit("1:leader", ["default"]),
    "correct_waiting": lambda backend: backend.correct_waiting("1:leader", ("a", "b"), Work(), Work(1, 1.0)),
    "write_status": lambda backend: backend.write_status("1:leader", b""),
}


def test_every_method_of_the_port_is_tried_on_a_closed_handle() -> None:
    port = {name for name in dir(Backend) if not name.startswith("_")}
    assert set(METHODS) == port - {"close", "sibling"}


@pytest.mark.parametrize("name", METHODS)
async def test_a_closed_handle_says_so(harness: Harness, leader: Leader, name: str) -> None:
    handle = harness.open()
    await handle.leader()
    await handle.close()
    await handle.close()
    with pytest.raises(StoreUnavailable):
        await METHODS[name](handle)


async def test_a_handle_that_was_never_used_can_be_closed(harness: Harness) -> None:
    await harness.open().close()


async def test_closing_one_handle_leaves_the_others_alone(backend: Backend, harness: Harness) -> None:
    sibling, other = backend.sibling(), harness.open()
    ids = await submit(sibling, job())
    await sibling.close()
    assert await backend.lane_lengths([LANE]) == [1]
    assert [status and status.job_id for status in await other.look_up(ids)] == ids
    await other.close()


async def test_siblings_and_handles_share_one_store(backend: Backend, harness: Harness) -> None:
    handles = [backend, backend.sibling(), backend.sibling().sibling(), harness.open()]
    for handle in handles:
        await submit(handle, job())
    assert [await handle.lane_lengths([LANE]) for handle in handles] == [[4]] * 4
    for handle in handles[1:]:
        await handle.close()


async def test_concurrent_submits_are_all_kept(backend: Backend, harness: Harness) -> None:
    ids: list[str] = []

    async def produce(client: str, handle: Backend) -> None:
        for call in range(10):
            ids.extend(await handle.submit(client, call, [job()] * 3))

    async with anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(produce, f"client-{number}", backend if number % 2 else harness.open())
    assert len(set(ids)) == 180
    assert await backend.lane_lengths([LANE]) == [180]


async def test_one_of_many_rivals_is_elected(backend: Backend) -> None:
    won: list[str] = []

    async def run(token: str) -> None:
        if await backend.elect("", token):
            won.append(token)

    async with anyio.create_task_group() as group:
        for number in range(10):
            group.start_soon(run, f"1:{number}")
    assert [(await backend.leader()).token] == won


async def test_a_cancelled_wait_leaves_handle_and_store_usable(
    backend: Backend, leader: Leader, harness: Harness
) -> None:
    handle = harness.open()
    waits: list[Callable[[], Coroutine[None, None, object]]] = [
        lambda: handle.read_attempts("w1", "i1", "default", 1, LONG),
        lambda: handle.receive(leader.position, LONG),
        lambda: handle.replies("me", "", LONG),
        lambda: handle.await_resignation(LONG),
    ]
    for wait in waits:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(wait)
                await harness.until_blocked(1)
                group.cancel_scope.cancel()
    await submit(handle, job())
    (lease,) = await leader.dispatch(*await heads(handle))
    # What a cancelled read had been given, if anything, is pending for its incarnation: nothing is lost.
    found = [
        *await handle.pending_attempts("w1", "i1", "default"),
        *await handle.read_attempts("w1", "i1", "default", 5, 0),
    ]
    assert lease.token in [attempt.token for attempt in found if isinstance(attempt, Attempt)]
