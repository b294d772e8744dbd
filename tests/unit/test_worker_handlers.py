"""One attempt, one event: whatever a handler does, its worker reports it and goes on."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import logging
import sys
import threading
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from drr.backend import Attempt, Event, EventKind
from drr.clock import SystemClock
from drr.model import Header, Lane
from drr.payload import pack_arguments, pack_result, unpack_result
from drr.worker import Context, Tasks
from drr.worker.handlers import ERROR_LENGTH_LIMIT, Handlers, describe
from drr.worker.options import Options, check_options
from drr.worker.state import Hands, Holding
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LANE = Lane("default", ("acme", "web"), 5)
PATIENCE = 30.0


def options() -> Options:
    return check_options(
        name="w1",
        pools=None,
        slots=4,
        lease=30.0,
        heartbeat=None,
        grace=1.0,
        patience=0.0,
        payload_limit=1000,
        result_limit=1000,
        heartbeat_in_thread=False,
        blocked_after=5.0,
        rng=Random(1),
    )


class Runner:
    """Runs single attempts, with the deadlines watched by a clock of the test's."""

    def __init__(self, clock: Any) -> None:
        self.clock = clock
        self.tasks = Tasks()
        self.hands = Hands("w1", {"default": 4})
        self.hands.begin("i1")
        self.hands.open = True
        self.said: list[bytes] = []
        self.handlers = Handlers(
            self.hands,
            self.tasks,
            options(),
            clock,
            lambda holding: None,
            lambda holding, blob: self.said.append(blob),
        )
        self._tokens = 0

    def take(
        self, task: str = "task", *args: Any, payload: bytes | None = None, timeout: float | None = None
    ) -> Holding:
        self._tokens += 1
        header = Header(LANE, self._tokens, "n", task, 0.0, timeout=timeout)
        attempt = Attempt(
            "d", f"t{self._tokens}", 2, header, pack_arguments(args, {}) if payload is None else payload
        )
        [holding] = self.hands.take("default", [attempt], self.clock.monotonic())
        self.handlers.prepare(holding)
        return holding

    def event(self) -> Event:
        """The one event that there is."""
        [event] = self.hands.batch()
        self.hands.acknowledge([event])
        assert self.hands.idle
        return event

    async def run(self, *args: Any, **fields: Any) -> Event:
        """Run an attempt of "task" to its end."""
        with anyio.fail_after(PATIENCE):
            await self.handlers.run(self.take("task", *args, **fields))
        return self.event()


@pytest.fixture
async def runner() -> Runner:
    return Runner(SystemClock())


@pytest.fixture
async def frozen() -> Runner:
    return Runner(ManualClock())


async def test_a_result_travels_in_the_event(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler(context: Context, a: int) -> dict[str, int]:
        return {"attempt": context.attempt, "a": a}

    event = await runner.run(7)
    assert event.kind is EventKind.SUCCEEDED
    assert event.worker == "w1"
    assert unpack_result(event.value) == {"attempt": 2, "a": 7}
    assert event.error == ""


async def test_a_plain_function_runs_in_a_thread(runner: Runner) -> None:
    @runner.tasks.task("task")
    def handler(context: Context) -> bool:
        return threading.current_thread() is threading.main_thread() or context.attempt != 2

    assert unpack_result((await runner.run()).value) is False


class Strange(Exception):
    def __str__(self) -> str:
        raise ValueError("no message")


RAISED: list[tuple[BaseException, str]] = [
    (ValueError("no such user"), "ValueError: no such user"),
    (KeyError("x"), "KeyError: 'x'"),
    (Exception(), "Exception"),
    (SystemExit(1), "SystemExit: 1"),
    (KeyboardInterrupt(), "KeyboardInterrupt"),
    (GeneratorExit(), "GeneratorExit"),
    (asyncio.CancelledError(), "CancelledError"),
    (StopIteration(3), "RuntimeError: coroutine raised StopIteration"),
    (TimeoutError("slow"), "TimeoutError: slow"),
    (BaseExceptionGroup("two", [ValueError("a"), SystemExit(2)]), "BaseExceptionGroup: two (2 sub-exceptions)"),
    (Strange(), "Strange: (its message cannot be shown)"),
    (ValueError("\ud800"), "ValueError: ?"),
]


@pytest.mark.parametrize(("error", "text"), RAISED, ids=range(len(RAISED)))
async def test_whatever_is_raised_on_the_loop_fails_the_attempt_only(
    runner: Runner, error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Some of the texts cannot be encoded, so no captured log of them can go from one process to another.
    caplog.set_level(logging.CRITICAL, "drr.worker")

    @runner.tasks.task("task")
    async def handler() -> None:
        await anyio.lowlevel.checkpoint()
        raise error

    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, runner.take())
    assert not group.cancel_scope.cancel_called, "nothing else is disturbed"
    event = runner.event()
    assert (event.kind, event.error) == (EventKind.FAILED, text)


@pytest.mark.parametrize(("error", "text"), RAISED, ids=range(len(RAISED)))
async def test_whatever_is_raised_in_a_thread_fails_the_attempt_only(
    runner: Runner, error: BaseException, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    # Some of the texts cannot be encoded, so no captured log of them can go from one process to another.
    caplog.set_level(logging.CRITICAL, "drr.worker")

    @runner.tasks.task("task")
    def handler() -> None:
        raise error

    event = await runner.run()
    assert (event.kind, event.error) == (EventKind.FAILED, text)


async def test_a_handler_that_cancels_its_own_task_fails(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, runner.take())
    assert runner.event().error == "CancelledError"


async def test_the_traceback_is_logged_and_not_sent(runner: Runner, caplog: pytest.LogCaptureFixture) -> None:
    @runner.tasks.task("task")
    async def handler() -> None:
        raise ValueError("secret of the stack")

    event = await runner.run()
    assert "Traceback" not in event.error
    assert "Traceback" in caplog.text
    assert "default:acme:web:5:1~n (task), attempt 2 failed: ValueError" in caplog.text


def test_an_error_s_text_is_bounded() -> None:
    text = describe(ValueError("x" * 5000))
    assert len(text) == ERROR_LENGTH_LIMIT
    assert text.endswith("...")


async def test_an_unknown_task_names_itself_and_the_known_ones(runner: Runner) -> None:
    runner.tasks.task("one")(print)
    runner.tasks.task("two")(print)
    event = await runner.run()
    assert event.kind is EventKind.FAILED
    assert event.error == "UnknownTask: worker w1 has no task 'task'; it knows: one, two"


async def test_wrong_arguments_fail_the_attempt(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler(a: int) -> None: ...

    event = await runner.run(1, 2)
    assert event.error.startswith("TypeError: ")
    assert "handler() takes 1 positional argument but 2 were given" in event.error


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93\x02\x90\x80",
        b"\x92\x01\x90",
        b"\x93\x01\x80\x80",
        b"\x93\x01\x90\x81\x01\x01",
        b"x" * 2000,
    ],
)
async def test_a_payload_that_is_none_fails_the_attempt(runner: Runner, payload: bytes) -> None:
    runner.tasks.task("task")(print)
    event = await runner.run(payload=payload)
    assert event.kind is EventKind.FAILED
    assert event.error.startswith("MalformedMessage: payload cannot be decoded: ")


async def test_a_result_over_the_limit_fails_naming_size_and_limit(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler() -> bytes:
        return bytes(2000)

    event = await runner.run()
    assert event.kind is EventKind.FAILED
    assert event.value == b""
    size = len(b"\x92\x01\xc5\x07\xd0") + 2000
    assert f"result is '{size} bytes', but the limit is 1000 bytes" in event.error


async def test_a_result_that_is_no_plain_data_fails(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler() -> object:
        return {"x": object()}

    event = await runner.run()
    assert event.kind is EventKind.FAILED
    assert "plain data" in event.error


async def test_a_handler_on_the_loop_is_cancelled_at_its_deadline(frozen: Runner) -> None:
    cleaned_up = []

    @frozen.tasks.task("task", timeout=60.0)
    async def handler(context: Context) -> None:
        assert (context.timeout, context.remaining()) == (5.0, 5.0)
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.append(True)

    async with anyio.create_task_group() as group:
        group.start_soon(frozen.handlers.deadlines.watch)
        group.start_soon(frozen.handlers.run, frozen.take(timeout=5.0))
        await frozen.clock.advance(4.9)
        assert frozen.hands.busy == 1
        await frozen.clock.advance(0.1)
        event = frozen.event()
        group.cancel_scope.cancel()
    assert event.kind is EventKind.TIMED_OUT
    assert event.seconds == pytest.approx(5.0)
    assert event.error == "TimedOut: still running after 5 s"
    assert cleaned_up == [True]


@pytest.mark.parametrize(
    ("job", "task", "effective"),
    [(None, None, None), (5.0, None, 5.0), (None, 7.0, 7.0), (5.0, 7.0, 5.0), (9.0, 7.0, 7.0)],
)
async def test_the_smaller_timeout_holds(
    frozen: Runner, job: float | None, task: float | None, effective: float | None
) -> None:
    @frozen.tasks.task("task", timeout=task)
    async def handler(context: Context) -> float | None:
        return context.timeout

    assert unpack_result((await frozen.run(timeout=job)).value) == effective


async def test_who_swallows_the_cancellation_at_the_deadline_has_timed_out_all_the_same(frozen: Runner) -> None:
    @frozen.tasks.task("task", timeout=1.0)
    async def handler() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return "never mind"

    async with anyio.create_task_group() as group:
        group.start_soon(frozen.handlers.deadlines.watch)
        group.start_soon(frozen.handlers.run, frozen.take())
        await frozen.clock.advance(1.0)
        assert frozen.event().kind is EventKind.TIMED_OUT
        group.cancel_scope.cancel()


async def test_a_thread_keeps_its_slot_over_the_deadline_and_is_then_reported_with_its_real_seconds(
    frozen: Runner, caplog: pytest.LogCaptureFixture
) -> None:
    begun, release = anyio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @frozen.tasks.task("task", timeout=1.0)
    def handler() -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait(PATIENCE)
        return "late"

    async with anyio.create_task_group() as group:
        group.start_soon(frozen.handlers.deadlines.watch)
        async with anyio.create_task_group() as running:
            running.start_soon(frozen.handlers.run, frozen.take())
            await begun.wait()
            await frozen.clock.advance(3.0)
            assert frozen.hands.busy == 1
            assert "its slot stays busy" in caplog.text
            release.set()
        event = frozen.event()
        group.cancel_scope.cancel()
    assert (event.kind, event.value) == (EventKind.TIMED_OUT, b"")
    assert event.seconds == pytest.approx(3.0)


async def test_cancelled_by_the_worker_it_is_handed_back(runner: Runner) -> None:
    begun = anyio.Semaphore(0)

    @runner.tasks.task("task")
    async def handler() -> None:
        begun.release()
        await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, runner.take())
        group.start_soon(runner.handlers.run, runner.take(timeout=60.0))
        await begun.acquire()
        await begun.acquire()
        group.cancel_scope.cancel()
    events = runner.hands.batch()
    assert [event.kind for event in events] == [EventKind.RETURNED] * 2


async def test_a_thread_that_is_left_behind_is_handed_back_and_counted(runner: Runner) -> None:
    begun, release, ended = anyio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @runner.tasks.task("task")
    def handler() -> None:
        loop.call_soon_threadsafe(begun.set)
        release.wait(PATIENCE)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, runner.take())
        await begun.wait()
        group.cancel_scope.cancel()
    assert runner.event().kind is EventKind.RETURNED
    assert runner.handlers.abandoned == 1
    release.set()
    assert ended.wait(PATIENCE)


async def test_each_attempt_has_context_variables_of_its_own(runner: Runner) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)

    @runner.tasks.task("task")
    async def handler() -> int:
        variable.set(variable.get() + 1)
        return variable.get()

    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, runner.take())
        group.start_soon(runner.handlers.run, runner.take())
    assert [event.value for event in runner.hands.batch()] == [pack_result(1)] * 2


async def test_a_task_of_the_loop_is_described_by_its_job(runner: Runner) -> None:
    """For the log of who blocks the loop. Tasks that a handler starts are told by their context, from 3.12 on."""
    described: list[str] = []

    def describe() -> None:
        task = asyncio.current_task()
        assert task is not None
        described.append(runner.handlers.describe(task))

    @runner.tasks.task("task")
    async def handler() -> None:
        describe()

        async def child() -> None:
            describe()

        async with anyio.create_task_group() as group:
            group.start_soon(child, name="child")

    async with anyio.create_task_group() as group:
        group.start_soon(runner.run)
    describe()
    job = f"job {Header(LANE, 1, 'n', 'task', 0.0).job_id} (task task)"
    assert described[0] == job
    assert described[1] == (job if sys.version_info >= (3, 12) else "the asyncio task 'child'")
    assert described[2].startswith("the asyncio task ")
