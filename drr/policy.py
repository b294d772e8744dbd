"""What tenants are entitled to: weights, caps, floors, quotas, limits, retries. Frozen values, validated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from drr.errors import InvalidPolicy
from drr.names import ESTIMATE_MAX, ESTIMATE_MIN, TenantPath, check_name, check_number


@dataclass(frozen=True, slots=True)
class Share:
    """A cap or floor as a fraction (0..1) of the pool's live slots."""

    fraction: float

    def __post_init__(self) -> None:
        check_number("share", self.fraction, 0.0, 1.0, error=InvalidPolicy)

    def __str__(self) -> str:
        return f"{self.fraction * 100:g}%"


Amount: TypeAlias = int | Share
"""A number of running jobs, or a share of the pool's live slots."""


def parse_amount(what: str, value: object) -> Amount:
    """Read ``3``, ``"3"`` or ``"20%"`` as an `Amount`."""
    if isinstance(value, Share):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str):
        text = value.strip()
        try:
            if text.endswith("%"):
                percent = check_number(what, float(text[:-1]), 0.0, 100.0, error=InvalidPolicy)
                return Share(percent / 100)
            return int(text)
        except InvalidPolicy:
            raise
        except ValueError:
            pass
    raise InvalidPolicy(what, value, "it must be a whole number of jobs or a share such as '20%'")


@dataclass(frozen=True, slots=True)
class NodePolicy:
    """What a node of the tree is entitled to. The defaults are weight 1, no caps and no floor.

    ``weight``: share relative to the siblings, 0.001 to 1,000,000. ``soft_cap``: running jobs while others
    wait; ``hard_cap``: running jobs ever; ``floor``: running jobs that the node gets ahead of everyone
    else when it has work. A cap is at least 1 (a share rounds up), a floor at least 0 (a share rounds
    down). ``ceiling``: the most credit, in worker-seconds, that the node may earn while it is parked;
    ``None`` takes the pool's default.
    """

    weight: float = 1.0
    soft_cap: Amount | None = None
    hard_cap: Amount | None = None
    floor: Amount = 0
    ceiling: float | None = None

    def __post_init__(self) -> None:
        check_number("weight", self.weight, 1e-3, 1e6, error=InvalidPolicy)
        for what, cap in (("soft cap", self.soft_cap), ("hard cap", self.hard_cap)):
            if isinstance(cap, bool) or (isinstance(cap, int) and cap < 1):
                raise InvalidPolicy(what, cap, "a cap must be at least 1; leave it out for no cap")
        if isinstance(self.floor, bool) or (isinstance(self.floor, int) and self.floor < 0):
            raise InvalidPolicy("floor", self.floor, "a floor must be at least 0")
        if self.ceiling is not None:
            check_number("ceiling", self.ceiling, 0.0, 1e9, error=InvalidPolicy)
        self._check_order("soft cap", self.soft_cap, "hard cap", self.hard_cap)
        self._check_order("floor", self.floor, "soft cap", self.soft_cap)
        self._check_order("floor", self.floor, "hard cap", self.hard_cap)

    @staticmethod
    def _check_order(low_name: str, low: Amount | None, high_name: str, high: Amount | None) -> None:
        # Only like can be compared with like here: a count against a share depends on the live slots.
        # Where they are mixed, the core takes the smaller of the two when it resolves them.
        low_value = low.fraction if isinstance(low, Share) else low
        high_value = high.fraction if isinstance(high, Share) else high
        if isinstance(low, Share) != isinstance(high, Share) or low_value is None or high_value is None:
            return
        if low_value > high_value:
            raise InvalidPolicy(low_name, str(low), f"it must not be above the {high_name} ({high})")


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Settings of one pool's tree.

    ``quantum``: worker-seconds of credit per round to weight 1. ``ceiling``: default ceiling of the nodes.
    ``reserve``: slots kept free from borrowers. ``default_estimate``: worker-seconds charged for a job
    that names none and of which nothing was learned. ``lease``: seconds of silence after which the attempts of
    this pool that a worker holds count as lost, 0.1 to 86,400; ``None`` takes the dispatcher's.
    """

    quantum: float = 1.0
    ceiling: float = 60.0
    reserve: int = 0
    default_estimate: float = 1.0
    lease: float | None = None

    def __post_init__(self) -> None:
        check_number("quantum", self.quantum, 1e-3, 1e6, error=InvalidPolicy)
        check_number("ceiling", self.ceiling, 0.0, 1e9, error=InvalidPolicy)
        if type(self.reserve) is not int or self.reserve < 0:
            raise InvalidPolicy("reserve", self.reserve, "it must be a whole number of slots, at least 0")
        check_number("default estimate", self.default_estimate, ESTIMATE_MIN, ESTIMATE_MAX, error=InvalidPolicy)
        if self.lease is not None:
            check_number("lease", self.lease, 0.1, 86_400.0, error=InvalidPolicy)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """What becomes of a job whose attempt failed or timed out.

    ``attempts``: failed or timed-out attempts after which it is given up, 1 (no retry) to 1000; attempts that the
    platform lost do not count. The pause before the next is ``delay`` seconds after the first failure, grows by
    ``factor`` each time, is at most ``max_delay``, and the part ``jitter`` of it (0 to 1) is random: it is drawn
    between ``(1 - jitter)`` of the pause and all of it. A handler that raises `drr.RetryAfter` says the next
    pause itself.
    """

    attempts: int = 1
    delay: float = 1.0
    factor: float = 2.0
    max_delay: float = 3600.0
    jitter: float = 0.5

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or not 1 <= self.attempts <= ATTEMPTS_MAX:
            raise InvalidPolicy("attempts", self.attempts, f"it must be a whole number from 1 to {ATTEMPTS_MAX}")
        check_number("delay", self.delay, 0.0, DELAY_MAX, error=InvalidPolicy)
        check_number("factor", self.factor, 1.0, 100.0, error=InvalidPolicy)
        check_number("max_delay", self.max_delay, 0.0, DELAY_MAX, error=InvalidPolicy)
        check_number("jitter", self.jitter, 0.0, 1.0, error=InvalidPolicy)

    def pause(self, failures: int, draw: float) -> float:
        """Return the seconds to wait after the ``failures``-th failure (from 1); ``draw`` is uniform in 0 to 1."""
        try:
            full = min(self.max_delay, self.delay * self.factor ** (failures - 1))
        except OverflowError:
            full = self.max_delay
        return full * (1.0 - self.jitter * draw)


ATTEMPTS_MAX: Final = 1000
DELAY_MAX: Final = 90 * 86_400.0
"""Most seconds that a job may be put off: 90 days."""
NO_RETRY: Final = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Quota:
    """What a tenant may submit. ``None`` anywhere: no limit.

    ``jobs``: most that may wait (delayed ones and waiting retries included). ``worker_seconds``: most work that
    may wait, by estimates; a job that names none counts as one worker-second (`UNNAMED_WORK`). ``rate``: jobs a
    second in the long run; ``burst``: jobs at once after a rest, by default one second's worth, at least 1.
    """

    jobs: int | None = None
    worker_seconds: float | None = None
    rate: float | None = None
    burst: int | None = None

    def __post_init__(self) -> None:
        for what, count in (("backlog", self.jobs), ("burst", self.burst)):
            if count is not None and (type(count) is not int or not 1 <= count <= 10**12):
                raise InvalidPolicy(what, count, "it must be a whole number of jobs, at least 1")
        if self.worker_seconds is not None:
            check_number("backlog in worker-seconds", self.worker_seconds, 1e-3, 1e12, error=InvalidPolicy)
        if self.rate is not None:
            check_number("rate", self.rate, 1e-4, 1e6, error=InvalidPolicy)
        elif self.burst is not None:
            raise InvalidPolicy("burst", self.burst, "it needs a rate")

    @property
    def bucket(self) -> float:
        """How many jobs the token bucket holds."""
        if self.burst is not None:
            return float(self.burst)
        return max(1.0, self.rate or 1.0)

    @property
    def unlimited(self) -> bool:
        """Whether nothing is limited."""
        return self.jobs is None and self.worker_seconds is None and self.rate is None


UNNAMED_WORK: Final = 1.0
"""Worker-seconds that a job without an estimate counts for in a backlog limit.

A constant, so that what is added at submit and taken off at dispatch is the same, whatever is learned between.
"""
NO_QUOTA: Final = Quota()
ANY: Final = "*"
"""Stands for a tenant that is not listed by name in `Settings.quotas`; no name is called so."""


@dataclass(frozen=True, slots=True)
class SharedLimit:
    """A named limit that jobs of all pools share ("postgres-main").

    ``concurrency``: most jobs that hold it at once; ``rate``: most starts a second in the long run, ``burst`` of
    them at once (1). ``per_organisation``, ``per_project``: most that one tenant holds at once. ``None``: no bound.
    """

    concurrency: int | None = None
    rate: float | None = None
    burst: int = 1
    per_organisation: int | None = None
    per_project: int | None = None

    def __post_init__(self) -> None:
        for what in ("concurrency", "burst", "per_organisation", "per_project"):
            count = getattr(self, what)
            if count is not None and (type(count) is not int or not 1 <= count <= 10**9):
                raise InvalidPolicy(what, count, "it must be a whole number, at least 1")
        if self.rate is not None:
            check_number("rate", self.rate, 1e-4, 1e6, error=InvalidPolicy)


LIMITS_PER_JOB: Final = 4
"""Most limits that one job may name."""


def check_limits(value: object) -> tuple[str, ...]:
    """Return the names of limits in the order in which they are part of a lane: sorted, without repetition."""
    if isinstance(value, str) or not isinstance(value, list | tuple | set | frozenset):
        raise InvalidPolicy("limits", value, "they are a list of names")
    names = tuple(sorted({check_name("limit", name) for name in value}))
    if len(names) > LIMITS_PER_JOB:
        raise InvalidPolicy("limits", value, f"a job names at most {LIMITS_PER_JOB} limits")
    return names


Policies: TypeAlias = Mapping[TenantPath, NodePolicy]


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything about entitlement that is stored.

    ``pools``: settings by pool. ``nodes``: by pool the policies of nodes, set one by one by API or command line;
    they come before what plans say. ``plans``: the text of the plans file in force, empty if there is none, and
    ``assigned``: organisation to plan, as far as set by API; it comes before what the file says. The rest follows
    from the plans and is stored in this form for those who do not read plans files: ``limits`` by name, and
    ``quotas`` by path, where `ANY` stands for every name that is not listed. An organisation has the quota under its
    path, else that of ``("*",)``; a project has its own, else that of ``("acme", "*")``, else of ``("*", "*")``.
    """

    pools: Mapping[str, PoolPolicy] = field(default_factory=dict)
    nodes: Mapping[str, Policies] = field(default_factory=dict)
    plans: str = ""
    assigned: Mapping[str, str] = field(default_factory=dict)
    quotas: Mapping[TenantPath, Quota] = field(default_factory=dict)
    limits: Mapping[str, SharedLimit] = field(default_factory=dict)

    def quota(self, path: TenantPath) -> Quota:
        """Return the quota of an organisation or project; see ``quotas``."""
        if len(path) == 1:
            return self.quotas.get(path) or self.quotas.get((ANY,)) or NO_QUOTA
        return self.quotas.get(path) or self.quotas.get((path[0], ANY)) or self.quotas.get((ANY, ANY)) or NO_QUOTA
