"""How long one job waits behind another tenant's flood: ``python -m bench.latency`` (or ``make bench-latency``).

The set of the demo, started anew for each repeat: a server, a dispatcher with a standby, four worker processes of
one slot each. `acme`, which may run three jobs at once, submits 50,000 imports of 0.2 s; two seconds later `globex`
submits one email. The other tenants of the demo stay away.

    wait     from the call that submits the email to the start of its handler, in milliseconds
    done     from that call until its client knows the result
    fifo     what one queue for all would have made it wait, with what was acknowledged until then, in seconds

Prints a line per repeat; median, p99 and spread; and as the last line one JSON object with ``wait_ms_median``,
``wait_ms_p99``, ``wait_ms_min``, ``wait_ms_max``, ``done_ms_median``, ``fifo_ms_median``, ``max_running_acme`` and
``repeats``. The p99 is by nearest rank: below 100 repeats it is the longest.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import anyio

from drr.client import Client
from drr.clock import SystemClock
from drr.demo import plot
from drr.demo.figures import fifo_wait, most_at_once
from drr.demo.stage import Stage

REPEATS = 20
LIMIT = 120.0


@dataclass(frozen=True, slots=True)
class Repeat:
    """One repeat: ``wait``, ``done`` and ``fifo`` in seconds, and the most imports that ran at once."""

    wait: float
    done: float
    fifo: float
    most: int


async def repeat() -> Repeat:
    """Measure once."""
    arrivals: list[tuple[float, float]] = []

    def accepted(ids: Sequence[str]) -> None:
        arrivals.extend([(time.monotonic(), plot.CROWD_SECONDS)] * len(ids))

    with anyio.fail_after(LIMIT):
        async with Stage(SystemClock()) as stage, Client(stage.url, namespace=plot.NAMESPACE) as client:
            async with anyio.create_task_group() as group:

                async def flood() -> None:
                    await client.submit_many(plot.crowd(), accepted=accepted)

                group.start_soon(flood)
                await anyio.sleep(plot.NEWCOMER_AT)
                submitted_at = time.monotonic()
                handle = await client.submit(
                    "send_email",
                    [plot.NEWCOMER_SECONDS],
                    tenant=plot.LANES[plot.NEWCOMER].path,
                    estimate=plot.NEWCOMER_SECONDS,
                )
                await handle.wait()
                done = time.monotonic() - submitted_at
                ahead = [arrival for arrival in arrivals if arrival[0] < submitted_at]
            stage.journal.read()
            runs = stage.journal.runs
            [start] = [run.started for run in runs if run.job_id == handle.id]
            most = most_at_once(run for run in runs if run.organisation == plot.CROWD)
            return Repeat(start - submitted_at, done, fifo_wait(ahead, submitted_at, plot.WORKERS), most)


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile by nearest rank."""
    return sorted(values)[math.ceil(len(values) * 0.99) - 1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, not {options.repeats}")
    found: list[Repeat] = []
    print(f"one email behind {plot.CROWD_JOBS:,} imports, {plot.WORKERS} workers, cap {plot.CROWD_CAP}", flush=True)
    for number in range(1, options.repeats + 1):
        one = anyio.run(repeat, backend_options={"use_uvloop": sys.platform != "win32"})
        found.append(one)
        figures = f"wait {one.wait * 1000:7.1f} ms   done {one.done * 1000:7.1f} ms   fifo {one.fifo:7,.0f} s"
        print(f"run {number:2}: {figures}   most imports at once {one.most}", flush=True)
    waits = [one.wait * 1000 for one in found]
    quartiles = statistics.quantiles(waits, n=4) if len(waits) > 1 else [waits[0]] * 3
    print(
        f"wait: median {statistics.median(waits):.1f} ms, p99 {p99(waits):.1f} ms, "
        f"quartiles {quartiles[0]:.1f} to {quartiles[2]:.1f} ms, all {min(waits):.1f} to {max(waits):.1f} ms"
    )
    print(
        json.dumps(
            {
                "wait_ms_median": round(statistics.median(waits), 1),
                "wait_ms_p99": round(p99(waits), 1),
                "wait_ms_min": round(min(waits), 1),
                "wait_ms_max": round(max(waits), 1),
                "done_ms_median": round(statistics.median(one.done * 1000 for one in found), 1),
                "fifo_ms_median": round(statistics.median(one.fifo * 1000 for one in found)),
                "max_running_acme": max(one.most for one in found),
                "repeats": len(found),
            }
        )
    )


if __name__ == "__main__":
    main()
