"""The dispatcher on real servers: the main ways, takeover, lost workers, hostile bytes, lost replies.

Everything is waited for by blocking reads; a test that hangs fails after `PATIENCE`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import anyio
import pytest

from drr.backend import Attempt, Event, EventKind, WorkerRecord
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher, decode_status
from drr.embedded import EmbeddedServer
from drr.model import JobSpec, JobState, Lane, NodePolicy
from tests.contract.harness import PATIENCE
from tests.helpers.backends import FaultyBackend, Plan
from tests.redis.harness import RedisHarness

pytestmark = pytest.mark.anyio

ACME = Lane("default", ("acme", "web"))
GLOBEX = Lane("default", ("globex", "mail"))
QUICK: dict[str, Any] = {"lease": 0.6, "leader_lease": 0.3}


class Site(RedisHarness):
    """A namespace with clients and workers that do what the test says."""

    def __init__(self, url: str, namespace: str) -> None:
        super().__init__(url, namespace)
        self.clock = SystemClock()
        self.listener = self.open()
        self._calls = count(1)
        self._cursor = ""

    def dispatcher(self, name: str = "d1", plan: Plan | None = None, **options: Any) -> Dispatcher:
        backend = self.open()
        return Dispatcher(FaultyBackend(backend, plan) if plan else backend, name=name, **options)

    async def submit(self, lane: Lane = ACME, number: int = 1, **fields: Any) -> list[str]:
        fields = {"estimate": 0.1, "result_ttl": 600.0, "reply_to": "client", **fields}
        spec = JobSpec(lane, "work", b"payload", self.clock.wall(), **fields)
        return await self.handle.submit("client", next(self._calls), [spec] * number)

    async def join(self, name: str = "w1", slots: int = 4, incarnation: str = "i1") -> None:
        await self.handle.join(WorkerRecord(name, incarnation, {"default": slots}))

    async def beat(self, name: str, slots: int, held: list[Attempt]) -> bool:
        tokens = tuple(attempt.token for attempt in held)
        return await self.handle.heartbeat(WorkerRecord(name, "i1", {"default": slots}, tokens))

    async def take(self, name: str = "w1", number: int = 1) -> list[Attempt]:
        """Return exactly so many attempts, however long it takes."""
        taken: list[Attempt] = []
        while len(taken) < number:
            for attempt in await self.listener.read_attempts(name, "i1", "default", number - len(taken), 0.5):
                assert isinstance(attempt, Attempt)
                taken.append(attempt)
        return taken

    async def finish(self, attempts: list[Attempt], name: str = "w1", kind: EventKind = EventKind.SUCCEEDED) -> None:
        await self.handle.report([Event(attempt.token, kind, name, 0.01) for attempt in attempts])

    async def ends(self, number: int) -> list[str]:
        """Wait for the ends of so many jobs."""
        ended: list[str] = []
        while len(ended) < number:
            self._cursor, ids = await self.listener.replies("client", self._cursor, 1.0)
            ended.extend(ids)
        return ended

    async def work(self, total: int, name: str = "w1", slots: int = 4) -> Counter[str]:
        """Run jobs until ``total`` have ended."""
        starts: Counter[str] = Counter()
        ended: list[str] = []
        while len(ended) < total:
            found = await self.listener.read_attempts(name, "i1", "default", slots, 0.05)
            attempts = [attempt for attempt in found if isinstance(attempt, Attempt)]
            starts.update(attempt.header.job_id for attempt in attempts)
            if attempts:
                await self.finish(attempts, name)
            await self.beat(name, slots, [])
            self._cursor, ids = await self.listener.replies("client", self._cursor, 0.0)
            ended.extend(ids)
        assert Counter(ended).most_common(1)[0][1] == 1, "a job ends once"
        return starts


@pytest.fixture
async def site(server: EmbeddedServer, fresh_namespace: str) -> AsyncIterator[Site]:
    found = Site(server.url, fresh_namespace)
    with anyio.fail_after(PATIENCE):
        await found.handle.prepare()
        yield found
    await found.close()


async def test_jobs_flow(site: Site) -> None:
    """Six hundred jobs of two tenants, submitted before and while the dispatcher runs, end once each."""
    ids = await site.submit(ACME, 200)
    async with site.dispatcher() as dispatcher:
        await site.join(slots=20)
        ids += await site.submit(GLOBEX, 200)
        ids += await site.submit(ACME, 200)
        starts = await site.work(600, slots=20)
        assert starts == Counter(ids)
        assert dispatcher.counters.succeeded == 600
        assert dispatcher.counters.commits < 600
    assert await site.raw("HLEN", site.keys.leases) == 0
    assert await site.raw("SCARD", site.keys.active) == 0


async def test_a_second_instance_takes_over_with_credits_and_running_attempts(site: Site) -> None:
    """The first one can reach nothing any more; the second goes on within its leader lease and a bit."""
    plan = Plan()
    await site.join(slots=4)
    await site.submit(ACME, 6, estimate=3.0)
    await site.submit(GLOBEX, 6, estimate=0.5)
    async with site.dispatcher("d1", plan, leader_lease=0.3) as one:
        await one.wait_leading()
        held = await site.take(number=4)
        async with site.dispatcher("d2", leader_lease=0.3) as two:
            plan.fail_at, plan.times = plan.calls + 1, 10**9
            before = site.clock.monotonic()
            await two.wait_leading()
            assert site.clock.monotonic() - before < 5.0
            assert not one.is_leader
            snapshot = await site.handle.load(two.health().leader)
            assert {lease.token for lease in snapshot.leases} == {attempt.token for attempt in held}
            charged = sum(lease.charged for lease in snapshot.leases)
            debts = sum(-state.credit for (_, path), state in snapshot.nodes.items() if len(path) == 1)
            assert charged > 0
            assert debts > -200
            await site.finish(held)
            assert len(await site.take(number=4)) == 4
            assert two.counters.zombies == 0


async def test_leaving_hands_over_at_once(site: Site) -> None:
    """With a leader lease of an hour only the resignation can wake the standby."""
    leave = anyio.Event()

    async def lead_until_told(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        async with site.dispatcher("d1", leader_lease=3600.0) as one:
            await one.wait_leading()
            task_status.started()
            await leave.wait()

    async with anyio.create_task_group() as group:
        await group.start(lead_until_told)
        async with site.dispatcher("d2", leader_lease=3600.0) as two:
            assert not two.is_leader
            leave.set()
            await two.wait_leading()


async def test_a_lost_workers_attempts_come_back_after_one_lease(site: Site) -> None:
    """At the head of their lane, as attempt 2; the first copies' reports are ignored."""
    async with site.dispatcher(**QUICK) as dispatcher:
        await site.join("dies", slots=2)
        first = await site.submit(ACME, 2)
        held = await site.take("dies", 2)
        await site.beat("dies", 2, held)
        await site.submit(ACME, 2)
        await site.join("w1", slots=1)
        again: list[Attempt] = []
        while len(again) < 2:
            await site.beat("w1", 1, again[-1:])
            found = await site.listener.read_attempts("w1", "i1", "default", 1, 0.1)
            fresh = [attempt for attempt in found if isinstance(attempt, Attempt)]
            again += [attempt for attempt in fresh if attempt.number == 2]
            await site.finish(fresh)
        assert [attempt.header.job_id for attempt in again] == first
        await site.finish(held, "dies")
        assert dispatcher.counters.lost == 2
        assert await site.handle.worker_record("dies") is None
        while dispatcher.counters.zombies < 2:
            await site.beat("w1", 1, [])


async def test_hostile_bytes_do_not_stop_the_loop(site: Site) -> None:
    async with site.dispatcher() as dispatcher:
        await site.join()
        await site.plant_entry(ACME, b"\xc1junk")
        await site.plant_entry(GLOBEX, b"x" * 100_000)
        await site.plant_event(b"\xff\xfe")
        await site.submit(ACME)
        await site.submit(GLOBEX)
        await site.work(2)
        assert dispatcher.counters.malformed == 3
        letters = await site.handle.dead_letters()
        assert sorted(letter.payload[:5] for letter in letters) == [b"xxxxx", b"\xc1junk"]
        assert dispatcher.counters.reloads == 0


async def test_failures_are_kept_and_buried(site: Site) -> None:
    async with site.dispatcher():
        await site.join()
        (job,) = await site.submit()
        (attempt,) = await site.take()
        await site.finish([attempt], kind=EventKind.FAILED)
        assert await site.ends(1) == [job]
        (status,) = await site.handle.look_up([job])
        assert status is not None
        assert status.state is JobState.FAILED
        (letter,) = await site.handle.dead_letters()
        assert (letter.header and letter.header.job_id, letter.payload) == (job, b"payload")


async def test_a_changed_policy_is_stored_and_binds(site: Site) -> None:
    async with site.dispatcher() as dispatcher:
        await dispatcher.wait_leading()
        await dispatcher.set_policy("acme", NodePolicy(hard_cap=1))
        await site.submit(ACME, 3)
        await site.submit(GLOBEX, 1)
        await site.join(slots=4)
        lanes = Counter(attempt.header.lane for attempt in await site.take(number=2))
        assert lanes == {ACME: 1, GLOBEX: 1}
    async with site.dispatcher() as dispatcher:
        await dispatcher.wait_leading()
        snapshot = await site.handle.load(dispatcher.health().leader)
        assert snapshot.settings.nodes["default"]["acme",] == NodePolicy(hard_cap=1)


async def test_the_status_can_be_read(site: Site) -> None:
    await site.submit(ACME, 3)
    async with site.dispatcher("d7") as dispatcher:
        await dispatcher.wait_leading()
        blob = b""
        while not blob:
            blob = (await site.handle.read_status()).blob
        status = decode_status(blob)
        assert status.dispatcher == "d7"
        assert [pool.queued for pool in status.pools] == [3]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_every_commit_may_fail(server: EmbeddedServer, fresh_namespace: str, after: bool) -> None:
    """Before its effect, or after it with the reply lost: every job ends once, and nothing stays behind."""
    logging.disable(logging.CRITICAL)
    try:
        for number in range(1, 100):
            plan = Plan(fail_at=number, after=after, only=frozenset({"commit"}))
            if not await _run_with(plan, server, f"{fresh_namespace}-{number}"):
                break
    finally:
        logging.disable(logging.NOTSET)
    assert number > 4, "too little happened"


async def _run_with(plan: Plan, server: EmbeddedServer, namespace: str) -> bool:
    """Run a few jobs with this failure planned; return whether it happened."""
    site = Site(server.url, namespace)
    with anyio.fail_after(PATIENCE):
        await site.handle.prepare()
        ids = await site.submit(ACME, 6)
        async with site.dispatcher("d1", plan) as dispatcher:
            await dispatcher.wait_leading()
            await site.join(slots=2)
            ids += await site.submit(GLOBEX, 4)
            starts = await site.work(10, slots=2)
        why = f"commit {plan.fail_at} failed"
        assert set(starts) == set(ids), why
        assert set(starts.values()) == {1}, "the outcome of the dispatch is in the store, whatever was heard of it"
        assert await site.raw("HLEN", site.keys.leases) == 0, why
        assert await site.raw("SCARD", site.keys.active) == 0, why
    await site.close()
    return bool(plan.failed)
