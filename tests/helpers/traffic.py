"""Ends of jobs, as the dispatcher hands them to a recorder, and the rows that come of them."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

from drr.backend import Settlement
from drr.dispatcher.recording_rows import HEADER, Batch, End, Scribe
from drr.model import Completion, Header, JobState, Lane, Lease

WALL = 1_700_000_000.0
"""What the wall clock shows when the monotonic one shows 0."""
ACME = Lane("default", ("acme", "web"))


def lease(number: int = 1, *, submitted: float = 0.0, started: float = 0.0, **fields: Any) -> Lease:
    """Return an attempt of a job; its times are monotonic ones, on a wall clock that never jumped."""
    attempt = fields.pop("attempt", 1)
    fields = {"lane": ACME, "nonce": "n", "task": "mail", "estimate": 2.0, **fields}
    header = Header(sequence=number, submitted_at=WALL + submitted, attempts=attempt - 1, **fields)
    return Lease(f"t{number}", header, attempt, WALL + started, 1.0)


def settled(found: Lease, seconds: float = 1.0, state: JobState = JobState.SUCCEEDED) -> Settlement:
    return Settlement(found, Completion(state, found.attempt, found.dispatched_at + seconds, seconds))


def row(
    scribe: Scribe,
    found: Lease,
    now: float,
    wall: float | None = None,
    state: JobState = JobState.SUCCEEDED,
    seconds: float = 1.0,
) -> dict[str, str]:
    """Return the one row of a batch of one."""
    batch = Batch(now, WALL + now if wall is None else wall, {"default": 7}, [End(found, state, seconds)])
    return read(HEADER + scribe.rows(batch))[0]


def read(file: Path | bytes) -> list[dict[str, str]]:
    """Return the rows of a trace."""
    data = file if isinstance(file, bytes) else file.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        data = gzip.decompress(data)
    return list(csv.DictReader(io.StringIO(data.decode())))
