"""Caps and floors in numbers: what a policy allows at a given number of live slots."""

from __future__ import annotations

from math import ceil, floor
from typing import Final, NamedTuple

from drr.model import Amount, NodePolicy, Share

UNLIMITED: Final = 1 << 60
_SLACK: Final = 1e-9  # 0.2 * 10 is 2.0000000000000004 in some products; it must not round up to 3


class Bounds(NamedTuple):
    """Running jobs at which a node starts to borrow, is full, and stops being owed a floor."""

    soft: int
    hard: int
    floor: int


NO_BOUNDS: Final = Bounds(UNLIMITED, UNLIMITED, 0)


def resolve(policy: NodePolicy, slots: int) -> Bounds:
    """Return the bounds of ``policy`` in a pool of ``slots`` live slots.

    A cap given as a share rounds up and is at least 1, a floor rounds down. Where a count and a share
    contradict each other at this size, the hard cap wins over the soft one, and a cap over the floor.
    """
    hard = _cap(policy.hard_cap, slots)
    soft = min(_cap(policy.soft_cap, slots), hard)
    low = policy.floor
    owed = floor(low.fraction * slots + _SLACK) if isinstance(low, Share) else low
    return Bounds(soft, hard, min(owed, soft))


def follows_slots(policy: NodePolicy) -> bool:
    """Return whether any bound of ``policy`` is a share."""
    return any(isinstance(amount, Share) for amount in (policy.soft_cap, policy.hard_cap, policy.floor))


def _cap(amount: Amount | None, slots: int) -> int:
    if amount is None:
        return UNLIMITED
    if isinstance(amount, Share):
        return max(1, ceil(amount.fraction * slots - _SLACK))
    return amount
