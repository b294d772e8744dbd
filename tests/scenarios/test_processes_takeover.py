"""A leading dispatcher that dies or stands still, and its standby: real processes on a real server."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Mapping

import pytest

from drr.backend import Commit, Snapshot
from drr.client import Submission
from drr.dispatcher.status import NodeStatus, PoolStatus
from drr.errors import NotLeader
from drr.model import JobState
from tests.scenarios.processes import Site

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 6.0
SLACK = 20.0
WEIGHTS = ("--weight=acme=1", "--weight=globex=2", "--weight=initech=4")
TENANTS = ("acme/web", "globex/mail", "initech/reports")
BOTH_SERVERS = pytest.mark.parametrize(
    "site", ["valkey-server", pytest.param("redis-server", marks=pytest.mark.soak)], indirect=True
)
"""Valkey always; Redis takes as long again and is for `make soak`. What servers do is tested on both elsewhere."""


async def start(site: Site, slots: int, *, lease: float = LEASE) -> str:
    """Start a leader, its standby and two workers; return the leader's token."""
    site.serve("leader", *WEIGHTS, lease=lease)
    token = await site.leads()
    site.serve("standby", *WEIGHTS, lease=lease)
    for name in ("w1", "w2"):
        site.work(name, lease=lease, slots=slots)
    await site.joined(2)
    await site.until(lambda: "drr" in site.processes["standby"].log)
    return token


async def end_of(site: Site, number: int) -> Counter[str]:
    """Return how often the client was told of each job's end, once it was told of so many."""
    told: Counter[str] = Counter()

    async def look() -> bool:
        told.update(await site.ends())
        return told.total() >= number

    await site.until(look)
    await site.no_leases()
    told.update(await site.ends())
    return told


def accounts(pool: PoolStatus) -> Mapping[tuple[str, ...], tuple[float, int]]:
    """Return each node's account and what it has running, as its dispatcher says."""
    return {status.path: facts(status) for status in pool.nodes}


def facts(status: NodeStatus) -> tuple[float, int]:
    return status.credit, status.running


@BOTH_SERVERS
async def test_a_takeover_continues_with_credits_and_running_attempts(site: Site) -> None:
    """Nothing moves while all slots are held by jobs that are far from overrunning: so all can be compared."""
    slots = 6
    token = await start(site, slots // 2, lease=3.0)
    done = [Submission("spend", [0.01], tenant=tenant, estimate=0.5) for tenant in TENANTS for _ in range(40)]
    await site.client.submit_many(done)
    told = await end_of(site, len(done))
    held = [
        Submission("hold", [str(site.gate)], tenant=tenant, estimate=600.0)
        for tenant in TENANTS
        for _ in range(slots)
    ]
    await site.client.submit_many(held)
    await site.until(lambda: len(site.runs) == len(done) + slots)
    before = await claimed(site, slots)
    _, pool = await site.status_when(lambda _, pool: (pool.running, pool.queued) == (slots, len(held) - slots))
    assert any(account.credit for account in pool.nodes), "there is something to lose"

    site.kill("leader")
    assert await site.leads(other_than=token) != token
    status, after_pool = await site.status_when(lambda status, _: status.dispatcher == "standby")
    after = await claimed(site, slots)
    assert accounts(after_pool) == accounts(pool)
    assert after.nodes == before.nodes
    assert {lease.token for lease in after.leases} == {lease.token for lease in before.leases}
    assert status.counters["dispatched"] == 0

    await beats(site, 4)  # more than a lease: nobody is taken for dead who is not
    assert (await claimed(site, slots)).leases == after.leases
    site.gate.touch()
    told += await end_of(site, len(held))
    assert len(told) == len(done) + len(held)
    assert set(told.values()) == {1}
    assert Counter(run.attempt for run in site.runs) == {1: len(told)}, (
        "running attempts were accepted, none repeated"
    )


async def beats(site: Site, number: int) -> None:
    """Return once every worker has sent so many heartbeats more."""
    first = {record.name: record.renewals for record in await site.backend.workers()}

    async def look() -> bool:
        now = {record.name: record.renewals for record in await site.backend.workers()}
        return all(now[name] >= renewals + number for name, renewals in first.items())

    await site.until(look)


async def claimed(site: Site, number: int) -> Snapshot:
    """Return a state in which so many attempts run, and the worker of each is known."""
    found: list[Snapshot] = []

    async def look() -> bool:
        found[:] = [await site.snapshot()]
        leases = found[0].leases
        return len(leases) == number and all(lease.worker for lease in leases)

    await site.until(look)
    return found[0]


@BOTH_SERVERS
async def test_a_leader_killed_in_full_flow_loses_nothing_and_repeats_nothing(site: Site) -> None:
    """Killed three times, in the midst of commits; each time another one is started to stand by.

    A kill after the last job was dispatched proves nothing, and does not count.
    """
    jobs = in_flow = 0
    token = await start(site, 10)
    leader, standby = "leader", "standby"
    for number in range(1, 11):
        flow = [Submission("spend", [0.005], tenant=TENANTS[n % 3], estimate=0.005) for n in range(500)]
        await site.client.submit_many(flow)
        jobs += len(flow)
        await site.until(lambda mark=jobs - 450: len(site.runs) > mark)
        site.kill(leader)
        in_flow += sum([await site.length(tenant) for tenant in TENANTS]) > 0
        token = await site.leads(other_than=token)
        leader, standby = standby, f"standby-{number}"
        site.serve(standby, *WEIGHTS, lease=LEASE)
        if in_flow == 3:
            break
    assert in_flow == 3
    told = await end_of(site, jobs)
    assert len(told) == jobs
    assert set(told.values()) == {1}
    starts = Counter(run.job_id for run in site.runs)
    assert starts == dict.fromkeys(told, 1)
    assert [await site.length(tenant) for tenant in TENANTS] == [0, 0, 0]


@BOTH_SERVERS
async def test_a_leader_that_stood_still_is_refused_when_it_goes_on(site: Site) -> None:
    old = await start(site, 2)
    leader = site.processes["leader"]
    await site.client.submit_many(Submission("spend", [0.0], tenant=TENANTS[0]) for _ in range(20))
    told = await end_of(site, 20)
    before = await site.snapshot()

    leader.signal(signal.SIGSTOP)
    held = [Submission("hold", [str(site.gate)], tenant=tenant) for tenant in TENANTS for _ in range(4)]
    await site.client.submit_many(held)
    new = await site.leads(other_than=old)
    await site.until(lambda: len(site.runs) == 20 + 4)
    leader.signal(signal.SIGCONT)
    await site.until(lambda: "NotLeader" in leader.log)
    with pytest.raises(NotLeader):
        await site.backend.commit(Commit(old, before.passes + 1, before.position))
    with pytest.raises(NotLeader):
        await site.backend.renew(old)

    site.gate.touch()
    told += await end_of(site, len(held))
    assert await site.leader() == new, "the one that stood still stands by"
    assert set(told.values()) == {1}
    assert Counter(run.job_id for run in site.runs) == dict.fromkeys(told, 1)
    assert "Traceback" not in leader.log
    # It stands by for good: when the other one leaves, it leads again, with what happened meanwhile.
    site.kill("standby")
    assert await site.leads(other_than=new) not in (old, new)
    email = await site.client.submit("spend", [0.0], tenant="globex/mail")
    assert (await email.wait(timeout=SLACK)).state is JobState.SUCCEEDED
