"""Back-pressure: jobs of tenants whose quota is used up wait here, while those of others go on.

Synchronous: what to send next, what was refused, how long to wait. Order within a lane is kept, since a tenant
of which anything waits here has all its later jobs wait here as well.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

from drr.backend import ITEM_LIMIT
from drr.errors import AdmissionRefused
from drr.model import JobSpec, TenantPath

HELD_LIMIT: Final = 2 * ITEM_LIMIT
"""Jobs that wait here before no more are taken from the source."""


class Room:
    """Refused jobs, and when to try again.

    ``patience``: seconds after which to give up on a refused tenant of which nothing was taken meanwhile.
    """

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._held: deque[JobSpec] = deque()
        self._held_of: Counter[TenantPath] = Counter()
        """How many jobs of each project wait here."""
        self._refusals: dict[TenantPath, tuple[AdmissionRefused, float]] = {}
        """Tenants that were refused: how, and when to try again (monotonic)."""
        self._stuck: dict[TenantPath, tuple[AdmissionRefused, float]] = {}
        """Tenants of which nothing was taken since they were refused: how last, and since when (monotonic)."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def full(self) -> bool:
        """Whether the source must wait."""
        return len(self._held) >= HELD_LIMIT

    def sift(self, batch: Sequence[JobSpec]) -> list[JobSpec]:
        """Hold the jobs of tenants of which others wait here; return the rest."""
        passed: list[JobSpec] = []
        for spec in batch:
            if self._held and (self._held_of[spec.lane.path] or self._is_refused(spec)):
                self._hold(spec)
            else:
                passed.append(spec)
        return passed

    def refused(self, error: AdmissionRefused, batch: Sequence[JobSpec], now: float) -> list[JobSpec]:
        """A batch was refused: hold what has no room, return what may be tried at once, which is less."""
        _, since = self._stuck.get(error.tenant, (error, now))
        self._stuck[error.tenant] = (error, since)
        theirs = [spec for spec in batch if _is_of(spec, error.tenant)]
        fitting = error.room if error.room < len(theirs) else 0
        first = iter(theirs[:fitting])
        going = next(first, None)
        passed: list[JobSpec] = []
        for spec in batch:
            if not _is_of(spec, error.tenant):
                passed.append(spec)
            elif spec is going:
                passed.append(spec)
                going = next(first, None)
        for spec in reversed(theirs[fitting:]):
            self._held.appendleft(spec)
            self._held_of[spec.lane.path] += 1
        self._refusals[error.tenant] = (error, now + error.retry_after)
        return passed

    def accepted(self, batch: Sequence[JobSpec]) -> None:
        """These jobs were taken: their tenants are not stuck. What is taken of others says nothing of a tenant."""
        for tenant in [tenant for tenant in self._stuck if any(_is_of(spec, tenant) for spec in batch)]:
            del self._stuck[tenant]

    def due(self, now: float) -> list[JobSpec]:
        """Return the held jobs of tenants that may be asked again, at most one call's worth."""
        if not self._held:
            return []
        for tenant in [tenant for tenant, (_, again) in self._refusals.items() if again <= now]:
            del self._refusals[tenant]
        ready: list[JobSpec] = []
        held, self._held = self._held, deque()
        self._held_of.clear()
        for spec in held:
            if len(ready) < ITEM_LIMIT and not self._held_of[spec.lane.path] and not self._is_refused(spec):
                ready.append(spec)
            else:
                self._hold(spec)
        return ready

    def pause(self, now: float) -> float:
        """Return the seconds until somebody may be asked again, or is to be given up."""
        times = [again for _, again in self._refusals.values()]
        times += [since + self.patience for _, since in self._stuck.values()]
        return max(0.0, min(times) - now) if times else 0.0

    def check(self, now: float) -> None:
        """Raise the last refusal of a tenant of which nothing was taken for as long as the caller is patient."""
        for error, since in self._stuck.values():
            if now >= since + self.patience:
                raise error

    def _hold(self, spec: JobSpec) -> None:
        self._held.append(spec)
        self._held_of[spec.lane.path] += 1

    def _is_refused(self, spec: JobSpec) -> bool:
        path = spec.lane.path
        return path in self._refusals or path[:1] in self._refusals


def _is_of(spec: JobSpec, tenant: TenantPath) -> bool:
    return spec.lane.path[: len(tenant)] == tenant
