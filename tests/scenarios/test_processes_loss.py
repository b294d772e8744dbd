"""Scenarios about workers and dispatchers that die or stand still, with real ones: S6, D8, D9, D11, D13.

Times are measured, and bounded from above with `SLACK` only, for a machine that is busy with other things.
"""

from __future__ import annotations

import signal
import time
from collections import Counter, defaultdict

import anyio
import pytest

from drr.backend import Event, EventKind
from drr.client import Handle, Submission
from drr.model import JobState
from tests.scenarios.crew import Run, most_at_once
from tests.scenarios.processes import LEADER_LEASE, Site, node, sequences

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LEASE = 3.0
TICK = 0.5
"""R: a look at the workers, and a pass."""
SLACK = 20.0
DAY = 86_400.0
BOTH_SERVERS = pytest.mark.parametrize(
    "site", ["valkey-server", pytest.param("redis-server", marks=pytest.mark.soak)], indirect=True
)
"""Valkey always; Redis takes as long again and is for `make soak`. What servers do is tested on both elsewhere."""


async def submit_held(
    site: Site, tenant: str, *, estimate: float | None = None, timeout: float | None = None
) -> Handle[object]:
    """Submit a job that lasts until the gate is open."""
    return await site.client.submit("hold", [str(site.gate)], tenant=tenant, estimate=estimate, timeout=timeout)


async def begun(site: Site, job_id: str, attempt: int = 1) -> Run:
    """Return the start of an attempt once it is there."""
    await site.until(lambda: [run for run in site.runs_of(job_id) if run.attempt == attempt])
    [run] = [run for run in site.runs_of(job_id) if run.attempt == attempt]
    return run


async def claimed(site: Site, number: int = 1) -> None:
    """Return when the ledger has so many attempts, and knows the worker of each."""

    async def look() -> bool:
        leases = (await site.snapshot()).leases
        return len(leases) == number and all(lease.worker for lease in leases)

    await site.until(look)


class Tally:
    """The negative control of S6: what runs is a number, counted up at a start and down at a report."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.running = 0

    def feed(self, runs: list[Run]) -> None:
        self.running += len(runs) - sum(1 for run in runs if run.ended is not None)

    @property
    def may_start(self) -> bool:
        return self.running < self.cap


@BOTH_SERVERS
async def test_S6_five_killed_workers_do_not_keep_the_cap(site: Site) -> None:
    cap, backlog = 5, 1200
    second_gate = site.gate.with_name("second")
    site.serve("d1", f"--hard-cap=acme={cap}", lease=LEASE)
    by_pid = {}
    for number in range(10):
        name = f"w{number}"
        by_pid[site.work(name, lease=LEASE).pid] = name
    await site.leads()
    await site.joined(10)
    held = [await submit_held(site, "acme/web") for _ in range(cap)]
    jobs = [Submission("hold", [str(second_gate)], tenant="acme/web") for _ in range(cap)]
    jobs += [Submission("spend", [0.01], tenant="acme/web", estimate=0.01) for _ in range(backlog - cap)]
    assert await site.client.submit_many(jobs) == backlog
    await site.until(lambda: len(site.runs) == cap)
    await claimed(site, cap)

    tally = Tally(cap)
    tally.feed(site.runs)
    victims = [by_pid[run.pid] for run in site.runs]
    assert len(set(victims)) == cap, "one slot each"
    killed_at = time.monotonic()
    site.kill(*victims)
    gone = {pid: time.monotonic() for pid, name in by_pid.items() if name in victims}
    again = [await begun(site, handle.id, attempt=2) for handle in held]
    recovered_after = max(run.started for run in again) - killed_at
    assert recovered_after <= LEASE + TICK + SLACK
    assert await site.length("acme/web") == backlog, "the five came back to the head, and run alone"
    assert not tally.may_start, "a counter waits for five reports that nobody will send"

    site.gate.touch()
    await site.until(lambda: len(site.runs) == 3 * cap)
    running = [run for run in site.runs if run.ended is None and run.pid not in gone]
    assert len(running) == cap, "five at a time again"
    second_gate.touch()
    await site.until(lambda: sum(run.ended is not None for run in site.runs) == cap + backlog)
    assert most_at_once(site.runs, gone) == cap, "and never more"
    assert Counter(run.attempt for run in site.runs) == {1: cap + backlog, 2: cap}
    for handle in held:
        completion = await handle.wait(timeout=SLACK)
        assert (completion.state, completion.attempt) == (JobState.SUCCEEDED, 2)
    print(f"S6: five ran again {recovered_after:.2f} s after the kill (lease {LEASE:g} s)")


@pytest.mark.parametrize(
    ("site", "name"),
    [
        pytest.param("valkey-server", "w2", id="valkey-server, a new worker"),
        pytest.param("valkey-server", "w1", id="valkey-server, the same worker"),
        pytest.param("redis-server", "w2", id="redis-server, a new worker", marks=pytest.mark.soak),
    ],
    indirect=["site"],
)
async def test_D8_after_a_crash_of_everything_the_slot_comes_back(site: Site, name: str) -> None:
    site.serve("d1", "--hard-cap=acme=1", lease=LEASE)
    site.work("w1", lease=LEASE)
    await site.leads()
    lost = await submit_held(site, "acme/web", estimate=600.0)
    behind = await site.client.submit("spend", [0.0], tenant="acme/web")
    first = await begun(site, lost.id)
    await claimed(site)
    before = await site.leader()
    site.kill("w1", "d1")
    killed_at = time.monotonic()

    # Without the option: that the cap is 1 is known from the store.
    restarted_at = time.monotonic()
    site.serve("d1", lease=LEASE)
    site.work(name, lease=LEASE)
    await site.leads(other_than=before)
    second = await begun(site, lost.id, attempt=2)
    free_after = second.started - restarted_at
    # Not before: by what the new dispatcher knows, the first attempt might still run.
    assert LEASE <= free_after <= LEADER_LEASE + LEASE + TICK + SLACK
    assert not site.runs_of(behind.id), "the lost one came back to the head, and the cap of 1 stands"

    site.gate.touch()
    ends = [await handle.wait(timeout=SLACK) for handle in (lost, behind)]
    assert [(end.state, end.attempt) for end in ends] == [(JobState.SUCCEEDED, 2), (JobState.SUCCEEDED, 1)]
    assert most_at_once(site.runs, {first.pid: killed_at}) == 1
    await site.no_leases()
    print(f"D8: the slot was free {free_after:.2f} s after the restart (lease {LEASE:g} s)")


async def test_D9_a_dead_worker_blocks_for_a_lease_and_not_for_a_day(site: Site) -> None:
    site.serve("d1", "--hard-cap=acme=1", lease=LEASE)
    by_pid = {site.work(name, lease=LEASE).pid: name for name in ("w1", "w2")}
    await site.leads()
    await site.joined(2)
    handles = [await submit_held(site, "acme/web", timeout=DAY) for _ in range(3)]
    first = await begun(site, handles[0].id)
    assert first.timeout == DAY
    await claimed(site)

    killed_at = time.monotonic()
    site.kill(by_pid[first.pid])
    second = await begun(site, handles[0].id, attempt=2)
    assert second.pid != first.pid
    assert second.started - killed_at <= LEASE + TICK + SLACK
    site.gate.touch()
    for handle, attempt in zip(handles, (2, 1, 1), strict=True):
        completion = await handle.wait(timeout=SLACK)
        assert (completion.state, completion.attempt) == (JobState.SUCCEEDED, attempt)
    assert most_at_once(site.runs, {first.pid: killed_at}) == 1
    print(f"D9: started again {second.started - killed_at:.2f} s after the kill (lease {LEASE:g} s, timeout a day)")


async def test_D11_a_job_longer_than_its_lease_starts_once(site: Site) -> None:
    site.serve("d1", lease=LEASE)
    for name in ("w1", "w2"):
        site.work(name, lease=LEASE)
    await site.leads()
    await site.joined(2)
    handle = await site.client.submit("spend", [2 * LEASE], tenant="acme/web")
    completion = await handle.wait(timeout=2 * LEASE + SLACK)
    assert (completion.state, completion.attempt) == (JobState.SUCCEEDED, 1)
    assert len(site.runs_of(handle.id)) == 1
    assert completion.seconds >= 2 * LEASE


async def test_D11_without_heartbeats_it_starts_again_and_its_first_result_is_refused(site: Site) -> None:
    site.serve("d1", lease=LEASE)
    by_pid = {site.work(name, lease=LEASE).pid: name for name in ("w1", "w2")}
    await site.leads()
    await site.joined(2)
    handle = await site.client.submit("spend_in_thread", [2 * LEASE], tenant="acme/web")
    first = await begun(site, handle.id)
    await claimed(site)
    [lease] = (await site.snapshot()).leases
    await anyio.sleep(max(0.0, first.started + LEASE / 2 - time.monotonic()))
    stopped = site.processes[by_pid[first.pid]]
    stopped.signal(signal.SIGSTOP)

    second = await begun(site, handle.id, attempt=2)
    assert second.pid != first.pid
    assert second.started - first.started >= LEASE
    stopped.signal(signal.SIGCONT)
    await site.until(lambda: site.runs_of(handle.id)[0].ended is not None)
    # Whether the first copy's worker still reports depends on what it does first. So it is reported here too.
    await site.backend.report([Event(lease.token, EventKind.SUCCEEDED, by_pid[first.pid], 2 * LEASE, b"", "")])

    assert await handle.result(timeout=2 * LEASE + SLACK) == second.pid
    completion = await handle.wait(timeout=SLACK)
    assert completion.attempt == 2
    status, pool = await site.status_when(lambda status, pool: status.counters["succeeded"] == 1 and not pool.running)
    account = node(pool, "acme")
    both = site.runs_of(handle.id)
    assert [run.attempt for run in both] == [1, 2]
    assert status.counters["zombies"] >= 1
    assert (status.counters["lost"], account.losses, account.starts) == (1, 1, 2)
    assert LEASE <= account.lost <= second.started - first.started + SLACK, "the first, refunded"
    assert 2 * LEASE <= account.charged < 2 * LEASE + account.lost, "the second, and only that"
    assert await site.ends() == [handle.id], "once"
    await site.joined(2)  # the one that stood still has joined anew
    print(f"D11: second start {second.started - first.started:.2f} s after the first; {account.lost:.2f} s refunded")


async def test_D13_a_hundred_dead_workers_do_not_look_busy(site: Site) -> None:
    """At the full size, but ten workers to a process, and jobs that wait for a file instead of for 60 s."""
    lease, hosts, each, lost_hosts = 6.0, 12, 10, 10
    organisations = [f"org-{number}" for number in range(12)]
    site.serve("d1", lease=lease)
    pids = {f"host-{number}": site.work_many(f"host-{number}", each, lease=lease).pid for number in range(hosts)}
    await site.leads()
    await site.joined(hosts * each)
    jobs = [
        Submission("hold", [str(site.gate)], tenant=f"{organisation}/web", estimate=60.0)
        for _ in range(40)
        for organisation in organisations
    ]
    await site.client.submit_many(jobs)
    await site.until(lambda: len(site.runs) == hosts * each)
    await claimed(site, hosts * each)

    victims = [f"host-{number}" for number in range(lost_hosts)]
    dead = {pids[name] for name in victims}
    lost = defaultdict(list)
    for run in site.runs:
        if run.pid in dead:
            lost[run.organisation].append(run.job_id)
    killed_at = time.monotonic()
    site.kill(*victims)
    await claimed(site, (hosts - lost_hosts) * each)
    freed_after = time.monotonic() - killed_at
    assert freed_after <= lease + TICK + SLACK
    assert sum(len(ids) for ids in lost.values()) == lost_hosts * each
    for organisation in organisations:
        waiting = await site.waiting(f"{organisation}/web")
        head, rest = waiting[: len(lost[organisation])], waiting[len(lost[organisation]) :]
        assert [entry.sequence for entry in head] == sequences(lost[organisation]), "at the head of its own project"
        assert {(entry.attempts, entry.losses) for entry in head} <= {(1, 1)}, "to be attempt 2"
        assert {entry.attempts for entry in rest} == {0}
    left = (hosts - lost_hosts) * each
    _, pool = await site.status_when(lambda _, pool: pool.running == left and pool.workers == left)
    assert (pool.slots, pool.free, pool.queued) == (left, 0, len(jobs) - left)

    site.gate.touch()
    ended: Counter[str] = Counter()

    async def all_have_ended() -> bool:
        ended.update(await site.ends())
        return ended.total() >= len(jobs)

    await site.until(all_have_ended)
    assert set(ended.values()) == {1}
    attempts = defaultdict(list)
    for run in site.runs:
        attempts[run.job_id].append(run.attempt)
    came_back = {job_id for ids in lost.values() for job_id in ids}
    assert all(attempts[job_id] == ([1, 2] if job_id in came_back else [1]) for job_id in ended)
    print(f"D13: {len(came_back)} attempts back {freed_after:.2f} s after the kill (lease {lease:g} s)")
