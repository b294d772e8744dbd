"""Scenarios about one tenant's flood and another's single job, with real processes: S1, D3.

How long the single job waits in milliseconds is measured by ``make bench-latency``: on a machine that does other
things too it is no property of this project. What is: how many of the flood's jobs start before it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import anyio
import pytest
import redis

from drr.client import Submission
from drr.clock import SystemClock
from drr.demo.figures import fifo_wait
from tests.helpers.hand import HandDispatcher
from tests.scenarios.crew import Run, most_at_once
from tests.scenarios.processes import Site

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 15.0
WORKERS = 4
CAP = 3
FLOOD, SECONDS = 50_000, 0.2
PROMPT = 3
"""Jobs that each slot of the flood may start after the newcomer's was submitted and before it starts: one is
unavoidable, as it may be dispatched already; the others are for a worker that a busy machine leaves waiting."""
SLACK = 10.0


def check_prompt(runs: Sequence[Run], job_id: str, submitted_at: float, slots: int) -> tuple[Run, int]:
    """Return the job's start, and how many of others came between; fail if those were more than `PROMPT` a slot."""
    [run] = [run for run in runs if run.job_id == job_id]
    between = sum(submitted_at < other.started < run.started for other in runs)
    assert between <= PROMPT * slots, f"{between} jobs of others started before it"
    return run, between


@pytest.mark.parametrize("site", ["valkey-server", "redis-server"], indirect=True)
async def test_S1_one_email_behind_fifty_thousand_imports(site: Site) -> None:
    site.serve("d1", f"--hard-cap=acme={CAP}", lease=LEASE)
    for number in range(WORKERS):
        site.work(f"w{number}", lease=LEASE)
    await site.leads()
    await site.joined(WORKERS)
    arrivals: list[tuple[float, float]] = []
    flood = Submission("spend", [SECONDS], tenant="acme/imports", estimate=SECONDS)

    def accepted(ids: Sequence[str]) -> None:
        arrivals.extend([(time.monotonic(), SECONDS)] * len(ids))

    async with anyio.create_task_group() as crowd:
        began = time.monotonic()
        crowd.start_soon(lambda: site.client.submit_many((flood for _ in range(FLOOD)), accepted=accepted))
        await anyio.sleep(2.0)  # the scenario's second arrival
        await site.until(lambda: len(site.runs) > 2 * CAP and len(arrivals) > FLOOD / 5)
        submitted_at = time.monotonic()
        email = await site.client.submit("spend", [0.05], tenant="globex/mail", estimate=0.05)
        await email.wait(timeout=SLACK)
        ahead = [arrival for arrival in arrivals if arrival[0] < submitted_at]
        await site.until(lambda: len(arrivals) == FLOOD)
    run, between = check_prompt(site.runs, email.id, submitted_at, CAP)
    assert most_at_once([run for run in site.runs if run.organisation == "acme"]) == CAP
    waited, fifo = run.started - submitted_at, fifo_wait(ahead, submitted_at, WORKERS)
    assert fifo > 1000 * SECONDS, "the negative control: one queue for all makes it wait for a thousand jobs' time"
    assert waited < SLACK < fifo
    print(f"S1: waited {waited * 1000:.1f} ms, {between} imports started meanwhile; FIFO: {fifo:.0f} s")
    print(f"    {len(ahead)} imports acknowledged {submitted_at - began:.1f} s after the start")


async def test_S1_fails_without_fairness(site: Site) -> None:
    """The negative control: the same processes under a dispatcher that serves in order of arrival."""
    for number in range(WORKERS):
        site.work(f"w{number}", lease=LEASE)
    await site.joined(WORKERS)
    hand = HandDispatcher(site.backend.sibling(), SystemClock())
    try:
        flood = Submission("spend", [0.05], tenant="acme/imports")
        await site.client.submit_many(flood for _ in range(200))
        async with anyio.create_task_group() as group:
            group.start_soon(hand.serve)
            await site.until(lambda: len(site.runs) > WORKERS)
            submitted_at = time.monotonic()
            email = await site.client.submit("spend", [0.05], tenant="globex/mail")
            await email.wait(timeout=60.0)
            group.cancel_scope.cancel()
    finally:
        await hand.backend.close()
    with pytest.raises(AssertionError, match="jobs of others started before it"):
        check_prompt(site.runs, email.id, submitted_at, CAP)


async def test_D3_a_campaign_of_200_000_ahead_of_one_message(site: Site) -> None:
    """The event loop of who submits, the memory of all who take part, and the one message."""
    jobs, slots = 200_000, 20
    dispatcher = site.serve("d1", lease=LEASE)
    site.work("w1", lease=LEASE, slots=slots)
    await site.leads()
    await site.joined(1)
    for total in (200, 400, 600):  # until windows, accounts and connections have their usual size
        await site.client.submit_many(
            Submission("spend", [0.001], tenant=f"org-{tenant}/web", estimate=0.001) for tenant in range(200)
        )
        await ended(site, total)
    await site.no_leases()
    empty, resident = used_memory(site), dispatcher.resident

    campaign = site.run("campaign", "tests.scenarios.bulk", site.url, site.namespace, str(jobs))
    await anyio.sleep(2.0)  # the scenario's second arrival
    await site.until(lambda: any(run.organisation == "acme" for run in site.runs))
    submitted_at = time.monotonic()
    message = await site.client.submit("spend", [0.05], tenant="globex/mail", estimate=0.05)
    await message.wait(timeout=SLACK)
    run, between = check_prompt(site.runs, message.id, submitted_at, slots)
    await site.until(lambda: campaign.ended)
    figures = json.loads(campaign.log.splitlines()[-1])

    waiting = await site.length("acme/campaign")
    per_job = (used_memory(site) - empty) / waiting
    grown = dispatcher.resident - resident
    print(f"D3: the message waited {(run.started - submitted_at) * 1000:.1f} ms ({between} others started meanwhile)")
    print(f"    submitting: {figures}")
    print(f"    {waiting} waiting: {per_job:.0f} bytes each in the store, dispatcher grown by {grown / 1e6:.1f} MB")
    assert waiting > jobs / 2
    assert figures["longest_busy"] < 0.1, "nobody else on the loop waits longer for it"
    assert figures["grown"] < 32e6
    assert per_job < 400
    assert grown < 16e6


async def ended(site: Site, number: int) -> None:
    """Return when so many handlers have ended."""
    await site.until(lambda: sum(run.ended is not None for run in site.runs) == number)


def used_memory(site: Site) -> int:
    """Return the bytes that the server spends on data."""
    with redis.Redis.from_url(site.url) as link:
        return int(link.info("memory")["used_memory_dataset"])
