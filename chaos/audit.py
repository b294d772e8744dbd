"""What is left behind when nothing waits or runs: counted, and nothing of it should be there.

leases        attempts in the ledger, and nodes that the leader takes for having jobs running
waiting       lanes, delayed jobs, and jobs that backlog limits still count
pending       entries of pool streams and of their consumers' pending lists
consumers     consumers that belong to no live worker
held          attempts that workers take to be in their hands
untrimmed     events, announcements, requests, cancellations that have been dealt with and are still there
immortal      keys that are not part of the data model's fixed set and will not expire
connections   above those after warm-up, more than pools may have opened since
memory        of the server, and of processes that live since warm-up: bytes above what is allowed
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

import anyio

from chaos.site import Site
from drr.backend import WorkerRecord
from drr.dispatcher import decode_status
from drr_backends.redis.keys import GROUP

POOLED: Final = 1
"""Connections a process that a pool may open beyond those after warm-up, when more is done at once."""
MEMORY_SHARE: Final = 0.05
MEMORY_BYTES: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Baseline:
    """The state after warm-up. ``processes``: resident bytes by process id."""

    connections: int
    memory: int
    processes: dict[int, int]


async def expire(site: Site) -> None:
    """Let the outcomes and histories of ended jobs go now, which would expire in time: they are no leak."""
    prefix = site.backend.keys.prefix
    for pattern in ("outcome:*", "history:*", "progress:*", "reply:*"):
        for key in await keys(site, prefix + pattern):
            await site.raw("UNLINK", key)


async def keys(site: Site, pattern: str) -> list[bytes]:
    """Return all keys of a pattern."""
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, part = await site.raw("SCAN", cursor, "MATCH", _literal(pattern), "COUNT", 1000)
        found += part
        if cursor == b"0":
            return sorted(set(found))


def _literal(pattern: str) -> str:
    return pattern.replace("{", "[{]").replace("}", "[}]")


async def measure(site: Site) -> Baseline:
    """Return what later audits compare with."""
    return Baseline(
        await site.info("clients", "connected_clients"),
        await site.info("memory", "used_memory"),
        {process.pid: process.resident for process in site.processes.values()},
    )


async def audit(site: Site, baseline: Baseline) -> dict[str, int]:
    """Return what leaks, by kind, once it does not go away any more."""
    await _call_in(site)
    began = time.monotonic()
    while leaks := {kind: count for kind, count in (await _look(site, baseline)).items() if count}:
        site.check()
        if time.monotonic() - began > site.scale.settling:
            break
        await anyio.sleep(0.2)
    return leaks


async def _call_in(site: Site) -> None:
    """Let a worker come and go: whatever is swept only then is no leak if it is gone afterwards."""
    record = WorkerRecord("auditor", f"i{time.monotonic_ns()}", {"default": 1})
    await site.patiently(lambda: site.backend.join(record))
    await site.patiently(lambda: site.backend.leave(record.name, record.incarnation))


async def _look(site: Site, baseline: Baseline) -> dict[str, int]:
    names = site.backend.keys
    workers = await site.patiently(site.backend.workers)
    status = decode_status((await site.patiently(site.backend.read_status)).blob)
    running = sum(node.running for pool in status.pools for node in pool.nodes if not node.path)
    live = {f"{worker.name}:{worker.incarnation}".encode() for worker in workers}
    depths = await site.raw("HVALS", names.depth)
    pending, consumers = await _streams(site, live)
    connections = await site.info("clients", "connected_clients") - baseline.connections
    return {
        "leases": await site.raw("HLEN", names.leases) + running,
        "waiting": await site.raw("SCARD", names.active)
        + len(await keys(site, names.prefix + "lane:*"))
        + await site.raw("HLEN", names.delayed)
        + sum(float(depth) != 0.0 for depth in depths),
        "pending": pending,
        "consumers": consumers,
        "held": sum(len(worker.held) for worker in workers),
        "untrimmed": sum([await site.raw("XLEN", key) for key in (names.events, names.wake, names.requests)])
        + await site.raw("HLEN", names.stopping),
        "immortal": await _immortal(site),
        "connections": max(0, connections - POOLED * len(site.processes)),
        "memory": await _memory(site, baseline),
    }


async def _streams(site: Site, live: set[bytes]) -> tuple[int, int]:
    """Return entries and pending ones of the pool's stream, and consumers of nobody."""
    stream = site.backend.keys.pool("default")
    pending = await site.raw("XLEN", stream)
    strangers = 0
    for flat in await site.raw("XINFO", "CONSUMERS", stream, GROUP):
        consumer: dict[bytes, Any] = dict(zip(flat[::2], flat[1::2], strict=True))
        pending += consumer[b"pending"]
        strangers += consumer[b"name"] not in live
    return pending, strangers


async def _immortal(site: Site) -> int:
    names = site.backend.keys
    fixed = {value.encode() for value in vars(names).values() if isinstance(value, str)}
    count = 0
    for key in await keys(site, names.prefix + "*"):
        kind = key.removeprefix(names.prefix.encode()).partition(b":")[0]
        if key not in fixed and kind not in (b"pool", b"lane", b"graves"):
            count += await site.raw("PTTL", key) == -1
    return count


async def _memory(site: Site, baseline: Baseline) -> int:
    above = [(await site.info("memory", "used_memory"), baseline.memory)]
    above += [
        (process.resident, baseline.processes[process.pid])
        for process in site.processes.values()
        if process.pid in baseline.processes
    ]
    return sum(max(0, now - before - round(max(MEMORY_SHARE * before, MEMORY_BYTES))) for now, before in above)
