"""Decisions per second of the scheduler core: offer + take + settle, by number of active tenants.

Each tenant is an organisation with one project. ``none``: nobody is capped. ``99 %``: of a hundred tenants
ninety-nine are at their hard cap of 1 with work waiting. Costs are exact and drawn once from a fixed seed.
Every figure is the median of the repeats, with the spread; the ratios come from one run.

Last line: JSON with ``cycles_per_s`` by tenant count.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time

from drr.core.scheduler import Job, Scheduler
from drr.model import NodePolicy, Outcome, PoolPolicy

SLOTS = 64
BACKLOG = 4
"""Jobs that wait per tenant: enough to stay active while some of them run."""


def prepare(tenants: int, capped: int, rng: random.Random) -> tuple[Scheduler, list[float]]:
    """Return a scheduler with ``tenants`` active tenants, of which ``capped`` wait at their cap."""
    scheduler = Scheduler(PoolPolicy(quantum=1.0))
    costs = [rng.choice((0.25, 0.5, 1.0, 2.0)) for _ in range(1024)]
    slots = capped + min(SLOTS, tenants - capped)
    scheduler.set_slots(slots)
    cap = NodePolicy(hard_cap=1)
    for index in range(tenants):
        path = (f"org{index}", "main")
        if index < capped:
            scheduler.set_policy(path[:1], cap)
        for number in range(BACKLOG):
            scheduler.offer(Job((index, number), path, costs[(index + number) % 1024]))
    for index in range(slots):
        assert scheduler.take(index, 0.0) is not None
    return scheduler, costs


def measure(scheduler: Scheduler, costs: list[float], cycles: int, serial: int) -> float:
    """Return cycles per second: settle the oldest uncapped lease, offer its tenant a job, take the next."""
    free = [lease for lease in scheduler.leases.values() if lease.leaf.parent and not lease.leaf.parent.bounded]
    running = [(lease.token, lease.job.path, lease.job.estimate) for lease in free]
    position, count = 0, len(running)
    succeeded = Outcome.SUCCEEDED
    start = time.perf_counter()
    for number in range(serial, serial + cycles):
        token, path, estimate = running[position]
        scheduler.settle(token, succeeded, estimate)
        scheduler.offer(Job(number, path, costs[number % 1024]))
        lease = scheduler.take(number, 0.0)
        if lease is None:
            raise AssertionError("a slot is free and jobs wait, yet nothing starts")
        running[position] = (number, lease.job.path, lease.job.estimate)
        position = (position + 1) % count
    return cycles / (time.perf_counter() - start)


def main() -> None:
    """Print the table and the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tenants", type=int, nargs="+", default=[10, 1_000, 100_000, 1_000_000])
    parser.add_argument("--cycles", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    result: dict[str, dict[str, float]] = {}
    print(f"{'tenants':>10} {'capped':>8} {'cycles/s':>10} {'lowest':>10} {'highest':>10}")
    for tenants in options.tenants:
        for label, capped in (("none", 0), ("99 %", tenants * 99 // 100)):
            scheduler, costs = prepare(tenants, capped, random.Random(tenants))
            gc.collect()
            gc.freeze()  # as a long-running service would after loading: the tenants are not garbage
            serial, runs = 1_000_000_000, []
            for _ in range(options.repeats):
                runs.append(measure(scheduler, costs, options.cycles, serial))
                serial += options.cycles
            median = statistics.median(runs)
            print(f"{tenants:>10,} {label:>8} {median:>10,.0f} {min(runs):>10,.0f} {max(runs):>10,.0f}")
            result.setdefault(str(tenants), {})[label] = median
            del scheduler
            gc.unfreeze()
            gc.collect()
    worst = {tenants: min(cells.values()) for tenants, cells in result.items()}
    best = max(value for cells in result.values() for value in cells.values())
    print("slowdown against the best: " + ", ".join(f"{int(t):,}: {best / value:.2f}" for t, value in worst.items()))
    print(
        json.dumps(
            {
                "cycles_per_s": {tenants: round(value) for tenants, value in worst.items()},
                "by_capped": {tenants: {k: round(v) for k, v in cells.items()} for tenants, cells in result.items()},
            }
        )
    )


if __name__ == "__main__":
    main()
