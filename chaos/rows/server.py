"""A server that is killed, whose disk is slow, whose clock jumps, whose memory is full, which loses its functions."""

from __future__ import annotations

import signal
import time
from functools import partial
from typing import Final

import anyio

from chaos.journal import Journal
from chaos.load import Load
from chaos.producer import RESULT_TTL
from chaos.row import Findings, Row
from chaos.site import NAMESPACE, Site
from drr.client import Client
from drr.errors import StoreFull
from drr.model import Completion

SLOW_FLUSH: Final = 2.5
"""Seconds that a flush lasts: longer than the server puts its writes off for it."""
AT_RISK: Final = 2.1
"""Seconds before a kill whose acknowledgements may be lost with ``everysec``: two, and the server looks ten times a
second whether they are over."""
JUMPS: Final = (3600, -3600)
"""Seconds that the server's clock is ahead of the true one, one after the other: +1 h, then -2 h."""
CLOCK_SLACK: Final = 5.0
ROOM: Final = 4 * 1024 * 1024
"""Bytes that a full server had left before it was filled."""
BALLAST: Final = 128 * 1024


async def kill(site: Site, load: Load, findings: Findings) -> None:
    """Kill the server and start it on its data."""
    await site.kill_server()
    await site.start_server()
    findings.faults += 1
    await load.moves_on()


async def kill_slow(site: Site, load: Load, findings: Findings) -> None:
    """Kill the server while a flush is under way, and the log of the last seconds only in its memory."""
    await site.raw("CONFIG", "SET", "appendfsync", "everysec")
    site.shim.set(flush=SLOW_FLUSH)
    try:
        await anyio.sleep(1.5)  # by then the first slow flush has begun
        await load.go(site.scale.jobs // 4)
        await anyio.sleep(0.5)
        killed_at = await site.kill_server()
    finally:
        site.shim.set()
    at_risk = [told for told in load.facts.acknowledged if killed_at - AT_RISK <= told.at <= killed_at + 0.1]
    await site.start_server()  # as it was configured: `always`
    findings.faults += 1
    findings.lost_allowed += len(at_risk)
    await load.moves_on()


async def kill_slow_with_outbox(site: Site, load: Load, findings: Findings) -> None:
    """The same with producers that keep their last submits on their own disk: none of those is lost."""
    await load.submitted()
    _restart_producers(site, set(site.producers))
    allowed = findings.lost_allowed
    await kill_slow(site, load, findings)
    findings.notes["acknowledged_at_risk"] = findings.lost_allowed
    findings.lost_allowed, findings.replayed = allowed, True
    await load.submitted()
    _restart_producers(site, set())


def _restart_producers(site: Site, outboxes: set[str]) -> None:
    site.outboxes = outboxes
    for name in site.producers:
        site.kill(name)
        site.start(name)


def needs_shim(site: Site) -> str:
    """Why there is no shim, or empty."""
    return site.shim.missing


async def jump(site: Site, load: Load, findings: Findings) -> None:
    """Let the server's clock jump forwards and back; nobody may lose a lease or the leadership for it."""
    token = await site.leader()
    try:
        for ahead in JUMPS:
            site.shim.set(ahead=ahead)
            findings.faults += 1
            await site.until(partial(_is_ahead, site, ahead), f"the server's clock to be {ahead} s ahead")
            await load.go(site.scale.jobs // 4)
            began = time.monotonic()
            while time.monotonic() - began < 1.25 * site.scale.lease:
                site.check()
                await anyio.sleep(0.1)
    finally:
        site.shim.set()
    if await site.leader() != token:
        findings.problems.append(f"{token} lost the leadership to a jump of the clock")


async def _is_ahead(site: Site, seconds: int) -> bool:
    shown = int((await site.raw("TIME"))[0]) - time.time()
    return abs(shown - seconds) < CLOCK_SLACK


async def check_no_losses(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """No attempt was taken back."""
    again = sum(run.attempt > 1 for run in load.facts.runs)
    if again:
        findings.problems.append(f"{again} attempts were made again after a lease was reaped")


async def fill(site: Site, load: Load, findings: Findings) -> None:
    """Fill the server's memory; what is there has to drain while it is full."""
    await site.raw("CONFIG", "SET", "maxmemory", await site.info("memory", "used_memory") + ROOM)
    try:
        refusal = await _fill(site, load)
        findings.faults += 1
        if "maxmemory" not in refusal:
            findings.problems.append(f"a full server was refused without a reason: {refusal}")
        await load.go(site.scale.jobs // 4)  # what of this is refused is submitted again, until there is room
        await load.rest()
    finally:
        await site.raw("CONFIG", "SET", "maxmemory", 0)
    findings.count("submits_refused", 1 + len(load.facts.refused))


async def _fill(site: Site, load: Load) -> str:
    """Submit large jobs until one is refused; return with what words."""
    journal = Journal(site.directory)
    async with Client(site.server.url, namespace=NAMESPACE) as client:
        while True:
            label = f"{load.number}.fill.{time.monotonic_ns()}"
            arguments = [label, 0.5, "x" * BALLAST]
            try:
                job = await client.submit(
                    "spend", arguments, tenant="org-1/project-1", estimate=0.5, result_ttl=RESULT_TTL
                )
            except StoreFull as full:
                return str(full)
            journal.note("A", label, job.id)


async def lose_functions(site: Site, load: Load, findings: Findings) -> None:
    """Delete all functions and scripts, or let dispatchers and a worker of another version take over."""
    if (findings.faults + site.orders) % 2:
        await _upgrade(site)
    else:
        await site.raw("FUNCTION", "FLUSH")
        await site.raw("SCRIPT", "FLUSH")
        if site.upgraded:
            # The dispatchers load their own library. Who is of the other version is told to run its `drr init`.
            await site.patiently(site.backend.prepare)
    findings.faults += 1
    await load.moves_on()


async def _upgrade(site: Site) -> None:
    """Replace every dispatcher and the first worker, one after the other, while the rest go on with their library."""
    for name in (*site.dispatchers, site.workers[0]):
        site.mortal.add(name)
        site.signal(name, signal.SIGTERM)
        await site.until(partial(site.ended, name), f"{name} to end")
        site.kill(name)
        site.mortal.discard(name)
        site.upgraded ^= {name}
        site.start(name)
        if name in site.dispatchers:
            await site.new_leader("")
            await site.ripe(name)


ROWS = (
    Row("server kill -9 and restart, AOF always", kill),
    Row("server kill -9 and restart, AOF everysec with a slow fsync", kill_slow, slow=True, unable=needs_shim),
    Row(
        "server kill -9 and restart, AOF everysec with a slow fsync, producers with an outbox",
        kill_slow_with_outbox,
        slow=True,
        unable=needs_shim,
    ),
    Row("server clock +1 h, then -2 h", jump, check_no_losses, slow=True, unable=needs_shim),
    Row("server out of memory (noeviction)", fill, slow=True),
    Row("functions deleted, scripts flushed, library upgraded while running", lose_functions),
)
