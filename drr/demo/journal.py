"""What the handlers write down: every start and end of an attempt, with the time at which it happened.

The figures of the demo come from here and not from the dispatcher's own books. One file per worker process, one
line per fact, appended in one write:

    S job attempt time waited      an attempt starts; it was submitted ``waited`` seconds ago
    E job attempt time             it ends

Times are the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from drr.clock import Clock
from drr.model import parse_job_id

DIRECTORY_VARIABLE: Final = "DRR_DEMO_JOURNAL"


@dataclass(slots=True)
class Run:
    """One attempt as its handler saw it; ``ended`` is ``None`` while it runs, or if its process died."""

    job_id: str
    attempt: int
    organisation: str
    started: float
    waited: float
    ended: float | None = None

    def held(self, since: float, until: float) -> float:
        """Return the seconds of this run that lie between ``since`` and ``until``."""
        ended = until if self.ended is None else min(self.ended, until)
        return max(0.0, ended - max(self.started, since))


class Writer:
    """The journal of this process."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._clock = clock
        self._file = os.open(directory / f"{os.getpid()}.journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def start(self, job_id: str, attempt: int, submitted_at: float) -> None:
        """Note that an attempt starts now."""
        waited = max(0.0, self._clock.wall() - submitted_at)
        self._write(f"S {job_id} {attempt} {self._clock.monotonic():.6f} {waited:.6f}")

    def end(self, job_id: str, attempt: int) -> None:
        """Note that it ends now."""
        self._write(f"E {job_id} {attempt} {self._clock.monotonic():.6f}")

    def _write(self, line: str) -> None:
        os.write(self._file, f"{line}\n".encode())


class Reader:
    """All journals of a directory, read as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._runs: dict[tuple[str, int], Run] = {}

    @property
    def runs(self) -> list[Run]:
        """All runs read so far, in the order in which their starts were read."""
        return list(self._runs.values())

    def read(self) -> None:
        """Take in what was written since the last call."""
        for path in sorted(self._directory.glob("*.journal")):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            for line in whole.decode().splitlines():
                self._note(line.split())

    def _note(self, words: list[str]) -> None:
        kind, job_id, attempt, time, *waited = words
        key = (job_id, int(attempt))
        if kind == "S":
            lane, _, _ = parse_job_id(job_id)
            self._runs[key] = Run(job_id, int(attempt), lane.path[0], float(time), float(waited[0]))
        else:
            self._runs[key].ended = float(time)
