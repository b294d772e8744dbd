"""Scenarios at full size, in virtual time: ``python -m bench.scenarios`` (or ``make bench-scenarios``).

    S2   20 slots; one tenant submits 50,000 jobs of 0.28 s, 30 others one each 2 s: FIFO, a hard cap of 4, a soft
         cap of 4
    S3   100 slots; one tenant submits 2,000,000 jobs of 30 s, 200 others three an hour each for a week: a soft cap of
         20 %, a hard cap of 20 %, the soft cap with a reserve of 5 slots; and the first with 20,000 jobs
    S7   20 slots; jobs of 1 s that keep all of 200, then of 20,000 organisations waiting: cost of a decision, as the
         difference between 200,000 and 400,000 of them, in CPU time, the median of five runs each. The
         steps are the same (tests count them); what differs are cache misses and the garbage collector's rounds

Each line is one simulation in a process of its own: jobs, makespan, the p99 and longest wait of the others, real
seconds, dispatches a second, and the largest resident size of the process, reading included. Exit code 1 if an
expectation (see `Case.expect`) is not met; it is named on stderr.

Last line: JSON with ``cases`` by name: ``jobs``, ``makespan_s``, ``others_p99_s``, ``others_max_s``, ``seconds``,
``cpu_s``, ``dispatches_per_s`` and ``max_rss_mb``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from drr.model import NodePolicy, PoolPolicy, Share, TenantPath
from drr.simulate.run import Setup, simulate, slots_of
from drr.simulate.trace import open_source

BIG = "importer"
WEEK = 600_000
S7_RUNS = 5
FREE, POOL = NodePolicy(), PoolPolicy()


def s2(jobs: int = 50_000, end: int = 1_000) -> str:
    """Return the scenario: one bulk, and 30 tenants that submit a job every 2 s on average until ``end``."""
    durations = "durations = { kind = 'lognormal', median = 0.28, sigma = 0.3 }"
    return f"""
workers = 20
[[tenants]]
organisation = "{BIG}"
arrivals = {{ kind = "bulk", jobs = {jobs} }}
{durations}
[[tenants]]
organisation = "shop"
organisations = 30
arrivals = {{ kind = "poisson", rate = 0.5, end = {end} }}
{durations}
"""


def s3(jobs: int = 2_000_000, end: int = WEEK) -> str:
    """Return the scenario: one backlog of 30 s jobs, and 200 tenants that submit three an hour each until ``end``."""
    return f"""
workers = 100
[[tenants]]
organisation = "{BIG}"
arrivals = {{ kind = "bulk", jobs = {jobs} }}
durations = {{ kind = "constant", seconds = 30 }}
[[tenants]]
organisation = "shop"
organisations = 200
arrivals = {{ kind = "poisson", rate = {3 / 3600}, end = {end} }}
durations = {{ kind = "constant", seconds = 30 }}
"""


def s7(organisations: int, jobs: int) -> str:
    """Return the scenario: ``organisations`` with ``jobs`` each at once."""
    return f"""
workers = 20
[[tenants]]
organisation = "{BIG}"
organisations = {organisations}
arrivals = {{ kind = "bulk", jobs = {jobs} }}
durations = {{ kind = "constant", seconds = 1 }}
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What came out; ``others``: all but the tenant with the bulk."""

    jobs: int
    makespan_s: float
    big_s: float
    """When the last job of the big tenant started."""
    idle_s: float
    others_p99_s: float
    others_max_s: float
    seconds: float
    cpu_s: float
    dispatches_per_s: float
    max_rss_mb: float


@dataclass(frozen=True, slots=True)
class Case:
    """One simulation, and what is expected of it: a sentence and whether it holds."""

    name: str
    scenario: str
    big: NodePolicy = FREE
    pool: PoolPolicy = POOL
    policy: str = "drr"
    until: float = float("inf")
    expect: Mapping[str, Callable[[Figures], bool]] = field(default_factory=dict)


def policy_of(big: NodePolicy, path: TenantPath) -> NodePolicy:
    """Return the policy of a tenant: ``big``'s for the one with the bulk."""
    return big if path == (BIG,) else NodePolicy()


def play(case: Case) -> Figures:
    """Run one case."""
    began, worked = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scenario.toml"
        path.write_text(case.scenario)
        source = open_source(str(path), until=case.until)
        setup = Setup(slots_of(source), case.pool, partial(policy_of, case.big), case.until)
        result = simulate(source, setup, [case.policy]).policies[case.policy]
    others = [row for row in result.tenants if len(row.path) == 1 and row.path[0] != BIG]
    big = [row for row in result.tenants if row.path == (BIG,)]
    return Figures(
        jobs=result.jobs,
        makespan_s=round(result.makespan_s, 3),
        big_s=round(max((row.wait_s.max for row in big), default=0.0), 3),
        idle_s=round(result.idle_while_runnable_s, 6),
        others_p99_s=round(max((row.wait_s.p99 for row in others), default=0.0), 6),
        others_max_s=round(max((row.wait_s.max for row in others), default=0.0), 6),
        seconds=round(time.perf_counter() - began, 3),
        cpu_s=round(time.process_time() - worked, 3),
        dispatches_per_s=round(result.starts / result.seconds),
        max_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    )


SOFT, HARD = NodePolicy(soft_cap=Share(0.2)), NodePolicy(hard_cap=Share(0.2))
MINUTES = 60.0
HOUR = 3600.0
IN_BOUNDS: Mapping[str, Callable[[Figures], bool]] = {
    "under 5 minutes": lambda f: f.seconds < 5 * MINUTES,
    "under 500 MB": lambda f: f.max_rss_mb < 500,
}


def s2_cases(jobs: int = 50_000, end: int = 1_000) -> list[Case]:
    """Return S2 (a), (b) and (c); what is expected is for the full size."""
    part = jobs / 50_000
    return [
        Case(
            "S2 fifo",
            s2(jobs, end),
            policy="fifo",
            expect={"others wait up to 12 minutes": lambda f: 11 * MINUTES < f.others_max_s / part < 13 * MINUTES},
        ),
        Case(
            "S2 hard cap 4",
            s2(jobs, end),
            NodePolicy(hard_cap=4),
            expect={
                "the others' p99 wait is below 0.02 s": lambda f: f.others_p99_s < 0.02,
                "the import takes about an hour": lambda f: 0.9 * HOUR < f.big_s / part < 1.1 * HOUR,
            },
        ),
        Case(
            "S2 soft cap 4",
            s2(jobs, end),
            NodePolicy(soft_cap=4),
            expect={
                "the others' p99 wait is below 0.15 s": lambda f: f.others_p99_s < 0.15,
                "the import takes about 15 minutes": lambda f: 12 * MINUTES < f.big_s / part < 18 * MINUTES,
                "no slot is idle": lambda f: f.idle_s == 0.0,
            },
        ),
    ]


def s3_cases(jobs: int = 2_000_000, end: int = WEEK, until: float = float("inf")) -> list[Case]:
    """Return S3 (a), and (b) in its two ways."""
    quick = {"the others' p99 wait is at most 0.1 s": lambda f: f.others_p99_s <= 0.1}
    return [
        Case(
            f"S3 soft cap, {jobs:,}",
            s3(jobs, end),
            SOFT,
            until=until,
            expect={
                "the others wait at most one job length": lambda f: f.others_max_s <= 30.0,
                "no slot is idle": lambda f: f.idle_s == 0.0,
                **IN_BOUNDS,
            },
        ),
        Case(f"S3 hard cap, {jobs:,}", s3(jobs, end), HARD, until=until, expect={**quick, **IN_BOUNDS}),
        Case(
            f"S3 soft cap and reserve, {jobs:,}",
            s3(jobs, end),
            SOFT,
            PoolPolicy(reserve=5),
            until=until,
            expect={**quick, **IN_BOUNDS},
        ),
    ]


def s7_cases(few: int = 200, many: int = 20_000, jobs: int = 400_000) -> list[Case]:
    """Return S7: each number of organisations with half as many jobs, and with all of them."""
    return [
        Case(f"S7 {organisations:,} organisations, {total:,}", s7(organisations, total // organisations))
        for organisations in (few, many)
        for total in (jobs // 2, jobs)
    ]


def s7_costs(runs: Sequence[Sequence[Figures]]) -> tuple[float, float]:
    """Return CPU microseconds per further decision among few and among many, what it takes to begin left out.

    ``runs``: the figures of each case of `s7_cases`, some of each.
    """
    jobs = [case[0].jobs for case in runs]
    worked = [statistics.median(run.cpu_s for run in case) for case in runs]
    few, many = ((worked[at + 1] - worked[at]) * 1e6 / (jobs[at + 1] - jobs[at]) for at in (0, 2))
    return few, many


def check(case: Case, figures: Figures) -> list[str]:
    """Return the expectations that do not hold."""
    return [sentence for sentence, holds in case.expect.items() if not holds(figures)]


def _apart(case: Case) -> Figures:
    """Run a case in a process of its own, so that its size is its own."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: sender.send(play(case)))
    process.start()
    sender.close()
    try:
        figures: Figures = receiver.recv()
    finally:
        process.join()
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print and judge all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    args = parser.parse_args(argv)
    cases = [*s2_cases(), *s3_cases(20_000, 6_600)[:1], *s3_cases(), *s7_cases()]
    found: dict[str, Figures] = {}
    broken: list[str] = []
    print(
        f"{'case':36} {'jobs':>9} {'makespan s':>12} {'p99 s':>8} {'max s':>8} {'real s':>7} {'per s':>8} {'MB':>5}"
    )
    for case in cases:
        if args.only not in case.name:
            continue
        figures = found[case.name] = _apart(case)
        print(
            f"{case.name:36} {figures.jobs:9,} {figures.makespan_s:12,.1f} {figures.others_p99_s:8.3f}"
            f" {figures.others_max_s:8.3f} {figures.seconds:7.1f} {figures.dispatches_per_s:8,.0f}"
            f" {figures.max_rss_mb:5.0f}",
            flush=True,
        )
        broken += [f"{case.name}: {sentence}" for sentence in check(case, figures)]
    asked = [case for case in s7_cases() if case.name in found]
    if len(asked) == 4:
        again = [[_apart(case) for case in asked] for _ in range(S7_RUNS - 1)]
        few, many = s7_costs(list(zip([found[case.name] for case in asked], *again, strict=True)))
        print(
            f"S7: {few:.1f} us for a decision among 200, {many:.1f} us among 20,000: {many / few:.2f} times as much"
        )
    print(json.dumps({"cases": {name: asdict(figures) for name, figures in found.items()}}))
    for sentence in broken:
        print(f"not met: {sentence}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
