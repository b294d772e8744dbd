"""Speed of the simulator: ``python -m bench.simulate`` (or ``make bench-simulate``).

A generated trace of 1,000 organisations (`bench.traces`) under each policy, at a load of 1.2, so that most of
them wait at most times. ``exact``: estimates are the durations, as for jobs whose size is known; ``wrong``:
they are off by a factor of about three, and overruns are charged as they happen. Reading the trace is part of
what is measured, and so are all accounts. Every figure is the median of the repeats, with the spread.

Last line: JSON with ``build`` (``source`` or ``compiled``) and ``dispatches_per_s`` by estimates and policy.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from bench.traces import trace, write
from drr.core import is_compiled
from drr.simulate.policies import POLICIES
from drr.simulate.run import Setup, simulate, slots_of
from drr.simulate.trace import open_source


def measure(path: Path, repeats: int) -> dict[str, list[float]]:
    """Return dispatches per real second, by policy, one figure for each repeat."""
    source = open_source(str(path))
    setup = Setup(slots_of(source, load=1.2))
    found: dict[str, list[float]] = {name: [] for name in POLICIES}
    for _ in range(repeats):
        for name, result in simulate(source, setup, POLICIES).policies.items():
            if result.unfinished:
                raise AssertionError(f"{name} left {result.unfinished} jobs")
            found[name].append(result.starts / result.seconds)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200_000)
    parser.add_argument("--organisations", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    summary: dict[str, dict[str, int]] = {}
    build = "compiled" if is_compiled() else "source"
    print(f"{build}: {args.jobs:,} jobs of {args.organisations:,} organisations, {args.repeats} repeats")
    print(f"{'estimates':10} {'dispatches a second of':24} {'median':>9} {'lowest':>9} {'highest':>9}")
    for kind in ("exact", "wrong"):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "generated.csv"
            write(path, trace(args.jobs, args.organisations, seed=1, exact=kind == "exact"))
            for name, speeds in measure(path, args.repeats).items():
                middle = round(statistics.median(speeds))
                summary.setdefault(kind, {})[name] = middle
                print(f"{kind:10} {name:24} {middle:9,} {round(min(speeds)):9,} {round(max(speeds)):9,}")
    print(json.dumps({"build": build, "dispatches_per_s": summary}))


if __name__ == "__main__":
    main()
