"""The handlers of the demo's workers: ``drr worker drr.demo.tasks:tasks``.

The work is waiting, as most work of a service is; each attempt is written into the journal.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from drr.clock import SystemClock
from drr.demo.journal import DIRECTORY_VARIABLE, Writer
from drr.worker import Context, Tasks

tasks = Tasks()
_clock = SystemClock()


@cache
def _journal() -> Writer:
    return Writer(Path(os.environ[DIRECTORY_VARIABLE]), _clock)


async def _work(context: Context, seconds: float) -> None:
    journal = _journal()
    journal.start(context.job_id, context.attempt, context.submitted_at)
    try:
        await _clock.sleep(seconds)
    finally:
        journal.end(context.job_id, context.attempt)


@tasks.task()
async def import_rows(context: Context, seconds: float) -> None:
    """Import some rows."""
    await _work(context, seconds)


@tasks.task()
async def send_email(context: Context, seconds: float) -> None:
    """Send an email."""
    await _work(context, seconds)


@tasks.task()
async def make_report(context: Context, seconds: float) -> None:
    """Make a report."""
    await _work(context, seconds)
