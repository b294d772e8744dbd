"""What producers and handlers write down for themselves, on disk, before anybody else is told.

A file per process in one directory, a line per fact, each written by one call, so that a killed process leaves
whole lines. Times are of the monotonic clock, which the processes of a machine share.

    S time pid attempt label job   a handler began an attempt
    E time pid attempt label job   and came to its end
    A time label job               a submit was acknowledged
    R time label error             a submit was refused, and will be tried again
    U time label error             it is not known whether a submit was carried out
    X time label problem           something was seen that must never be: another job's result, say
    D time number                  a producer has done all of an order

A *label* names what the producer wants done once: ``order.producer.number``. Two jobs with one label are one
submit carried out twice.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

DIRECTORY = "DRR_CHAOS_JOURNAL"
"""Environment variable that names the directory."""


class Journal:
    """A file of this process's own; opened at the first line. ``directory``: other than the environment names."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory
        self._file: int | None = None

    def note(self, kind: str, *facts: object) -> None:
        """Write one line."""
        if self._file is None:
            directory = self._directory or Path(os.environ[DIRECTORY])
            path = directory / f"{os.getpid()}-{time.monotonic_ns()}.journal"
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        text = " ".join(str(fact).replace("\n", " ") for fact in facts)
        os.write(self._file, f"{kind} {time.monotonic():.6f} {text}\n".encode())


@dataclass(slots=True)
class Run:
    """One start of a handler; ``ended`` is ``None`` while it runs, or if its process is gone."""

    job_id: str
    label: str
    attempt: int
    pid: int
    started: float
    ended: float | None = None


@dataclass(slots=True)
class Told:
    """A line of a producer. ``about``: the job, or what went wrong."""

    at: float
    label: str
    about: str


@dataclass(slots=True)
class Facts:
    """Everything that has been read of one order's journals."""

    runs: list[Run] = field(default_factory=list)
    acknowledged: list[Told] = field(default_factory=list)
    refused: list[Told] = field(default_factory=list)
    unknown: list[Told] = field(default_factory=list)
    impossible: list[Told] = field(default_factory=list)
    done: int = 0

    @property
    def jobs_by_label(self) -> dict[str, set[str]]:
        """Every job that is known to exist, by its label."""
        found: dict[str, set[str]] = {}
        for told in self.acknowledged:
            found.setdefault(told.label, set()).add(told.about)
        for run in self.runs:
            found.setdefault(run.label, set()).add(run.job_id)
        return found

    def open_runs(self, pid: int) -> list[Run]:
        """Return what a process has begun and not ended."""
        return [run for run in self.runs if run.pid == pid and run.ended is None]


class Journals:
    """All journals of a directory, read as they grow."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._offsets: dict[Path, int] = {}
        self._orders: dict[str, Facts] = {}
        self._open: dict[tuple[int, str, int], list[Run]] = {}

    def of(self, order: str) -> Facts:
        """Read on, and return what is known of an order."""
        for path in self._directory.glob("*.journal"):
            with path.open("rb") as file:
                file.seek(self._offsets.get(path, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(newline)
            for line in whole.decode().splitlines():
                self._take(*line.split(" ", 2))
        return self._order(order)

    def forget(self, order: str) -> None:
        """Let go of an order that has been judged."""
        self._orders.pop(order, None)

    def _order(self, label: str) -> Facts:
        return self._orders.setdefault(label.partition(".")[0], Facts())

    def _take(self, kind: str, at: str, rest: str) -> None:
        when = float(at)
        if kind in "SE":
            pid, attempt, label, job_id = rest.split(" ")
            key = (int(pid), job_id, int(attempt))
            if kind == "E":
                self._open[key].pop(0).ended = when
                return
            run = Run(job_id, label, int(attempt), int(pid), when)
            self._open.setdefault(key, []).append(run)
            self._order(label).runs.append(run)
            return
        label, _, about = rest.partition(" ")
        facts = self._order(label)
        if kind == "D":
            facts.done += 1
            return
        lists = {"A": facts.acknowledged, "R": facts.refused, "U": facts.unknown, "X": facts.impossible}
        lists[kind].append(Told(when, label, about))
