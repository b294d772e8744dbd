"""What handlers say of their progress, and how often it is sent; and how they ask for a pause."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drr.backend import PROGRESS_LIMIT, Attempt, EventKind
from drr.clock import SystemClock
from drr.errors import InvalidValue, MalformedMessage, RetryAfter, StoreUnavailable
from drr.model import Header, Lane
from drr.payload import Progress, pack_progress, unpack_progress
from drr.wire import pack
from drr.worker import Context
from drr.worker.progress import ProgressReports
from drr.worker.state import Holding
from tests.helpers.manual_clock import ManualClock
from tests.helpers.worker_bench import WorkerBench
from tests.unit.test_worker_handlers import Runner

pytestmark = pytest.mark.anyio


@given(st.none() | st.floats(0, 1), st.text())
def test_progress_comes_back_as_it_was_said(fraction: float | None, message: str) -> None:
    packed = pack_progress(fraction, message)
    assert len(packed) <= PROGRESS_LIMIT
    found = unpack_progress(packed)
    assert found.fraction == fraction
    assert message.encode("utf-8", "replace").decode().startswith(found.message)
    assert found.message == message or len(message) > 1000 or not message.isascii()


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", True])
def test_a_fraction_is_between_0_and_1(fraction: Any) -> None:
    with pytest.raises(InvalidValue, match="progress"):
        pack_progress(fraction)


def test_whole_fractions_and_long_messages() -> None:
    assert unpack_progress(pack_progress(1)) == Progress(1.0, "")
    assert len(unpack_progress(pack_progress(None, "ä" * 10_000)).message) == (PROGRESS_LIMIT - 32) // 2


@pytest.mark.parametrize("data", [b"", b"\xc1", pack([1, 2]), pack([None]), pack([2.0, ""]), pack({"a": 1})])
def test_hostile_progress_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        unpack_progress(data)


class Notes:
    """A store that keeps what is reported, or fails."""

    def __init__(self) -> None:
        self.kept: list[tuple[str, str]] = []
        self.failing = False

    async def report_progress(self, token: str, job_id: str, blob: bytes) -> bool:
        if self.failing:
            raise StoreUnavailable("gone")
        self.kept.append((token, unpack_progress(blob).message))
        return True


def holding(token: str) -> Holding:
    return Holding(
        Attempt("d", token, 1, Header(Lane("default", ("a", "b")), 1, "n", "task", 0.0), b""), "default", 0.0
    )


async def test_the_latest_word_is_sent_at_most_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    clock, store = ManualClock(), Notes()
    reports = ProgressReports(store, clock)  # type: ignore[arg-type]
    one, two = holding("t1"), holding("t2")
    async with anyio.create_task_group() as group:
        group.start_soon(reports.run)
        for number in range(1, 6):
            reports.say(one, pack_progress(None, str(number)))
            await clock.advance(0.25)
        reports.say(two, pack_progress(None, "other"))
        await clock.advance(0.0)
        assert store.kept == [("t1", "1"), ("t1", "4"), ("t2", "other")]
        await clock.advance(1.0)
        assert store.kept[3:] == [("t1", "5")], "the last word comes through"

        store.failing = True
        reports.say(one, pack_progress(None, "lost"))
        await clock.advance(2.0)
        reports.say(one, pack_progress(None, "lost too"))
        await clock.advance(2.0)
        store.failing = False
        reports.say(one, pack_progress(None, "back"))
        one.ended = True
        reports.say(two, pack_progress(None, "on"))
        await clock.advance(2.0)
        assert store.kept[4:] == [("t2", "on")], "an attempt that has ended has an outcome"
        group.cancel_scope.cancel()
    assert len(caplog.records) == 1


async def test_a_handler_says_it_from_the_loop_or_from_a_thread() -> None:
    runner = Runner(SystemClock())

    @runner.tasks.task("loop")
    async def on_loop(context: Context) -> None:
        context.report_progress(0.5, "half")

    @runner.tasks.task("thread")
    def in_thread(context: Context) -> None:
        assert threading.current_thread() is not threading.main_thread()
        context.report_progress(None, "some")

    for task in ("loop", "thread"):
        await runner.handlers.run(runner.take(task))
        assert runner.event().kind is EventKind.SUCCEEDED
    assert [unpack_progress(blob) for blob in runner.said] == [Progress(0.5, "half"), Progress(None, "some")]


async def test_progress_reaches_whoever_asks_while_the_job_runs(fresh_namespace: str) -> None:
    bench = WorkerBench(fresh_namespace)
    worker = bench.worker()

    @worker.task("rows")
    async def rows(context: Context, what: str) -> None:
        context.report_progress(0.25, what)
        await bench.release.wait()

    async with bench.running(worker):
        [job] = await bench.submit("rows", "row 1")
        await bench.clock.advance(2.0)
        [blob] = await bench.store.progress([job])
        assert blob is not None
        assert unpack_progress(blob) == Progress(0.25, "row 1")


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_handler_may_ask_for_a_pause(in_thread: bool, caplog: pytest.LogCaptureFixture) -> None:
    runner = Runner(SystemClock())

    def plain() -> None:
        raise RetryAfter(30, "the service is busy")

    async def on_loop() -> None:
        plain()

    runner.tasks.task("task")(plain if in_thread else on_loop)
    event = await runner.run()
    assert (event.kind, event.retry_after, event.error) == (
        EventKind.FAILED,
        30.0,
        "RetryAfter: the service is busy",
    )
    assert caplog.records == [], "it is no accident"


@pytest.mark.parametrize("seconds", [-1, float("nan"), 91 * 86_400, "soon"])
def test_a_pause_is_between_nothing_and_ninety_days(seconds: Any) -> None:
    with pytest.raises(InvalidValue, match="pause"):
        RetryAfter(seconds)
