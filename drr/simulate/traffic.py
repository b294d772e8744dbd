"""The kinds of traffic that a scenario is made of: when jobs arrive, how long they take, what is said of that before.

Each kind is a frozen value whose annotations say what its keys may be (`drr.simulate.scenario` reads them so).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, count, repeat, takewhile
from math import log
from random import Random
from typing import Annotated, ClassVar, Final, NamedTuple, TypeAlias

from drr.model import ESTIMATE_MAX, ESTIMATE_MIN
from drr.simulate.trace import SECONDS_MAX

JOBS_MAX: Final = 1_000_000_000
SLOTS_MAX: Final = 1_000_000
DURATION_MIN: Final = 1e-6


class Range(NamedTuple):
    """The least and the greatest value that a key may have."""

    low: float
    high: float


Seconds = Annotated[float, Range(0.0, SECONDS_MAX)]
Duration = Annotated[float, Range(DURATION_MIN, SECONDS_MAX)]
Jobs = Annotated[int, Range(1, JOBS_MAX)]
Slots = Annotated[int, Range(0, SLOTS_MAX)]

# --- when jobs arrive --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bulk:
    """``jobs`` at once, ``at`` a time."""

    random: ClassVar[bool] = False
    jobs: Jobs
    at: Seconds = 0.0

    def times(self, rng: Random) -> Iterator[float]:
        """Yield the one time, once for each job."""
        return repeat(self.at, self.jobs)


@dataclass(frozen=True, slots=True)
class Poisson:
    """``rate`` jobs a second on average, independent of each other, from ``start`` to ``end`` or ``jobs`` of them."""

    random: ClassVar[bool] = True
    rate: Annotated[float, Range(1e-9, 1e6)]
    start: Seconds = 0.0
    end: Seconds | None = None
    jobs: Jobs | None = None

    def times(self, rng: Random) -> Iterator[float]:
        """Yield times with exponential gaps."""

        def drawn() -> Iterator[float]:
            at, draw, rate = self.start, rng.expovariate, self.rate
            while True:
                at += draw(rate)
                yield at

        return _limited(drawn(), self.end, self.jobs)


@dataclass(frozen=True, slots=True)
class Periodic:
    """``batch`` jobs ``every`` so many seconds, from ``start`` to ``end`` or ``jobs`` of them."""

    random: ClassVar[bool] = False
    every: Duration
    start: Seconds = 0.0
    end: Seconds | None = None
    jobs: Jobs | None = None
    batch: Jobs = 1

    def times(self, rng: Random) -> Iterator[float]:
        """Yield each tick, once for each job of its batch."""
        ticks = (self.start + self.every * tick for tick in count())
        return _limited(chain.from_iterable(repeat(at, self.batch) for at in ticks), self.end, self.jobs)


def _limited(times: Iterator[float], end: float | None, jobs: int | None) -> Iterator[float]:
    if end is not None:
        times = takewhile(lambda at: at < end, times)
    return times if jobs is None else (at for _, at in zip(range(jobs), times, strict=False))


# --- how long they take, and what is said of that before -------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Constant:
    """Always ``seconds``."""

    random: ClassVar[bool] = False
    seconds: Duration

    def draw(self, rng: Random) -> float:
        """Return the seconds."""
        return self.seconds


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Log-normal about ``median`` seconds; ``sigma``: standard deviation of the logarithm."""

    random: ClassVar[bool] = True
    median: Duration
    sigma: Annotated[float, Range(0.0, 10.0)]

    def draw(self, rng: Random) -> float:
        """Return the next one's seconds."""
        return min(max(rng.lognormvariate(log(self.median), self.sigma), DURATION_MIN), SECONDS_MAX)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from ``low`` to ``high`` seconds."""

    random: ClassVar[bool] = True
    low: Duration
    high: Duration

    def draw(self, rng: Random) -> float:
        """Return the next one's seconds."""
        return rng.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Exact:
    """The estimate is the duration."""

    def of(self, duration: float) -> float | None:
        """Return the estimate of a job."""
        return min(max(duration, ESTIMATE_MIN), ESTIMATE_MAX)


@dataclass(frozen=True, slots=True)
class Factor:
    """The estimate is ``factor`` times the duration."""

    factor: Annotated[float, Range(1e-6, 1e6)]

    def of(self, duration: float) -> float | None:
        """Return the estimate of a job."""
        return min(max(duration * self.factor, ESTIMATE_MIN), ESTIMATE_MAX)


@dataclass(frozen=True, slots=True)
class Unknown:
    """There is none: the pool's default is charged."""

    def of(self, duration: float) -> float | None:
        """Return that there is none."""
        return None


Arrivals: TypeAlias = Bulk | Poisson | Periodic
Durations: TypeAlias = Constant | Lognormal | Uniform
Estimates: TypeAlias = Exact | Factor | Unknown

ARRIVALS: Final[Mapping[str, type[Arrivals]]] = {
    "bulk": Bulk,
    "poisson": Poisson,
    "periodic": Periodic,
}
DURATIONS: Final[Mapping[str, type[Durations]]] = {
    "constant": Constant,
    "lognormal": Lognormal,
    "uniform": Uniform,
}
ESTIMATES: Final[Mapping[str, type[Estimates]]] = {
    "exact": Exact,
    "factor": Factor,
    "none": Unknown,
}
