"""The simulation's own books: who waited, ran and was charged what, kept apart from the policy's accounts.

Nothing here is asked by a policy, and nothing of a policy's accounts is believed: shares, drifts and idle slots
are judged from arrivals, starts and ends alone. What the figures mean is in `drr.simulate.results`.

Every figure is kept up by differences, in constant time per event. Means over the time in which a tenant had
jobs waiting are integrals: a level keeps ``by_weight``, the integral of 1/(weights that wait), and
``by_running``, that of 1/(jobs that run); a child's entitled share is its weight times the growth of the one,
its share its running jobs times the growth of the other.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict

from drr.core.limits import resolve
from drr.model import NodePolicy, TenantPath


class Contenders:
    """The children that contend, in the order in which they began to."""

    __slots__ = ("_books",)

    def __init__(self) -> None:
        self._books: OrderedDict[Book, None] = OrderedDict()

    def add(self, book: Book) -> None:
        """One more."""
        self._books[book] = None

    def discard(self, book: Book) -> None:
        """One less."""
        del self._books[book]

    def peek(self) -> Book | None:
        """Return the one that has contended longest."""
        return next(iter(self._books), None)


class Book:
    """One tenant, or (with the empty path) the pool.

    ``contends``: has jobs waiting, is below its soft cap and owed no floor. Since that began, ``lowest`` and
    ``highest`` of the lag: charges by weight, less the level's reference; ``spread``: the largest range so far.
    """

    __slots__ = (
        "backlogged_s", "base", "borrowing_s", "bounded", "by_running", "by_weight", "capped_s", "charged",
        "children", "contenders", "contends", "entitled", "estimate", "floor", "got", "hard", "highest", "jobs",
        "level_at",
        "lowest", "mark_at", "mark_running", "mark_weight", "over", "parent", "path", "peak", "policy", "reference",
        "running", "soft", "spread", "starts", "under", "used", "wait_max", "wait_sum", "waiting", "waiting_since",
        "waits", "weight", "weights", "worker_seconds",
    )  # fmt: skip

    def __init__(self, path: TenantPath, parent: Book | None, policy: NodePolicy, now: float) -> None:
        self.path = path
        self.parent = parent
        self.policy = policy
        self.weight = policy.weight
        self.children: list[Book] = []
        self.waiting = self.running = self.jobs = self.peak = 0
        self.worker_seconds = 0.0
        self.waits = array("d")
        self.waiting_since = now
        # Time integrals: as a child ...
        self.mark_at = now
        self.mark_weight = self.mark_running = 0.0
        self.backlogged_s = self.entitled = self.got = self.capped_s = self.borrowing_s = 0.0
        # ... and as a level.
        self.level_at = now
        self.weights = self.by_weight = self.by_running = 0.0
        # Drift: as a child ...
        self.contends = False
        self.charged = self.base = self.lowest = self.highest = self.spread = 0.0
        self.estimate = self.under = self.over = 0.0
        # ... and as a level.
        self.reference = 0.0
        self.contenders = Contenders()
        # The present time window.
        self.used = 0.0
        self.starts = 0
        self.wait_sum = self.wait_max = 0.0
        self.resolve(0)

    def resolve(self, slots: int) -> None:
        """Let caps and floor follow the live slots."""
        self.soft, self.hard, self.floor = resolve(self.policy, slots)
        policy = self.policy
        self.bounded = policy.soft_cap is not None or policy.hard_cap is not None or policy.floor != 0

    # --- time -----------------------------------------------------------------------------------------

    def advance_level(self, now: float) -> None:
        """Bring the integrals that the children read up to ``now``."""
        passed = now - self.level_at
        if passed > 0.0:
            self.level_at = now
            if self.weights:
                self.by_weight += passed / self.weights
            if self.running:
                self.by_running += passed / self.running

    def settle(self, now: float, level: Book) -> None:
        """Book the time since the last change, as it was until ``now``; ``level`` is the parent, advanced."""
        passed = now - self.mark_at
        if passed > 0.0:
            self.mark_at = now
            running = self.running
            if running:
                self.used += running * passed
                if running > self.soft:
                    self.borrowing_s += passed
            if self.waiting:
                self.backlogged_s += passed
                self.entitled += self.weight * (level.by_weight - self.mark_weight)
                if running:
                    self.got += running * (level.by_running - self.mark_running)
                if running >= self.hard:
                    self.capped_s += passed
        self.mark_weight = level.by_weight
        self.mark_running = level.by_running

    # --- drift ----------------------------------------------------------------------------------------

    def charge(self, amount: float, level: Book, due: float | None) -> None:
        """Book a charge (negative: a refund) of a tenant that contends. ``due``: see `note_lag`."""
        self.note_lag(level, due)
        self.charged += amount / self.weight
        if due is None and level.contenders.peek() is self:
            level.reference += amount / self.weight
        self.note_lag(level, due)

    def note_lag(self, level: Book, due: float | None) -> None:
        """Widen the range of the present stretch by where the tenant stands now.

        ``due``: the policy's own idea of what a child of weight 1 was due so far; without one, what the child was
        charged that has contended longest takes its place.
        """
        lag = self.charged - (level.reference if due is None else due) - self.base
        if lag < self.lowest:
            self.lowest = lag
        if lag > self.highest:
            self.highest = lag

    def reconsider(self, level: Book, due: float | None) -> None:
        """Begin or end a stretch in which this tenant contends, if that has changed."""
        contends = self.waiting > 0 and self.floor <= self.running < self.soft
        if contends == self.contends:
            return
        if contends:
            level.contenders.add(self)
            self.base = self.charged - (level.reference if due is None else due)
            self.lowest = self.highest = 0.0
        else:
            self.close_stretch(level, due)
            level.contenders.discard(self)
        self.contends = contends

    def close_stretch(self, level: Book, due: float | None) -> None:
        """Take the present stretch into ``spread``."""
        if self.contends:
            self.note_lag(level, due)
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
        better = sum(fact[0] for fact in best) / sum(fact[1] for fact in best)
        if better <= ratio * (1 + 1e-12):
            break
        ratio = better
    return ratio
