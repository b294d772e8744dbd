"""What a job is charged before anybody knows what it costs.

A job that names its estimate is charged that. For the others the dispatcher asks an `Estimator`, which
hears of every settled attempt. The only one so far gives each pool's default; an estimator that learns
from actuals takes its place behind the same two methods.
"""

from __future__ import annotations

from typing import Protocol

from drr.model import TenantPath


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
