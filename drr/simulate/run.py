"""A trace under several policies, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from drr.errors import InvalidValue
from drr.model import NodePolicy, PoolPolicy, TenantPath, check_number
from drr.simulate.engine import Progress, Simulation
from drr.simulate.policies import POLICIES, PolicyOf, make_policy
from drr.simulate.results import Run
from drr.simulate.trace import Source
from drr.simulate.windows import windows_for

MOST_WORKERS = 1_000_000


def no_policies(path: TenantPath) -> NodePolicy:
    """Return the defaults for everybody: weight 1, no caps, no floor."""
    return _DEFAULTS


_DEFAULTS = NodePolicy()


@dataclass(frozen=True, slots=True)
class Setup:
    """What is simulated: ``slots`` from each time on, the pool's settings, everybody's policies, until when."""

    slots: Sequence[tuple[float, int]]
    pool: PoolPolicy = field(default_factory=PoolPolicy)
    policy_of: PolicyOf = no_policies
    until: float = inf


def workers_for(source: Source, load: float) -> int:
    """Return the number of workers at which the trace's mean demand is ``load`` of them (0.01 to 100)."""
    check_number("load", load, 0.01, 100.0)
    demand = source.demand()
    if demand.span <= 0.0:
        raise InvalidValue("load", load, "the trace spans no time, so it has no mean demand: give --workers instead")
    return max(1, round(demand.worker_seconds / demand.span / load))


def slots_of(source: Source, workers: int | None = None, load: float | None = None) -> Sequence[tuple[float, int]]:
    """Return the live slots over time: as given, else as the source says; there must be one way only."""
    if workers is not None and load is not None:
        raise InvalidValue("load", load, "give either workers or a load")
    if workers is not None:
        if not 1 <= workers <= MOST_WORKERS:
            raise InvalidValue("workers", workers, f"it must be 1 to {MOST_WORKERS:,}")
        return [(0.0, workers)]
    if load is not None:
        return [(0.0, workers_for(source, load))]
    slots = source.slots
    if not slots:
        raise InvalidValue("workers", None, "the trace does not say how many there were: give --workers or --load")
    return slots


def simulate(
    source: Source,
    setup: Setup,
    policies: Sequence[str] = ("drr",),
    progress: Callable[[str], Progress] | None = None,
) -> Run:
    """Run ``source`` under each policy and return what came of it.

    ``progress`` is asked, with a policy's name, for a hook. Raises `InvalidValue` for a policy that is none,
    and what the source raises for a bad trace.
    """
    unknown = [name for name in policies if name not in POLICIES]
    if unknown or not policies:
        raise InvalidValue("policy", ", ".join(unknown), f"it must be one of {', '.join(POLICIES)}")
    demand = source.demand()
    most = max(number for _, number in setup.slots)
    window = windows_for(min(max(demand.span, demand.worker_seconds / max(most, 1)), setup.until))
    results = {}
    for name in dict.fromkeys(policies):
        simulation = Simulation(
            source,
            make_policy(name, setup.pool, setup.policy_of),
            setup.pool,
            setup.policy_of,
            setup.slots,
            accrues=name == "drr",
            window=window,
        )
        results[name] = simulation.run(name, setup.until, progress(name) if progress else None)
    return Run(source.name, most, results)
