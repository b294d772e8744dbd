"""The tables of docs/fairness.md: real traces under all policies, and what is expected of them.

``python -m bench.fairness DIRECTORY`` (or ``make fairness TRACES=DIRECTORY``) wants the traces named in `TRACES`
there, and writes its tables between the markers of the page. Exit code 1 if an expectation is not met.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from drr.model import NodePolicy, Share, TenantPath
from drr.simulate.policies import POLICIES
from drr.simulate.results import PolicyResult
from drr.simulate.run import Setup, simulate, slots_of
from drr.simulate.text import duration
from drr.simulate.trace import Source, open_source

PAGE = Path(__file__).parent.parent / "docs" / "fairness.md"
LOADS = (0.70, 0.95, 1.2)
SOFT_CAP = NodePolicy(soft_cap=Share(0.1))
CAPPED = "drr, soft cap 10 %"
MINUTE = 60.0
TIMES_LOWER = 50.0


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace by file name. ``promised``: whether small organisations are expected to wait 50 times less."""

    title: str
    file: str
    speedup: float
    promised: bool


TRACES = (
    Trace("RIKEN RICC, 30 days of batch jobs", "hpc_ricc_2010_30d.csv.gz", 1.0, True),
    Trace("Azure Functions, 20 minutes", "faas_azure_2019_20min.csv.gz", 1.0, True),
    Trace("Image generation at Alibaba, 23 days, 103 times faster", "genai_alibaba_2024_23d.csv.gz", 103.0, False),
)


def capped(path: TenantPath) -> NodePolicy:
    """Give every organisation a soft cap of a tenth of the slots."""
    return SOFT_CAP if len(path) == 1 else NodePolicy()


def measure(source: Source, load: float) -> tuple[int, dict[str, PolicyResult]]:
    """Return the workers and the results by policy."""
    slots = slots_of(source, load=load)
    run = simulate(source, Setup(slots), POLICIES)
    soft = simulate(source, Setup(slots, policy_of=capped), ("drr",))
    return run.workers, {"drr": run.policies["drr"], CAPPED: soft.policies["drr"], **run.policies}


def table(load: float, workers: int, results: dict[str, PolicyResult]) -> list[str]:
    """Return the lines of one table."""
    lines = [
        f"Load {load:.2f}, {workers} workers:",
        "",
        "| policy | wait p50 | p95 | p99 | longest | small organisations' p95 | worst organisation's p95 | Jain "
        "| longest run | makespan | idle | drift/bound |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        wait = result.wait_s
        cells = [
            name,
            *(duration(value) for value in (wait.p50, wait.p95, wait.p99, wait.max)),
            duration(result.small_orgs_p95_s),
            duration(result.worst_org_p95_s),
            f"{result.jain:.3f}",
            f"{result.longest_run:,}",
            duration(result.makespan_s),
            duration(result.idle_while_runnable_s),
            f"{result.drift_over_bound:,.2f}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def broken(trace: Trace, load: float, longest: float, results: dict[str, PolicyResult]) -> list[str]:
    """Return which expectations are not met, in words."""
    fifo = results["fifo"]
    found = []
    for name in ("drr", CAPPED):
        result = results[name]
        where = f"{trace.title}, load {load:.2f}, {name}"
        if result.idle_while_runnable_s > 0.0:
            found.append(f"{where}: slots were idle while jobs may start")
        if result.makespan_s > fifo.makespan_s + longest:
            found.append(f"{where}: the makespan is more than the longest job above FIFO's")
        if result.drift_over_bound > 1.0:
            found.append(f"{where}: the bound is broken ({result.drift_over_bound:.2f})")
        small = TIMES_LOWER * result.small_orgs_p95_s
        if trace.promised and fifo.small_orgs_p95_s > MINUTE and small > fifo.small_orgs_p95_s:
            found.append(
                f"{where}: small organisations wait {result.small_orgs_p95_s:g} s, not 50 times less than FIFO's"
            )
    return found


def main() -> None:
    """Run everything, rewrite the page's tables, and say what is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--dry", action="store_true", help="print the tables, leave the page alone")
    options = parser.parse_args()
    lines, problems = [], []
    for trace in TRACES:
        source = open_source(str(options.traces / trace.file), speedup=trace.speedup)
        demand = source.demand()
        lines += [f"### {trace.title}", "", f"{demand.jobs:,} jobs, the longest {duration(demand.longest)}.", ""]
        for load in LOADS:
            workers, results = measure(source, load)
            lines += table(load, workers, results)
            problems += broken(trace, load, demand.longest, results)
            print(f"{trace.file} at {load:.2f}: done", file=sys.stderr)
    text = "\n".join(lines)
    if options.dry:
        print(text)
    else:
        begin, end = "<!-- tables -->", "<!-- end of tables -->"
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(
            re.sub(f"{begin}.*{end}", lambda _: f"{begin}\n\n{text}\n{end}", page, flags=re.DOTALL), encoding="utf-8"
        )
    for problem in problems:
        print(f"not as expected: {problem}")
    print(f"{len(problems)} expectations not met")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
