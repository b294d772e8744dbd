"""Results of runs that never were, for the tests of reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drr.model import TenantPath
from drr.simulate.results import PolicyResult, Run, TenantResult, TimeWindow, Usage, Waits


def tenant(
    path: TenantPath,
    *,
    p50: float = 1.0,
    p99: float = 10.0,
    share: float = 0.5,
    jobs: int = 20,
    backlogged: float = 60.0,
) -> TenantResult:
    """Return a row; worker-seconds are ten for each job."""
    waits = Waits(p50, (p50 + p99) / 2, p99, p99)
    return TenantResult(path, 1.0, jobs, 10.0 * jobs, waits, share, 0.5, backlogged, 30.0, 15.0)


def policy(name: str, tenants: Sequence[TenantResult], usage: Sequence[Mapping[str, Usage]] = ()) -> PolicyResult:
    """Return a result with windows of ten seconds."""
    windows = [TimeWindow(10.0 * i, 10.0 * (i + 1), 0.9, 3, used) for i, used in enumerate(usage)]
    waits = Waits(1.0, 5.0, 10.0, 20.0)
    return PolicyResult(
        name=name,
        jobs=1234,
        starts=1240,
        unfinished=0,
        makespan_s=7200.0,
        utilisation=0.9,
        wait_s=waits,
        small_orgs_p95_s=2.5,
        worst_org_p95_s=90.0,
        jain=0.987,
        longest_run=7,
        idle_while_runnable_s=0.0,
        drift_over_bound=0.25,
        seconds=0.5,
        tenants=tenants,
        windows=windows,
    )


def run(*policies: str, organisations: Sequence[str] = ("acme", "globex")) -> Run:
    """Return a run in which the n-th policy makes everybody wait 10^n seconds."""
    results = {}
    for number, name in enumerate(policies):
        wait = 10.0**number
        rows = [tenant((who,), p50=wait, p99=wait * (2 + i), jobs=100 - i) for i, who in enumerate(organisations)]
        rows += [tenant((who, "p01"), p50=wait, p99=wait * 2) for who in organisations]
        used = {who: Usage(5.0, 2, 2 * wait, wait) for who in organisations}
        results[name] = policy(name, rows, [used, {}, used])
    return Run("tuesday.csv.gz", 42, results)
