"""The whole dispatcher on the memory store, in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest

from drr.backend import Event, EventKind, Position
from drr.errors import (
    CommitRefused,
    StoreUnavailable,
)
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio

LEASE = 30.0


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


async def test_what_was_heard_and_not_committed_is_heard_again_at_once(site: Site) -> None:
    """The read in flight began after it and would not wake; the new engine's reader does not wait for that one."""
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    async with running(site, backend=faulty) as dispatcher:
        await site.join()
        await site.submit()
        (attempt,) = await site.take()
        plan.fail_at = plan.calls + 1
        await site.finish(attempt)
        assert await site.clock.run_until(lambda: dispatcher.counters.succeeded) < 0.2
        assert dispatcher.counters.reloads == 1
        await site.clock.advance(5.0)
        assert dispatcher.counters.succeeded == 1, "what a failed commit would have done does not count"
        assert site.backend.blocked == 1, "the old read has lapsed, one reader is left"


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
