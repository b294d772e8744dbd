"""The Standard Workload Format: one job a line, 18 numbers, comments after ``;``.

Fields as the archive defines them (Chapin et al., "Benchmarks and Standards for the Evaluation of Parallel Job
Schedulers", JSSPP 1999), counted from 1: 2 submit time, 4 run time, 9 requested time, 12 user, 13 group; -1 means
unknown. A group becomes an organisation ``g<number>``, a user its project ``u<number>``, the requested time
the estimate. Jobs that did not run are left out, and counted (`SwfTrace.left_out`). A job counts as one slot,
however many processors it had.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from drr.errors import TraceError
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN
from drr.simulate.trace import SECONDS_MAX, Arrival, FileSource, Paths, read_text

FIELDS: Final = 18
_USED: Final = {1: "submit time", 3: "run time", 8: "requested time", 11: "user", 12: "group"}
_NUMBERS: Final = frozenset((11, 12))


class SwfTrace(FileSource):
    """A log in the Standard Workload Format. ``left_out``: jobs that did not run, as of the last reading."""

    clock = "submit time"
    left_out: int = 0

    def rows(self) -> Iterator[tuple[int, Arrival]]:
        """Yield line numbers and jobs as the file has them."""
        paths = Paths()
        self.left_out = 0
        for number, line in read_text(self._path):
            text = line.strip()
            if not text or text.startswith(";"):
                continue
            fields = text.split()
            if len(fields) != FIELDS:
                raise TraceError(self._path, number, "", f"{len(fields)} fields", f"a job has {FIELDS}")
            values = [self._number(number, index, fields[index]) for index in _USED]
            at, duration, requested, user, group = values
            if duration <= 0.0:
                self.left_out += 1
                continue
            if at < 0.0:
                raise TraceError(self._path, number, "submit time", fields[1], "it must be at least 0")
            estimate = min(max(requested, ESTIMATE_MIN), ESTIMATE_MAX) if requested > 0.0 else None
            yield number, Arrival(at, duration, estimate, paths.path(f"g{group:.0f}", f"u{user:.0f}"))

    def _number(self, line: int, index: int, text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise TraceError(self._path, line, _USED[index], text, "it must be a number") from None
        if not -SECONDS_MAX <= value <= SECONDS_MAX:
            raise TraceError(self._path, line, _USED[index], text, f"it must be finite, and at most {SECONDS_MAX:g}")
        if index in _NUMBERS and value != int(value):
            raise TraceError(self._path, line, _USED[index], text, "it must be a whole number, or -1 for unknown")
        return value
