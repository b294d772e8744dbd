"""Workers that are killed, and workers that stop for longer than their lease and go on."""

from __future__ import annotations

import signal
from collections import Counter

import anyio

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import Site
from drr.errors import NotLeader
from drr.model import Completion


async def in_ledger(site: Site) -> set[tuple[str, int]]:
    """Return job and attempt of every live lease."""
    while True:
        try:
            # Reading it under the leader's token changes nothing.
            snapshot = await site.patiently(lambda: _load(site))
            return {(lease.header.job_id, lease.attempt) for lease in snapshot.leases}
        except NotLeader:  # it changed in between, or nobody leads
            await anyio.sleep(0.05)


async def _load(site: Site) -> object:
    return await site.backend.load((await site.backend.leader()).token)


async def busiest(site: Site, load: Load) -> str:
    """Return the worker with most jobs in hand, as soon as one has any."""
    found: list[str] = []

    def look() -> bool:
        running = Counter(run.pid for run in load.facts.runs if run.ended is None)
        ranked = sorted(site.workers, key=lambda name: -running[site.processes[name].pid])
        found[:] = [name for name in ranked[:1] if running[site.processes[name].pid]]
        return bool(found)

    await site.until(look, "a worker with a job in hand")
    return found[0]


async def kill(site: Site, load: Load, findings: Findings) -> None:
    """Kill the busiest worker; what it had in hand, by the ledger, may run again."""
    name = await busiest(site, load)
    pid = site.processes[name].pid
    site.kill(name)
    leases = await in_ledger(site)
    begun = {(run.job_id, run.attempt) for run in load.facts.runs if run.pid == pid}
    findings.at_stake |= begun & leases
    findings.faults += 1
    site.start(name)
    await load.moves_on()


async def check_starts(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """Starts beyond one per job are at most the jobs in hand."""
    starts = Counter(run.job_id for run in load.facts.runs)
    again = sum(starts.values()) - len(starts)
    findings.notes["started_again"], findings.notes["in_hand"] = again, len(findings.at_stake)
    if again > len(findings.at_stake):
        findings.problems.append(f"{again} starts beyond one per job, and {len(findings.at_stake)} jobs were in hand")


async def stop(site: Site, load: Load, findings: Findings) -> None:
    """Stop the busiest worker until its attempts have been given to others, then let it go on."""
    name = await busiest(site, load)
    pid = site.processes[name].pid
    site.signal(name, signal.SIGSTOP)
    try:
        await anyio.sleep(0.1)
        held = {(run.job_id, run.attempt) for run in load.facts.open_runs(pid)} & await in_ledger(site)

        async def given_away() -> bool:
            return not held & await in_ledger(site)

        await site.until(given_away, f"the leases of {name} to end")
    finally:
        site.signal(name, signal.SIGCONT)
    findings.faults += 1
    findings.at_stake |= held
    await site.until(lambda: not _open(load, pid, held), f"{name} to come to the end of what it had in hand")


def _open(load: Load, pid: int, held: set[tuple[str, int]]) -> list[object]:
    return [run for run in load.facts.open_runs(pid) if (run.job_id, run.attempt) in held]


async def check_refused(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """No recorded end is of an attempt that a stopped worker had in hand."""
    findings.notes["completions_refused"] = len(findings.at_stake)
    for job_id, attempt in findings.at_stake:
        end = completions.get(job_id)
        if end is not None and end.attempt <= attempt:
            findings.problems.append(f"attempt {attempt} of {job_id} was taken back, and its end was accepted")


ROWS = (
    Row("worker SIGKILL", kill, check_starts),
    Row("worker SIGSTOP past its lease, SIGCONT", stop, check_refused, slow=True),
)
