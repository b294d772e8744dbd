"""Scenarios about slots that must come free, with real processes: D6, D7, D10.

Nothing is timed but from below: a stubborn handler goes on until a file is there, not for a length of time.
"""

from __future__ import annotations

import signal
import time
from collections import Counter

import pytest

from drr.client import Handle, Submission
from drr.model import JobState, RetryPolicy
from tests.scenarios.crew import Run, most_at_once
from tests.scenarios.processes import Site

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 1.5
CAP = 10
PATIENCE = 60.0


async def begun(site: Site, job_id: str) -> Run:
    """Return the first start of a job once it is there."""
    await site.until(lambda: site.runs_of(job_id))
    return site.runs_of(job_id)[0]


async def hold(site: Site, tenant: str = "acme/web", task: str = "hold") -> Handle[object]:
    """Submit a job that lasts until the gate is open; by ``hold_in_thread`` even if it is cancelled."""
    return await site.client.submit(task, [str(site.gate)], tenant=tenant, estimate=1.0)


async def staffed(site: Site) -> None:
    """Start a dispatcher with a cap of 1 for acme, and two workers of one slot."""
    site.serve("d1", "--hard-cap=acme=1", lease=LEASE)
    for name in ("w1", "w2"):
        site.work(name, lease=LEASE)
    await site.leads()
    await site.joined(2)


async def held(site: Site) -> list[str]:
    """Return the jobs that hold a lease."""
    return [lease.header.job_id for lease in (await site.snapshot()).leases]


async def test_D6_a_cancelled_job_that_stops_makes_room_at_once(site: Site) -> None:
    await staffed(site)
    jobs = [await hold(site) for _ in range(4)]
    await begun(site, jobs[0].id)
    email = await hold(site, "globex/mail")
    await begun(site, email.id)
    assert len(site.runs) == 2, "negative control: without the cancel the others wait, cap of 1"
    await jobs[0].cancel()
    second = await begun(site, jobs[1].id)
    assert (await jobs[0].wait(timeout=PATIENCE)).state is JobState.CANCELLED
    await site.until(lambda: site.runs_of(jobs[0].id)[0].ended)
    assert second.pid == site.runs_of(jobs[0].id)[0].pid, "in the slot that the first has left"
    assert set(await held(site)) == {jobs[1].id, email.id}
    assert most_at_once([run for run in site.runs if run.organisation == "acme"]) == 1


async def test_D6_a_cancelled_job_that_goes_on_makes_room_when_its_lease_ends(site: Site) -> None:
    """On the other worker; the slot of the stubborn one is busy until it reports."""
    await staffed(site)
    stubborn = await hold(site, task="hold_in_thread")
    first = await begun(site, stubborn.id)
    follower = await hold(site)
    cancelled_at = time.monotonic()
    await stubborn.cancel()
    second = await begun(site, follower.id)
    assert second.pid != first.pid
    assert second.started - cancelled_at >= LEASE / 2, "not before the lease can have ended"
    assert site.runs_of(stubborn.id)[0].ended is None
    # Of two slots one runs a job that the ledger knows, and the other is not offered to anybody.
    email = await hold(site, "globex/mail")
    await site.status_when(lambda _, pool: pool.queued == 1 and pool.running == 1)
    assert site.runs_of(email.id) == []
    site.gate.touch()
    third = await begun(site, email.id)
    assert third.started >= min(run.ended or 0.0 for run in site.runs if run.job_id in (stubborn.id, follower.id))
    assert (await stubborn.wait(timeout=PATIENCE)).state is JobState.CANCELLED
    assert (await follower.wait(timeout=PATIENCE)).state is JobState.SUCCEEDED
    total = await site.client.usage_total("acme", since=3600)
    assert (total.cancelled, total.succeeded, total.attempts) == (1, 1, 2), "charged once"


async def test_D7_the_late_report_of_a_cancelled_job_changes_nothing(site: Site) -> None:
    await staffed(site)
    deleted = await hold(site, task="hold_in_thread")
    await begun(site, deleted.id)
    await deleted.cancel()
    other_gate = site.gate.with_name("other")
    follower = await site.client.submit("hold", [str(other_gate)], tenant="acme/web", estimate=1.0)
    await begun(site, follower.id)
    assert await held(site) == [follower.id], "in flight is one"
    site.gate.touch()
    await site.until(lambda: site.runs_of(deleted.id)[0].ended)
    await site.status_when(lambda status, _: status.counters["zombies"] == 1)
    assert await held(site) == [follower.id], "never none or two"
    assert (await deleted.wait(timeout=PATIENCE)).state is JobState.CANCELLED
    other_gate.touch()
    assert (await follower.wait(timeout=PATIENCE)).state is JobState.SUCCEEDED
    await site.no_leases()


async def test_D10_no_path_leaks_a_slot(site: Site) -> None:
    """Jobs end, fail, are cancelled, drained and lost with a worker, and the leader is killed meanwhile."""
    options = {"lease": LEASE, "leader_lease": 1.0}
    site.serve("d1", f"--hard-cap=acme={CAP}", **options)
    gone: dict[int, float] = {}
    for name in ("w1", "w2", "w3"):
        site.work(name, lease=LEASE, slots=6)
    leader = await site.leads()
    await site.joined(3)
    site.serve("d2", f"--hard-cap=acme={CAP}", **options)
    ids: list[str] = []
    retry = RetryPolicy(attempts=2, delay=0.1)
    jobs = [Submission("unheard-of", tenant="acme/web", retry=retry, estimate=0.1) for _ in range(10)]
    jobs += [Submission("hold", [str(site.gate)], tenant="acme/web", estimate=0.1) for _ in range(5)]
    jobs += [Submission("spend", [0.05], tenant="acme/web", estimate=0.1) for _ in range(185)]
    assert await site.client.submit_many(jobs, accepted=ids.extend) == 200

    await site.until(lambda: len(site.runs) >= 40)
    site.kill("d1")
    await site.leads(other_than=leader)
    await site.client.cancel(ids[10:15])
    lost = site.processes["w1"].pid
    site.kill("w1")
    gone[lost] = time.monotonic()
    await site.until(lambda: len(site.runs) >= 100)
    drained = site.processes.pop("w2")
    drained.signal(signal.SIGTERM)
    try:
        ends: list[str] = []

        async def all_told() -> bool:
            ends.extend(await site.ends())
            return len(ends) >= 200

        await site.until(all_told)
    finally:
        drained.close()
    await site.no_leases()
    assert Counter(ends) == Counter(ids), "each reaches its end once"
    states = Counter([(await site.client.handle(job_id).status()).state for job_id in ids])
    assert states == {JobState.FAILED: 10, JobState.CANCELLED: 5, JobState.SUCCEEDED: 185}
    assert most_at_once(site.runs, gone) <= CAP
    assert (await site.client.waiting("acme")).jobs == 0

    # The cap is whole again: ten at a time.
    again = [await site.client.submit("hold", [str(site.gate)], tenant="acme/web") for _ in range(CAP + 1)]
    site.work("w4", lease=LEASE, slots=6)
    await site.until(lambda: sum(bool(site.runs_of(job.id)) for job in again) == CAP)
    assert len(await held(site)) == CAP
    site.gate.touch()
    await site.no_leases()
