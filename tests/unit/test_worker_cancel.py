"""Cancelled jobs at a worker: what is stopped, what stops itself, and what is reported."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from drr.backend import EventKind
from drr.clock import SystemClock
from drr.errors import JobCancelled, StoreUnavailable
from drr.payload import unpack_result
from drr.worker import Context
from drr.worker.stops import EARLY_LIMIT, Stops
from tests.helpers.manual_clock import ManualClock
from tests.helpers.worker_bench import WorkerBench, states
from tests.unit.test_worker_handlers import PATIENCE, Runner

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runner() -> Runner:
    return Runner(SystemClock())


async def test_a_handler_on_the_loop_is_cancelled_and_may_clean_up(runner: Runner) -> None:
    begun, cleaned_up = anyio.Event(), []

    @runner.tasks.task("task")
    async def handler(context: Context) -> None:
        begun.set()
        try:
            await anyio.sleep_forever()
        finally:
            cleaned_up.append(context.cancelled)

    holding = runner.take()
    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, holding)
        await begun.wait()
        assert runner.handlers.stop(holding.attempt.token)
    assert runner.event().kind is EventKind.CANCELLED
    assert cleaned_up == [True]


async def test_one_that_swallows_the_cancellation_is_reported_by_what_it_does(runner: Runner) -> None:
    begun = anyio.Event()

    @runner.tasks.task("task")
    async def handler() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await anyio.sleep_forever()
        return "done all the same"

    holding = runner.take()
    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, holding)
        await begun.wait()
        runner.handlers.stop(holding.attempt.token)
    event = runner.event()
    assert (event.kind, unpack_result(event.value)) == (EventKind.SUCCEEDED, "done all the same")


@pytest.mark.parametrize("looks", [True, False])
async def test_a_thread_stops_itself_or_runs_on(runner: Runner, looks: bool) -> None:
    begun, release = anyio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @runner.tasks.task("task")
    def handler(context: Context) -> str:
        loop.call_soon_threadsafe(begun.set)
        release.wait(PATIENCE)
        if looks:
            context.check_cancelled()
        return "late"

    holding = runner.take()
    async with anyio.create_task_group() as group:
        group.start_soon(runner.handlers.run, holding)
        await begun.wait()
        runner.handlers.stop(holding.attempt.token)
        assert runner.hands.busy == 1, "a thread keeps its slot"
        release.set()
    assert runner.event().kind is (EventKind.CANCELLED if looks else EventKind.SUCCEEDED)


@pytest.mark.parametrize("in_thread", [True, False])
async def test_what_was_cancelled_before_its_first_turn_does_not_begin(runner: Runner, in_thread: bool) -> None:
    ran = []

    async def on_loop() -> None:
        await anyio.lowlevel.checkpoint()
        ran.append("loop")

    def thread() -> None:
        ran.append("thread")

    runner.tasks.task("task")(thread if in_thread else on_loop)
    holding = runner.take()
    runner.handlers.stop(holding.attempt.token)
    await runner.handlers.run(holding)
    assert (runner.event().kind, ran) == (EventKind.CANCELLED, [])


async def test_check_cancelled_raises_only_then(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler(context: Context) -> None:
        context.check_cancelled()
        runner.handlers.stop("t1")
        with pytest.raises(JobCancelled):
            context.check_cancelled()

    assert (await runner.run()).kind is EventKind.SUCCEEDED


async def test_a_token_that_is_not_in_hand_stops_nothing(runner: Runner) -> None:
    assert not runner.handlers.stop("t99")


async def test_what_fails_by_itself_without_being_cancelled_has_failed(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler(context: Context) -> None:
        raise JobCancelled(context.job_id)

    assert (await runner.run()).kind is EventKind.FAILED


async def test_a_deadline_after_the_cancellation_changes_nothing(runner: Runner) -> None:
    @runner.tasks.task("task")
    async def handler() -> None: ...

    holding = runner.take(timeout=5.0)
    runner.handlers.stop(holding.attempt.token)
    runner.handlers.deadlines.expire(holding.taken_at + 6.0)
    assert (holding.cancelled, holding.expired) == (True, False)
    other = runner.take(timeout=5.0)
    runner.handlers.deadlines.expire(other.taken_at + 6.0)
    assert runner.handlers.stop(other.attempt.token)
    assert (other.cancelled, other.expired) == (False, True)


async def test_a_running_job_is_stopped_within_a_turn(fresh_namespace: str) -> None:
    bench = WorkerBench(fresh_namespace)
    worker = bench.worker(slots=1)
    async with bench.running(worker):
        first, second = await bench.submit("hold", "a", "b")
        await bench.clock.advance(2.0)
        assert await states(bench, [first, second]) == ["running", "queued"]
        await bench.hand.stop(first)
        await bench.clock.advance(2.0)
        assert await states(bench, [first, second]) == ["cancelled", "running"]
    assert bench.failures == []


async def test_what_was_to_be_stopped_before_it_was_read_does_not_begin(fresh_namespace: str) -> None:
    bench = WorkerBench(fresh_namespace)
    worker = bench.worker(slots=1)
    bench.faults.away.add("read_attempts")
    async with bench.running(worker):
        [job] = await bench.submit("hold", "a")
        await bench.clock.advance(2.0)
        await bench.hand.stop(job)
        await bench.clock.advance(2.0)
        assert await states(bench, [job]) == ["running"]
        bench.faults.away.clear()
        await bench.clock.advance(10.0)
        assert (await states(bench, [job]), bench.started) == (["cancelled"], [])


class Script:
    """A store that answers `stops` by a script and then not at all."""

    def __init__(self, *answers: tuple[str, list[str]] | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.closed = False
        self.over = anyio.Event()

    def sibling(self) -> Script:
        return self

    async def close(self) -> None:
        self.closed = True

    async def stops(self, after: str, block: float) -> tuple[str, list[str]]:
        self.asked.append(after)
        if not self.answers:
            self.over.set()
            await anyio.sleep_forever()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def follow(*answers: tuple[str, list[str]] | Exception) -> tuple[Script, Stops, list[str]]:
    clock, heard = ManualClock(), list[str]()

    def stop(token: str) -> bool:
        heard.append(token)
        return token.startswith("mine")

    script: Any = Script(*answers)
    stops = Stops(script, clock, Random(1), stop)
    async with anyio.create_task_group() as group:
        group.start_soon(stops.follow)
        while not script.over.is_set():
            await clock.advance(1.0)
        group.cancel_scope.cancel()
    return script, stops, heard


async def test_after_an_outage_everything_is_asked_for_again() -> None:
    script, stops, heard = await follow(("1", ["mine1"]), ("2", ["t2"]), StoreUnavailable("gone"), ("3", ["t2"]))
    assert script.asked == ["", "1", "2", "", "3"]
    assert heard == ["mine1", "t2", "t2"]
    assert [stops.was_stopped(token) for token in ("mine1", "t2")] == [False, True]
    assert script.closed


async def test_tokens_of_others_take_a_bounded_memory() -> None:
    tokens = [f"t{number}" for number in range(EARLY_LIMIT + 10)]
    _, stops, _ = await follow(("1", tokens))
    assert [stops.was_stopped(token) for token in ("t9", "t10", tokens[-1])] == [False, True, True]
