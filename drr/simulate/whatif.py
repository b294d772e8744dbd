"""Who gains and who loses between two runs of one trace: tenant by tenant, largest change first.

A tenant *gains* if it waits less. What counts is its p99 wait; if that stays, its p50; if that stays too, its
share of the worker-seconds while it had work. A change below `NOISE` of the larger value, or below a
millisecond (a tenth of a percentage point for shares), counts as none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from drr.model import TenantPath
from drr.simulate.results import PolicyResult, Run, TenantResult

NOISE: Final = 0.01
_LEAST_WAIT: Final = 0.001
_LEAST_SHARE: Final = 0.001


class Verdict(StrEnum):
    """What a change means for the tenant."""

    GAINS = "gains"
    LOSES = "loses"
    SAME = "same"


@dataclass(frozen=True, slots=True)
class Pair:
    """A figure before and after; ``None`` where there was nothing to measure."""

    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """The difference, or ``None`` if one of the two is missing."""
        return None if self.before is None or self.after is None else self.after - self.before

    def moved(self, least: float) -> float:
        """Return the difference, or 0 if it is noise or unknown."""
        change = self.change
        if change is None or self.before is None or self.after is None:
            return 0.0
        return change if abs(change) >= max(least, NOISE * max(abs(self.before), abs(self.after))) else 0.0


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one organisation (a path of one name) or project. Waits in seconds, shares 0 to 1."""

    path: TenantPath
    jobs: int
    wait_p50: Pair
    wait_p99: Pair
    share: Pair

    @property
    def verdict(self) -> Verdict:
        """Whether the tenant gains or loses."""
        worse = self.wait_p99.moved(_LEAST_WAIT) or self.wait_p50.moved(_LEAST_WAIT)
        worse = worse or -self.share.moved(_LEAST_SHARE)
        if worse == 0.0:
            return Verdict.SAME
        return Verdict.LOSES if worse > 0.0 else Verdict.GAINS

    @property
    def size(self) -> tuple[float, float, float]:
        """How much changes: what changes are ordered by."""
        return (
            abs(self.wait_p99.moved(_LEAST_WAIT)),
            abs(self.wait_p50.moved(_LEAST_WAIT)),
            abs(self.share.moved(_LEAST_SHARE)),
        )


def compare(before: PolicyResult, after: PolicyResult, *, depth: int = 1) -> list[Change]:
    """Return what changes for each tenant of at most ``depth`` levels, largest change first.

    A tenant that only one of the two runs knows (because the other ended before its first job) is there too.
    """
    old = {row.path: row for row in before.tenants if len(row.path) <= depth}
    new = {row.path: row for row in after.tenants if len(row.path) <= depth}
    changes = [_change(path, old.get(path), new.get(path)) for path in dict.fromkeys([*old, *new])]
    return sorted(changes, key=lambda change: (*(-size for size in change.size), change.path))


def _change(path: TenantPath, old: TenantResult | None, new: TenantResult | None) -> Change:
    def pair(figure: Callable[[TenantResult], float | None]) -> Pair:
        return Pair(None if old is None else figure(old), None if new is None else figure(new))

    return Change(
        path,
        max(row.jobs for row in (old, new) if row is not None),
        pair(lambda row: row.wait_s.p50),
        pair(lambda row: row.wait_s.p99),
        pair(lambda row: row.share if row.backlogged_s > 0.0 else None),
    )


def counted(changes: Iterable[Change]) -> dict[Verdict, int]:
    """Return how many tenants gain, lose and see no change."""
    counts = dict.fromkeys(Verdict, 0)
    for change in changes:
        counts[change.verdict] += 1
    return counts


def to_json(changes: Sequence[Change]) -> list[dict[str, Any]]:
    """Return the changes as plain data, in their order."""
    return [
        {
            "tenant": "/".join(change.path),
            "verdict": str(change.verdict),
            "jobs": change.jobs,
            "wait_p50_s": {"before": change.wait_p50.before, "after": change.wait_p50.after},
            "wait_p99_s": {"before": change.wait_p99.before, "after": change.wait_p99.after},
            "share": {"before": change.share.before, "after": change.share.after},
        }
        for change in changes
    ]


def side_by_side(before: Run, after: Run, names: tuple[str, str]) -> Run:
    """Return one run of the two, each of which has one result, under ``names`` (those of two plans files, say).

    Names that are equal are told apart by what they stand for.
    """
    first, second = names if names[0] != names[1] else (f"{names[0]} (before)", f"{names[1]} (after)")
    (old,), (new,) = before.policies.values(), after.policies.values()
    results = {first: replace(old, name=first), second: replace(new, name=second)}
    return Run(after.trace, max(before.workers, after.workers), results)
