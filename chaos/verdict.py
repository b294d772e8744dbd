"""What a run under faults did to its jobs: pure functions over journals and what the store says.

Producers note the id of every acknowledged submit, handlers every start of an attempt. After quiescence the store is
asked for each job's recorded end, and for how many successes its accounts hold.

    lost                    acknowledged jobs without a recorded end
    duplicated_completions  successes in the store's accounts beyond one for each job that succeeded
    stale_writes            jobs whose recorded success is of an attempt that a later one had replaced
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verdict:
    """What went wrong, counted; see the top of this module. ``lost_allowed``: how many the fault may lose."""

    jobs: int
    lost: int
    duplicated_completions: int
    stale_writes: int
    lost_allowed: int = 0

    @property
    def good(self) -> bool:
        """Whether nothing is wrong but what is allowed."""
        return self.lost <= self.lost_allowed and not self.duplicated_completions and not self.stale_writes


def judge(
    acknowledged: Iterable[str],
    starts: Iterable[tuple[str, int]],
    ends: Mapping[str, int],
    accounted: int,
    *,
    buried: Collection[str] = (),
    lost_allowed: int = 0,
) -> Verdict:
    """Compare journals with the store.

    ``starts``: job and attempt of every start that a handler noted. ``ends``: attempt of each recorded success, by
    job; also of jobs whose acknowledgement never came. ``accounted``: successes in the store's accounts.
    ``buried``: jobs that ended without success, which is an end too.
    """
    jobs = set(acknowledged)
    latest: dict[str, int] = {}
    for job_id, attempt in starts:
        latest[job_id] = max(attempt, latest.get(job_id, 0))
    stale = sum(attempt < latest.get(job_id, 0) for job_id, attempt in ends.items())
    lost = len(jobs - ends.keys() - set(buried))
    return Verdict(len(jobs), lost, max(0, accounted - len(ends)), stale, lost_allowed)
