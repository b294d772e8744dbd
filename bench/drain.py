"""Submitting and draining on a real server: ``python -m bench.drain`` (or ``make bench-drain``).

20,000 jobs that do nothing, over 100 organisations, are submitted in bulk by this process, and drained by one worker
process with 100 slots; a dispatcher process shares the slots out. Server, dispatcher and worker are started for
each repeat. Results and the append-only file are off.

    submit   from the first call to the acknowledgement of the last job, while nothing else runs
    drain    the backlog stands and the worker has joined; from the start of the first job in its handler to the
             moment at which every job is settled: no job in a lane, no lease in the ledger

Prints a line per repeat, the medians, and as the last line one JSON object with ``submit_per_s`` and ``drain_per_s``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from drr.backend import Backend, open_backend
from drr.client import Client, Submission
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import NotLeader
from drr.model import Lane
from drr.worker import Tasks

JOBS = 20_000
ORGANISATIONS = 100
SLOTS = 100
REPEATS = 3
NAMESPACE = "bench"
FIRST_START = "DRR_BENCH_FIRST_START"
"""Names the file into which the worker writes when its first job started."""
LOOK = 0.01
LIMIT = 300.0

tasks = Tasks()
_started = False


@tasks.task()
async def nothing() -> None:
    """Do nothing, but note when that was done for the first time."""
    global _started
    if not _started:
        _started = True
        path = Path(os.environ[FIRST_START])
        path.with_suffix(".new").write_text(repr(time.monotonic()))
        path.with_suffix(".new").rename(path)


def jobs(count: int) -> Iterator[Submission]:
    """Yield the jobs, one organisation after the other in turn."""
    made = [
        Submission("nothing", tenant=(f"org-{number}", "main"), result_ttl=0.0, estimate=0.001)
        for number in range(ORGANISATIONS)
    ]
    for number in range(count):
        yield made[number % ORGANISATIONS]


@contextmanager
def process(*arguments: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a ``drr`` command; SIGTERM at the end."""
    command = [sys.executable, "-m", "drr.cli", *arguments, "--namespace", NAMESPACE, "--log-level", "warning"]
    with subprocess.Popen(command, env={**os.environ, **environment}) as running:
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)


async def submit(url: str, count: int) -> float:
    """Submit the jobs; return the seconds that it took."""
    async with Client(url, namespace=NAMESPACE) as client:
        began = time.monotonic()
        assert await client.submit_many(jobs(count)) == count
        return time.monotonic() - began


async def until_settled(backend: Backend, running: subprocess.Popen[bytes]) -> float:
    """Return when (by the monotonic clock) nothing was left in any lane or lease."""
    lanes = [Lane("default", (f"org-{number}", "main")) for number in range(ORGANISATIONS)]
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        assert running.poll() is None, "the worker ended"
        looked = time.monotonic()
        # One lane first: to ask for all of them all the time would take its part of a small machine.
        if await backend.lane_lengths(lanes[-1:]) == [0] and not sum(await backend.lane_lengths(lanes)):
            try:
                # With the leader's token: reading changes nothing.
                if not (await backend.load((await backend.leader()).token)).leases:
                    return looked
            except NotLeader:
                pass
        await anyio.sleep(LOOK)
    raise TimeoutError(f"the backlog was not drained within {LIMIT:g} s")


async def repeat(count: int, slots: int) -> tuple[float, float]:
    """Return the seconds that submitting and draining took on a fresh server."""
    with tempfile.TemporaryDirectory(prefix="drr-bench-") as directory:
        first_start = Path(directory) / "first-start"
        async with EmbeddedServer(appendfsync=None) as server:
            backend = open_backend(server.url, namespace=NAMESPACE, clock=SystemClock())
            try:
                await backend.prepare()
                submitting = await submit(server.url, count)
                worker = ("worker", "bench.drain:tasks", "--url", server.url, "--slots", str(slots))
                with process(*worker, **{FIRST_START: str(first_start)}) as running:
                    while not await backend.workers():
                        assert running.poll() is None, "the worker ended"
                        await anyio.sleep(LOOK)
                    with process("serve", server.url):
                        settled = await until_settled(backend, running)
                return submitting, settled - float(first_start.read_text())
            finally:
                await backend.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--slots", type=int, default=SLOTS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    submits: list[float] = []
    drains: list[float] = []
    print(f"{options.jobs:,} jobs over {ORGANISATIONS} organisations, {options.slots} slots", flush=True)
    for number in range(1, options.repeats + 1):
        submitting, draining = anyio.run(
            repeat, options.jobs, options.slots, backend_options={"use_uvloop": sys.platform != "win32"}
        )
        submits.append(options.jobs / submitting)
        drains.append(options.jobs / draining)
        print(f"run {number}: submit {submits[-1]:8,.0f} jobs/s   drain {drains[-1]:8,.0f} jobs/s", flush=True)
    for what, rates in (("submit", submits), ("drain", drains)):
        print(f"{what}: median {statistics.median(rates):,.0f} jobs/s ({min(rates):,.0f} to {max(rates):,.0f})")
    print(
        json.dumps(
            {"submit_per_s": round(statistics.median(submits)), "drain_per_s": round(statistics.median(drains))}
        )
    )


if __name__ == "__main__":
    main()
