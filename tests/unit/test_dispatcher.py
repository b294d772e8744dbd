"""The whole dispatcher on the memory store, in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import anyio
import pytest

from drr.backend import Attempt, Backend, Event, EventKind, Position, StoredStatus, WorkerRecord
from drr.dispatcher import Dispatcher, decode_status
from drr.errors import (
    CommitRefused,
    InvalidConfiguration,
    InvalidName,
    InvalidPolicy,
    MalformedMessage,
    NotLeading,
    StoreUnavailable,
    UnknownBackend,
)
from drr.model import JobSpec, Lane, NodePolicy, PoolPolicy
from drr_backends.memory import MemoryBackend, open_memory
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LEASE = 30.0


class Site:
    """A memory store, a clock, and workers and clients that do what the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.backend: MemoryBackend = open_memory("memory://", "drr", self.clock)
        self._calls = count(1)
        self.records: dict[str, WorkerRecord] = {}
        self.held: dict[str, list[Attempt]] = {}

    @property
    def store(self) -> Any:
        return self.backend._store

    def dispatcher(self, backend: Backend | None = None, name: str = "d1", **options: Any) -> Dispatcher:
        return Dispatcher(backend or self.backend, clock=self.clock, name=name, rng=random.Random(name), **options)

    async def submit(self, lane: Lane = ACME, number: int = 1, **fields: Any) -> list[str]:
        spec = JobSpec(lane, "work", b"", self.clock.wall(), **{"estimate": 1.0, **fields})
        return await self.backend.submit("client", next(self._calls), [spec] * number)

    async def join(self, name: str = "w1", slots: int = 1, incarnation: str = "i1") -> None:
        replacing = self.records[name].incarnation if name in self.records else ""
        self.records[name] = WorkerRecord(name, incarnation, {"default": slots})
        self.held[name] = []
        await self.backend.join(self.records[name], replacing)

    async def beat(self, *names: str) -> None:
        for name in names:
            held = tuple(attempt.token for attempt in self.held[name])
            record = self.records[name]
            await self.backend.heartbeat(WorkerRecord(name, record.incarnation, record.slots, held))

    async def take(self, name: str = "w1", limit: int = 100) -> list[Attempt]:
        await self.clock.settle()
        found = await self.backend.read_attempts(name, self.records[name].incarnation, "default", limit, 0.0)
        attempts = [attempt for attempt in found if isinstance(attempt, Attempt)]
        self.held[name].extend(attempts)
        return attempts

    async def finish(self, attempt: Attempt, name: str = "w1", kind: EventKind = EventKind.SUCCEEDED) -> None:
        await self.backend.report([Event(attempt.token, kind, name, 1.0)])
        if attempt in self.held[name]:
            self.held[name].remove(attempt)

    async def pass_time(self, seconds: float, *beating: str) -> None:
        """Let time pass, with a beat of the named workers every five seconds."""
        while seconds > 0:
            await self.clock.advance(min(5.0, seconds))
            seconds -= 5.0
            await self.beat(*beating)
        await self.clock.settle()

    async def status(self) -> StoredStatus:
        return await self.backend.read_status()


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    found = Site()
    yield found
    await found.backend.close()


@asynccontextmanager
async def running(site: Site, **options: Any) -> AsyncIterator[Dispatcher]:
    async with site.dispatcher(**options) as dispatcher:
        await site.clock.settle()
        yield dispatcher


# --- the main way


async def test_jobs_flow(site: Site) -> None:
    """Submitted, dispatched, reported, settled: at once, without any time passing."""
    async with running(site) as dispatcher:
        assert dispatcher.is_leader
        await site.join(slots=2)
        ids = await site.submit(number=5, result_ttl=60.0)
        done = []
        for _ in range(5):
            for attempt in await site.take():
                done.append(attempt.header.job_id)
                await site.finish(attempt)
        await site.clock.settle()
        assert done == ids
        assert (site.store.leases, site.store.lanes) == ({}, {})
        assert dispatcher.counters.succeeded == 5
        found = await site.backend.look_up(ids)
        assert all(status is not None and status.completion is not None for status in found)


async def test_jobs_submitted_before_any_dispatcher_ran(site: Site) -> None:
    ids = await site.submit(number=3)
    await site.join(slots=3)
    async with running(site):
        assert [attempt.header.job_id for attempt in await site.take()] == ids


async def test_an_idle_dispatcher_commits_nothing_and_stays_leader(site: Site) -> None:
    """It renews its leadership and that is all: no commit, no polling for news."""
    plan = Plan()
    async with running(site, backend=FaultyBackend(site.backend, plan)) as dispatcher:
        await site.clock.advance(60.0)
        assert plan.by_kind["commit"] == 0
        assert 50 <= plan.by_kind["renew"] <= 75
        assert plan.by_kind["receive"] <= 35
        assert dispatcher.is_leader


# --- leadership


async def test_a_second_instance_stands_by_and_takes_over_when_the_first_falls_silent(site: Site) -> None:
    """Within five seconds of the last renewal, with the leader's running attempts and credits."""
    first = FaultyBackend(site.backend, plan := Plan())
    await site.join(slots=2)
    await site.submit(ACME, 4)
    async with running(site, backend=first, name="d1") as one:
        held = await site.take()
        async with running(site, name="d2") as two:
            await site.clock.advance(10.0)
            assert (one.is_leader, two.is_leader) == (True, False)
            nodes = dict(site.store.nodes)
            plan.fail_at, plan.times = plan.calls + 1, 10**9
            took = await site.clock.run_until(lambda: two.is_leader)
            assert took < 5.0
            assert site.store.nodes == nodes, "accounts as of the last commit"
            assert {lease.token for lease in site.store.leases.values()} == {attempt.token for attempt in held}
            for attempt in held:
                await site.finish(attempt)
            assert len(await site.take()) == 2
            assert two.counters.zombies == 0
            assert not one.is_leader
            plan.times = 0
            await site.clock.advance(20.0)
            assert (one.is_leader, two.is_leader) == (False, True), "who comes back stands by"


async def test_leaving_hands_over_at_once(site: Site) -> None:
    """The standby is woken by the resignation; no time passes."""
    leave = anyio.Event()

    async def lead_until_told() -> None:
        async with site.dispatcher(name="d1"):
            await leave.wait()

    async with anyio.create_task_group() as group:
        group.start_soon(lead_until_told)
        await site.clock.settle()
        async with running(site, name="d2") as two:
            await site.clock.advance(10.0)
            assert not two.is_leader
            now = site.clock.monotonic()
            leave.set()
            await site.clock.settle()
            assert (site.clock.monotonic(), two.is_leader) == (now, True)


async def test_leaving_the_context_resigns(site: Site) -> None:
    async with running(site) as dispatcher:
        assert site.store.leader.token
        assert dispatcher.is_leader
    assert site.store.leader.token == ""
    assert not dispatcher.is_leader


async def test_a_leader_that_was_deposed_behind_its_back_stands_by(site: Site) -> None:
    """The fence refuses its next write; it drops everything and watches the new leader."""
    async with running(site) as dispatcher:
        await site.join()
        await site.clock.settle()
        assert await site.backend.elect(site.store.leader.token, "99:usurper")
        await site.submit()
        await site.clock.advance(1.0)
        assert not dispatcher.is_leader
        assert site.store.leases == {}, "its dispatch was refused"
        assert site.store.leader.token == "99:usurper"
        await site.clock.run_until(lambda: dispatcher.is_leader, limit=10.0)
        await site.clock.settle()
        assert len(site.store.leases) == 1


async def test_a_reload_goes_on_under_a_new_token(site: Site) -> None:
    """After an unknown outcome it elects itself anew, so a commit that lands late is refused."""
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"}), after=True))
    async with running(site, backend=faulty) as dispatcher:
        await site.join()
        await site.clock.settle()
        before = site.store.leader.token
        plan.fail_at = plan.calls + 1
        await site.submit()
        await site.clock.advance(2.0)
        assert dispatcher.is_leader
        assert site.store.leader.token != before
        assert dispatcher.counters.reloads == 1
        (attempt,) = await site.take()
        await site.finish(attempt)
        await site.clock.settle()
        assert dispatcher.counters.succeeded == 1


# --- lost workers


async def test_a_lost_workers_attempt_comes_back_after_one_lease(site: Site) -> None:
    async with running(site, lease=LEASE) as dispatcher:
        await site.join("w1")
        (job,) = await site.submit()
        (attempt,) = await site.take("w1")
        await site.beat("w1")
        await site.pass_time(20.0)
        await site.join("w2")
        assert await site.take("w2") == []
        await site.pass_time(20.0, "w2")
        (again,) = await site.take("w2")
        assert (again.header.job_id, again.number) == (job, 2)
        await site.finish(attempt, "w1")
        await site.finish(again, "w2")
        await site.clock.settle()
        assert (dispatcher.counters.zombies, dispatcher.counters.succeeded) == (1, 1)
        assert dispatcher.counters.lost == 1


async def test_a_dispatcher_that_was_stopped_reaps_nobody(site: Site) -> None:
    """The process stood still for ten minutes, and so did the heartbeats that it did not see."""
    async with running(site, lease=LEASE) as dispatcher:
        await site.join("w1")
        await site.submit()
        await site.take("w1")
        await site.beat("w1")
        await site.pass_time(10.0, "w1")
        site.clock._now += 600.0
        await site.clock.settle()
        await site.pass_time(15.0)
        assert dispatcher.counters.lost == 0
        assert len(site.store.leases) == 1
        await site.pass_time(30.0)
        assert dispatcher.counters.lost == 1


async def test_a_worker_that_leaves_gives_its_attempts_back_at_once(site: Site) -> None:
    async with running(site) as dispatcher:
        await site.join("w1")
        await site.submit()
        await site.take("w1")
        await site.beat("w1")
        await site.clock.advance(6.0)
        await site.backend.leave("w1", "i1")
        await site.clock.settle()
        assert site.store.leases == {}
        assert dispatcher.counters.returned == 1
        assert len(site.store.lanes[ACME]) == 1


# --- hostile input


async def test_hostile_bytes_do_not_stop_the_loop(site: Site) -> None:
    async with running(site) as dispatcher:
        await site.join(slots=3)
        await site.backend.plant_entry(ACME, b"\xc1junk")
        await site.submit(ACME)
        await site.backend.plant_event(b"\xff\xff")
        await site.backend.report([Event("no such token", EventKind.SUCCEEDED, "w9", float("nan"))])
        (attempt,) = await site.take()
        await site.finish(attempt)
        await site.clock.settle()
        assert dispatcher.is_leader
        assert dispatcher.counters.malformed == 2
        assert [letter.payload for letter in await site.backend.dead_letters()] == [b"\xc1junk"]


async def test_a_head_that_changes_behind_our_back_costs_a_reload(site: Site) -> None:
    """Somebody writes before the head of a lane: the commit is refused, the lane is read anew, all jobs run."""
    async with running(site) as dispatcher:
        await site.submit(number=3)
        await site.clock.settle()
        site.store.lanes[ACME].rotate(1)
        await site.join(slots=3)
        await site.clock.advance(1.0)
        assert len(await site.take()) == 3
        assert dispatcher.counters.reloads == 1


# --- settings


async def test_settings_bind_at_once_and_survive_a_takeover(site: Site) -> None:
    await site.join(slots=5)
    async with running(site) as dispatcher:
        await site.submit(number=9)
        await site.clock.settle()
        await dispatcher.set_policy("acme", NodePolicy(hard_cap=2))
        await dispatcher.set_pool("default", PoolPolicy(quantum=3.0))
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(hard_cap=2)
        assert site.store.settings.pools["default"] == PoolPolicy(quantum=3.0)
        running_now = len(site.store.leases)
    assert running_now == 5, "what runs is not preempted"
    async with running(site) as dispatcher:
        for attempt in await site.take():
            await site.finish(attempt)
        await site.clock.settle()
        assert len(site.store.leases) == 2
        await dispatcher.set_policy("acme", None)
        await site.clock.settle()
        assert len(site.store.leases) == 4


async def test_entitlements_given_at_the_start_are_stored(site: Site) -> None:
    """They replace what is stored for the nodes they name, once; later changes by the API outlive a reload."""
    async with running(site) as dispatcher:
        await dispatcher.set_policy("globex", NodePolicy(weight=7.0))
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    options: dict[str, Any] = {
        "pools": {"default": PoolPolicy(reserve=1)},
        "policies": {"default": {"acme": NodePolicy(weight=2.0), ("acme", "web"): NodePolicy(hard_cap=1)}},
    }
    async with running(site, backend=faulty, **options) as dispatcher:
        await site.clock.settle()
        nodes = site.store.settings.nodes["default"]
        assert nodes["acme",] == NodePolicy(weight=2.0)
        assert nodes["acme", "web"] == NodePolicy(hard_cap=1)
        assert nodes["globex",] == NodePolicy(weight=7.0)
        assert site.store.settings.pools["default"].reserve == 1
        await dispatcher.set_policy("acme", NodePolicy(weight=9.0))
        plan.fail_at = plan.calls + 1
        await site.join()
        await site.clock.advance(1.0)
        assert dispatcher.counters.reloads == 1
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(weight=9.0)


async def test_a_setting_whose_commit_failed_is_stored_by_the_next_leadership(site: Site) -> None:
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    async with running(site, backend=faulty) as dispatcher, anyio.create_task_group() as group:
        plan.fail_at = plan.calls + 1
        group.start_soon(dispatcher.set_policy, "acme", NodePolicy(weight=2.0))
        await site.clock.advance(1.0)
        assert plan.failed == ["commit"]
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(weight=2.0)


async def test_a_standby_refuses_changes(site: Site) -> None:
    async with running(site, name="d1"), running(site, name="d2") as two:
        with pytest.raises(NotLeading) as caught:
            await two.set_policy("acme", NodePolicy())
        assert caught.value.leader == site.store.leader.token


async def test_a_change_that_waits_when_another_takes_over_is_refused(site: Site) -> None:
    faulty = FaultyBackend(site.backend, plan := Plan())
    async with running(site, backend=faulty) as dispatcher:
        refused = []

        async def change() -> None:
            with pytest.raises(NotLeading):
                await dispatcher.set_policy("acme", NodePolicy(weight=2.0))
            refused.append(True)

        await site.backend.elect(site.store.leader.token, "99:usurper")
        async with anyio.create_task_group() as group:
            group.start_soon(change)
            await site.clock.advance(2.0)
        assert refused == [True]
        assert plan.failed == []


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"lease": 10.0, "heartbeat": 10.0}, InvalidConfiguration, ("10.0", "heartbeat")),
        ({"lease": 10.0, "heartbeat": 15.0}, InvalidConfiguration, ("15.0", "10.0")),
        ({"lease": 10.0, "heartbeat": 0.0}, InvalidConfiguration, ("0.0", "10.0")),
        ({"lease": 10.0, "heartbeat": float("nan")}, InvalidConfiguration, ("nan", "10.0")),
        ({"lease": 0.0}, InvalidConfiguration, ("lease",)),
        ({"lease": float("inf")}, InvalidConfiguration, ("lease",)),
        ({"leader_lease": 0.0}, InvalidConfiguration, ("leader lease",)),
        ({"leader_lease": -1.0}, InvalidConfiguration, ("leader lease", "-1")),
        ({"poison_after": 0}, InvalidConfiguration, ("poison_after",)),
        ({"depth": 0}, InvalidConfiguration, ("depth",)),
        ({"name": "no spaces"}, InvalidName, ("no spaces",)),
        ({"pools": {"a b": PoolPolicy()}}, InvalidName, ("a b",)),
        ({"pools": {"default": NodePolicy()}}, InvalidPolicy, ("PoolPolicy",)),
        ({"policies": {"default": {"a:b": NodePolicy()}}}, InvalidName, ("a:b",)),
        ({"policies": {"default": {"a/b/c": NodePolicy()}}}, InvalidPolicy, ("a/b/c", "2")),
        ({"policies": {"default": {"a": PoolPolicy()}}}, InvalidPolicy, ("NodePolicy",)),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    options: dict[str, Any], error: type[Exception], named: tuple[str, ...]
) -> None:
    """At construction, with the offending values in the message."""
    with pytest.raises(error) as caught:
        Dispatcher("memory://", **options)
    for text in named:
        assert text in str(caught.value)


async def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UnknownBackend):
        Dispatcher("postgres://localhost")


async def test_a_store_that_cannot_be_reached_is_an_error_at_the_start(site: Site) -> None:
    """Later it would be waited out; at the start the host should know."""
    faulty = FaultyBackend(site.backend, Plan(fail_at=1, only=frozenset({"prepare"})))
    with pytest.raises(StoreUnavailable):
        async with site.dispatcher(faulty):
            raise AssertionError("not entered")


# --- the host


async def test_an_error_of_drr_itself_surfaces_at_the_host(site: Site) -> None:
    """What is no error of the store is not swallowed: it comes out of the block, and the leadership is given up."""

    class Broken(FaultyBackend):
        async def workers(self) -> list[WorkerRecord]:
            raise ZeroDivisionError("a bug")

    async def host() -> None:
        async with site.dispatcher(Broken(site.backend, Plan())) as dispatcher:
            await dispatcher.wait_leading()
            await site.join()
            await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await host()
    assert site.store.leader.token == ""


async def test_the_hosts_own_error_comes_out_as_it_is(site: Site) -> None:
    with pytest.raises(LookupError, match="host"):
        async with running(site):
            raise LookupError("host")
    assert site.store.leader.token == ""


async def test_cancelling_the_host_hands_over(site: Site) -> None:
    with anyio.CancelScope() as scope:
        async with running(site) as dispatcher:
            assert dispatcher.is_leader
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert site.store.leader.token == ""


async def test_the_context_ends_after_the_commit_under_way(site: Site) -> None:
    """A commit is shielded: leaving in the middle of one neither tears it nor leaves a lease behind unsaid."""
    entered, release = anyio.Event(), anyio.Event()

    class Slow(FaultyBackend):
        async def commit(self, *args: Any) -> Any:
            entered.set()
            await release.wait()
            return await self.inner.commit(*args)

    async with site.dispatcher(Slow(site.backend, Plan())) as dispatcher, anyio.create_task_group() as group:
        await dispatcher.wait_leading()
        await site.join()
        await site.submit()

        async def let_go() -> None:
            await site.clock.settle()
            release.set()

        await entered.wait()
        group.start_soon(let_go)
        group.cancel_scope.shield = True
    assert len(site.store.leases) == 1
    assert site.store.leader.token == ""


async def test_a_dispatcher_is_entered_once(site: Site) -> None:
    async with running(site) as dispatcher:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        async with dispatcher:
            pass


async def test_a_given_backend_stays_open_and_an_owned_one_is_closed(site: Site) -> None:
    async with running(site):
        pass
    assert await site.backend.leader() == site.store.leader
    owned = Dispatcher("memory://", clock=site.clock)
    async with owned:
        pass
    with pytest.raises(StoreUnavailable):
        await owned._backend.leader()


# --- status


async def test_the_status_tells_who_waits_and_why(site: Site) -> None:
    async with running(site, policies={"default": {"acme": NodePolicy(weight=2.0, hard_cap=1)}}) as dispatcher:
        await site.submit(ACME, 5)
        await site.submit(GLOBEX, 1)
        await site.join(slots=4)
        await site.take()
        await site.beat("w1")
        await site.clock.advance(3.0)
        stored = await site.status()
        status = decode_status(stored.blob)
        (pool,) = status.pools
        assert (status.dispatcher, status.counters["dispatched"]) == ("d1", 2)
        assert (pool.slots, pool.free, pool.idle_capped, pool.workers) == (4, 2, 2, 1)
        assert (pool.queued, pool.running, pool.active) == (4, 2, 1)
        nodes = {node.path: node for node in pool.nodes}
        assert set(nodes) == {(), ("acme",), ("acme", "web"), ("globex",), ("globex", "mail")}
        acme = nodes["acme",]
        assert (acme.queued, acme.running, acme.waits, acme.weight, acme.hard_cap) == (4, 1, "capped", 2.0, 1)
        assert acme.oldest_wait == pytest.approx(3.0, abs=1.1)
        assert nodes["globex",].waits == ""
        assert acme.share == pytest.approx(0.5, abs=0.1)
        assert sum(node.share for node in pool.nodes if len(node.path) == 1) == pytest.approx(1.0)
        assert dispatcher.counters.dispatched == 2


async def test_the_status_says_when_there_are_no_workers(site: Site) -> None:
    async with running(site):
        await site.submit(ACME, 5)
        await site.clock.advance(2.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert {node.waits for node in pool.nodes} == {"no workers"}
        await site.join(slots=1)
        await site.clock.advance(2.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert {node.waits for node in pool.nodes} == {"no free slot"}


async def test_the_status_is_bounded(site: Site) -> None:
    """With 1,500 projects at work it shows the thousand most relevant nodes and counts the others."""
    async with running(site):
        for number in range(1500):
            await site.submit(Lane("default", (f"org-{number:04}", "p")), 1 + (number == 1234))
        await site.join(slots=1)
        await site.clock.advance(3.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert pool.queued == 1500
        assert len(pool.nodes) <= 1000
        assert pool.omitted == 3001 - len(pool.nodes)
        assert ("org-1234",) in {node.path for node in pool.nodes}


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa5pools\x91\x01"])
async def test_a_status_that_is_none_is_malformed(blob: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_status(blob)


# --- refusals of the store are all one path


@pytest.mark.parametrize("error", [StoreUnavailable("x"), CommitRefused("x")])
async def test_an_error_that_goes_on_is_waited_out(site: Site, error: Exception) -> None:
    """The store refuses every commit for a minute: no busy loop, and everything runs afterwards."""
    broken = True

    class Refusing(FaultyBackend):
        refusals = 0

        async def commit(self, *args: Any) -> Any:
            if broken:
                Refusing.refusals += 1
                raise error
            return await self.inner.commit(*args)

    async with running(site, backend=Refusing(site.backend, Plan())) as dispatcher:
        await site.join()
        await site.submit()
        await site.clock.advance(60.0)
        assert 5 < Refusing.refusals < 60
        broken = False
        await site.clock.advance(10.0)
        assert dispatcher.is_leader
        assert len(site.store.leases) == 1


async def test_news_that_cannot_be_read_are_read_later(site: Site) -> None:
    """A failing read changes nothing: it is repeated, and the leadership goes on."""
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"receive"})))
    async with running(site, backend=faulty) as dispatcher:
        plan.fail_at, plan.times = plan.calls + 1, 3
        await site.join()
        await site.submit()
        await site.clock.advance(5.0)
        assert plan.failed == ["receive"] * 3
        assert len(site.store.leases) == 1
        assert dispatcher.counters.reloads == 0


async def test_seeded_runs_repeat_exactly() -> None:
    """The same seed, the same calls: the same commits, tokens included."""

    async def run() -> list[Any]:
        site = Site()
        seen = []
        async with running(site):
            await site.join(slots=3)
            for lane in (ACME, GLOBEX):
                await site.submit(lane, 20)
            for _ in range(10):
                for attempt in await site.take():
                    seen.append((attempt.token, attempt.header.job_id))
                    await site.finish(attempt)
        await site.backend.close()
        return seen

    first = await run()
    assert len(first) >= 20
    assert Counter(job for _, job in first).most_common(1)[0][1] == 1
    assert await run() == first
    assert first[0][0].split(".")[0]


async def test_the_position_survives(site: Site) -> None:
    """What a commit has applied is not read again by the next leader."""
    async with running(site):
        await site.join()
        await site.submit()
        (attempt,) = await site.take()
        await site.finish(attempt)
        await site.clock.settle()
        assert site.store.position != Position()
    async with running(site) as dispatcher:
        await site.clock.advance(3.0)
        assert dispatcher.counters.zombies == 0
