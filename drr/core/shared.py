"""Limits that tenants and pools share: how much of each is held, and who waits for it.

Rules of this file: no I/O, no clock (``now`` is an argument, seconds of a clock that never goes back), no jobs'
order within a project; that is in `drr.core.lines`. What is held of a limit is the set of leases that hold it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from drr.core.limits import UNLIMITED
from drr.core.turns import Account, Waiter
from drr.model import SharedLimit, TenantPath

if TYPE_CHECKING:
    from drr.core.jobs import Line, RunningLease
    from drr.core.lines import Gate

NO_LIMIT: Final = SharedLimit()
_SLACK: Final = 1e-6  # of a start: what the sum of many short refills may miss
_SWEEP_AT: Final = 1024


class Hall:
    """Who of one pool waits for one limit (``root``), and who may start under it (``open``, oldest first)."""

    __slots__ = ("open", "root", "waiting")

    def __init__(self, account: Account) -> None:
        self.root = Waiter((), None, account)
        self.open: dict[Line, None] = {}
        self.waiting = 0


class Limit:
    """One limit: its bounds, the leases that hold it, its token bucket, and who waits.

    ``held``: leases by organisation, and by project. ``lines``: how many lines name it. ``claim``: a line for which
    one unit is kept back.
    """

    __slots__ = (
        "accounts",
        "away",
        "claim",
        "halls",
        "held",
        "leases",
        "lines",
        "name",
        "policy",
        "refilled",
        "sweep_at",
        "tokens",
    )

    def __init__(self, name: str, policy: SharedLimit) -> None:
        self.name = name
        self.policy = policy
        self.leases: dict[RunningLease, None] = {}
        self.held: Counter[tuple[str, TenantPath]] = Counter()
        self.tokens = float(policy.burst)
        self.refilled: float | None = None
        self.accounts = Account(0.0)
        self.halls: dict[Gate, Hall] = {}
        self.away: dict[tuple[str, TenantPath], dict[Waiter, None]] = {}
        self.claim: Line | None = None
        self.lines = 0
        self.sweep_at = _SWEEP_AT

    @property
    def waiting(self) -> int:
        """Lines (a project's jobs that name the same limits) that wait here."""
        return sum(hall.waiting for hall in self.halls.values())

    def hall(self, gate: Gate) -> Hall:
        """Return the waiters of one pool."""
        hall = self.halls.get(gate)
        if hall is None:
            hall = self.halls[gate] = Hall(self.accounts)
        return hall

    def free(self, line: Line | None = None) -> int:
        """Return how many more may start now; without what is kept back for another than ``line``."""
        policy = self.policy
        free = UNLIMITED if policy.concurrency is None else policy.concurrency - len(self.leases)
        if policy.rate is not None:
            free = min(free, int(self.tokens + _SLACK))
        return free if self.claim is None or self.claim is line else free - 1

    def bound(self, path: TenantPath) -> tuple[str, TenantPath] | None:
        """Return which bound per tenant is reached for the project ``path``, or ``None``."""
        policy = self.policy
        if policy.per_organisation is not None and self.held["organisation", path[:1]] >= policy.per_organisation:
            return "organisation", path[:1]
        if policy.per_project is not None and self.held["project", path] >= policy.per_project:
            return "project", path
        return None

    def refill(self, now: float) -> None:
        """Let the token bucket fill up to ``now``."""
        rate = self.policy.rate
        if self.refilled is not None and rate is not None and now > self.refilled:
            self.tokens = min(float(self.policy.burst), self.tokens + (now - self.refilled) * rate)
        self.refilled = now if self.refilled is None else max(now, self.refilled)

    def take(self, lease: RunningLease) -> None:
        """A lease holds one unit from now on."""
        self.leases[lease] = None
        path = lease.job.path
        self.held["organisation", path[:1]] += 1
        self.held["project", path] += 1

    def serve(self, lease: RunningLease) -> None:
        """Charge a start to its organisation and project, and its token."""
        if self.policy.rate is not None:
            self.tokens -= 1.0
        if not self.waiting:
            self.accounts.below.clear()  # nobody waits: debts are void
        path, cost = lease.job.path, lease.charged
        org = self.accounts.serve(path[:1], cost / lease.organisation.policy.weight)
        org.serve(path, cost / lease.leaf.policy.weight)
        if len(self.accounts.below) > self.sweep_at:
            self._sweep()
            self.sweep_at = max(_SWEEP_AT, 2 * len(self.accounts.below))

    def correct(self, lease: RunningLease, delta: float) -> None:
        """A lease's charge has changed by ``delta`` worker-seconds."""
        path = lease.job.path
        org = self.accounts.below.get(path[:1])
        if org is None or path not in org.below:
            return
        org.tag += delta / lease.organisation.policy.weight
        org.below[path].tag += delta / lease.leaf.policy.weight
        if delta >= 0.0:
            return
        for hall in self.halls.values():
            waiter = hall.root.below.get(path[:1])
            if waiter is not None:
                waiter.favour()
                if path in waiter.below:
                    waiter.below[path].favour()

    def _sweep(self) -> None:
        """Forget accounts that say nothing: of who holds nothing, does not wait and owes nothing."""
        accounts = self.accounts
        waiting = {path for hall in self.halls.values() for path in hall.root.below}
        for path, account in list(accounts.below.items()):
            if account.tag <= accounts.clock and path not in waiting and not self.held["organisation", path]:
                del accounts.below[path]

    def release(self, lease: RunningLease) -> None:
        """A lease has ended: its unit is free, and who was held up by a bound of its tenants stands in line again."""
        del self.leases[lease]
        path = lease.job.path
        for key in (("organisation", path[:1]), ("project", path)):
            self.held[key] -= 1
            if not self.held[key]:
                del self.held[key]
            self.let_in(key)
        self.stir()

    def let_in(self, key: tuple[str, TenantPath]) -> None:
        """Put those who were held up by the bound ``key`` back in line."""
        for waiter in list(self.away.pop(key, ())):
            waiter.queue()

    def stir(self) -> None:
        """Let every pool that has waiters look at this limit before its next decision."""
        for gate, hall in self.halls.items():
            if hall.waiting:
                gate.stirred[self] = None

    @property
    def unused(self) -> bool:
        """Whether nothing depends on this object."""
        return not self.leases and not self.lines and self.policy.rate is None


class LimitBook:
    """All shared limits by name. One book serves the schedulers of all pools."""

    def __init__(self, limits: Mapping[str, SharedLimit] | None = None) -> None:
        """``limits`` by name; a name that is not listed limits nothing."""
        self._policies = dict(limits or {})
        self._limits: dict[str, Limit] = {}
        self.claimant: Line | None = None
        """The line for which limits are kept back; there is one at a time."""

    def limit(self, name: str) -> Limit:
        """Return the limit called ``name``, made when first named."""
        limit = self._limits.get(name)
        if limit is None:
            limit = self._limits[name] = Limit(name, self._policies.get(name, NO_LIMIT))
        return limit

    @property
    def known(self) -> Mapping[str, Limit]:
        """The limits that were named by a job so far."""
        return self._limits

    def set_limits(self, limits: Mapping[str, SharedLimit]) -> None:
        """Change all limits; binds at once. Fewer units than are held stop nothing that runs."""
        self._policies = dict(limits)
        for name, limit in list(self._limits.items()):
            before, limit.policy = limit.policy, limits.get(name, NO_LIMIT)
            if limit.unused:
                del self._limits[name]
                continue
            if before.rate is None:
                limit.tokens = float(limit.policy.burst)
            limit.tokens = min(limit.tokens, float(limit.policy.burst))
            for key in list(limit.away):
                limit.let_in(key)
            for gate in list(limit.halls):
                gate.trim(limit)
            limit.stir()

    def tidy(self, limit: Limit) -> None:
        """Forget a limit that nobody holds or names any more; a rate's bucket is kept."""
        if limit.unused:
            self._limits.pop(limit.name, None)

    def advance(self, now: float) -> None:
        """Let start rates refill up to ``now``; who waits for one can start with the next decision."""
        for limit in self._limits.values():
            if limit.policy.rate is not None:
                limit.refill(now)
                if limit.free() > 0:
                    limit.stir()

    def next_start(self, now: float) -> float | None:
        """Return when a start that waits only for a rate may begin, or ``None`` if none does."""
        times = []
        for limit in self._limits.values():
            policy = limit.policy
            if policy.rate is None or not limit.waiting or limit.tokens + _SLACK >= 1.0:
                continue
            if policy.concurrency is None or len(limit.leases) < policy.concurrency:
                since = now if limit.refilled is None else limit.refilled
                times.append(max(now, since + (1.0 - limit.tokens) / policy.rate))
        return min(times, default=None)

    def running(self, name: str) -> int:
        """Return how many leases hold the limit ``name``."""
        limit = self._limits.get(name)
        return len(limit.leases) if limit is not None else 0

    def waiting(self, name: str) -> int:
        """Return how many projects' lines wait for the limit ``name``."""
        limit = self._limits.get(name)
        return limit.waiting if limit is not None else 0
