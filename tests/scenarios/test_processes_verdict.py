"""Killed workers and a killed leader under load, judged by the handlers' journals and the store's accounts."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from chaos.verdict import judge
from drr.client import Submission
from drr.embedded import EmbeddedServer
from drr.errors import NotLeader, StoreUnavailable
from tests.scenarios.processes import Site, opened

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 3.0
JOBS = 400


@pytest.mark.parametrize("site", ["valkey-server"], indirect=True)
async def test_a_killed_worker_and_a_killed_leader_lose_and_double_nothing(site: Site) -> None:
    site.serve("d1", lease=LEASE)
    first = await site.leads()
    site.serve("d2", lease=LEASE)
    for number in range(3):
        site.work(f"w{number}", lease=LEASE, slots=4)
    await site.joined(3)
    acknowledged: list[str] = []
    jobs = [Submission("spend", [0.02], tenant=f"org-{n % 4}/web", estimate=0.02) for n in range(JOBS)]
    await site.client.submit_many(jobs, accepted=acknowledged.extend)
    await site.until(lambda: len(site.runs) > JOBS // 8)
    site.kill("w0", "d1")
    await site.leads(other_than=first)
    await check(site, acknowledged)


async def check(site: Site, acknowledged: list[str]) -> None:
    """Wait until every job has ended, and judge."""
    ended: list[str] = []

    async def all_have_ended() -> bool:
        with suppress(StoreUnavailable):  # connections of before a restart
            ended.extend(await site.ends())
        return len(ended) >= JOBS

    await site.until(all_have_ended)
    await site.no_leases()
    statuses = [status for status in await site.backend.look_up(acknowledged) if status is not None]
    ends = {status.job_id: status.completion.attempt for status in statuses if status.completion is not None}
    hour = int(time.time() // 3600)
    accounts = [await site.backend.usage(f"org-{n}", hour - 1, hour + 2) for n in range(4)]
    succeeded = sum(usage.succeeded for account in accounts for usage in account.values())
    starts = [(run.job_id, run.attempt) for run in site.runs]
    verdict = judge(acknowledged, starts, ends, succeeded)
    assert verdict.good, verdict
    assert verdict.jobs == JOBS
    assert not judge([*acknowledged, "never"], starts, ends, succeeded).good, "a job too many is noticed"


async def test_a_killed_server_that_syncs_always_loses_nothing(tmp_path: Path) -> None:
    async with EmbeddedServer(appendfsync="always") as server, opened(server.url, "verdict", tmp_path) as site:
        site.serve("d1", lease=LEASE)
        await site.leads()
        for number in range(3):
            site.work(f"w{number}", lease=LEASE, slots=4)
        await site.joined(3)
        acknowledged: list[str] = []
        jobs = [Submission("spend", [0.02], tenant=f"org-{n % 4}/web", estimate=0.02) for n in range(JOBS)]
        await site.client.submit_many(jobs, accepted=acknowledged.extend)
        await site.until(lambda: len(site.runs) > JOBS // 8)
        server.kill()
        server.start()
        await check(site, acknowledged)


@pytest.mark.parametrize("site", ["valkey-server"], indirect=True)
async def test_a_stopped_worker_and_a_stopped_leader_are_refused_when_they_continue(site: Site) -> None:
    site.serve("d1", lease=LEASE)
    first = await site.leads()
    site.serve("d2", lease=LEASE)
    for number in range(3):
        site.work(f"w{number}", lease=LEASE, slots=4)
    await site.joined(3)
    acknowledged: list[str] = []
    jobs = [Submission("spend", [0.1], tenant=f"org-{n % 4}/web", estimate=0.1) for n in range(JOBS)]
    await site.client.submit_many(jobs, accepted=acknowledged.extend)
    await site.until(lambda: len(site.runs) > JOBS // 8)
    stopped = [site.processes[name] for name in ("w0", "d1")]
    for process in stopped:
        process.signal(signal.SIGSTOP)
    await site.leads(other_than=first)
    await site.until(lambda: any(run.attempt == 2 for run in site.runs))
    for process in stopped:
        process.signal(signal.SIGCONT)
    with pytest.raises(NotLeader):
        await site.backend.renew(first)
    await check(site, acknowledged)
