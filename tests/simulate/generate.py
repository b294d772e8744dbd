"""Small traces for tests, made from a seed: the same arguments give the same bytes.

They have what real ones have: few tenants with most of the work and many with little, bursts beside a steady
trickle, durations over orders of magnitude, and estimates that are off or missing.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random

from drr.simulate.trace import Arrival

HEADER = "job_id,submit_s,duration_s,estimate_s,org,project,width,outcome,kind"


def arrivals(seed: int = 0, jobs: int = 200, organisations: int = 10, span: float = 600.0) -> list[Arrival]:
    """Return ``jobs`` jobs in order of arrival, of at most ``organisations`` organisations, within ``span`` seconds.

    Times are whole milliseconds. The n-th organisation has about 1/n as many jobs as the first; a third of all
    jobs come in bursts, of one tenant at one time.
    """
    rng = Random(seed)
    odds = list(accumulate(1 / n for n in range(1, organisations + 1)))
    found: list[Arrival] = []
    while len(found) < jobs:
        (number,) = rng.choices(range(organisations), cum_weights=odds)
        path = f"o{number:03}", f"p{rng.randrange(1 + number % 3):02}"
        at = round(rng.uniform(0.0, span), 3)
        burst = rng.randint(2, 20) if rng.random() < 0.05 else 1
        for _ in range(min(burst, jobs - len(found))):
            duration = max(0.001, round(rng.lognormvariate(0.0, 1.5), 3))
            estimate = None if rng.random() < 0.2 else round(duration * rng.uniform(0.5, 4.0), 4)
            found.append(Arrival(at, duration, estimate, path))
    return sorted(found, key=lambda job: job.at)


def csv_text(found: Iterable[Arrival]) -> str:
    """Return the jobs as a CSV trace with all columns of a published one, projects written as ``o001/p00``."""
    rows = [HEADER]
    for number, (at, duration, estimate, (organisation, project)) in enumerate(found):
        shown = "" if estimate is None else f"{estimate!r}"
        rows.append(f"{number},{at!r},{duration!r},{shown},{organisation},{organisation}/{project},,ok,")
    return "\n".join(rows) + "\n"


def swf_text(found: Sequence[Arrival]) -> str:
    """Return the jobs in the Standard Workload Format, with times in it as they are; names must end in digits."""
    lines = ["; Version: 2.2", f"; MaxJobs: {len(found)}", ";"]
    for number, (at, duration, estimate, (organisation, project)) in enumerate(found, 1):
        group, user = (int("".join(filter(str.isdigit, name))) for name in (organisation, project))
        requested = -1 if estimate is None else repr(estimate)
        lines.append(f"{number} {at!r} -1 {duration!r} 1 -1 -1 1 {requested} -1 1 {user} {group} -1 1 -1 -1 -1")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> Path:
    """Write a trace to ``path``, gzip'd if its name says so, and return the path."""
    data = text.encode()
    # Without the time of day in it, equal traces are equal files.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path
