"""An independent reference: weighted max-min fair rates over a tree, as if slots could be split at will.

It is written apart from `drr.core` and shares no code with it: what the discrete scheduler does over a long
run is compared with what this says it should have done. Every rate is in slots (worker-seconds a second).

The rule at one level. Each child has three thresholds: its *floor*, its *soft* cap and the *most* that it can
use (the smallest of hard cap, demand, and what its own children can use). Capacity fills the tiers between
them in turn: up to the floors, then up to the soft caps, then up to the most. Inside a tier all children
stand at one water level ``L``: a child gets ``clamp(L * weight, lower threshold, upper threshold)``. Service
that a floor or a lower tier gave counts, so a floor below the fair share changes nothing.

The tree is solved from the top: what a node can use is known from below, so each level is on its own.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from drr.model import TenantPath


@dataclass(frozen=True, slots=True)
class FluidNode:
    """A tenant in the fluid model; ``demand`` (slots it could fill) counts at leaves only."""

    weight: float = 1.0
    floor: float = 0.0
    soft: float = math.inf
    hard: float = math.inf
    demand: float = math.inf
    children: Mapping[str, FluidNode] = field(default_factory=dict)

    def most(self) -> float:
        """Return the most slots that this node can use."""
        below = sum(child.most() for child in self.children.values()) if self.children else self.demand
        return min(self.hard, below)


def fair_rates(root: FluidNode, capacity: float) -> dict[TenantPath, float]:
    """Return the fair rate of every node when the pool has ``capacity`` slots; the empty path is the pool."""
    rates: dict[TenantPath, float] = {}
    pending: list[tuple[TenantPath, FluidNode, float]] = [((), root, min(capacity, root.most()))]
    while pending:
        path, node, rate = pending.pop()
        rates[path] = rate
        shares = fair_level(list(node.children.values()), rate)
        pending += [
            ((*path, name), child, share) for (name, child), share in zip(node.children.items(), shares, strict=True)
        ]
    return rates


def fair_level(children: Sequence[FluidNode], capacity: float) -> list[float]:
    """Share ``capacity`` between siblings by the rule in the opening comment."""
    weights = [child.weight for child in children]
    tiers = [[0.0] * len(children)]
    tiers += [list(row) for row in zip(*(thresholds(child) for child in children), strict=True)]
    for lower, upper in itertools.pairwise(tiers):
        if sum(upper) >= capacity:
            return fill(capacity, weights, lower, upper)
    return tiers[-1]


def thresholds(node: FluidNode) -> tuple[float, float, float]:
    """Return where a node's three tiers end: floor, soft cap, and the most that it can use."""
    most = node.most()
    soft = min(node.soft, most)
    return min(node.floor, soft), soft, most


def fill(capacity: float, weights: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> list[float]:
    """Raise one water level until the children hold ``capacity``, each clamped to its own range.

    Needs ``sum(lower) <= capacity <= sum(upper)``. The level passes the points where a child begins or
    stops to rise in order; between two points the total grows at the weight of the children that rise.
    """
    points = [(low / weight, weight) for low, weight in zip(lower, weights, strict=True)]
    points += [(high / weight, -weight) for high, weight in zip(upper, weights, strict=True) if high < math.inf]
    points.sort()
    level, slope, held = 0.0, 0.0, sum(lower)
    for point, change in points:
        if slope > 0 and held + slope * (point - level) >= capacity:
            break
        held += slope * (point - level)
        level = point
        slope += change
    if slope > 1e-12 * sum(weights):
        level += (capacity - held) / slope
    return [min(max(level * w, low), high) for w, low, high in zip(weights, lower, upper, strict=True)]
