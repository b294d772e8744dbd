"""Leaders that are killed, and leaders that stop until another one leads and go on."""

from __future__ import annotations

import signal
import time

import anyio

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import Site, Stuck
from drr.dispatcher.status import Status
from drr.errors import NotLeader
from drr.model import Completion, TenantPath

QUIET = 0.3
"""Seconds without a pass after which nothing more is on its way to a leader whose workers are stopped."""


async def _leader_and_standbys(site: Site) -> tuple[str, str]:
    """Return the leader's token and name, once the others stand by."""
    await site.new_leader("")
    for name in site.dispatchers:
        await site.ripe(name)
    token = await site.leader()
    return token, site.name_of(token)


async def kill(site: Site, load: Load, findings: Findings) -> None:
    """Kill the leader under load. The first time everybody else stands still, so that credits can be compared."""
    token, name = await _leader_and_standbys(site)
    if findings.faults:
        await _kill(site, token, name, findings)
    else:
        await _kill_in_silence(site, token, name, findings)
    findings.faults += 1
    site.start(name)
    await load.moves_on()


async def _kill(site: Site, token: str, name: str, findings: Findings) -> str:
    began = time.monotonic()
    site.kill(name)
    findings.takeovers.append(await site.new_leader(token) - began)
    return await site.leader()


async def _kill_in_silence(site: Site, token: str, name: str, findings: Findings) -> None:
    """With nothing to decide, what the new leader says of credits has to be what the old one said."""
    others = (*site.workers, *site.producers)
    for other in others:
        site.signal(other, signal.SIGSTOP)
    try:
        before = await _credits(site, token)
        new = await _kill(site, token, name, findings)
        after = await _credits(site, new)
    finally:
        for other in others:
            site.signal(other, signal.SIGCONT)
    findings.notes["credits_compared"] = len(before)
    wrong = {path: (credit, after.get(path)) for path, credit in before.items() if after.get(path) != credit}
    if wrong or not any(before.values()):
        findings.problems.append(f"credits (before, after) a takeover: {wrong or 'all were 0'}")


async def _credits(site: Site, token: str) -> dict[TenantPath, float]:
    """Return every node's credit as a leader describes it after its last pass."""
    name = site.name_of(token)
    passes, changed_at = -1, time.time()
    status: Status | None = None

    async def look() -> bool:
        nonlocal passes, changed_at, status
        record = await site.patiently(site.backend.leader)
        if record.token != token:
            raise Stuck(f"{token} leads no more: {record.token} does")
        if record.passes != passes:
            passes, changed_at = record.passes, time.time()
        status = await site.status()
        return status.dispatcher == name and status.at > changed_at + QUIET

    await site.until(look, "a leader with nothing to decide to describe itself")
    assert status is not None
    return {node.path: node.credit for pool in status.pools for node in pool.nodes}


async def stop(site: Site, load: Load, findings: Findings) -> None:
    """Stop the leader until another one leads, let it go on, and see that nothing of it is taken."""
    token, name = await _leader_and_standbys(site)
    site.signal(name, signal.SIGSTOP)
    try:
        await site.new_leader(token)
    finally:
        site.signal(name, signal.SIGCONT)
    findings.faults += 1
    passes = await _refused(site, token)
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


async def _refused(site: Site, token: str) -> bool:
    """Whether the store refuses what the holder of a token could write."""
    for write in (lambda: site.backend.renew(token), lambda: site.backend.write_status(token, b"")):
        try:
            await site.patiently(write)
        except NotLeader:
            continue
        return False
    return True


async def check_takeovers(
    site: Site, load: Load, findings: Findings, completions: dict[str, Completion]
) -> None:
    """A standby takes over within twice the leader lease."""
    slowest, limit = max(findings.takeovers), 2 * site.scale.leader_lease
    findings.notes["slowest_takeover_s"] = round(slowest, 3)
    if slowest >= limit:
        findings.problems.append(f"a takeover took {slowest:.3f} s, and the limit is {limit:g} s")


ROWS = (
    Row("leader SIGKILL", kill, check_takeovers),
    Row("leader SIGSTOP, SIGCONT", stop, slow=True),
)
