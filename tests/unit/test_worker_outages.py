"""A worker that loses replies, its store, its lease or its name, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import anyio
import pytest

from drr.backend import EventKind, WorkerRecord
from drr.errors import StoreNotPrepared, StoreUnavailable, WorkerNameInUse
from tests.helpers.worker_bench import LEASE, WorkerBench, states

pytestmark = pytest.mark.anyio


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[WorkerBench]:
    made = WorkerBench(fresh_namespace)
    yield made
    await made.store.close()


async def test_a_lost_reply_of_a_read_strands_nothing(bench: WorkerBench) -> None:
    """The entries are pending for this worker though it never saw them: they are found and run, once."""
    async with bench.running(bench.worker()):
        await bench.clock.settle()
        bench.faults.lost.add("read_attempts")
        ids = await bench.submit("note", "a", "b")
        await bench.clock.advance(5.0)
        assert not bench.faults.lost
        assert bench.started == ["a", "b"]
        assert await states(bench, ids) == ["succeeded"] * 2


async def test_a_lost_reply_of_a_report_is_repeated_and_counts_once(bench: WorkerBench) -> None:
    async with bench.running(bench.worker()):
        bench.faults.lost.add("report")
        ids = await bench.submit("note", "a")
        await bench.clock.advance(5.0)
        assert not bench.faults.lost
        assert [kind for _, kind in bench.kinds()] == [EventKind.SUCCEEDED] * 2
        assert len(bench.hand.refused) == 1
        assert await states(bench, ids) == ["succeeded"]


async def test_results_are_kept_while_the_store_is_away(bench: WorkerBench) -> None:
    worker = bench.worker()
    async with bench.running(worker):
        ids = await bench.submit("hold", "a", "b")
        await bench.clock.settle()
        bench.faults.away.add("*")
        bench.release.set()
        await bench.clock.advance(LEASE - 12.0)
        assert bench.hand.events == []
        bench.faults.away.clear()
        await bench.clock.advance(8.0)
        assert await states(bench, ids) == ["succeeded"] * 2
        assert bench.started == ["a", "b"], "pending entries that had been run were not run again"
        more = await bench.submit("note", "c")
        await bench.clock.settle()
        assert await states(bench, more) == ["succeeded"]


async def test_a_lapsed_lease_cancels_what_runs_and_hands_it_back(bench: WorkerBench) -> None:
    """No beat got through for a whole lease, so somebody else may be running these jobs by now."""
    async with bench.running(bench.worker()):
        ids = await bench.submit("hold", "a")
        await bench.clock.settle()
        bench.faults.away.add("*")
        await bench.clock.advance(LEASE * 1.5)
        bench.faults.away.clear()
        await bench.clock.advance(LEASE / 3)
        assert bench.kinds()[0][1] is EventKind.RETURNED
        assert bench.started == ["a", "a"], "and runs again as a new attempt"
        bench.release.set()
        await bench.clock.advance(2.0)
        assert await states(bench, ids) == ["succeeded"]


async def test_an_outage_shorter_than_the_lease_cancels_nothing(bench: WorkerBench) -> None:
    """Negative control of the above."""
    async with bench.running(bench.worker()):
        await bench.submit("hold", "a")
        await bench.clock.settle()
        bench.faults.away.add("*")
        await bench.clock.advance(LEASE * 0.6)
        bench.faults.away.clear()
        await bench.clock.advance(LEASE)
        assert bench.started == ["a"]
        assert bench.hand.events == []


async def test_a_worker_that_was_declared_dead_joins_again_and_drops_what_it_had(
    bench: WorkerBench, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench.running(bench.worker()):
        ids = await bench.submit("hold", "a")
        await bench.clock.advance(LEASE / 3)
        before = await bench.record()
        assert before is not None
        await bench.hand.forget("w1")
        await bench.clock.advance(LEASE / 3 + 2)
        after = await bench.record()
        assert after is not None
        assert after.incarnation != before.incarnation
        assert "declared dead" in caplog.text
        await bench.clock.settle()
        assert bench.started == ["a", "a"], "the second attempt runs under the new incarnation"
        bench.release.set()
        await bench.clock.advance(2.0)
        assert [kind for _, kind in bench.kinds()] == [EventKind.SUCCEEDED], "nothing of the first was reported"
        assert await states(bench, ids) == ["succeeded"]


async def test_a_name_held_by_a_live_worker_is_refused(bench: WorkerBench) -> None:
    async with bench.running(bench.worker()) as group:
        began = bench.clock.monotonic()
        group.start_soon(bench.run, bench.worker(rng=Random(2)))
        await bench.clock.run_until(lambda: bench.failures)
        assert bench.clock.monotonic() - began <= LEASE
        [error] = bench.failures
        assert isinstance(error, WorkerNameInUse)
        assert error.worker == "w1"
        assert await bench.record() is not None, "the first one is not disturbed"


async def test_a_name_held_by_a_dead_worker_is_taken_over_after_one_lease(bench: WorkerBench) -> None:
    await bench.store.join(WorkerRecord("w1", "dead", {"default": 1}))
    async with bench.running(bench.worker()):
        await bench.clock.advance(LEASE)
        found = await bench.record()
        assert found is not None
        assert found.incarnation == "dead", "one whole lease is waited for"
        await bench.clock.advance(LEASE / 5)
        found = await bench.record()
        assert found is not None
        assert found.incarnation != "dead"


async def test_a_lost_reply_of_the_join_is_no_stranger(bench: WorkerBench) -> None:
    bench.faults.lost.add("join")
    async with bench.running(bench.worker()):
        await bench.clock.advance(2.0)
        assert bench.failures == []
        ids = await bench.submit("note", "a")
        await bench.clock.settle()
        assert await states(bench, ids) == ["succeeded"]


async def test_a_store_that_is_away_at_the_start_is_waited_for_and_then_named(bench: WorkerBench) -> None:
    bench.faults.away.add("*")
    async with bench.running(bench.worker(patience=10.0)):
        waited = await bench.clock.run_until(lambda: bench.failures)
        assert 10.0 <= waited < 16.0
        assert isinstance(bench.failures[0], StoreUnavailable)


async def test_a_store_that_comes_within_the_patience_is_joined(bench: WorkerBench) -> None:
    bench.faults.away.add("*")
    async with bench.running(bench.worker(patience=10.0)):
        await bench.clock.advance(5.0)
        bench.faults.away.clear()
        await bench.clock.advance(6.0)
        assert bench.failures == []
        assert await bench.record() is not None


async def test_a_store_that_is_not_prepared_is_named(bench: WorkerBench) -> None:
    bench.faults.away.add("*")
    bench.faults.error = StoreNotPrepared
    async with bench.running(bench.worker(patience=0.0)):
        await bench.clock.run_until(lambda: bench.failures)
        assert isinstance(bench.failures[0], StoreNotPrepared)


async def test_stopping_a_worker_that_still_tries_to_join_ends_it(bench: WorkerBench) -> None:
    bench.faults.away.add("*")
    worker = bench.worker(patience=600.0)
    over = anyio.Event()

    async def run() -> None:
        await worker.run()
        over.set()

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        await bench.clock.advance(3.0)
        worker.stop()
        await bench.clock.advance(1.0)
        assert over.is_set()


async def test_a_drain_ends_even_if_the_store_never_comes_back(
    bench: WorkerBench, caplog: pytest.LogCaptureFixture
) -> None:
    worker = bench.worker(grace=5.0)
    async with bench.running(worker):
        await bench.submit("hold", "a")
        await bench.clock.settle()
        bench.faults.away.add("*")
        worker.stop()
        await bench.clock.advance(5.0 + 1.0 + 5.0)
        assert "left without a word" in caplog.text
        worker.stop()  # harmless: it runs no more
