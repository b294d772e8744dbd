"""A bulk submission in a process of its own: ``python -m tests.scenarios.bulk URL NAMESPACE COUNT``.

Meanwhile a ticker notes for how long nothing else got a turn on the event loop. The last line printed is JSON:
``seconds``, ``longest_busy`` and ``longest_gap`` (seconds between two ticks: of this thread's processor time, and by
the clock, which also counts what other processes took), ``p99_gap``, ``ticks``, and ``grown`` (bytes of peak memory).
"""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import anyio

from drr.client import Client, Submission

PAUSE = 0.002
PAYLOAD = "x" * 32


class Ticker:
    """Wakes up every `PAUSE` seconds, if it is let."""

    def __init__(self) -> None:
        self.busy: list[float] = []
        self.gaps: list[float] = []

    async def run(self) -> None:
        while True:
            busy, at = time.thread_time(), time.monotonic()
            await anyio.sleep(PAUSE)
            self.busy.append(time.thread_time() - busy)
            self.gaps.append(time.monotonic() - at)


def peak() -> int:
    """Return the most bytes of memory that this process has held."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # On Linux, what `resource` says begins with what the parent held, which is more.
    [line] = [line for line in status.read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) * 1024


async def main(url: str, namespace: str, count: int) -> None:
    job = Submission("spend", [0.05, PAYLOAD], tenant="acme/campaign", estimate=0.05, result_ttl=0.0)
    ticker = Ticker()
    async with Client(url, namespace=namespace) as client:
        await client.submit_many(job for _ in range(1000))
        before, began = peak(), time.monotonic()
        async with anyio.create_task_group() as group:
            group.start_soon(ticker.run)
            submitted = await client.submit_many(job for _ in range(count - 1000))
            group.cancel_scope.cancel()
        assert submitted == count - 1000
        figures = {
            "seconds": time.monotonic() - began,
            "longest_busy": max(ticker.busy),
            "longest_gap": max(ticker.gaps),
            "p99_gap": sorted(ticker.gaps)[len(ticker.gaps) * 99 // 100],
            "ticks": len(ticker.gaps),
            "grown": peak() - before,
        }
    print(json.dumps(figures))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
