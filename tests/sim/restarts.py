"""A scheduler whose dispatcher restarts: everything goes on from what was stored after the last decision."""

from __future__ import annotations

from collections.abc import Hashable

from drr.core.invariants import check
from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.model import NodeState, Outcome, Policies, PoolPolicy, TenantPath
from tests.sim.model import Model


class Restarting:
    """Wraps a `Scheduler`; `restart` replaces it by one made of its stored accounts, leases and backlog."""

    def __init__(self, pool: PoolPolicy, policies: Policies) -> None:
        self._pool = pool
        self._policies = policies
        self._core = Scheduler(pool, policies)
        self._store: dict[TenantPath, NodeState] = {}
        self._model = Model(pool=pool)
        self._slots = (0, 0)
        self.restarts = 0

    def set_slots(self, slots: int, withheld: int = 0) -> None:
        """Pass it on."""
        self._slots = (slots, withheld)
        self._core.set_slots(slots, withheld)

    def offer(self, job: Job, *, front: bool = False) -> None:
        """Pass it on, and note the order of the backlog."""
        self._core.offer(job, front=front)
        self._model.offer(job, front=front)

    def take(self, token: Hashable, now: float) -> RunningLease | None:
        """Pass it on."""
        lease = self._core.take(token, now)
        if lease is not None:
            self._model.start(lease.job, token, now)
        return lease

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> RunningLease:
        """Pass it on."""
        self._model.leases.pop(token)
        return self._core.settle(token, outcome, held)

    def accrue(self, now: float) -> list[RunningLease]:
        """Pass it on."""
        return self._core.accrue(now)

    def restart(self) -> None:
        """Store what was touched, drop everything else, and load."""
        for path, state in self._core.touched().items():
            if state is None:
                self._store.pop(path, None)
            else:
                self._store[path] = state
        leases = list(self._core.leases.values())
        self._core = Scheduler(self._pool, self._policies)
        self._core.restore(self._store)
        self._core.set_slots(*self._slots)
        for old in leases:
            self._core.adopt(old.job, old.token, old.started, old.charged, old.excused)
        for job in self._model.jobs():
            self._core.offer(job)
        check(self._core)
        self.restarts += 1
