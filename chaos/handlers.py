"""The handlers that the workers run: they hold a slot for a time, and write down that they did."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from chaos.journal import Journal
from drr.worker import Context, Tasks

tasks = Tasks()
_journal = Journal()


@contextmanager
def _noted(context: Context, label: str) -> Iterator[None]:
    facts = (os.getpid(), context.attempt, label, context.job_id)
    _journal.note("S", *facts)
    try:
        yield
    finally:
        _journal.note("E", *facts)


@tasks.task()
async def spend(context: Context, label: str, seconds: float, ballast: str = "") -> str:
    """Hold a slot for a time; return the label. ``ballast`` gives the job a size."""
    with _noted(context, label):
        await anyio.sleep(seconds)
    return label


@tasks.task()
async def die(context: Context, label: str, seconds: float) -> None:
    """Kill the worker after a time, as a fault in native code would."""
    with _noted(context, label):
        await anyio.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)
