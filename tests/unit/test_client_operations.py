"""What a client does with jobs that are there, over the memory store with a dispatcher and a worker."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from drr.backend import ITEM_LIMIT, DeathCause
from drr.client import Client, Submission
from drr.client.room import Room
from drr.client.times import read_times
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher
from drr.errors import (
    AdmissionRefused,
    BacklogFull,
    DeadLetterNotFound,
    DeadlinePassed,
    InvalidValue,
    JobCancelled,
    JobExists,
    JobExpired,
    JobFailed,
    JobNotFound,
)
from drr.model import JobSpec, JobState, Lane, RetryPolicy
from drr.plans import Plans, read_plans
from drr.worker import Context, Tasks, Worker
from tests.helpers.site import Site

pytestmark = pytest.mark.anyio

PATIENCE = 30.0


class Office:
    """A client, a dispatcher and a worker over one memory store, in real time but without waits."""

    def __init__(self, namespace: str) -> None:
        self.url, self.namespace = "memory://office", namespace
        self.tasks = Tasks()
        self.starts: list[str] = []
        self.release = anyio.Event()

        @self.tasks.task("work")
        async def work(what: str) -> str:
            self.starts.append(what)
            return what

        @self.tasks.task("fail")
        async def fail(what: str) -> None:
            self.starts.append(what)
            raise RuntimeError(what)

        @self.tasks.task("hold")
        async def hold(context: Context, what: str) -> None:
            context.report_progress(0.5, what)
            self.starts.append(what)
            await self.release.wait()

    @asynccontextmanager
    async def open(self, **options: Any) -> AsyncIterator[Client]:
        async with Dispatcher(self.url, namespace=self.namespace, **options) as self.dispatcher:
            await self.dispatcher.wait_leading()
            worker = Worker(self.url, namespace=self.namespace, slots=2, tasks=self.tasks)
            async with Client(self.url, namespace=self.namespace) as client, anyio.create_task_group() as group:
                group.start_soon(worker.run)
                try:
                    with anyio.fail_after(PATIENCE):
                        yield client
                finally:
                    self.release.set()
                    worker.stop()


@pytest.fixture
async def office(fresh_namespace: str) -> Office:
    return Office(fresh_namespace)


async def test_a_failing_job_is_tried_as_often_as_it_says(office: Office) -> None:
    async with office.open() as client:
        job = await client.submit("fail", ["x"], tenant="acme/web", retry=RetryPolicy(attempts=3, delay=0.0))
        with pytest.raises(JobFailed) as failed:
            await job.result()
        assert failed.value.attempt == 3
        assert office.starts == ["x"] * 3
        [letter] = [letter async for letter in client.dead("acme")]
        assert letter.cause is DeathCause.FAILED
        assert [letter async for letter in client.dead("acme/other")] == []
        assert [letter async for letter in client.dead(cause="poison")] == []


async def test_the_dead_come_back_or_go(office: Office) -> None:
    async with office.open() as client:
        jobs = [await client.submit("fail", [str(number)], tenant="acme/web") for number in range(3)]
        for job in jobs:
            await job.wait()
        letters = [letter async for letter in client.dead()]
        assert await client.letter(letters[1].number) == letters[1]
        assert await client.requeue_dead([letters[0].number] * 2) == 1
        while len(office.starts) < 4:
            await anyio.lowlevel.checkpoint()
        assert office.starts[3] == office.starts[0]
        await jobs[0].wait()
        numbers = [letter.number async for letter in client.dead()]
        assert len(numbers) == 3
        assert await client.purge_dead(numbers) == 3
        assert [letter async for letter in client.dead()] == []
        for ask in (client.letter(numbers[0]), client.requeue_dead(numbers)):
            with pytest.raises(DeadLetterNotFound, match=f"no dead letter {numbers[0]}"):
                await ask


async def test_what_would_only_expire_is_not_queued_again(office: Office) -> None:
    async with office.open() as client:
        soon = timedelta(seconds=PATIENCE)
        for deadline in (None, soon):
            await (await client.submit("fail", ["x"], tenant="acme/web", deadline=deadline)).wait()
        first, late = [letter async for letter in client.dead()]
        client._clock = Later(2 * PATIENCE)
        with pytest.raises(DeadlinePassed, match=f"letter {late.number} was [0-9]+ s ago"):
            await client.requeue_dead([first.number, late.number])
        assert [letter.number async for letter in client.dead()] == [first.number, late.number], "nothing was asked"
        assert await client.requeue_dead([first.number]) == 1


class Later(SystemClock):
    """A wall clock that is ahead by so many seconds."""

    def __init__(self, ahead: float) -> None:
        self._ahead = ahead

    def wall(self) -> float:
        return super().wall() + self._ahead


async def test_waiting_delayed_and_running_jobs_are_cancelled(office: Office) -> None:
    async with office.open() as client:
        running = [await client.submit("hold", [str(number)], tenant="acme/web") for number in range(2)]
        while len(office.starts) < 2:
            await anyio.lowlevel.checkpoint()
        waiting = await client.submit("work", ["never"], tenant="acme/web")
        delayed = await client.submit("work", ["never"], tenant="acme/web", delay=timedelta(days=1))
        assert (await delayed.status()).state is JobState.DELAYED
        for job in (waiting, delayed, running[0]):
            await job.cancel()
            with pytest.raises(JobCancelled):
                await job.result()
        assert await client.cancel_all("acme") == 1
        assert (await running[1].wait()).state is JobState.CANCELLED
        assert office.starts == ["0", "1"]
        ended = [job async for job in client.jobs("acme/web", state="cancelled")]
        assert {job.job_id for job in ended} == {job.id for job in (*running, waiting, delayed)}
        usage = await client.usage("acme", since=timedelta(hours=1))
        assert sum(row.cancelled for row in usage.values()) == 2


async def test_progress_is_followed_to_the_end(office: Office) -> None:
    async with office.open() as client:
        job = await client.submit("hold", ["row 1"], tenant="acme/web")
        said = []
        async for progress in job.follow_progress(interval=0.01):
            said.append(progress)
            office.release.set()
        assert said == [(0.5, "row 1")]
        assert await job.progress() == (0.5, "row 1")


async def test_a_job_expires_in_the_queue(office: Office) -> None:
    async with office.open() as client:
        for number in range(2):
            await client.submit("hold", [str(number)], tenant="acme/web")
        while len(office.starts) < 2:
            await anyio.lowlevel.checkpoint()
        late = await client.submit("work", ["late"], tenant="acme/web", deadline=timedelta(seconds=0.05))
        with pytest.raises(JobExpired):
            await late.result()
        assert "late" not in office.starts


async def test_keys_and_ids(office: Office) -> None:
    async with office.open() as client:
        first = await client.submit("work", ["once"], tenant="acme/web", key="k")
        again = await client.submit("work", ["once"], tenant="acme/web", key="k")
        assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
        assert await again.result() == "once"
        named = await client.submit("work", ["named"], tenant="acme/web", id="order-7")
        assert (await client.find("acme/web", "order-7")).id == named.id
        with pytest.raises(JobExists):
            await client.submit("work", ["named"], tenant="acme/web", id="order-7")
        with pytest.raises(JobNotFound):
            await client.find("acme/web", "order-8")
        await named.result()
        assert sorted(office.starts) == ["named", "once"]


# --- quotas and waiting for room --------------------------------------------------------------------------

TIGHT = read_plans(
    'default_plan = "free"\n[plans.free]\nbacklog = 8\n[plans.free.each_project]\nbacklog = 5\n', source="tight"
)


async def test_a_full_backlog_is_told(office: Office) -> None:
    async with office.open(plans=TIGHT) as client:
        with pytest.raises(BacklogFull) as refused:
            await client.submit_many(Submission("hold", [str(n)], tenant="acme/web") for n in range(100))
        assert refused.value.tenant == ("acme", "web")
        assert refused.value.accepted == 0


async def test_many_jobs_wait_for_room_and_keep_their_order(office: Office) -> None:
    async with office.open(plans=TIGHT) as client:
        taken: list[str] = []
        jobs = [
            Submission("work", [f"{org}{n}"], tenant=f"{org}/web") for n in range(40) for org in ("acme", "globex")
        ]
        assert await client.submit_many(jobs, accepted=taken.extend, wait=PATIENCE) == 80
        assert len(set(taken)) == 80
        while len(office.starts) < 80:
            await anyio.lowlevel.checkpoint()
    for org in ("acme", "globex"):
        numbers = [int(what.removeprefix(org)) for what in office.starts if what.startswith(org)]
        assert sorted(numbers) == list(range(40))
        # Two slots: what starts may be one ahead, no more.
        assert all(abs(number - place) <= 2 for place, number in enumerate(numbers))


async def test_the_wait_for_room_is_bounded() -> None:
    site = Site()
    async with site.dispatcher(plans=TIGHT) as dispatcher:
        await dispatcher.wait_leading()
        await site.clock.advance(1.0)
        failures: list[AdmissionRefused] = []
        async with Client(site.backend, clock=site.clock) as client, anyio.create_task_group() as group:

            async def submit() -> None:
                try:
                    await client.submit_many(
                        (Submission("work", [n], tenant="acme/web") for n in range(20)), wait=timedelta(seconds=30)
                    )
                except BacklogFull as refused:
                    failures.append(refused)

            group.start_soon(submit)
            await site.clock.advance(25.0)
            assert failures == []
            await site.clock.advance(20.0)
        assert [refused.accepted for refused in failures] == [5]


SLOW = read_plans('default_plan = "free"\n[plans.free]\nrate = 0.01\nburst = 1\n', source="slow")
ONE_TIGHT = read_plans(
    'default_plan = "free"\n[plans.free]\n[plans.tight]\nbacklog = 5\n[organisations.acme]\nplan = "tight"\n',
    source="one tight",
)


@pytest.mark.parametrize("plans", [SLOW, ONE_TIGHT], ids=["asked again too late", "beside others that flow"])
async def test_the_wait_for_room_is_bounded_whatever_else_goes_on(plans: Plans) -> None:
    site = Site()
    async with site.dispatcher(plans=plans) as dispatcher:
        await dispatcher.wait_leading()
        await site.clock.advance(1.0)
        ended: list[float] = []

        async def source() -> AsyncIterator[Submission]:
            for number in range(20):
                yield Submission("work", [number], tenant="acme/web")
            while plans is ONE_TIGHT:
                await site.clock.sleep(2.0)
                yield Submission("work", tenant="globex/web")

        async with Client(site.backend, clock=site.clock) as client, anyio.create_task_group() as group:

            async def submit() -> None:
                began = site.clock.monotonic()
                with pytest.raises(AdmissionRefused):
                    await client.submit_many(source(), wait=10.0)
                ended.append(site.clock.monotonic() - began)

            group.start_soon(submit)
            for _ in range(20):
                await site.clock.advance(1.0)
            group.cancel_scope.cancel()
        assert ended
        assert 10.0 <= ended[0] <= 13.0


@pytest.mark.parametrize("delay", [None, 3600.0])
async def test_all_are_cancelled_while_the_dispatcher_carries_it_out(delay: float | None) -> None:
    site = Site()
    async with site.dispatcher() as dispatcher:
        await dispatcher.wait_leading()
        async with Client(site.backend, clock=site.clock) as client:
            jobs = (Submission("work", [n], tenant="acme/web", delay=delay) for n in range(3 * ITEM_LIMIT + 7))
            number = await client.submit_many(jobs)
            ask = client.cancel

            async def ask_and_see_it_done(job_ids: Iterable[str]) -> None:
                await ask(job_ids)
                await site.clock.settle()
                await site.clock.advance(1.0)

            client.cancel = ask_and_see_it_done  # type: ignore[method-assign]
            assert await client.cancel_all("acme") == number
            assert await client.waiting("acme") == (0, 0.0)


def spec(tenant: str, number: int = 0) -> JobSpec:
    return JobSpec(Lane("default", tuple(tenant.split("/"))), "t", b"", float(number))


def test_room_holds_a_refused_tenant_s_jobs_in_order_and_passes_the_others() -> None:
    room = Room(10.0)
    batch = [spec("a/x", 1), spec("b/x", 1), spec("a/x", 2), spec("a/y", 1)]
    passed = room.refused(BacklogFull(("a", "x"), "jobs", 5, 4, 1, 2.0), batch, now=0.0)
    assert passed == [batch[0], batch[1], batch[3]]
    assert room.sift([spec("a/x", 3), spec("b/x", 2)]) == [spec("b/x", 2)]
    assert room.due(1.0) == []
    assert room.pause(1.0) == 1.0
    assert room.due(2.0) == [spec("a/x", 2), spec("a/x", 3)]
    assert len(room) == 0


def test_a_refused_organisation_holds_all_its_projects() -> None:
    room = Room(10.0)
    batch = [spec("a/x"), spec("a/y"), spec("b/x")]
    assert room.refused(BacklogFull(("a",), "jobs", 5, 5, 0, 1.0), batch, now=0.0) == [batch[2]]
    assert room.sift([spec("a/z")]) == []
    room.check(9.0)
    with pytest.raises(BacklogFull):
        room.check(10.0)
    room.accepted([spec("b/x")])
    with pytest.raises(BacklogFull):
        room.check(10.0)
    room.accepted([spec("a/y")])
    room.check(99.0)


def test_a_refusal_that_tells_of_room_for_all_makes_progress_all_the_same() -> None:
    room = Room(10.0)
    batch = [spec("a/x", 1), spec("a/x", 2)]
    assert room.refused(BacklogFull(("a", "x"), "jobs", 5, 0, 99, 1.0), batch, now=0.0) == []


# --- what is said of a job --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"delay": 5, "at": 1e10},
        {"delay": -1},
        {"delay": timedelta(days=91)},
        {"at": datetime(2030, 1, 1)},
        {"at": 9e10},
        {"deadline": 1.0},
        {"deadline": timedelta(seconds=5), "delay": 60},
        {"key": "a", "id": "b"},
        {"key": "a b"},
        {"id": "x" * 129},
        {"key_ttl": 5.0},
        {"key": "a", "key_ttl": 0.0},
        {"retry": 0},
        {"limits": ["a b"]},
        {"limits": ["a", "b", "c", "d", "e"]},
        {"limits": "db"},
    ],
)
async def test_nonsense_is_refused_before_anything_is_sent(office: Office, options: dict[str, Any]) -> None:
    async with Client(office.url, namespace=office.namespace) as client:
        with pytest.raises(InvalidValue):
            await client.submit("work", ["x"], tenant="acme/web", **options)


def test_times_are_read_from_whatever_says_them() -> None:
    assert read_times(None, None, None, 100.0) == (0.0, None)
    assert read_times(0, None, None, 100.0) == (0.0, None)
    assert read_times(timedelta(seconds=5), None, timedelta(minutes=1), 100.0) == (105.0, 160.0)
    assert read_times(None, datetime(1970, 1, 1, 0, 3, tzinfo=UTC), 200.0, 100.0) == (180.0, 200.0)
