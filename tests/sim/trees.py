"""Random tenants: trees with weights, and who submits what in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drr.core.scheduler import Scheduler
from drr.model import NodePolicy, PoolPolicy, TenantPath
from tests.sim.bounds import HORIZON, pair_bound
from tests.sim.driver import Schedules, Simulation, Work
from tests.sim.jobs import mixed


@dataclass
class Tenants:
    """A tree: the policies of its nodes, and the leaves that submit jobs."""

    policies: dict[TenantPath, NodePolicy] = field(default_factory=dict)
    leaves: list[TenantPath] = field(default_factory=list)


def random_tenants(rng: random.Random, depth: int, *, most: int = 3, weights: Sequence[float] = (1, 2, 3)) -> Tenants:
    """Return a tree of at most ``depth`` levels with 2 to ``most`` tenants on the first and 1 to ``most`` below."""
    tenants = Tenants()

    def grow(path: TenantPath, left: int) -> None:
        tenants.policies[path] = NodePolicy(weight=rng.choice(weights))
        if left == 0 or (len(path) > 1 and rng.random() < 0.3):
            tenants.leaves.append(path)
            return
        for name in "xyz"[: rng.randint(1, most)]:
            grow((*path, name), left - 1)

    for name in "abcd"[: rng.randint(2, most)]:
        grow((name,), depth - 1)
    return tenants


def run_until_it_counts(sim: Simulation, *, at_most: int, chunk: int = 4_000) -> None:
    """Run a simulation of always waiting tenants until its first level's pairs count, for ``at_most`` starts."""
    for _ in range(at_most // chunk):
        record = sim.run(starts=chunk)
        pairs = itertools.combinations(record.root.children, 2)
        if all(
            (one.served / one.policy.weight + other.served / other.policy.weight) / 2
            > (HORIZON + 2) * pair_bound(one, other, sim.pool.quantum)
            for one, other in pairs
        ):
            return


def saturated(
    rng: random.Random, tenants: Tenants, slots: int, wrong: Sequence[float], pool: PoolPolicy
) -> Simulation:
    """A simulation in which every leaf always waits, with jobs of mixed length and wrong estimates."""
    sim = Simulation(Scheduler(pool, tenants.policies), slots, tenants.policies, pool)
    for path in tenants.leaves:
        longest = rng.choice([0.5, 1.0, 2.0])
        sim.keep_backlogged(path, mixed(path, random.Random(rng.random()), (0.1, longest), wrong))
    return sim


def bursts(rng: random.Random, path: TenantPath, until: float, rate: float) -> Iterator[tuple[float, Work]]:
    """Arrivals of one tenant: bursts of jobs and single ones, with pauses."""
    now = 0.0
    while (now := now + rng.expovariate(rate)) < until:
        for _ in range(rng.choice([1, 1, 1, 5, 20])):
            seconds = rng.uniform(0.05, 2.0)
            yield now, Work(path, seconds, seconds * rng.choice([0.1, 1, 1, 10]), priority=rng.choice([0, 5, 5, 9]))


def bursty(scheduler: Schedules, rng: random.Random, tenants: Tenants, slots: int, pool: PoolPolicy) -> Simulation:
    """A simulation in which tenants come and go, workers die and come back, and slots change."""
    sim = Simulation(scheduler, slots, tenants.policies, pool)
    until = 150.0
    for path in tenants.leaves:
        sim.arrive(bursts(rng, path, until, rate=slots / (4 * len(tenants.leaves))))
    for _ in range(3):
        at = rng.uniform(0, until)
        sim.at(at, lambda s: s.vanish(min(2, s.slots - s.withheld), lease=5.0))
        sim.at(at + 10.0, lambda s: s.set_slots(s.slots + 2))
    return sim
