"""A small pool to write examples with: offers, starts and endings in a line each, invariants after every step."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

from drr.core.invariants import check
from drr.core.scheduler import Job, RunningLease, Scheduler
from drr.core.shared import LimitBook
from drr.model import NodePolicy, Outcome, PoolPolicy, SharedLimit, TenantPath


class Bench:
    """Drives a `Scheduler`. Tenants are written ``"acme"`` (project ``main``) or ``"acme/imports"``."""

    def __init__(
        self,
        slots: int = 1,
        pool: PoolPolicy | None = None,
        *,
        limits: Mapping[str, SharedLimit] | LimitBook | None = None,
        **policies: NodePolicy,
    ) -> None:
        self.book = limits if isinstance(limits, LimitBook) else LimitBook(limits)
        of: dict[TenantPath, NodePolicy] = {(name,): policy for name, policy in policies.items()}
        self.scheduler = Scheduler(pool, of, limits=self.book)
        self.scheduler.set_slots(slots)
        self.now = 0.0
        self._numbers = count(1)

    @staticmethod
    def path(tenant: str) -> TenantPath:
        organisation, _, project = tenant.partition("/")
        return (organisation, project or "main")

    def offer(
        self,
        tenant: str,
        *estimates: float,
        priority: int = 5,
        front: bool = False,
        losses: int = 0,
        limits: tuple[str, ...] = (),
    ) -> list[int]:
        """Queue a job per estimate; return their ids."""
        ids = []
        for estimate in estimates:
            number = next(self._numbers)
            job = Job(number, self.path(tenant), estimate, priority, losses, limits=limits)
            self.scheduler.offer(job, front=front)
            ids.append(number)
            check(self.scheduler)
        return ids

    def start(self) -> RunningLease | None:
        """Take one decision."""
        lease = self.scheduler.take(next(self._numbers), self.now)
        check(self.scheduler)
        return lease

    def start_all(self) -> list[str]:
        """Take decisions until nothing may start; return the organisations in order."""
        started = []
        while (lease := self.start()) is not None:
            started.append(lease.job.path[0])
        return started

    def finish(
        self, lease: RunningLease, held: float | None = None, outcome: Outcome = Outcome.SUCCEEDED
    ) -> RunningLease:
        """End an attempt, by default after exactly its estimate."""
        settled = self.scheduler.settle(lease.token, outcome, lease.job.estimate if held is None else held)
        check(self.scheduler)
        return settled

    def serve(self, starts: int) -> list[str]:
        """One slot, ``starts`` times: start and finish exactly; return the organisations in order."""
        served = []
        for _ in range(starts):
            lease = self.start()
            if lease is None:
                break
            served.append(lease.job.path[0])
            self.finish(lease)
        return served

    def credit(self, tenant: str) -> float:
        """Return the credit of an organisation, or of a project if one is named."""
        path = self.path(tenant) if "/" in tenant else (tenant,)
        view = self.scheduler.view(path)
        assert view is not None
        return view.credit

    def running(self, organisation: str) -> int:
        """Return the live leases of an organisation."""
        view = self.scheduler.view((organisation,))
        return view.running if view is not None else 0
