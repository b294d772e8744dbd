"""A whole worker in virtual time: joining, running, beating, draining."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from drr.backend import EventKind
from drr.model import Lane
from tests.helpers.worker_bench import LEASE, WorkerBench, states

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[WorkerBench]:
    made = WorkerBench(fresh_namespace)
    yield made
    await made.store.close()


async def test_jobs_run_and_their_ends_are_reported_without_any_time_passing(bench: WorkerBench) -> None:
    async with bench.running(bench.worker()):
        began = bench.clock.monotonic()
        ids = await bench.submit("note", "a", "b", "c", "d", "e")
        await bench.clock.settle()
        assert await states(bench, ids) == ["succeeded"] * 5
        assert bench.started == ["a", "b", "c", "d", "e"]
        assert bench.clock.monotonic() == began, "no latency is added anywhere"


async def test_a_slot_takes_the_next_attempt_while_others_are_still_busy(bench: WorkerBench) -> None:
    async with bench.running(bench.worker(slots=2)):
        [held] = await bench.submit("hold", "long")
        await bench.clock.settle()
        quick = await bench.submit("note", "a", "b", "c")
        await bench.clock.advance(2.0)
        assert await states(bench, [held, *quick]) == ["running", "succeeded", "succeeded", "succeeded"]


async def test_each_pool_has_slots_of_its_own(bench: WorkerBench) -> None:
    async with bench.running(bench.worker(slots=None, pools={"default": 1, "renders": 1})):
        await bench.submit("hold", "a")
        await bench.clock.settle()
        [render] = await bench.submit("note", "b", lane=Lane("renders", ("acme", "web"), 5))
        await bench.clock.settle()
        assert await states(bench, [render]) == ["succeeded"]


async def test_heartbeats_renew_and_name_what_is_in_hand(bench: WorkerBench) -> None:
    async with bench.running(bench.worker()):
        await bench.submit("hold", "a")
        await bench.clock.advance(LEASE / 3 / 2 + 1)
        early = await bench.record()
        assert early is not None
        assert len(early.held) == 1, "known before the first regular beat"
        await bench.clock.advance(10 * LEASE)
        late = await bench.record()
        assert late is not None
        assert 29 <= late.renewals - early.renewals <= 31
        assert late.held == early.held


async def test_short_jobs_cost_no_heartbeats(bench: WorkerBench) -> None:
    async with bench.running(bench.worker()):
        for _ in range(50):
            await bench.submit("note", "a")
            await bench.clock.advance(0.1)
        assert bench.faults.calls.count("heartbeat") == 0


async def test_stop_finishes_what_runs_and_takes_nothing_new(bench: WorkerBench) -> None:
    worker = bench.worker()
    async with bench.running(worker):
        ids = await bench.submit("hold", "a")
        await bench.clock.settle()
        worker.stop()
        await bench.clock.settle()
        draining = await bench.record()
        assert draining is not None
        assert draining.draining, "the dispatcher hears of it at once"
        more = await bench.submit("note", "b")
        await bench.clock.advance(5.0)
        bench.release.set()
        await bench.clock.advance(5.0)
        assert await states(bench, ids + more) == ["succeeded", "queued"]
        assert await bench.record() is None, "left"
        assert bench.started == ["a"]


async def test_an_idle_worker_leaves_within_one_block_of_its_reader(bench: WorkerBench) -> None:
    worker = bench.worker()
    async with bench.running(worker):
        worker.stop()
        await bench.clock.advance(1.0)
        assert await bench.record() is None


async def test_what_is_not_finished_within_the_grace_period_is_handed_back(bench: WorkerBench) -> None:
    worker = bench.worker(grace=8.0)
    async with bench.running(worker):
        ids = await bench.submit("hold", "a", "b")
        await bench.clock.settle()
        worker.stop()
        await bench.clock.advance(7.0)
        assert await states(bench, ids) == ["running", "running"]
        await bench.clock.advance(3.0)
        assert [kind for _, kind in bench.kinds()] == [EventKind.RETURNED] * 2
        assert await states(bench, ids) == ["queued", "queued"]
        assert await bench.record() is None


async def test_a_second_stop_hands_back_at_once(bench: WorkerBench) -> None:
    worker = bench.worker(grace=600.0)
    async with bench.running(worker):
        ids = await bench.submit("hold", "a")
        await bench.clock.settle()
        worker.stop()
        worker.stop()
        await bench.clock.advance(1.0)
        assert await states(bench, ids) == ["queued"]
        assert await bench.record() is None


async def test_cancelling_the_run_hands_back_and_leaves(bench: WorkerBench) -> None:
    worker = bench.worker()
    async with bench.running(worker) as group:
        scope = anyio.CancelScope()

        async def embedded() -> None:
            with scope:
                await bench.run(bench.worker(name="w2"))

        worker.stop()
        await bench.clock.advance(2.0)
        group.start_soon(embedded)
        ids = await bench.submit("hold", "a")
        await bench.clock.settle()
        assert await states(bench, ids) == ["running"]
        scope.cancel()
        await bench.clock.advance(2.0)
        assert await states(bench, ids) == ["queued"]
        assert await bench.record("w2") is None


async def test_the_same_seed_gives_the_same_run(fresh_namespace: str) -> None:
    async def trace(number: int) -> list[str]:
        bench = WorkerBench(f"{fresh_namespace}-{number}")
        async with bench.running(bench.worker()):
            await bench.submit("note", "a", "b", "c")
            bench.faults.away.add("heartbeat")
            await bench.clock.advance(20.0)
            bench.faults.away.clear()
            await bench.clock.advance(100.0)
        await bench.store.close()
        return bench.faults.calls

    assert await trace(1) == await trace(2)
