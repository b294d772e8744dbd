"""Several faults at once: what one of them leaves half done, the next one meets."""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable
from typing import Final

import anyio

from chaos.load import Load
from chaos.proxy import Mischief
from chaos.row import Findings, Row
from chaos.rows.workers import busiest
from chaos.site import Site, Stuck

UNREACHABLE: Final = 3
"""Exit code of ``drr serve`` that finds no store."""
PAUSE: Final = 0.3
"""Longest seconds between two faults."""


async def storm(site: Site, load: Load, findings: Findings) -> None:
    """Kill a worker, the leader and the server, stop another worker, lose replies and functions, in any order."""
    rng = random.Random(load.seed + findings.faults)
    stopped = site.workers[rng.randrange(len(site.workers))]

    async def kill_worker() -> None:
        name = await busiest(site, load)
        if name != stopped:
            site.kill(name)
            site.start(name)

    async def kill_leader() -> None:
        name = site.name_of((await site.patiently(site.backend.leader)).token)
        if name:
            site.kill(name)
            site.start(name)

    async def kill_server() -> None:
        await site.kill_server()
        await anyio.sleep(rng.random() * PAUSE)
        await site.start_server()

    async def flush() -> None:
        await site.raw("FUNCTION", "FLUSH")
        await site.patiently(site.backend.prepare)

    faults: list[Callable[[], Awaitable[None]]] = [kill_worker, kill_worker, kill_leader, kill_server, flush]
    rng.shuffle(faults)
    site.proxy.mischief = Mischief(reset=0.02, hold=0.1, hold_for=PAUSE)
    site.signal(stopped, signal.SIGSTOP)
    site.mortal |= set(site.dispatchers)
    try:
        for fault in faults:
            await fault()
            await anyio.sleep(rng.random() * PAUSE)
    finally:
        site.signal(stopped, signal.SIGCONT)
        site.proxy.mischief = Mischief()
    findings.faults += len(faults) + 1
    await _start_again(site, findings)
    await site.new_leader("")
    await load.moves_on()


async def _start_again(site: Site, findings: Findings) -> None:
    """Start dispatchers again that found no store when they started: they end then, for their supervisor to see."""
    for name in site.dispatchers:
        while True:
            await site.ripe(name)
            status = site.processes[name].status
            if status is None:
                break
            if status != UNREACHABLE:
                raise Stuck(f"{name} ended with {status}: {site.processes[name].log[-1500:]}")
            findings.count("started_without_a_store")
            site.kill(name)
            site.start(name)
    site.mortal -= set(site.dispatchers)


ROWS = (Row("several of these at once", storm, buries=True),)
