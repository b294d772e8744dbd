"""Run the worlds of the seeds given, and show the history of the last."""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import nullcontext

from tests.world.controls import CONTROLS
from tests.world.world import run_world


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("seeds", type=int, nargs="+", help="one seed or several")
    parser.add_argument("--control", choices=sorted(CONTROLS), help="take this safeguard away")
    parser.add_argument("--quiet", action="store_true", help="show only what is wrong")
    given = parser.parse_args()
    failed = 0
    for seed in given.seeds:
        began = time.perf_counter()
        with CONTROLS[given.control].broken() if given.control else nullcontext():
            report = run_world(seed)
        failed += bool(report.wrong)
        if not given.quiet:
            for at, who, *what in report.history:
                print(f"{at:10.4f}  {who:8}", *(word for word in what if word != ""))
        contest = f"drift {report.drift:.2f} in {report.horizon:.1f} bounds, " if report.horizon else ""
        print(
            f"seed {seed}: {report.acknowledged} jobs, {report.attempts} starts, {report.calls} calls, "
            f"{report.crashes} crashes, {report.takeovers} takeovers, {contest}{report.seconds:.1f} s "
            f"in {time.perf_counter() - began:.2f} s: {'WRONG' if report.wrong else 'good'}"
        )
        for line in report.wrong:
            print("  ", line)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
