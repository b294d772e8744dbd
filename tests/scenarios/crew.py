"""Handlers for scenarios, and the journal they keep; run as a module, many workers in one process.

The journal is a file per process in the directory that the environment names, a line for each start and end of an
attempt, written in one call each: ``S|E time pid attempt timeout job``. Times are of the monotonic clock, which
the processes of a machine share.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import anyio

from drr.model import parse_job_id
from drr.worker import Context, Tasks, Worker

JOURNAL = "DRR_TEST_JOURNAL"

tasks = Tasks()


@dataclass(slots=True)
class Run:
    """One start of a handler; ``ended`` is ``None`` while it runs, or if its process is gone."""

    job_id: str
    attempt: int
    pid: int
    timeout: float | None
    started: float
    ended: float | None = None

    @property
    def organisation(self) -> str:
        return parse_job_id(self.job_id)[0].path[0]


@cache
def _file() -> int:
    path = Path(os.environ[JOURNAL]) / f"{os.getpid()}.journal"
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


@contextmanager
def _noted(context: Context) -> Iterator[None]:
    facts = f"{os.getpid()} {context.attempt} {context.timeout} {context.job_id}"
    os.write(_file(), f"S {time.monotonic():.6f} {facts}\n".encode())
    try:
        yield
    finally:
        os.write(_file(), f"E {time.monotonic():.6f} {facts}\n".encode())


@tasks.task()
async def spend(context: Context, seconds: float, ballast: str = "") -> int:
    """Hold a slot for a time; return the process id. ``ballast`` gives the job a size."""
    with _noted(context):
        await anyio.sleep(seconds)
    return os.getpid()


@tasks.task()
async def hold(context: Context, gate: str) -> int:
    """Hold a slot until there is a file; return the process id."""
    with _noted(context):
        while not os.path.exists(gate):  # noqa: ASYNC110, ASYNC240  # a stat of a local file; nothing tells us
            await anyio.sleep(0.05)
    return os.getpid()


@tasks.task()
def spend_in_thread(context: Context, seconds: float) -> int:
    """Hold a thread for a time, whatever happens to the worker meanwhile; return the process id."""
    with _noted(context):
        time.sleep(seconds)
    return os.getpid()


@tasks.task()
def hold_in_thread(context: Context, gate: str) -> int:
    """Hold a thread until there is a file, whether the job is cancelled or not; return the process id."""
    with _noted(context):
        while not os.path.exists(gate):
            time.sleep(0.05)
    return os.getpid()


def read_runs(directory: Path) -> list[Run]:
    """Return everything that the journals of a directory tell, in order of the starts."""
    runs: list[Run] = []
    for path in directory.glob("*.journal"):
        open_runs: dict[tuple[str, int], list[Run]] = {}
        whole, _, _ = path.read_bytes().rpartition(b"\n")
        for line in whole.decode().splitlines():
            kind, at, pid, attempt, timeout, job_id = line.split()
            key = (job_id, int(attempt))
            if kind == "S":
                limit = None if timeout == "None" else float(timeout)
                run = Run(job_id, int(attempt), int(pid), limit, float(at))
                open_runs.setdefault(key, []).append(run)
                runs.append(run)
            else:
                open_runs[key].pop(0).ended = float(at)
    return sorted(runs, key=lambda run: run.started)


def most_at_once(runs: Sequence[Run], gone: dict[int, float] | None = None) -> int:
    """Return the most runs that overlapped. ``gone``: when processes that were killed ended, by pid."""
    gone = gone or {}
    forever = float("inf")
    ends = (gone.get(run.pid, forever) if run.ended is None else run.ended for run in runs)
    steps = sorted(chain(((run.started, 1) for run in runs), ((end, -1) for end in ends)))
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


async def _host(url: str, namespace: str, lease: float, names: Sequence[str]) -> None:
    async with anyio.create_task_group() as group:
        for name in names:
            worker = Worker(url, namespace=namespace, name=name, slots=1, lease=lease, tasks=tasks, patience=60.0)
            group.start_soon(worker.run)


if __name__ == "__main__":
    anyio.run(_host, sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4:])
