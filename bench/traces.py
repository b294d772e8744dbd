"""A generated trace that looks like real ones: ``python -m bench.traces FILE --jobs 5000 --organisations 40``.

Nothing in it is anybody's. What it takes over from real multi-tenant traces is their shape: a few organisations
submit most jobs, in bursts; durations are log-normal with a long tail; estimates are wrong by a factor, or
missing. The same arguments give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import random
from collections.abc import Iterator
from pathlib import Path

HEADER = "job_id,submit_s,duration_s,estimate_s,org,project,width,outcome,kind"


def rows(jobs: int, organisations: int, seed: int, *, exact: bool = False) -> Iterator[tuple[float, float, str, str]]:
    """Yield (submit, duration, estimate as text, tenant) in order of time: about one job a second on average."""
    rng = random.Random(seed)
    weights = [1.0 / (rank + 1) for rank in range(organisations)]
    factors = [rng.lognormvariate(0.0, 1.0) for _ in range(organisations)]
    at, done = 0.0, 0
    while done < jobs:
        number = rng.choices(range(organisations), weights)[0]
        burst = min(jobs - done, 1 + int(rng.paretovariate(1.3)))
        at += rng.expovariate(1.0 / burst)
        for _ in range(burst):
            duration = round(min(rng.lognormvariate(1.0, 1.2), 600.0) + 0.001, 3)
            guess = duration if exact else round(duration * factors[number] * rng.uniform(0.5, 1.5) + 0.001, 3)
            estimate = "" if not exact and rng.random() < 0.1 else f"{guess:g}"
            yield round(at, 3), duration, estimate, f"o{number:03}/p{rng.randrange(1 + number % 3):02}"
        done += burst


def trace(jobs: int, organisations: int, seed: int, *, exact: bool = False) -> str:
    """Return the trace as comma-separated values."""
    lines = [HEADER]
    for number, (at, duration, estimate, tenant) in enumerate(rows(jobs, organisations, seed, exact=exact)):
        lines.append(f"{number},{at:.3f},{duration:g},{estimate},{tenant.partition('/')[0]},{tenant},,ok,")
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, gzip'd if its name says so; equal text gives equal bytes."""
    data = text.encode()
    if path.name.endswith(".gz"):
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", mtime=0, fileobj=packed) as file:
            file.write(data)
        data = packed.getvalue()
    path.write_bytes(data)


def main() -> None:
    """Write one trace."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=5_000)
    parser.add_argument("--organisations", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    write(args.file, trace(args.jobs, args.organisations, args.seed))


if __name__ == "__main__":
    main()
