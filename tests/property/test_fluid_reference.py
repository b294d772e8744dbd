"""The core against the independent fluid reference: weights, caps and floors on two levels, over a long run.

A slot cannot be split, and a job is not moved once it runs. Where a cap or a floor lies within a slot of the fair
share, that costs about a slot, whatever the size of the pool: a tenant held at a cap of 4 cannot make up later
for a moment at 3. So random trees, where that is common, are compared to `NEAR` slots in pools of 20 to 60; cases
that are clear of it are compared closely.
"""

from __future__ import annotations

import random

import pytest

from drr.core.scheduler import Scheduler
from drr.model import NodePolicy, PoolPolicy, TenantPath
from tests.sim.bounds import check_no_violations
from tests.sim.driver import Simulation
from tests.sim.fluid import FluidNode, fair_rates
from tests.sim.jobs import mixed

NEAR = 2.0
SCALE = 5
POOL = PoolPolicy(quantum=0.2, ceiling=20.0)


def random_policy(rng: random.Random, slots: int) -> NodePolicy:
    """Any weight; now and then a floor, a soft cap, a hard cap, in an order that makes sense."""
    low, middle, high = sorted(SCALE * rng.randint(1, slots // SCALE) for _ in range(3))
    return NodePolicy(
        weight=rng.choice([0.5, 1, 2, 4]),
        floor=low if rng.random() < 0.3 else 0,
        soft_cap=middle if rng.random() < 0.4 else None,
        hard_cap=high if rng.random() < 0.4 else None,
    )


def random_tree(rng: random.Random, slots: int) -> dict[TenantPath, NodePolicy]:
    """Two to four organisations of one to three projects each."""
    policies: dict[TenantPath, NodePolicy] = {}
    for name in "abcd"[: rng.randint(2, 4)]:
        policies[(name,)] = random_policy(rng, slots)
        for project in "xyz"[: rng.randint(1, 3)]:
            policies[(name, project)] = random_policy(rng, slots)
    return policies


def fluid(policies: dict[TenantPath, NodePolicy], path: TenantPath = ()) -> FluidNode:
    """Say the same to the reference."""
    policy = policies.get(path, NodePolicy())
    names = [other[-1] for other in policies if len(other) == len(path) + 1 and other[: len(path)] == path]

    def count(amount: object, default: float) -> float:
        return float(amount) if isinstance(amount, int) else default

    return FluidNode(
        policy.weight,
        count(policy.floor, 0.0),
        count(policy.soft_cap, float("inf")),
        count(policy.hard_cap, float("inf")),
        children={name: fluid(policies, (*path, name)) for name in names},
    )


def compare(
    policies: dict[TenantPath, NodePolicy], slots: int, seconds: float, seed: int = 0
) -> dict[TenantPath, tuple[float, float]]:
    """Run every project with a backlog; return for each node its rate in slots, and the reference's."""
    sim = Simulation(Scheduler(POOL, policies), slots, policies, POOL)
    inner = {path[:-1] for path in policies}
    for path in policies:
        if path not in inner:
            sim.keep_backlogged(path, mixed(path, random.Random(f"{seed}{path}"), (0.2, 1.0), (1.0,)))
    record = sim.run(until=seconds)
    check_no_violations(record)
    right = fair_rates(fluid(policies), slots)
    return {path: (record.tracks[path].served / seconds, right[path]) for path in policies}


def check_against_fluid(seed: int) -> None:
    rng = random.Random(seed)
    slots = SCALE * rng.randint(4, 12)
    policies = random_tree(rng, slots)
    for path, (found, right) in compare(policies, slots, 60.0, seed).items():
        assert found == pytest.approx(right, abs=NEAR), f"{path} of {policies} in {slots} slots"


@pytest.mark.parametrize("seed", range(8))
def test_random_trees_get_the_fluid_rates(seed: int) -> None:
    check_against_fluid(seed)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8, 300))
def test_random_trees_get_the_fluid_rates_at_length(seed: int) -> None:
    check_against_fluid(seed)


CLEAR = [
    # (what it shows, slots, policies, right rates)
    ("weights", 7, [NodePolicy(1), NodePolicy(2), NodePolicy(4)], [1, 2, 4]),
    ("a hard cap far below the share", 12, [NodePolicy(8, hard_cap=2), NodePolicy(1), NodePolicy(4)], [2, 2, 8]),
    ("a floor far above the share", 10, [NodePolicy(0.01, floor=4), NodePolicy(1), NodePolicy(2)], [4, 2, 4]),
    ("a floor far below the share", 9, [NodePolicy(2, floor=1), NodePolicy(1)], [6, 3]),
    ("floors that do not all fit", 6, [NodePolicy(1, floor=6), NodePolicy(2, floor=6)], [2, 4]),
    ("a soft cap while others want more", 12, [NodePolicy(100, soft_cap=3), NodePolicy(1), NodePolicy(2)], [3, 3, 6]),
    ("borrowers share by weight", 12, [NodePolicy(1, soft_cap=1), NodePolicy(2, soft_cap=1)], [4, 8]),
    ("borrowing beside a hard cap", 10, [NodePolicy(1, soft_cap=1), NodePolicy(9, hard_cap=2)], [8, 2]),
]


@pytest.mark.parametrize(("_name", "slots", "siblings", "right"), CLEAR, ids=[row[0] for row in CLEAR])
@pytest.mark.parametrize("depth", [1, 2])
def test_clear_cases(_name: str, slots: int, siblings: list[NodePolicy], right: list[float], depth: int) -> None:
    """The same siblings as organisations of a pool and as projects of one organisation."""
    above: TenantPath = ("org",) * (depth - 1)
    policies = {above: NodePolicy()} if above else {}
    policies |= {(*above, name): policy for name, policy in zip("abcd", siblings, strict=False)}
    compared = compare(policies, slots, 400.0)
    found = [compared[(*above, name)] for name, _ in zip("abcd", siblings, strict=False)]
    assert [reference for _, reference in found] == pytest.approx(right)
    # A tenant that comes back from its cap stands behind who is due in the same round: it waits for a release or
    # two of the pool's slots after each of its jobs, and the others get what it cannot use meanwhile.
    capped = any(policy.soft_cap or policy.hard_cap for policy in siblings)
    assert [rate for rate, _ in found] == pytest.approx(right, abs=0.35 if capped else 0.1)
