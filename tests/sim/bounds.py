"""The promises of fairness as checks over a `Record`.

For two siblings ``i`` and ``j`` that both contend (have work that could start, are below their soft caps and owed
no floor) over an interval:

    |S_i/phi_i - S_j/phi_j|  <=  sum over x in {i, j} of  Q + [(1 + P_x)*E_x + P_x*(2*u_x + o_x)] / phi_x

with S service in worker-seconds (lost and refunded attempts left out), phi weight, Q quantum, P most attempts in
flight, E largest estimate, u and o largest under- and over-estimate, each of them seen below that node in that run:
this is never above the bound with the largest values of the whole pool. *All* intervals are checked: the
largest deviation over the intervals inside a stretch in which both contend is the difference between the
highest and the lowest value of ``D = S_i/phi_i - S_j/phi_j`` in it.

A run that is short against the bound proves nothing, because the bound allows so much. So a pair *counts*
only if a stretch was as long as ``HORIZON`` bounds of normalised service, and checks fail if what they
were asked about did not count.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from heapq import merge

from drr.model import PoolPolicy, TenantPath
from tests.sim.record import Record, Track

HORIZON = 20
"""How many bounds long a stretch must be to mean anything."""


class Unfair(AssertionError):
    """A promise of fairness was seen broken."""


class TooShort(AssertionError):
    """The run was too short against the bound to prove anything."""


@dataclass(frozen=True, slots=True)
class Drift:
    """What was seen of one pair: the largest deviation, what is allowed, and the longest stretch (mean S/phi).

    ``gap`` is the largest deviation counted from the beginning of a stretch only.
    """

    one: TenantPath
    other: TenantPath
    drift: float
    bound: float
    horizon: float
    gap: float

    @property
    def ratio(self) -> float:
        """Deviation as a part of the bound."""
        return self.drift / self.bound

    @property
    def counts(self) -> bool:
        """Whether the stretch was long enough."""
        return self.horizon >= HORIZON * self.bound

    def __str__(self) -> str:
        return (
            f"{'/'.join(self.one)} against {'/'.join(self.other)}: {self.drift:.3f} of {self.bound:.3f} "
            f"worker-seconds ({self.ratio:.2f}) over {self.horizon / self.bound:.1f} bounds"
        )


def pair_bound(one: Track, other: Track, quantum: float) -> float:
    """Return the right side of the bound, from what the run has shown so far."""

    def part(node: Track) -> float:
        seen, peak = node.extremes(), node.peak
        return quantum + ((1 + peak) * seen.estimate + peak * (2 * seen.under + seen.over)) / node.policy.weight

    return part(one) + part(other)


def siblings(record: Record) -> Iterator[tuple[Track, Track]]:
    """Yield every pair of siblings, on every level, that both were served."""
    for track in record.tracks.values():
        yield from itertools.combinations([child for child in track.children if child.peak], 2)


def check_siblings(
    record: Record, pool: PoolPolicy, pairs: Iterable[tuple[TenantPath, TenantPath]] | None = None
) -> float:
    """Check the bound for siblings at every node; return the largest drift as a part of its bound.

    Raises `Unfair` for any pair beyond its bound. The given ``pairs`` (or, without any, at least one of all)
    must have run long enough to count, else `TooShort`.
    """
    worked = [measure(one, other, pool.quantum) for one, other in siblings(record)]
    broken = [drift for drift in worked if drift.ratio > 1]
    if broken:
        raise Unfair("; ".join(map(str, broken)))
    if pairs is not None:
        wanted = [measure(record.tracks[a], record.tracks[b], pool.quantum) for a, b in pairs]
        short = [drift for drift in wanted if not drift.counts]
    else:
        short = [] if any(drift.counts for drift in worked) else worked
    if short or not worked:
        raise TooShort("; ".join(map(str, short)) or "no two siblings were served")
    return max(drift.ratio for drift in worked)


def measure(one: Track, other: Track, quantum: float) -> Drift:
    """Measure a pair over all intervals in which both contend."""
    worst = longest = gap = 0.0
    service, contends = [0.0, 0.0], [False, False]
    first = low = high = begun_sum = 0.0
    inside = False
    weights = (one.policy.weight, other.policy.weight)
    for _, group in itertools.groupby(merge(_story(one, 0), _story(other, 1)), key=lambda fact: fact[0]):
        broke = False
        for _, flips, side, amount in group:
            if flips:
                contends[side] = not contends[side]
                broke = True
            else:
                service[side] += amount
        left, right = service[0] / weights[0], service[1] / weights[1]
        level = left - right
        if not (contends[0] and contends[1]):
            inside = False
            continue
        if broke or not inside:
            inside, begun_sum = True, left + right
            first = low = high = level
            continue
        low, high = min(low, level), max(high, level)
        worst = max(worst, high - low)
        gap = max(gap, abs(level - first))
        longest = max(longest, (left + right - begun_sum) / 2)
    return Drift(one.path, other.path, worst, pair_bound(one, other, quantum), longest, gap)


Fact = tuple[int, bool, int, float]


def _story(node: Track, side: int) -> Iterator[Fact]:
    """Yield a node's charges and flips in order of steps."""
    charges = [
        ((step, False, side, amount) for step, amount in zip(leaf.steps, leaf.amounts, strict=True))
        for leaf in node.leaves()
    ]
    return merge(*charges, ((step, True, side, 0.0) for step in node.flips))


def check_nobody_overtakes(
    record: Record, pool: PoolPolicy, patient: TenantPath, others: Iterable[TenantPath]
) -> float:
    """Check that no sibling gains on one that always waits, however it submits; return the largest part of the bound.

    While ``patient`` contends without a break, ``S_x/phi_x - S_patient/phi_patient`` may rise by no more than the
    bound of the pair, plus a ceiling if ``x`` has one (what it may have earned while parked at a cap). Draining,
    submitting one job at a time and coming back as a newcomer buy nothing over and above.
    """
    waiting = record.tracks[patient]
    if len(waiting.flips) != 1:
        raise TooShort(f"{patient} did not contend throughout")
    worst = 0.0
    for path in others:
        other = record.tracks[path]
        bound = pair_bound(other, waiting, pool.quantum)
        if other.policy.hard_cap is not None or other.policy.soft_cap is not None:
            ceiling = pool.ceiling if other.policy.ceiling is None else other.policy.ceiling
            bound += ceiling / other.policy.weight
        rise = _largest_rise(other, waiting)
        horizon = (other.served / other.policy.weight + waiting.served / waiting.policy.weight) / 2
        if rise > bound:
            raise Unfair(f"{path} gained {rise:.3f} on {patient}, who always waits; {bound:.3f} is allowed")
        if horizon < HORIZON * bound:
            raise TooShort(f"{path} against {patient}: {horizon / bound:.1f} bounds")
        worst = max(worst, rise / bound)
    return worst


def _largest_rise(one: Track, patient: Track) -> float:
    start = patient.flips[0]
    level = lowest = rise = 0.0
    for step, flips, side, amount in merge(_story(one, 0), _story(patient, 1)):
        if flips:
            continue
        level += amount / one.policy.weight if side == 0 else -amount / patient.policy.weight
        if step <= start:
            lowest = level
        lowest = min(lowest, level)
        rise = max(rise, level - lowest)
    return rise


def check_no_violations(record: Record) -> None:
    """Raise `Unfair` if a slot idled while a job could start, a cap was broken, or a lane was passed over."""
    if record.violations:
        raise Unfair(f"{len(record.violations)} violations, the first: {record.violations[0]}")


def newcomer_wait(record: Record, path: TenantPath, pool: PoolPolicy, slots: int) -> float:
    """Return how long a newcomer may wait for its first start, in seconds, summed over its levels.

    ``M + r * (sum over siblings of max(K, E + phi*Q) and refunds due) / N`` for each level: M largest actual, r
    largest actual/estimate of the pool.
    """
    pool_wide = record.root.extremes()
    wait = 0.0
    for depth in range(1, len(path) + 1):
        ahead = 0.0
        for track in record.tracks[path[: depth - 1]].children:
            if track.path != path[:depth] and track.peak:
                ceiling = pool.ceiling if track.policy.ceiling is None else track.policy.ceiling
                seen = track.extremes()
                ahead += max(ceiling, seen.estimate + track.policy.weight * pool.quantum) + track.peak * seen.over
        wait += pool_wide.longest + pool_wide.ratio * ahead / slots
    return wait
