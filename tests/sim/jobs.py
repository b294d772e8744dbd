"""Streams of jobs that tests use again and again."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from drr.model import TenantPath
from tests.sim.driver import EndHook, Simulation, Work


def endless(path: TenantPath, seconds: float, *, wrong: float = 1.0) -> Iterator[Work]:
    """The same job again and again, estimated at ``seconds * wrong``."""
    return (Work(path, seconds, seconds * wrong) for _ in itertools.count())


def bulk(path: TenantPath, count: int, seconds: float, *, at: float = 0.0) -> Iterator[tuple[float, Work]]:
    """``count`` exactly estimated jobs, all submitted at one time."""
    return ((at, Work(path, seconds, seconds)) for _ in range(count))


def mixed(
    path: TenantPath, rng: random.Random, seconds: tuple[float, float], wrong: Sequence[float]
) -> Iterator[Work]:
    """Jobs of random length, each estimated wrong by a random factor out of ``wrong``."""
    while True:
        length = rng.uniform(*seconds)
        yield Work(path, length, length * rng.choice(wrong))


def one_at_a_time(path: TenantPath, works: Iterator[Work], *, gap: float = 0.0) -> EndHook:
    """A hook that submits the next job ``gap`` seconds after the last one has ended."""

    def again(sim: Simulation, _: Work) -> None:
        work = next(works)
        if gap:
            sim.at(sim.now + gap, lambda later: later.submit(work))
        else:
            sim.submit(work)

    return again
