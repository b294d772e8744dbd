"""What dispatchers and workers say of themselves, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from drr.dispatcher.vitals import STUCK_AFTER, Vitals
from drr.errors import StoreUnavailable
from drr.health import DispatcherHealth, Reason, WorkerHealth
from drr.model import Lane
from tests.helpers.faults import Faults, FaultyBackend
from tests.helpers.manual_clock import ManualClock
from tests.helpers.site import Site, running
from tests.helpers.worker_bench import LEASE, WorkerBench

pytestmark = pytest.mark.anyio

LEADER_LEASE = 3.0


def told(health: DispatcherHealth | WorkerHealth) -> tuple[str, bool, bool, Reason]:
    return health.state, health.live, health.ready, health.reason


# --- dispatchers


async def test_a_dispatcher_is_ready_while_it_leads_and_not_before_or_after(site: Site) -> None:
    dispatcher = site.dispatcher()
    assert told(dispatcher.health()) == ("new", True, False, Reason.NOT_STARTED)
    async with dispatcher:
        await dispatcher.wait_leading()
        health = dispatcher.health()
        assert told(health) == ("leading", True, True, Reason.NONE)
        assert (health.role, health.name, health.detail, health.blocked) == ("dispatcher", "d1", "", 0.0)
        assert health.leader.startswith("1:")
    assert told(dispatcher.health()) == ("stopped", False, False, Reason.STOPPED)


async def test_a_standby_is_ready_too_and_an_idle_leader_stays_so(site: Site) -> None:
    async with running(site, name="d1") as leader, running(site, name="d2") as standby:
        for _ in range(20):
            await site.clock.advance(1.0)
            assert told(leader.health()) == ("leading", True, True, Reason.NONE)
            assert told(standby.health()) == ("standing by", True, True, Reason.NONE)
            assert standby.health().leader == leader.health().leader
        assert standby.health().committed is None


async def test_a_dispatcher_knows_when_it_last_committed(site: Site) -> None:
    async with running(site) as dispatcher:
        assert dispatcher.health().committed is None
        await site.submit(Lane("default", ("acme", "web")), estimate=1000.0)
        await site.join(slots=1)
        await site.clock.settle()
        assert dispatcher.health().committed == 0.0
        await site.beat("w1")
        await site.clock.advance(4.0)
        assert dispatcher.health().committed == pytest.approx(4.0, abs=2.5)


async def test_a_store_that_is_away_makes_a_dispatcher_unready_and_not_unlive(site: Site) -> None:
    faults = Faults()
    backend: Any = FaultyBackend(site.backend.sibling(), faults)
    async with site.dispatcher(backend) as dispatcher:
        await dispatcher.wait_leading()
        faults.away.add("*")
        await site.clock.advance(60.0)
        health = dispatcher.health()
        assert told(health) == ("recovering", True, False, Reason.STORE_LOST)
        assert health.detail == "StoreUnavailable: away"
        assert health.answered is not None
        assert health.answered >= 55.0
        faults.away.clear()
        await site.clock.advance(15.0)
        assert told(dispatcher.health()) == ("leading", True, True, Reason.NONE)
        assert dispatcher.health().detail == ""


class Hanging:
    """A store that takes calls and answers none of the named ones."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.hangs: set[str] = set()

    def sibling(self) -> Any:
        return self._inner.sibling()

    def __getattr__(self, name: str) -> Any:
        if name in self.hangs:
            return self._hang
        return getattr(self._inner, name)

    async def _hang(self, *args: Any) -> None:
        await anyio.sleep_forever()


async def test_a_store_that_takes_calls_and_does_not_answer_is_silent(site: Site) -> None:
    backend: Any = Hanging(site.backend.sibling())
    async with site.dispatcher(backend, leader_lease=LEADER_LEASE) as dispatcher:
        await dispatcher.wait_leading()
        backend.hangs = {"renew", "workers", "commit"}
        await site.clock.advance(LEADER_LEASE + 1.5)
        assert told(dispatcher.health()) == ("leading", True, False, Reason.STORE_SILENT)


async def test_a_loop_that_waits_for_what_never_comes_is_dead(site: Site) -> None:
    """Every call of the store is bounded, so neither an answer nor an error for minutes is no outage."""
    backend: Any = Hanging(site.backend.sibling())
    async with site.dispatcher(backend, leader_lease=LEADER_LEASE) as dispatcher:
        await dispatcher.wait_leading()
        backend.hangs = {"renew", "workers", "commit"}
        await site.clock.advance(STUCK_AFTER)
        assert dispatcher.health().live
        await site.clock.advance(LEADER_LEASE + 1.0)
        assert told(dispatcher.health()) == ("leading", False, False, Reason.STUCK)


async def test_an_outage_is_not_taken_for_that_however_long(site: Site) -> None:
    faults = Faults()
    backend: Any = FaultyBackend(site.backend.sibling(), faults)
    async with site.dispatcher(backend) as dispatcher:
        await dispatcher.wait_leading()
        faults.away.add("*")
        await site.clock.advance(5 * STUCK_AFTER)
        assert told(dispatcher.health()) == ("recovering", True, False, Reason.STORE_LOST)


async def test_an_error_of_drr_itself_makes_a_dispatcher_unlive(site: Site) -> None:
    faults = Faults()
    faults.error = ZeroDivisionError
    backend: Any = FaultyBackend(site.backend.sibling(), faults)
    dispatcher = site.dispatcher(backend)

    async def lead_into_the_error() -> None:
        async with dispatcher:
            await dispatcher.wait_leading()
            faults.away.add("renew")
            await site.clock.advance(30.0)

    with pytest.raises(ZeroDivisionError):
        await lead_into_the_error()
    assert told(dispatcher.health()) == ("stopped", False, False, Reason.STOPPED)


async def test_a_dispatcher_whose_loop_does_not_turn_is_unready_and_after_a_while_unlive(site: Site) -> None:
    async with running(site, leader_lease=LEADER_LEASE) as dispatcher:
        site.clock.jump(LEADER_LEASE + 1.0)
        health = dispatcher.health(patience=10.0)
        assert told(health) == ("leading", True, False, Reason.LOOP_BLOCKED)
        assert health.blocked == pytest.approx(4.0, abs=0.5)
        site.clock.jump(7.0)
        assert told(dispatcher.health(patience=10.0)) == ("leading", False, False, Reason.LOOP_BLOCKED)
        assert dispatcher.health(patience=12.0).live
        await site.clock.advance(1.0)
        assert dispatcher.health().live
        assert dispatcher.health().blocked == 0.0


def test_a_failure_is_told_in_bounded_words() -> None:
    vitals = Vitals(ManualClock(), "d1", LEADER_LEASE, 0.5)
    vitals.failed(StoreUnavailable("x" * 10_000))
    assert len(vitals.health(10.0).detail) == 300


async def test_a_dispatcher_may_be_asked_from_another_thread(site: Site) -> None:
    async with running(site) as dispatcher:
        health = await anyio.to_thread.run_sync(dispatcher.health)
        assert health == dispatcher.health()
        assert health.as_dict()["reason"] == ""


# --- workers


@pytest.fixture
async def bench(fresh_namespace: str) -> AsyncIterator[WorkerBench]:
    made = WorkerBench(fresh_namespace)
    await made.hand.start()
    yield made
    await made.store.close()


async def test_a_worker_is_ready_while_it_takes_jobs(bench: WorkerBench) -> None:
    worker = bench.worker()
    assert told(worker.health()) == ("new", True, False, Reason.NOT_STARTED)
    async with bench.running(worker):
        health = worker.health()
        assert told(health) == ("working", True, True, Reason.NONE)
        assert (health.role, health.name, health.running, health.blocks) == ("worker", "w1", 0, 0)
        assert health.beaten is not None
        await bench.submit("hold", "a")
        await bench.clock.settle()
        assert worker.health().running == 1
        worker.stop()
        await bench.clock.settle()
        assert told(worker.health()) == ("draining", True, False, Reason.DRAINING)
        assert worker.health().detail == "1 handlers still run"
        bench.release.set()
    assert told(worker.health()) == ("stopped", False, False, Reason.STOPPED)


async def test_a_worker_that_waits_for_its_store_is_joining_and_one_whose_lease_lapsed_says_so(
    bench: WorkerBench,
) -> None:
    bench.faults.away.add("*")
    worker = bench.worker(patience=1000.0)
    async with bench.running(worker):
        assert told(worker.health()) == ("joining", True, False, Reason.JOINING)
        assert worker.health().beaten is None
        bench.faults.away.clear()
        await bench.clock.advance(10.0)
        assert worker.health().ready
        bench.faults.away.add("heartbeat")
        await bench.clock.advance(LEASE + 15.0)
        assert told(worker.health()) == ("lapsed", True, False, Reason.LEASE_LAPSED)
        bench.faults.away.clear()
        await bench.clock.advance(20.0)
        assert told(worker.health()) == ("working", True, True, Reason.NONE)


async def test_a_heart_that_ended_by_itself_makes_a_worker_unlive(bench: WorkerBench) -> None:
    worker = bench.worker()
    async with bench.running(worker):
        shift = worker._shift
        assert shift is not None
        shift.heart.ended = True
        assert told(worker.health()) == ("working", False, False, Reason.HEART_STOPPED)
        shift.heart.ended = False


async def test_a_worker_that_could_not_start_is_stopped(bench: WorkerBench) -> None:
    bench.faults.away.add("*")
    worker = bench.worker(patience=0.0)
    with pytest.raises(StoreUnavailable):
        await worker.run()
    assert told(worker.health()) == ("stopped", False, False, Reason.STOPPED)
