"""Fail the N-th call of the store for N = 1, 2, ... until a run is clean; and what the safeguards are good for.

Every run is the same small day: two tenants, one of them capped, a worker that dies with a job in its hands,
one that hands a job back, one job that fails, one that succeeds at its second try, one that is put off, one that
expires, three that are cancelled (while they wait, run and are put off), an entry that is no job. Whatever fails,
before its effect or after it, every job must reach one end, once, no cap may be exceeded, no slot may stay held.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import anyio
import pytest

from drr.backend import Attempt, Commit, EventKind, Peek, Request, RequestKind, Window, check_commit
from drr.dispatcher import liveness
from drr.errors import NotLeader, StoreUnavailable
from drr.model import JobState, NodePolicy, RetryPolicy
from drr_backends.memory.checks import validate
from drr_backends.memory.passes import apply
from tests.helpers.backends import WRITES_AND_READS, FaultyBackend, Plan
from tests.helpers.desk import ACME, GLOBEX, TRIVIAL, URGENT, Desk
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio

CAP = 2
OPTIONS: dict[str, Any] = {
    "lease": 3.0,
    "leader_lease": 1.0,
    "policies": {"default": {"acme": NodePolicy(hard_cap=CAP)}},
}


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Planned failures are logged as any others; a thousand of them help nobody."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Day:
    """One run of the scenario with one planned failure."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.site = Site()
        self.ids: list[str] = []
        self.returned: set[str] = set()
        self.ends: dict[str, JobState] = {}
        """How jobs end that do not succeed."""
        self.stopping: list[tuple[str, Attempt]] = []
        self.starts: Counter[str] = Counter()

    async def run(self) -> None:
        site = self.site
        await site.join("dies", slots=1)
        await site.join("w1", slots=3)
        self.ids += await self.submit(ACME, 3)
        async with running(site, backend=FaultyBackend(site.backend, self.plan), **OPTIONS) as dispatcher:
            await site.take("dies", 1)
            await site.beat("dies")
            self.ids += await self.submit(ACME, 6)
            self.ids += await self.submit(GLOBEX, 12)
            await self.submit_special()
            await site.backend.plant_entry(GLOBEX, b"junk")
            site.store.add_waiting(GLOBEX.path, 1, 1_000_000)  # it was a job before it was spoilt
            for turn in range(120):
                await self.work()
                if turn == 4:
                    self.ids += await self.submit(URGENT, 4)
                    await site.join("w2", slots=1)
                await site.clock.advance(0.25)
                await site.beat("w1", *(["w2"] if turn >= 4 else []))
                self.check_caps()
                if not (site.store.leases or site.store.lanes or site.store.delayed):
                    break
            await site.clock.advance(2.0)
            await site.clock.run_until(lambda: dispatcher.is_leader)
        await self.check_end()
        await site.backend.close()

    async def submit(self, lane: Any, number: int, **fields: Any) -> list[str]:
        return await self.site.submit(lane, number, result_ttl=1e6, reply_to="client", **fields)

    async def submit_special(self) -> None:
        """Jobs that are tried again, put off, cancelled, or come too late."""
        wall = self.site.clock.wall()
        retry = RetryPolicy(attempts=3, delay=0.6, jitter=0.0)
        (self.retried,) = await self.submit(GLOBEX, 1, retry=retry)
        (put_off,) = await self.submit(GLOBEX, 1, due_at=wall + 1.0)
        (late,) = await self.submit(TRIVIAL, 1, deadline=wall + 0.6)
        (waiting,) = await self.submit(TRIVIAL, 1)
        (far,) = await self.submit(GLOBEX, 1, due_at=wall + 1e6)
        (self.stopped,) = await self.submit(GLOBEX, 1)
        self.ids += [self.retried, put_off, late, waiting, far, self.stopped]
        self.ends = {self.ids[1]: JobState.FAILED, late: JobState.EXPIRED}
        self.ends |= dict.fromkeys((waiting, far, self.stopped), JobState.CANCELLED)
        await self.cancel(waiting, far)

    async def cancel(self, *ids: str) -> None:
        await self.site.backend.request([Request(RequestKind.CANCEL, job_id) for job_id in ids])

    async def work(self) -> None:
        for name, attempt in self.stopping:
            await self.site.finish(attempt, name, EventKind.CANCELLED)
        self.stopping.clear()
        taken = [("w1", attempt) for attempt in await self.site.take("w1", 2)]
        if "w2" in self.site.records:
            taken += [("w2", attempt) for attempt in await self.site.take("w2", 1)]
        for name, attempt in taken:
            job = attempt.header.job_id
            self.starts[job] += 1
            kind = EventKind.SUCCEEDED
            if job == self.ids[1]:
                kind = EventKind.FAILED
            elif job == self.ids[2] and not self.returned:
                kind = EventKind.RETURNED
                self.returned.add(job)
            elif job == self.retried and attempt.header.failures == 0:
                kind = EventKind.FAILED
            elif job == self.stopped:
                await self.cancel(job)
                self.stopping.append((name, attempt))
                continue
            await self.site.finish(attempt, name, kind)

    def check_caps(self) -> None:
        held = Counter(lease.header.lane.path[0] for lease in self.site.store.leases.values())
        assert held["acme"] <= CAP, f"the cap holds at all times; failed: {self.plan.failed}"
        assert sum(held.values()) <= 5

    async def check_end(self) -> None:
        site, why = self.site, f"call {self.plan.fail_at} of {self.plan.calls}: {self.plan.failed}"
        assert (site.store.leases, site.store.lanes, site.store.delayed) == ({}, {}, {}), why
        assert site.store.waiting == {}, why
        assert site.store.undelivered == {}, why
        assert site.store.pending == {}, why
        _, told = await site.backend.replies("client", "", 0.0)
        assert Counter(told) == Counter(self.ids), why
        found = await site.backend.look_up(self.ids)
        states = [status.state if status is not None else None for status in found]
        assert states == [self.ends.get(job, JobState.SUCCEEDED) for job in self.ids], why
        dead = await site.backend.dead_letters()
        assert Counter(letter.header is None for letter in dead) == {True: 1, False: 1}, why
        assert site.store.leader.token == "", why


@pytest.mark.parametrize(("after", "times"), [(False, 1), (True, 1), (False, 3)], ids=["before", "after", "thrice"])
async def test_every_call_may_fail(after: bool, times: int) -> None:
    """Until a run has fewer calls than the one that was to fail."""
    failures: Counter[str] = Counter()
    for number in range(1, 2000):
        plan = Plan(fail_at=number, after=after, times=times, only=WRITES_AND_READS | {"due", "locate", "waiting"})
        await Day(plan).run()
        if not plan.failed:
            break
        failures.update(plan.failed)
    else:
        raise AssertionError("no run was ever clean")
    assert number > 55, "too little happened"
    for kind in (
        "leader",
        "elect",
        "load",
        "peek",
        "receive",
        "commit",
        "workers",
        "renew",
        "write_status",
        "due",
        "locate",
    ):
        assert failures[kind], f"{kind} never failed"
    assert failures["commit"] >= 15


async def test_every_commit_may_fail_twice_in_a_row() -> None:
    """The second time as the first commit of the recovery."""
    for number in range(1, 500):
        plan = Plan(fail_at=number, after=bool(number % 2), times=2, only=frozenset({"commit"}))
        await Day(plan).run()
        if not plan.failed:
            break
    assert number >= 15


# --- a commit that lands late


class Late(FaultyBackend):
    """Holds one commit back: its caller is told that the store did not answer, and it arrives later."""

    held: ClassVar[list[tuple[Commit, list[Peek]]]] = []
    hold: ClassVar[bool] = False

    async def commit(self, commit: Commit, peeks: list[Peek]) -> list[Window]:
        if Late.hold:
            Late.hold = False
            Late.held.append((commit, peeks))
            raise StoreUnavailable("no answer")
        return await self.inner.commit(commit, peeks)


@pytest.mark.parametrize("fenced", [True, False])
async def test_a_commit_that_lands_late_is_refused(fenced: bool) -> None:
    """The new token fences it off. Without the fence it would put old accounts over new ones: the control."""
    Late.held.clear()
    site = Site()
    async with running(site, backend=Late(site.backend, Plan())) as dispatcher:
        await site.join(slots=2)
        await site.submit(ACME, 4, estimate=5.0)
        (first, _) = await site.take()
        Late.hold = True
        await site.finish(first)
        await site.clock.advance(1.0)
        for attempt in await site.take():
            await site.finish(attempt)
        await site.clock.settle()
        ((commit, peeks),) = Late.held
        before = dict(site.store.nodes)
        if fenced:
            with pytest.raises(NotLeader):
                await site.backend.commit(commit, peeks)
        else:
            stale = replace(commit, settlements=(), requeues=(), dispatches=(), charges={}, usage={}, waiting={})
            check_commit(stale)
            validate(site.store, stale)
            apply(site.store, stale)
        assert (site.store.nodes == before) is fenced
        assert dispatcher.counters.reloads == 1
    await site.backend.close()


# --- negative controls: each safeguard, taken away, must be missed


def test_without_the_pause_rule_a_stopped_dispatcher_would_kill_the_living(monkeypatch: pytest.MonkeyPatch) -> None:
    for watchful, lost in ((liveness.WATCHFUL, 0), (float("inf"), 1)):
        monkeypatch.setattr(liveness, "WATCHFUL", watchful)
        desk = Desk()
        desk.submit()
        desk.join()
        desk.turn()
        desk.take()
        desk.beat()
        desk.look()
        desk.clock.now += 600.0
        desk.look()
        desk.turn()
        assert desk.counters.lost == lost


def test_judged_by_the_wall_clock_a_jump_would_kill_the_living() -> None:
    """The monotonic clock stands, the wall clock jumps by an hour between two looks at a worker that beats."""
    for by_wall, lost in ((False, 0), (True, 1)):
        desk = Desk()
        desk.submit()
        desk.join()
        desk.turn()
        desk.take()
        desk.beat()
        desk.look()
        desk.engine.liveness._looked_at += 3600.0 * by_wall  # a look lay in between
        now = desk.clock.now + 3600.0 * by_wall
        desk.engine.look(list(desk.store.workers.values()), now, now)
        desk.turn()
        assert desk.counters.lost == lost


def test_a_count_kept_beside_the_leases_would_leak() -> None:
    """Slots counted up at each dispatch and down at each report, as many queues do, against the leases.

    A worker dies, and its zombie reports late: the count goes wrong, the leases do not.
    """
    desk = Desk()
    desk.submit(number=3)
    desk.join("w1")
    desk.join("w2")
    desk.turn()
    attempts = [*desk.take("w1", 1), *desk.take("w2", 1)]
    desk.beat("w1")
    desk.beat("w2")
    desk.pass_time(40.0, beating=["w2"])
    for attempt, name in zip(attempts, ("w1", "w2"), strict=True):
        desk.finish(attempt, name=name)
    desk.turn()
    dispatched = sum(len(commit.dispatches) for commit in desk.commits)
    reported = sum(len(commit.settlements) for commit in desk.commits)
    ended = list(chain.from_iterable((*commit.settlements, *commit.requeues) for commit in desk.commits))
    assert dispatched - len(ended) == len(desk.store.leases) == 1
    assert dispatched - reported == 2, "the naive count has lost a slot"
    assert desk.counters.zombies == 1
    desk.check()


@pytest.mark.parametrize(("times", "patience", "leads"), [(3, 5.0, True), (3, 0.0, False), (1000, 5.0, False)])
async def test_a_store_that_is_away_at_the_start_is_waited_for_with_patience(
    times: int, patience: float, leads: bool
) -> None:
    site = Site()
    plan = Plan(fail_at=1, times=times, only=frozenset({"prepare"}))
    dispatcher = site.dispatcher(FaultyBackend(site.backend, plan), patience=patience)
    outcome: list[object] = []

    async def serve() -> None:
        try:
            async with dispatcher:
                await dispatcher.wait_leading()
                outcome.append("leads")
        except StoreUnavailable as error:
            outcome.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        for _ in range(20):
            await site.clock.advance(1.0)
    assert (outcome == ["leads"]) is leads
    assert len(outcome) == 1
    assert (len(plan.failed) > 1) is (patience > 0.0)
    await site.backend.close()
