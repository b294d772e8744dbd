"""A worker in a process of its own: ``python -m tests.processes.worker_app URL SETTINGS``, settings as JSON.

Its handlers show by files that they have begun, and wait for files to appear.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from pathlib import Path

import anyio

from drr.worker import Tasks, Worker

tasks = Tasks()


@tasks.task()
async def block(path: str) -> str:
    """Hold the event loop until the file is there."""
    return wait(path)


@tasks.task()
def stick(path: str) -> str:
    """Hold a thread until the file is there."""
    return wait(path)


@tasks.task()
async def hold(path: str) -> str:
    """Wait for the file as a good citizen of the loop."""
    begun(path)
    while not await anyio.Path(path).exists():  # noqa: ASYNC110  # no event crosses processes
        await anyio.sleep(0.01)
    return path


@tasks.task()
async def quick() -> str:
    return "done"


def begun(path: str) -> None:
    with Path(path + ".begun").open("a") as file:
        file.write("x")


def wait(path: str) -> str:
    begun(path)
    while not Path(path).exists():
        time.sleep(0.01)
    return path


if __name__ == "__main__":
    logging.basicConfig(level="INFO")
    Worker(sys.argv[1], tasks=tasks, **json.loads(sys.argv[2])).main()
