"""What a job is charged before anybody knows what it costs.

A job that names its estimate is charged that. For the others the dispatcher asks an `Estimator`, which hears of
what attempts really held. The charge is settled to the actual at the end, whatever was estimated; so an estimate
need not be unbiased, it has to be near what is typical and must not be thrown about by what is not.

`LearnedEstimate` follows the centre of the *logarithm* of the cost: jobs of one task differ by factors, and the
logarithm makes ten times more and ten times less alike. The first `FIRST` observations give their median. From then
on each moves the centre towards it by a share of the distance, and a distance beyond `CLIP` times the usual one
counts as that only: a recursive M-estimator with Huber's function (P. J. Huber, "Robust Estimation of a Location
Parameter", 1964; recursions of this kind: H. Robbins and S. Monro, "A Stochastic Approximation Method", 1951). So a
single job of a thousand times the usual cost moves an estimate by some per cent, and a lasting change by ten is
followed within 150 jobs, since the usual distance grows with it. A wrong start is right after `FIRST`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from math import exp, log
from statistics import median
from typing import Final, Protocol, TypeAlias

from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, TenantPath

FIRST: Final = 5
"""Observations of which the median is taken before the recursion begins."""
MEMORY: Final = 50
"""Observations over which older ones fade."""
CLIP: Final = 1.5
"""Multiple of the usual distance beyond which an observation counts no more than at it."""
STRETCH: Final = 3.0
"""The same for the usual distance itself; larger, so that it can grow."""
LEAST_SPREAD: Final = 0.05
"""Least usual distance: 5 per cent."""
KEYS_KEPT: Final = 20_000
"""Tasks of projects, and projects, that are remembered per pool; the least recently observed go."""
PROJECTS_ASKED: Final = 101
"""Projects, the most recently observed ones, of which a pool's estimate is the median."""

Key: TypeAlias = tuple[TenantPath, str]
"""A project and one of its tasks, or "" for all of them."""
Figures: TypeAlias = tuple[float, ...]
"""State of one estimate: the number of observations, then their logarithms while they are fewer than `FIRST`;
afterwards the number (at most `MEMORY`), the centre and the usual distance, in logarithms."""


class Estimator(Protocol):
    """Guesses the cost of jobs that name none. Pure: no I/O, no clock."""

    def estimate(self, path: TenantPath, task: str) -> float:
        """Return worker-seconds to charge for the next job of ``task`` in the project ``path``."""
        ...

    def observe(self, path: TenantPath, task: str, actual: float) -> None:
        """Learn that an attempt of ``task`` held its slot for ``actual`` worker-seconds."""
        ...


class DefaultEstimate:
    """The same estimate for every job of a pool."""

    def __init__(self, worker_seconds: float) -> None:
        self.worker_seconds = worker_seconds

    def estimate(self, path: TenantPath, task: str) -> float:
        """Return the pool's default."""
        return self.worker_seconds

    def observe(self, path: TenantPath, task: str, actual: float) -> None:
        """Learn nothing: a default is a setting."""


class LearnedEstimate:
    """Estimates of one pool, learned from actuals.

    Of a task of a project if that was seen, else of the project, else of the pool, else ``default``. The pool's is
    the median of its projects' estimates, each of which counts once: no tenant can drive it, however many jobs it
    runs. Memory is bounded by `KEYS_KEPT` estimates of three to five numbers.
    """

    def __init__(self, default: float) -> None:
        """``default``: worker-seconds, while nothing was learned; may be set later, too."""
        self.default = default
        self._figures: OrderedDict[Key, Figures] = OrderedDict()
        self._projects: OrderedDict[TenantPath, float] = OrderedDict()
        """Centres of the projects, the most recently observed last."""
        self._of_pool: float | None = None
        self._changed: dict[Key, None] = {}

    def estimate(self, path: TenantPath, task: str) -> float:
        """Return worker-seconds to charge for the next job of ``task`` in the project ``path``."""
        figures = self._figures.get((path, task)) or self._figures.get((path, ""))
        if figures is not None:
            return _worker_seconds(centre(figures))
        if not self._projects:
            return self.default
        if self._of_pool is None:
            recent = list(reversed(self._projects.values()))[:PROJECTS_ASKED]
            self._of_pool = _worker_seconds(median(recent))
        return self._of_pool

    def observe(self, path: TenantPath, task: str, actual: float) -> None:
        """Learn that an attempt of ``task`` held its slot for ``actual`` worker-seconds."""
        value = log(min(max(actual, ESTIMATE_MIN), ESTIMATE_MAX))
        for key in ((path, task), (path, "")):
            self._figures[key] = learn(self._figures.get(key, ()), value)
            self._figures.move_to_end(key)
            self._changed[key] = None
        self._note_project(path)
        while len(self._figures) > KEYS_KEPT:
            self._forget_oldest()

    def changed(self) -> dict[Key, Figures | None]:
        """Return what has changed since the last call, to be stored; ``None`` for what was forgotten."""
        changed, self._changed = self._changed, {}
        return {key: self._figures.get(key) for key in changed}

    def restore(self, figures: Mapping[Key, Figures]) -> None:
        """Put back what `changed` returned; what makes no sense is passed over."""
        for key, found in figures.items():
            if is_sound(found):
                self._figures[key] = tuple(found)
                if not key[1]:
                    self._note_project(key[0])
        while len(self._figures) > KEYS_KEPT:
            self._forget_oldest()

    def __len__(self) -> int:
        return len(self._figures)

    def _note_project(self, path: TenantPath) -> None:
        self._projects[path] = centre(self._figures[path, ""])
        self._projects.move_to_end(path)
        self._of_pool = None

    def _forget_oldest(self) -> None:
        key, _ = self._figures.popitem(last=False)
        self._changed[key] = None
        if not key[1]:
            self._projects.pop(key[0], None)
            self._of_pool = None


def learn(figures: Figures, value: float) -> Figures:
    """Return the state after one more observation; ``value`` is its logarithm."""
    number = int(figures[0]) if figures else 0
    if number < FIRST:
        seen = (*figures[1:], value)
        if number + 1 < FIRST:
            return (float(number + 1), *seen)
        middle = median(seen)
        spread = max(LEAST_SPREAD, median(abs(one - middle) for one in seen))
        return (float(FIRST), middle, spread)
    _, middle, spread = figures
    number = min(number + 1, MEMORY)
    distance = value - middle
    reach = CLIP * spread
    middle += max(-reach, min(reach, distance)) / number
    spread += (min(abs(distance), STRETCH * spread) - spread) / number
    return (float(number), middle, max(LEAST_SPREAD, spread))


def centre(figures: Figures) -> float:
    """Return the logarithm of the estimate that a state stands for."""
    return figures[1] if figures[0] >= FIRST else median(figures[1:])


def is_sound(figures: Figures) -> bool:
    """Return whether ``figures`` is a state that `learn` could have returned."""
    if not figures or not 1 <= figures[0] <= MEMORY or figures[0] != int(figures[0]):
        return False
    values = figures[1:]
    if len(values) != (2 if figures[0] >= FIRST else int(figures[0])):
        return False
    low, high = log(ESTIMATE_MIN) - 1.0, log(ESTIMATE_MAX) + 1.0
    if figures[0] >= FIRST:
        return low <= values[0] <= high and 0.0 < values[1] <= high - low
    return all(low <= value <= high for value in values)


def _worker_seconds(logarithm: float) -> float:
    return min(max(exp(logarithm), ESTIMATE_MIN), ESTIMATE_MAX)
