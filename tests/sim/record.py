"""What happened in a simulated run, kept apart from the scheduler under test.

The record has books of its own: it charges by the rules of the documentation (estimate at the start, overrun as
it accrues, settlement at the end, a job's first lost attempt left out), counts what runs and waits, and
knows which nodes could start something. A scheduler with broken books is therefore seen for what it does,
not for what it believes.

Steps. Everything that changes service or standing carries a step number that rises through the run; a step is
one start, end or charge. `flips` of a node are the steps at which it began and ceased to *contend*: to have
work that it could start, to be below its soft cap, and not to be owed a floor. The bound on siblings speaks of
intervals in which both contend.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping

from drr.model import Amount, NodePolicy, Outcome, Share, TenantPath

MANY = 1 << 60


class Attempt:
    """One start of a job; ``entries`` are the places of its charges in its leaf's log."""

    __slots__ = ("charged", "dead", "entries", "estimate", "leaf", "losses", "started", "work")

    def __init__(self, leaf: Track, work: object, estimate: float, losses: int, started: float) -> None:
        self.leaf = leaf
        self.work = work
        self.estimate = estimate
        self.losses = losses
        self.started = started
        self.charged = 0.0
        self.entries: list[int] = []
        self.dead = False


class Track:
    """The books of one node. Service is logged at leaves only; ancestors are summed up when asked."""

    __slots__ = (
        "amounts",
        "children",
        "contends",
        "estimate",
        "first_starts",
        "flips",
        "floor",
        "hard",
        "longest",
        "open_children",
        "over",
        "parent",
        "path",
        "peak",
        "policy",
        "queued",
        "ratio",
        "running",
        "soft",
        "startable",
        "started",
        "steps",
        "times",
        "under",
        "waits",
    )

    def __init__(self, path: TenantPath, parent: Track | None, policy: NodePolicy) -> None:
        self.path = path
        self.parent = parent
        self.policy = policy
        self.children: list[Track] = []
        self.floor, self.soft, self.hard = 0, MANY, MANY
        self.queued = 0
        self.running = 0
        self.peak = 0
        self.started = 0
        self.open_children = 0
        self.startable = False
        self.contends = False
        self.flips: array[int] = array("q")
        self.steps: array[int] = array("q")
        self.times: array[float] = array("d")
        self.amounts: array[float] = array("d")
        self.waits: array[float] = array("d")
        self.first_starts: array[float] = array("d")
        # Largest estimate, actual, under- and over-estimate, and actual/estimate, of the attempts below.
        self.estimate = self.longest = self.under = self.over = self.ratio = 0.0

    def resolve(self, slots: int) -> None:
        """Turn caps and floor into counts for a pool of ``slots``."""
        self.hard = _cap(self.policy.hard_cap, slots)
        self.soft = min(_cap(self.policy.soft_cap, slots), self.hard)
        self.floor = min(_floor(self.policy.floor, slots), self.soft)

    def leaves(self) -> Iterator[Track]:
        """Yield the leaves below (or this one)."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def line(self) -> Iterator[Track]:
        """Yield this node and its ancestors, inside out."""
        node: Track | None = self
        while node is not None:
            yield node
            node = node.parent

    @property
    def served(self) -> float:
        """Service so far in worker-seconds, lost and refunded attempts left out."""
        return sum(sum(leaf.amounts) for leaf in self.leaves())

    def served_between(self, start: float, end: float) -> float:
        """Service charged at ``start <= t < end``."""
        return sum(
            amount
            for leaf in self.leaves()
            for time, amount in zip(leaf.times, leaf.amounts, strict=True)
            if start <= time < end
        )


def _cap(cap: Amount | None, slots: int) -> int:
    if cap is None:
        return MANY
    if isinstance(cap, Share):
        return max(1, math.ceil(round(cap.fraction * slots, 6)))
    return cap


def _floor(floor: Amount, slots: int) -> int:
    return math.floor(round(floor.fraction * slots, 6)) if isinstance(floor, Share) else floor


class Record:
    """The books of a whole run, and the list of rules that were seen broken."""

    def __init__(self, policies: Mapping[TenantPath, NodePolicy], slots: int) -> None:
        self.policies = dict(policies)
        self.slots = slots
        self.step = 0
        self.tracks: dict[TenantPath, Track] = {}
        self.violations: list[str] = []
        self.refunded = 0.0
        self.root = self._add((), None)

    # --- the tree ---

    def _add(self, path: TenantPath, parent: Track | None) -> Track:
        track = Track(path, parent, self.policies.get(path, NodePolicy()))
        track.resolve(self.slots)
        self.tracks[path] = track
        if parent is not None:
            parent.children.append(track)
        return track

    def track(self, path: TenantPath) -> Track:
        """Return the books of a node, opening them (and its ancestors') on first use."""
        found = self.tracks.get(path)
        return found if found is not None else self._add(path, self.track(path[:-1]))

    def set_slots(self, slots: int) -> None:
        """Let caps and floors follow the live slots."""
        self.slots = slots
        self._reconsider()

    def set_policy(self, path: TenantPath, policy: NodePolicy) -> None:
        """Change what a node is entitled to, now."""
        self.policies[path] = policy
        if path in self.tracks:
            self.tracks[path].policy = policy
        self._reconsider()

    def _reconsider(self) -> None:
        self.step += 1
        for track in self.tracks.values():
            track.resolve(self.slots)
        for leaf in list(self.root.leaves()):
            self._refresh(leaf)

    # --- facts ---

    def queue(self, path: TenantPath, change: int = 1) -> None:
        """A job of ``path`` came (or, with -1, was withdrawn)."""
        leaf = self.track(path)
        self.step += 1
        leaf.queued += change
        if leaf.queued == change or leaf.queued == 0:
            self._refresh(leaf)

    def start(self, path: TenantPath, work: object, estimate: float, losses: int, now: float) -> Attempt:
        """An attempt began: charge its estimate; note lanes and caps that were broken."""
        leaf = self.track(path)
        self.step += 1
        attempt = Attempt(leaf, work, estimate, losses, now)
        self._charge(attempt, estimate, now)
        for node in leaf.line():
            if node.running >= node.hard:
                self.violations.append(f"{now}: {node.path} at its hard cap {node.hard} was served")
            if node.parent is not None:
                self._check_lane(node, node.parent, now)
            node.running += 1
            if node.running > node.peak:
                node.peak = node.running
            if estimate > node.estimate:
                node.estimate = estimate
        leaf.queued -= 1
        leaf.started += 1
        self._refresh(leaf)
        return attempt

    def _check_lane(self, node: Track, parent: Track, now: float) -> None:
        if node.running < node.floor:
            return
        for other in parent.children:
            if other.startable and other.running < other.floor:
                self.violations.append(f"{now}: {other.path}, owed a floor, was passed over for {node.path}")
        if node.running >= node.soft:
            for other in parent.children:
                if other.startable and other.running < other.soft:
                    self.violations.append(f"{now}: {node.path} borrowed ahead of {other.path}")

    def accrue(self, attempt: Attempt, now: float) -> None:
        """Charge what an attempt has overrun by now."""
        overrun = now - attempt.started - attempt.charged
        if overrun > 0:
            self.step += 1
            self._charge(attempt, overrun, now)

    def end(self, attempt: Attempt, outcome: Outcome, now: float, held: float) -> None:
        """An attempt ended after ``held`` seconds: settle it, or leave it out if it is refunded."""
        self.step += 1
        refunded = outcome.platform_fault and attempt.losses == 0
        peak_charge = max(attempt.charged, held)
        if refunded:
            amounts = attempt.leaf.amounts
            for entry in attempt.entries:
                amounts[entry] = 0.0
            self.refunded += held
        else:
            self._charge(attempt, held - attempt.charged, now)
        actual = 0.0 if refunded else held
        under, over = max(actual - attempt.estimate, 0.0), peak_charge - actual
        ratio = held / attempt.estimate
        for node in attempt.leaf.line():
            node.running -= 1
            node.longest = max(node.longest, held)
            node.under = max(node.under, under)
            node.over = max(node.over, over)
            node.ratio = max(node.ratio, ratio)
        self._refresh(attempt.leaf)

    def _charge(self, attempt: Attempt, amount: float, now: float) -> None:
        leaf = attempt.leaf
        attempt.charged += amount
        attempt.entries.append(len(leaf.amounts))
        leaf.steps.append(self.step)
        leaf.times.append(now)
        leaf.amounts.append(amount)

    # --- standing ---

    def _refresh(self, leaf: Track) -> None:
        node: Track | None = leaf
        while node is not None:
            running, parent = node.running, node.parent
            startable = (node.queued > 0 or node.open_children > 0) and running < node.hard
            if startable is not node.startable:
                node.startable = startable
                if parent is not None:
                    parent.open_children += 1 if startable else -1
            contends = startable and node.floor <= running < node.soft
            if contends is not node.contends:
                node.contends = contends
                node.flips.append(self.step)
            node = parent
