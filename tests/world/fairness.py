"""Whether two organisations that always wait share fairly once the faults are over.

Each commit of the leader says what was charged: at a start, as time passes, and at the end. So the service that an
organisation has received is known after each; it must not drift from that of its sibling by more than the bound of
the docs (Concepts), over any interval in which both wait, whatever the faults before have done to the accounts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from drr.backend import Commit, Postpone, Requeue, Settlement
from drr_backends.memory.store import Store
from tests.world.ledger import Ledger
from tests.world.scene import CONTEST, QUANTUM, WEIGHTS


@dataclass
class Side:
    """One of the two. ``charged``: service by the accounts of live attempts and of ended ones."""

    name: str
    weight: float
    charged: float = 0.0
    peak: int = 0
    """Most attempts in flight."""
    largest: float = 0.0
    """Largest estimate."""
    under: float = 0.0
    over: float = 0.0
    left: float = 0.0
    """What the faults had left on its account: refunds of attempts that were charged for long and then lost."""
    live: dict[str, float] = field(default_factory=dict)

    @property
    def service(self) -> float:
        return self.charged / self.weight

    @property
    def bound(self) -> float:
        """Its part of the right side of the bound."""
        flight = (1 + self.peak) * self.largest + self.peak * (2 * self.under + self.over)
        return QUANTUM + (flight + self.left) / self.weight


class Contest:
    """Watches the commits of a world. ``since``: when the faults can have no effect any more, in the world's time."""

    def __init__(self, ledger: Ledger, store: Store, since: float, most_left: float) -> None:
        """``most_left``: worker-seconds that attempts under way when the faults ended can have been charged."""
        self._most_left = most_left
        self._ledger = ledger
        self._store = store
        self._since = since
        self.sides = [Side(name, WEIGHTS.get(name, 1.0)) for name in CONTEST]
        self._by_name = {side.name: side for side in self.sides}
        self._levels: list[float] = []
        """Differences of service while both waited without a break."""
        self._first = 0.0
        self._waited = False
        self.horizon = 0.0
        """Service per weight that one of them received while both waited."""
        self.drift = 0.0

    def watch(self, commit: Commit) -> None:
        """Take in what a commit charges."""
        self._charge(commit)
        if self._ledger.now < self._since or self._ledger.wrong:
            return
        waits = self._both_wait()
        if waits and self._waited:
            self._measure()
        elif waits:
            self._levels.clear()
            self._measure()
            self._first = sum(side.service for side in self.sides)
            for side in self.sides:
                side.left = max(side.left, self._left_over(side))
        self._waited = waits

    def _measure(self) -> None:
        one, other = self.sides
        self._levels.append(one.service - other.service)
        self.drift = max(self.drift, max(self._levels) - min(self._levels))
        self.horizon = max(self.horizon, (one.service + other.service - self._first) / 2 if self._waited else 0.0)
        for side in self.sides:
            side.peak = max(side.peak, len(side.live))

    def _both_wait(self) -> bool:
        waiting = {lane.path[0] for lane in self._store.lanes}
        return all(side.name in waiting for side in self.sides)

    def _charge(self, commit: Commit) -> None:
        ends: list[Settlement | Requeue | Postpone] = [*commit.settlements, *commit.requeues, *commit.postpones]
        for end in ends:
            side = self._by_name.get(end.lease.header.lane.path[0])
            if side is not None:
                side.charged -= side.live.pop(end.lease.token, 0.0)
        for key, usage in commit.usage.items():
            if key.path[0] in self._by_name:
                self._by_name[key.path[0]].charged += usage.charged
        for dispatch in commit.dispatches:
            side = self._by_name.get(dispatch.header.lane.path[0])
            if side is not None:
                side.live[dispatch.lease.token] = dispatch.lease.charged
                side.charged += dispatch.lease.charged
                side.largest = max(side.largest, dispatch.header.estimate or 0.0)
        for token, lease in commit.charges.items():
            side = self._by_name.get(lease.header.lane.path[0])
            if side is not None and token in side.live:
                side.charged += lease.charged - side.live[token]
                side.live[token] = lease.charged
        if self._ledger.now >= self._since:
            self._note_errors(commit)

    def _note_errors(self, commit: Commit) -> None:
        for settlement in commit.settlements:
            header = settlement.lease.header
            side = self._by_name.get(header.lane.path[0])
            if side is not None and header.estimate is not None:
                error = settlement.completion.seconds - header.estimate
                side.under, side.over = max(side.under, error), max(side.over, -error)

    def _left_over(self, side: Side) -> float:
        """Return what is on an account, credit or debt, when both begin to wait: rounds not yet granted included."""
        level, node = (self._store.nodes.get(("default", path)) for path in ((), (side.name,)))
        if level is None or node is None:
            return 0.0
        return abs(node.credit) + max(0, level.round - node.granted) * QUANTUM * side.weight

    @property
    def bound(self) -> float:
        """What the drift may be."""
        return sum(side.bound for side in self.sides)

    def check(self) -> None:
        """Judge what was seen."""
        charged = ", ".join(f"{side.name} {side.charged:.3f}" for side in self.sides)
        self._ledger.expect(
            self.drift <= self.bound + 1e-6,
            f"siblings drifted apart by {self.drift:.3f}, {self.bound:.3f} is allowed; charged: {charged}",
        )
        for side in self.sides:
            sound = side.left <= self._most_left or self._ledger.clocks_jumped
            self._ledger.expect(sound, f"{side.left:.3f} too much on the account of {side.name}")
