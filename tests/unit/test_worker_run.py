"""A whole worker over the memory store in virtual time: joining, running, draining, losing and finding the store.

Nothing here sleeps: time is a `ManualClock`, the heartbeat is a task, and the dispatcher is driven by hand.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import anyio
import pytest

from drr.backend import EventKind, WorkerRecord, open_backend
from drr.errors import StoreNotPrepared, StoreUnavailable, WorkerNameInUse
from drr.model import JobSpec, Lane
from drr.payload import pack_arguments
from drr.worker import Context, Worker
from tests.helpers.faults import Faults, FaultyBackend
from tests.helpers.hand import HandDispatcher
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LANE = Lane("default", ("acme", "web"), 5)
LEASE = 30.0


class Bench:
    """A store, a hand-driven dispatcher and workers, in virtual time."""

    def __init__(self, namespace: str) -> None:
        self.clock = ManualClock()
        self.store = open_backend("memory://bench", namespace=namespace, clock=self.clock)
        self.hand = HandDispatcher(self.store, self.clock)
        self.faults = Faults()
        self.failures: list[BaseException] = []
        self.started: list[str] = []
        self.release = anyio.Event()
        self._calls = 0

    def worker(self, **settings: Any) -> Worker:
        settings = {"name": "w1", "slots": 2, "lease": LEASE, "rng": Random(1), **settings}
        backend: Any = FaultyBackend(self.store.sibling(), self.faults)
        worker = Worker(backend, clock=self.clock, heartbeat_in_thread=False, **settings)

        @worker.task("note")
        async def note(context: Context, what: str) -> str:
            self.started.append(what)
            return what

        @worker.task("hold")
        async def hold(context: Context, what: str) -> str:
            self.started.append(what)
            await self.release.wait()
            return what

        return worker

    async def submit(self, task: str, *names: str, lane: Lane = LANE, **fields: Any) -> list[str]:
        self._calls += 1
        specs = [JobSpec(lane, task, pack_arguments([name], {}), 0.0, result_ttl=60.0, **fields) for name in names]
        return await self.store.submit("tests", self._calls, specs)

    async def record(self, name: str = "w1") -> WorkerRecord | None:
        return await self.store.worker_record(name)

    async def run(self, worker: Worker, **options: Any) -> None:
        try:
            await worker.run(**options)
        except Exception as error:
            self.failures.append(error)

    @asynccontextmanager
    async def running(self, worker: Worker) -> AsyncIterator[anyio.abc.TaskGroup]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.hand.serve)
            group.start_soon(self.run, worker)
            await self.clock.settle()
            try:
                yield group
            finally:
                worker.stop()
                worker.stop()
                await self.clock.advance(10.0)  # its goodbye is a wait of this clock
                group.cancel_scope.cancel()

    def kinds(self) -> list[tuple[str, EventKind]]:
        return [(event.token, event.kind) for event in self.hand.events]


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[Bench]:
    made = Bench(fresh_namespace)
    yield made
    await made.store.close()


async def states(bench: Bench, ids: Sequence[str]) -> list[str]:
    return [status.state.value if status else "unknown" for status in await bench.store.look_up(ids)]


async def test_jobs_run_and_their_ends_are_reported_without_any_time_passing(bench: Bench) -> None:
    async with bench.running(bench.worker()):
        began = bench.clock.monotonic()
        ids = await bench.submit("note", "a", "b", "c", "d", "e")
        await bench.clock.settle()
        assert await states(bench, ids) == ["succeeded"] * 5
        assert bench.started == ["a", "b", "c", "d", "e"]
        assert bench.clock.monotonic() == began, "no latency is added anywhere"


async def test_a_slot_takes_the_next_attempt_while_others_are_still_busy(bench: Bench) -> None:
    async with bench.running(bench.worker(slots=2)):
        [held] = await bench.submit("hold", "long")
        await bench.clock.settle()
        quick = await bench.submit("note", "a", "b", "c")
        await bench.clock.advance(2.0)
        assert await states(bench, [held, *quick]) == ["running", "succeeded", "succeeded", "succeeded"]


async def test_each_pool_has_slots_of_its_own(bench: Bench) -> None:
    async with bench.running(bench.worker(slots=None, pools={"default": 1, "renders": 1})):
        await bench.submit("hold", "a")
        await bench.clock.settle()
        [render] = await bench.submit("note", "b", lane=Lane("renders", ("acme", "web"), 5))
        await bench.clock.settle()
        assert await states(bench, [render]) == ["succeeded"]


async def test_heartbeats_renew_and_name_what_is_in_hand(bench: Bench) -> None:
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


async def test_short_jobs_cost_no_heartbeats(bench: Bench) -> None:
    async with bench.running(bench.worker()):
        for _ in range(50):
            await bench.submit("note", "a")
            await bench.clock.advance(0.1)
        assert bench.faults.calls.count("heartbeat") == 0


async def test_stop_finishes_what_runs_and_takes_nothing_new(bench: Bench) -> None:
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


async def test_an_idle_worker_leaves_within_one_block_of_its_reader(bench: Bench) -> None:
    worker = bench.worker()
    async with bench.running(worker):
        worker.stop()
        await bench.clock.advance(1.0)
        assert await bench.record() is None


async def test_what_is_not_finished_within_the_grace_period_is_handed_back(bench: Bench) -> None:
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


async def test_a_second_stop_hands_back_at_once(bench: Bench) -> None:
    worker = bench.worker(grace=600.0)
    async with bench.running(worker):
        ids = await bench.submit("hold", "a")
        await bench.clock.settle()
        worker.stop()
        worker.stop()
        await bench.clock.advance(1.0)
        assert await states(bench, ids) == ["queued"]
        assert await bench.record() is None


async def test_cancelling_the_run_hands_back_and_leaves(bench: Bench) -> None:
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


async def test_a_lost_reply_of_a_read_strands_nothing(bench: Bench) -> None:
    """The entries are pending for this worker though it never saw them: they are found and run, once."""
    async with bench.running(bench.worker()):
        await bench.clock.settle()
        bench.faults.lost.add("read_attempts")
        ids = await bench.submit("note", "a", "b")
        await bench.clock.advance(5.0)
        assert not bench.faults.lost
        assert bench.started == ["a", "b"]
        assert await states(bench, ids) == ["succeeded"] * 2


async def test_a_lost_reply_of_a_report_is_repeated_and_counts_once(bench: Bench) -> None:
    async with bench.running(bench.worker()):
        bench.faults.lost.add("report")
        ids = await bench.submit("note", "a")
        await bench.clock.advance(5.0)
        assert not bench.faults.lost
        assert [kind for _, kind in bench.kinds()] == [EventKind.SUCCEEDED] * 2
        assert len(bench.hand.refused) == 1
        assert await states(bench, ids) == ["succeeded"]


async def test_results_are_kept_while_the_store_is_away(bench: Bench) -> None:
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


async def test_a_lapsed_lease_cancels_what_runs_and_hands_it_back(bench: Bench) -> None:
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


async def test_an_outage_shorter_than_the_lease_cancels_nothing(bench: Bench) -> None:
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
    bench: Bench, caplog: pytest.LogCaptureFixture
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


async def test_a_name_held_by_a_live_worker_is_refused(bench: Bench) -> None:
    async with bench.running(bench.worker()) as group:
        began = bench.clock.monotonic()
        group.start_soon(bench.run, bench.worker(rng=Random(2)))
        await bench.clock.run_until(lambda: bench.failures)
        assert bench.clock.monotonic() - began <= LEASE
        [error] = bench.failures
        assert isinstance(error, WorkerNameInUse)
        assert error.worker == "w1"
        assert await bench.record() is not None, "the first one is not disturbed"


async def test_a_name_held_by_a_dead_worker_is_taken_over_after_one_lease(bench: Bench) -> None:
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


async def test_a_lost_reply_of_the_join_is_no_stranger(bench: Bench) -> None:
    bench.faults.lost.add("join")
    async with bench.running(bench.worker()):
        await bench.clock.advance(2.0)
        assert bench.failures == []
        ids = await bench.submit("note", "a")
        await bench.clock.settle()
        assert await states(bench, ids) == ["succeeded"]


async def test_a_store_that_is_away_at_the_start_is_waited_for_and_then_named(bench: Bench) -> None:
    bench.faults.away.add("*")
    async with bench.running(bench.worker(patience=10.0)):
        waited = await bench.clock.run_until(lambda: bench.failures)
        assert 10.0 <= waited < 16.0
        assert isinstance(bench.failures[0], StoreUnavailable)


async def test_a_store_that_comes_within_the_patience_is_joined(bench: Bench) -> None:
    bench.faults.away.add("*")
    async with bench.running(bench.worker(patience=10.0)):
        await bench.clock.advance(5.0)
        bench.faults.away.clear()
        await bench.clock.advance(6.0)
        assert bench.failures == []
        assert await bench.record() is not None


async def test_a_store_that_is_not_prepared_is_named(bench: Bench) -> None:
    bench.faults.away.add("*")
    bench.faults.error = StoreNotPrepared
    async with bench.running(bench.worker(patience=0.0)):
        await bench.clock.run_until(lambda: bench.failures)
        assert isinstance(bench.failures[0], StoreNotPrepared)


async def test_stopping_a_worker_that_still_tries_to_join_ends_it(bench: Bench) -> None:
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
    bench: Bench, caplog: pytest.LogCaptureFixture
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


async def test_the_same_seed_gives_the_same_run(fresh_namespace: str) -> None:
    async def trace(number: int) -> list[str]:
        bench = Bench(f"{fresh_namespace}-{number}")
        async with bench.running(bench.worker()):
            await bench.submit("note", "a", "b", "c")
            bench.faults.away.add("heartbeat")
            await bench.clock.advance(20.0)
            bench.faults.away.clear()
            await bench.clock.advance(100.0)
        await bench.store.close()
        return bench.faults.calls

    assert await trace(1) == await trace(2)
