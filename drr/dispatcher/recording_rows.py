"""What a recorded job looks like: columns, times on one axis, names. No I/O, no clock.

The columns are those of the traces that `drr.simulate` reads, and a few more that it leaves alone; what each
means is said in docs/simulate.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, NAME_LENGTH_LIMIT, JobState, Lease, TenantPath

COLUMNS: Final = (
    *("job_id", "submit_s", "duration_s", "estimate_s", "org", "project", "width", "outcome", "kind"),
    *("attempts", "pool", "priority", "start_s", "wait_s", "workers"),
)
HEADER: Final = (",".join(COLUMNS) + "\n").encode()
SHORTEST: Final = 1e-6
"""Seconds that a job is recorded with at least: a trace has no jobs that take no time."""
JUMP: Final = 1.0
"""Seconds by which the wall clock may wander off the monotonic one before that counts as a jump."""
JUMPS_KEPT: Final = 64
PATHS_KEPT: Final = 100_000
_OUTCOMES: Final = {JobState.SUCCEEDED: "ok", JobState.FAILED: "failed", JobState.DEAD: "unknown"}


class End(NamedTuple):
    """How one attempt ended, and its job with it. ``state``: `RUNNING` if it has not, when recording ends."""

    lease: Lease
    state: JobState
    seconds: float


class Batch(NamedTuple):
    """Jobs that ended in one commit: when that was by both clocks, and the live slots of their pools then."""

    now: float
    wall: float
    slots: Mapping[str, int]
    ends: Sequence[End]


class Timeline:
    """Puts wall-clock times on the monotonic axis, across jumps of the wall clock.

    A *stretch* is a time over which both clocks ran alike: it begins at a monotonic ``since`` and has one
    ``offset`` (wall - monotonic). A wall time belongs to the newest stretch that contains what it comes to
    there. A jump is noticed at the note after it, so a stretch begins at the note before that.
    """

    def __init__(self, now: float, wall: float) -> None:
        self._stretches = [(-math.inf, wall - now)]
        self._noted = now

    def note(self, now: float, wall: float) -> None:
        """Take in what both clocks show at one moment."""
        if abs(wall - now - self._stretches[-1][1]) > JUMP:
            self._stretches.append((self._noted, wall - now))
            del self._stretches[:-JUMPS_KEPT]
        self._noted = now

    def place(self, wall: float) -> float:
        """Return the monotonic time of a wall time, at the latest the last note; other hosts' clocks differ."""
        for since, offset in reversed(self._stretches):
            at = wall - offset
            if since <= at <= self._noted + JUMP:
                return min(at, self._noted)
        at = wall - self._stretches[-1][1]
        return at if at <= self._noted else self._noted  # not a number: the last note


class Names:
    """Names as they are, or numbers in their place: ``o0``, ``o0/p0``, in order of first appearance."""

    def __init__(self, *, anonymous: bool) -> None:
        self._anonymous = anonymous
        self._paths: dict[TenantPath, str] = {}
        self._numbers: dict[str, dict[str, str]] = {}

    def tenant(self, path: TenantPath) -> str:
        """Return the two columns ``org,project``. A path of one name is its own project; deeper names are joined."""
        found = self._paths.get(path)
        if found is None:
            organisation = path[0]
            project = ".".join(path[1:])[-NAME_LENGTH_LIMIT:] or organisation
            if self._anonymous:
                organisation, project = (
                    self._number("o", organisation),
                    self._number(f"p{organisation}", project, "p"),
                )
            if len(self._paths) >= PATHS_KEPT:
                self._paths.clear()
            found = self._paths[path] = f"{organisation},{organisation}/{project}"
        return found

    def other(self, letter: str, name: str) -> str:
        """Return the name of a pool (``q``) or task (``k``)."""
        return self._number(letter, name) if self._anonymous else name

    def _number(self, kind: str, name: str, letter: str = "") -> str:
        numbers = self._numbers.setdefault(kind, {})
        return numbers.setdefault(name, f"{letter or kind}{len(numbers)}")


class Scribe:
    """Writes the rows of one recording. Times count from the last `begin`."""

    def __init__(self, now: float, wall: float, *, anonymous: bool) -> None:
        """``now`` (monotonic) and ``wall`` are the same moment: the start."""
        self._names = Names(anonymous=anonymous)
        self._timeline = Timeline(now, wall)
        self._began = now

    def begin(self, now: float) -> None:
        """Count times from ``now`` on: a new file."""
        self._began = now

    def rows(self, batch: Batch) -> bytes:
        """Return the rows of a batch, as they stand in the file."""
        self._timeline.note(batch.now, batch.wall)
        return "".join([self._row(end, batch.slots) for end in batch.ends]).encode()

    def _row(self, end: End, slots: Mapping[str, int]) -> str:
        lease, state, seconds = end
        header = lease.header
        lane, place, began = header.lane, self._timeline.place, self._began
        start = place(lease.dispatched_at)
        wait = max(0.0, start - place(header.submitted_at))
        submit = max(0.0, start - wait - began)
        estimate = header.estimate
        shown = f"{estimate:.6f}" if estimate is not None and ESTIMATE_MIN <= estimate <= ESTIMATE_MAX else ""
        names = self._names
        return (
            f"{header.sequence},{submit:.6f},{max(SHORTEST, seconds):.6f},{shown},{names.tenant(lane.path)},1,"
            f"{_OUTCOMES.get(state, 'unfinished')},{names.other('k', header.task)},{lease.attempt},"
            f"{names.other('q', lane.pool)},{lane.priority},{max(submit, start - began):.6f},{wait:.6f},"
            f"{slots.get(lane.pool, 0)}\n"
        )


def sort_key(line: bytes) -> tuple[float, int] | None:
    """Return where a row belongs in a trace, or ``None`` if it is none, such as one that was cut off."""
    if not line.endswith(b"\n") or line.count(b",") != len(COLUMNS) - 1:
        return None
    number, submit, _ = line.split(b",", 2)
    try:
        return float(submit), int(number)
    except ValueError:
        return None  # a header
