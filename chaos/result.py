"""What came of a row on a server, and of all of them together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

TOTALS: Final = ("faults", "jobs", "lost", "lost_allowed", "duplicated_completions", "stale_writes")
"""What is added up over rows."""


@dataclass(slots=True)
class Result:
    """What came of one row on one server. ``skipped``: why it was not run, or empty. ``stuck``: no other can be."""

    fault: str
    server: str
    skipped: str = ""
    faults: int = 0
    jobs: int = 0
    lost: int = 0
    lost_allowed: int = 0
    duplicated_completions: int = 0
    stale_writes: int = 0
    leaks: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    takeovers: list[float] = field(default_factory=list)
    stuck: bool = False

    @property
    def good(self) -> bool:
        """Whether nothing is wrong but what is allowed."""
        bad = self.duplicated_completions or self.stale_writes or self.leaks or self.problems
        return not bad and self.lost <= self.lost_allowed

    def shown(self) -> dict[str, Any]:
        """Return what the final line tells of it."""
        if self.skipped:
            return {"skipped": self.skipped}
        left_out = ("fault", "server", "skipped", "takeovers", "stuck")
        told = {name: value for name, value in asdict(self).items() if name not in left_out}
        return told | {"seconds": round(self.seconds, 1), "good": self.good}


def summary(results: Sequence[Result]) -> dict[str, Any]:
    """Return what the driver's last line says: the figures of all rows together, and each by itself."""
    by_fault: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        by_fault.setdefault(result.fault, {}).setdefault(result.server, []).append(result)
    takeovers = sorted(seconds for result in results for seconds in result.takeovers)
    p99 = takeovers[math.ceil(0.99 * len(takeovers)) - 1] if takeovers else None
    return {
        **{name: sum(getattr(result, name) for result in results) for name in TOTALS},
        "leaks": sum(len(result.leaks) for result in results),
        "takeover_p99_ms": None if p99 is None else round(p99 * 1000),
        "by_fault": {
            fault: {server: _merged(found).shown() for server, found in by_server.items()}
            for fault, by_server in by_fault.items()
        },
    }


def _merged(results: Sequence[Result]) -> Result:
    """Return several results of the same row and server as one."""
    first = results[0]
    if len(results) == 1:
        return first
    merged = Result(first.fault, first.server, first.skipped)
    for name in (*TOTALS, "seconds"):
        setattr(merged, name, sum(getattr(result, name) for result in results))
    merged.problems = [problem for result in results for problem in result.problems]
    merged.leaks = _added(result.leaks for result in results)
    merged.notes = {**_added(result.notes for result in results), "runs": len(results)}
    return merged


def _added(counts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for count in counts:
        for name, value in count.items():
            # A figure in seconds is the longest of its kind, and does not add up.
            total[name] = max(total.get(name, 0), value) if name.endswith("_s") else total.get(name, 0) + value
    return total
