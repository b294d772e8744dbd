"""The simulation's own books: who waited, ran and was charged what, kept apart from the policy's accounts.

Nothing here is asked by a policy, and nothing of a policy's accounts is believed: shares, drifts and idle slots
are judged from arrivals, starts and ends alone. What the figures mean is in `drr.simulate.results`.

Every figure is kept up in constant time per event, and most of them are not touched by most events. Integrals over
what runs are kept as ``running * clock + offset``, where the clock is time itself (worker-seconds) or the level's
``by_running``, the integral of 1/(jobs that run there) (the share): a start takes the clock from the offset, an
end adds it, and nothing needs to be done while time passes. Means over the time in which a tenant had jobs waiting
take the difference between the end and the beginning of each such stretch.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from drr.core.limits import resolve
from drr.model import NodePolicy, TenantPath

if TYPE_CHECKING:
    from drr.core.node import Node
    from drr.simulate.policies import Project


EXACT_MOST: Final = 100_000
"""Waits of a project that are kept as they are."""


class Book:
    """One tenant, or (with the empty path) the pool.

    ``contends``: has jobs waiting, is below its soft cap and owed no floor. Since that began, ``lowest`` and
    ``highest`` of the lag: charges by weight, less what the level says was due; ``spread``: the largest range so far.
    ``open``: has a job waiting that its hard caps would let start; of a level, how many of its children.
    """

    __slots__ = (
        "backlogged", "backlogged_s", "base", "borrowing_s", "bounded", "bounds_at", "by_running", "by_weight",
        "capped_s", "chain", "charged", "children", "clock", "contenders", "contends", "entitled", "estimate",
        "floor", "got", "hard", "highest", "is_open", "jobs", "listed", "lowest", "mark_weight", "offset",
        "open", "over", "parent", "path", "peak", "policy", "project", "reference", "running", "running_at",
        "share_offset", "soft", "spread", "starts", "under", "used_mark", "wait_counts", "wait_max", "wait_sum",
        "waiting", "waiting_since", "waits", "weight", "weights", "weights_at",
    )  # fmt: skip

    chain: tuple[tuple[Book, Book], ...]
    """Of a project: itself and each ancestor but the pool, with the level it is a child of."""
    project: Project

    def __init__(self, path: TenantPath, parent: Book | None, policy: NodePolicy, now: float) -> None:
        self.path = path
        self.parent = parent
        self.policy = policy
        self.weight = policy.weight
        self.children: list[Book] = []
        self.waiting = self.running = self.jobs = self.peak = 0
        self.waits = array("d")
        self.wait_counts: dict[float, int] = {}
        # Time: as a child ...
        self.waiting_since = self.bounds_at = now
        self.offset = self.share_offset = 0.0
        self.mark_weight = self.got = self.entitled = 0.0
        self.backlogged_s = self.capped_s = self.borrowing_s = 0.0
        self.is_open = False
        # ... and as a level.
        self.weights_at = self.running_at = now
        self.weights = self.by_weight = self.by_running = 0.0
        self.backlogged = self.open = 0
        # Drift: as a child ...
        self.contends = False
        self.charged = self.base = self.lowest = self.highest = self.spread = 0.0
        self.estimate = self.under = self.over = 0.0
        # ... and as a level.
        self.clock: Node | None = None
        self.reference = 0.0
        self.contenders: OrderedDict[Book, None] = OrderedDict()
        # The present time window.
        self.listed = False
        self.starts = 0
        self.used_mark = self.wait_sum = self.wait_max = 0.0
        self.resolve(0)

    def fold_waits(self) -> None:
        """Keep the waits so far by count and to four digits, since there are many; the longest stays as it is."""
        counts, longest = self.wait_counts, max(self.waits)
        self.waits.remove(longest)
        for wait in self.waits:
            digits = min(float(f"{wait:.3e}"), longest)  # rounding must not make a wait the longest
            counts[digits] = counts.get(digits, 0) + 1
        del self.waits[:]
        self.waits.append(longest)

    def resolve(self, slots: int) -> None:
        """Let caps and floor follow the live slots."""
        self.soft, self.hard, self.floor = resolve(self.policy, slots)
        policy = self.policy
        self.bounded = policy.soft_cap is not None or policy.hard_cap is not None or policy.floor != 0

    # --- time -----------------------------------------------------------------------------------------

    def worker_seconds(self, now: float) -> float:
        """Return what attempts have held slots for until ``now``."""
        return self.running * now + self.offset

    def pass_running(self, now: float) -> None:
        """Bring the level's integral of 1/(jobs that run) up to ``now``."""
        if self.running:
            self.by_running += (now - self.running_at) / self.running
        self.running_at = now

    def pass_weights(self, now: float) -> None:
        """Bring the level's integral of 1/(weights that wait) up to ``now``."""
        if self.backlogged:
            self.by_weight += (now - self.weights_at) / self.weights
        self.weights_at = now

    def pass_bounds(self, now: float) -> None:
        """Book the time since the last change as capped or borrowing, if it was."""
        passed = now - self.bounds_at
        self.bounds_at = now
        if self.running > self.soft:
            self.borrowing_s += passed
        if self.waiting and self.running >= self.hard:
            self.capped_s += passed

    def begin_waiting(self, level: Book, now: float) -> None:
        """The tenant has a job waiting, after a time with none."""
        level.pass_weights(now)
        level.pass_running(now)
        level.weights += self.weight
        level.backlogged += 1
        self.waiting_since = now
        self.mark_weight = level.by_weight
        self.got -= self.running * level.by_running + self.share_offset

    def end_waiting(self, level: Book, now: float) -> None:
        """The tenant has no job waiting any more."""
        level.pass_weights(now)
        level.pass_running(now)
        level.backlogged -= 1
        level.weights = level.weights - self.weight if level.backlogged else 0.0
        self.backlogged_s += now - self.waiting_since
        self.entitled += self.weight * (level.by_weight - self.mark_weight)
        self.got += self.running * level.by_running + self.share_offset

    # --- drift ----------------------------------------------------------------------------------------

    def charge(self, amount: float, level: Book, quantum: float) -> None:
        """Book a charge (negative: a refund)."""
        part = amount / self.weight
        if not self.contends:
            self.charged += part
            return
        clock = level.clock
        if clock is None:
            self.note_lag(level, quantum)
            self.charged += part
            if next(iter(level.contenders)) is self:
                level.reference += part
            self.note_lag(level, quantum)
            return
        # The same in short: between charges the lag only falls, since rounds only rise.
        lag = self.charged - clock.middle.round * quantum - self.base
        self.charged += part
        if lag < self.lowest:
            self.lowest = lag
        lag += part
        if lag > self.highest:
            self.highest = lag
        elif lag < self.lowest:
            self.lowest = lag

    def note_lag(self, level: Book, quantum: float) -> None:
        """Widen the range of the present stretch by where the tenant stands now.

        What a child of weight 1 was due so far is, by a policy with rounds, its rounds' quanta; else what the
        child was charged that has contended longest takes its place.
        """
        clock = level.clock
        lag = self.charged - (level.reference if clock is None else clock.middle.round * quantum) - self.base
        if lag < self.lowest:
            self.lowest = lag
        if lag > self.highest:
            self.highest = lag

    def reconsider(self, level: Book, quantum: float) -> None:
        """Begin or end a stretch in which this tenant contends, or in which it could start, if that has changed."""
        waiting, running = self.waiting, self.running
        contends = waiting > 0 and self.floor <= running < self.soft
        if contends != self.contends:
            if contends:
                clock = level.clock
                if clock is None:
                    level.contenders[self] = None
                self.base = self.charged - (level.reference if clock is None else clock.middle.round * quantum)
                self.lowest = self.highest = 0.0
            else:
                self.close_stretch(level, quantum)
                if level.clock is None:
                    del level.contenders[self]
            self.contends = contends
        is_open = waiting > 0 and running < self.hard and (self.open > 0 or not self.children)
        if is_open != self.is_open:
            self.is_open = is_open
            level.open += 1 if is_open else -1

    def close_stretch(self, level: Book, quantum: float) -> None:
        """Take the present stretch into ``spread``."""
        if self.contends:
            self.note_lag(level, quantum)
            self.spread = max(self.spread, self.highest - self.lowest)

    def bound(self, quantum: float) -> float:
        """Return this tenant's part of the bound, from the largest values seen."""
        cost = (1 + self.peak) * self.estimate + self.peak * (2 * self.under + self.over)
        return quantum + cost / self.weight


def drift_ratio(children: list[Book], quantum: float) -> float:
    """Return the largest (r_i + r_j)/(b_i + b_j) over pairs of siblings.

    By Dinkelbach's method: a ratio is reached by some pair exactly if the two largest r - ratio*b sum to 0 or more.
    """
    facts = [(child.spread, child.bound(quantum)) for child in children if child.peak]
    if len(facts) < 2:
        return 0.0
    ratio = 0.0
    for _ in range(64):
        best = sorted(facts, key=lambda fact: fact[0] - ratio * fact[1])[-2:]
        better = (best[0][0] + best[1][0]) / (best[0][1] + best[1][1])
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
    return ratio
