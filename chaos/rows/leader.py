"""Leaders that are killed, and leaders that stop until another one leads and go on."""

from __future__ import annotations

import signal
import time
from collections.abc import Awaitable, Callable

import anyio

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import Site
from drr.backend import Commit, Position
from drr.errors import NotLeader
from drr.model import Completion, TenantPath

QUIET = 0.3
"""Seconds without a pass after which nothing more is on its way to a leader whose workers are stopped."""
EXACT = 1e-6
"""Worker-seconds: what is told is a sum of two numbers."""


async def _leader_and_standbys(site: Site) -> tuple[str, str]:
    """Return the leader's token and name, once the others stand by."""
    await site.new_leader("")
    for name in site.dispatchers:
        await site.ripe(name)
    token = await site.leader()
    return token, site.name_of(token)


async def kill(site: Site, load: Load, findings: Findings) -> None:
    """Kill the leader under load. Every other time everybody else stands still, so that credits can be compared."""
    token, name = await _leader_and_standbys(site)
    if (findings.faults + site.orders) % 2:
        await _kill_in_silence(site, token, name, findings)
    else:
        await _kill(site, token, name, findings)
    findings.faults += 1
    site.start(name)
    await load.moves_on()


async def _kill(site: Site, token: str, name: str, findings: Findings) -> str:
    began = time.monotonic()
    site.kill(name)
    findings.takeovers.append(await site.new_leader(token) - began)
    return await site.leader()


async def _kill_in_silence(site: Site, token: str, name: str, findings: Findings) -> None:
    """With nothing to decide, the new leader has to go on with the credits of the old one's last commit.

    What it has charged since is for jobs that run longer than they were charged for, and is told beside the credit.
    """
    others = (*site.workers, *site.producers)
    for other in others:
        site.signal(other, signal.SIGSTOP)
    try:
        await _silence(site)
        new = await _kill(site, token, name, findings)
        # Written by nobody since: the new leader has nothing to dispatch or settle.
        left = await _stored_credits(site, new)
        told = await _told_credits(site, new)
    finally:
        for other in others:
            site.signal(other, signal.SIGCONT)
    findings.count("credits_compared", len(told))
    wrong = {path: (left.get(path, 0.0), credit) for path, credit in told.items() if not _same(left, path, credit)}
    if wrong or not any(told.values()):
        findings.problems.append(f"credits after a takeover (stored, told): {wrong or 'none'}")


def _same(stored: dict[TenantPath, float], path: TenantPath, credit: float) -> bool:
    return abs(stored.get(path, 0.0) - credit) < EXACT


async def _silence(site: Site) -> None:
    """Return when the leader has dealt with everything that there was."""
    quiet_since, seen = time.monotonic(), (-1, -1)

    async def look() -> bool:
        nonlocal quiet_since, seen
        record = await site.patiently(site.backend.leader)
        now = (record.passes, await site.raw("XLEN", site.backend.keys.events))
        if now != seen:
            seen, quiet_since = now, time.monotonic()
        return now[1] == 0 and time.monotonic() - quiet_since > QUIET

    await site.until(look, "a leader with nothing to decide")


async def _stored_credits(site: Site, token: str) -> dict[TenantPath, float]:
    snapshot = await site.patiently(lambda: site.backend.load(token))
    return {path: state.credit for (pool, path), state in snapshot.nodes.items() if pool == "default" and path}


async def _told_credits(site: Site, token: str) -> dict[TenantPath, float]:
    """Return every node's credit without what this leader has charged, by its first description of itself."""
    name = site.name_of(token)

    async def look() -> bool:
        return (await site.status()).dispatcher == name

    await site.until(look, "the new leader to describe itself")
    status = await site.status()
    return {node.path: node.credit + node.charged for pool in status.pools for node in pool.nodes if node.path}


async def stop(site: Site, load: Load, findings: Findings) -> None:
    """Stop the leader until another one leads, let it go on, and see that nothing of it is taken."""
    token, name = await _leader_and_standbys(site)
    site.signal(name, signal.SIGSTOP)
    try:
        await site.new_leader(token)
    finally:
        site.signal(name, signal.SIGCONT)
    findings.faults += 1
    passes = await refused(site, token)
    if not passes:
        findings.problems.append("a write under the old token was accepted")
    began = time.monotonic()
    while time.monotonic() - began < site.scale.leader_lease:
        record = await site.patiently(site.backend.leader)
        if record.token == token:
            findings.problems.append(f"{token} leads again")
            break
        await anyio.sleep(0.05)
    await load.moves_on()


async def refused(site: Site, token: str) -> bool:
    """Whether the store refuses everything that the holder of a token could write."""
    commit = Commit(token, 1, Position())
    writes: list[Callable[[], Awaitable[object]]] = [
        lambda: site.backend.renew(token),
        lambda: site.backend.write_status(token, b""),
        lambda: site.backend.commit(commit),
    ]
    for write in writes:
        try:
            await site.patiently(write)
        except NotLeader:
            continue
        return False
    return True


async def check_takeovers(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """A standby takes over within twice the leader lease."""
    slowest, limit = max(findings.takeovers), 2 * site.scale.leader_lease
    findings.notes["slowest_takeover_s"] = round(slowest, 3)
    if slowest >= limit:
        findings.problems.append(f"a takeover took {slowest:.3f} s, and the limit is {limit:g} s")


ROWS = (
    Row("leader SIGKILL", kill, check_takeovers),
    Row("leader SIGSTOP, SIGCONT", stop, slow=True),
)
