"""What a simulation says: plain values, and their JSON.

Definitions (seconds are virtual throughout, except where said):

wait
    from a job's arrival to its first start. Percentiles are by nearest rank, and exact for projects with up to
    100,000 jobs; beyond that they have four digits (the longest wait stays exact), so that a project's waits take
    up a few megabytes at most.
worker-seconds
    what attempts really held slots for, lost ones included.
share, entitled
    means over the time in which the tenant had jobs waiting: what part of the running jobs of its siblings and
    itself were its own, and what part its weight is of the weights of the siblings that had jobs waiting then.
capped, borrowing
    time with jobs waiting at the hard cap; time with more running than the soft cap.
jain
    Jain's index of worker-seconds by weight over organisations that had jobs waiting throughout a time window,
    averaged over the windows with two or more of them; 1 is equal, and also said when there is no such window.
longest_run
    most consecutive starts of one organisation while another had a job waiting.
idle_while_runnable_s
    slot-less time: seconds in which a slot was free while a job may have started (a reserve apart). Must be 0.
drift_over_bound
    the largest (r_i + r_j)/(b_i + b_j) over siblings at every node. ``b`` is the tenant's part of the bound in
    docs/concepts.md, with the largest values seen; ``r`` the range, over a stretch in which it contended (had jobs
    waiting, below its soft cap, owed no floor), of its charges by weight less a reference common to its siblings.
    Any common reference will do: r_i + r_j is at least what the two drifted apart in any common interval, so up
    to 1 the bound was held. For ``drr`` it is the level's rounds, for the others the sibling that has contended
    longest; where that changes often, they look worse than they are.
"""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from typing import Any

from drr.model import TenantPath

SMALL = 10
"""Most jobs of an organisation that counts as small."""


@dataclass(frozen=True, slots=True)
class Waits:
    """Percentiles of waits, in seconds."""

    p50: float
    p95: float
    p99: float
    max: float

    @staticmethod
    def of(values: array[float], counts: Mapping[float, int] | None = None) -> Waits:
        """Return the percentiles of ``values`` and those in ``counts``, by nearest rank; zeros if there are none."""
        ordered = sorted(values)
        more = sorted((counts or {}).items())
        count = len(ordered) + sum(times for _, times in more)
        if not count:
            return Waits(0.0, 0.0, 0.0, 0.0)
        ranks = [max(1, math.ceil(count * part)) for part in (0.5, 0.95, 0.99, 1.0)]
        if not more:
            return Waits(*(ordered[rank - 1] for rank in ranks))
        found: list[float] = []
        passed = 0
        for value, times in merge(((value, 1) for value in ordered), more):
            passed += times
            while len(found) < len(ranks) and passed >= ranks[len(found)]:
                found.append(value)
        return Waits(*found)

    def to_dict(self) -> dict[str, float]:
        """Return the percentiles by name, to the microsecond."""
        return {"p50": _round(self.p50), "p95": _round(self.p95), "p99": _round(self.p99), "max": _round(self.max)}


@dataclass(frozen=True, slots=True)
class TenantResult:
    """One organisation (one name in ``path``) or project (two). ``share`` and ``entitled`` among its siblings."""

    path: TenantPath
    weight: float
    jobs: int
    worker_seconds: float
    wait_s: Waits
    share: float
    entitled: float
    backlogged_s: float
    capped_s: float
    borrowing_s: float

    def to_dict(self) -> dict[str, Any]:
        """Return the row as plain data."""
        return {
            "tenant": "/".join(self.path),
            "weight": self.weight,
            "jobs": self.jobs,
            "worker_seconds": _round(self.worker_seconds),
            "wait_s": self.wait_s.to_dict(),
            "share": _round(self.share),
            "entitled": _round(self.entitled),
            "backlogged_s": _round(self.backlogged_s),
            "capped_s": _round(self.capped_s),
            "borrowing_s": _round(self.borrowing_s),
        }


@dataclass(frozen=True, slots=True)
class Usage:
    """What one organisation had in a window: worker-seconds, first starts, the sum and largest of their waits."""

    worker_seconds: float
    starts: int
    wait_sum: float
    wait_max: float


@dataclass(frozen=True, slots=True)
class TimeWindow:
    """A stretch of virtual time, for charts; organisations without a start or a running job are left out."""

    start: float
    end: float
    utilisation: float
    waiting: int
    usage: Mapping[str, Usage]


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """How one policy did on the trace. ``starts``: attempts begun; ``unfinished``: jobs not ended by then."""

    name: str
    jobs: int
    starts: int
    unfinished: int
    makespan_s: float
    utilisation: float
    wait_s: Waits
    small_orgs_p95_s: float
    worst_org_p95_s: float
    jain: float
    longest_run: int
    idle_while_runnable_s: float
    drift_over_bound: float
    seconds: float
    """Real seconds that the simulation took."""
    tenants: Sequence[TenantResult]
    windows: Sequence[TimeWindow]

    def to_dict(self, *, tenants: bool) -> dict[str, Any]:
        """Return the result as plain data, without what differs between two equal runs."""
        found: dict[str, Any] = {
            "jobs": self.jobs,
            "starts": self.starts,
            "unfinished": self.unfinished,
            "makespan_s": _round(self.makespan_s),
            "utilisation": _round(self.utilisation),
            "wait_s": self.wait_s.to_dict(),
            "small_orgs_p95_s": _round(self.small_orgs_p95_s),
            "worst_org_p95_s": _round(self.worst_org_p95_s),
            "jain": _round(self.jain),
            "longest_run": self.longest_run,
            "idle_while_runnable_s": _round(self.idle_while_runnable_s),
            "drift_over_bound": _round(self.drift_over_bound),
        }
        if tenants:
            found["tenants"] = [tenant.to_dict() for tenant in self.tenants]
        return found


@dataclass(frozen=True, slots=True)
class Run:
    """A trace under one or several policies. ``workers``: slots, the most at any time."""

    trace: str
    workers: int
    policies: Mapping[str, PolicyResult]

    @property
    def seconds(self) -> float:
        """Real seconds that all simulations took."""
        return sum(policy.seconds for policy in self.policies.values())

    @property
    def dispatches_per_s(self) -> float:
        """Starts per real second."""
        return sum(policy.starts for policy in self.policies.values()) / max(self.seconds, 1e-9)

    def to_dict(self, *, tenants: bool = False, timing: bool = True) -> dict[str, Any]:
        """Return the whole as plain data; without ``timing`` two runs of one seed are equal, byte by byte."""
        return {
            "trace": self.trace,
            "workers": self.workers,
            "seconds": round(self.seconds, 3) if timing else None,
            "dispatches_per_s": round(self.dispatches_per_s) if timing else None,
            "policies": {name: policy.to_dict(tenants=tenants) for name, policy in self.policies.items()},
        }

    def to_json(self, *, tenants: bool = False, timing: bool = True) -> str:
        """Return the whole as one line of JSON."""
        return json.dumps(self.to_dict(tenants=tenants, timing=timing), allow_nan=False)


def _round(value: float) -> float:
    return round(value, 6)
