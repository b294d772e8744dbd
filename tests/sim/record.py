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


class Extremes:
    """Largest values among attempts: estimate, actual (``longest``), under- and over-estimate, actual/estimate."""

    __slots__ = ("estimate", "longest", "over", "ratio", "under")

    def __init__(self) -> None:
        self.estimate = self.longest = self.under = self.over = self.ratio = 0.0

    def include(self, other: Extremes) -> None:
        """Raise each value to the other's."""
        for name in self.__slots__:
            setattr(self, name, max(getattr(self, name), getattr(other, name)))


class Track:
    """The books of one node. Service is logged at leaves only; ancestors are summed up when asked."""

    __slots__ = (
        "amounts",
        "children",
        "contends",
        "first_starts",
        "flips",
        "floor",
        "hard",
        "open_children",
        "own",
        "parent",
        "path",
        "peak",
        "policy",
        "queued",
        "running",
        "soft",
        "startable",
        "started",
        "steps",
        "times",
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
        self.own = Extremes()

    def resolve(self, slots: int) -> None:
        """Turn caps and floor into counts for a pool of ``slots``."""
        self.floor, self.soft, self.hard = resolved(self.policy, slots)

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

    def extremes(self) -> Extremes:
        """Return the largest values of all attempts below."""
        found = Extremes()
        for leaf in self.leaves():
            found.include(leaf.own)
        return found

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


def resolved_cap(cap: Amount | None, slots: int) -> int:
    """Return a cap as a count: a share rounds up, to at least 1. Dust of floating point does not round up."""
    if cap is None:
        return MANY
    if isinstance(cap, Share):
        return max(1, math.ceil(round(cap.fraction * slots, 6)))
    return cap


def resolved_floor(floor: Amount, slots: int) -> int:
    """Return a floor as a count: a share rounds down."""
    return math.floor(round(floor.fraction * slots, 6)) if isinstance(floor, Share) else floor


def resolved(policy: NodePolicy, slots: int) -> tuple[int, int, int]:
    """Return floor, soft and hard cap as counts; of a floor above a cap, or a soft above a hard one, the smaller."""
    hard = resolved_cap(policy.hard_cap, slots)
    soft = min(resolved_cap(policy.soft_cap, slots), hard)
    return min(resolved_floor(policy.floor, slots), soft), soft, hard


class Record:
    """The books of a whole run, and the list of rules that were seen broken."""

    def __init__(self, policies: Mapping[TenantPath, NodePolicy], slots: int) -> None:
        self.policies = dict(policies)
        self.slots = slots
        self.step = 0
        self.tracks: dict[TenantPath, Track] = {}
        self.violations: list[str] = []
        self.refunded = 0.0
        # Without caps and floors nothing but an emptied queue changes what a node may do.
        self._bounded = any(p.hard_cap or p.soft_cap or p.floor for p in self.policies.values())
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
        self._bounded = True
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
        if estimate > leaf.own.estimate:
            leaf.own.estimate = estimate
        node: Track | None = leaf
        while node is not None:
            running = node.running
            if running >= node.hard:
                self.violations.append(f"{now}: {node.path} at its hard cap {node.hard} was served")
            if self._bounded and node.parent is not None:
                self._check_lane(node, node.parent, now)
            node.running = running = running + 1
            if running > node.peak:
                node.peak = running
            node = node.parent
        leaf.queued -= 1
        leaf.started += 1
        if self._bounded or not leaf.queued:
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
        leaf, own = attempt.leaf, attempt.leaf.own
        estimate, over, under = attempt.estimate, max(attempt.charged, held) - held, held - attempt.estimate
        if outcome is not Outcome.SUCCEEDED and outcome.platform_fault and attempt.losses == 0:
            for entry in attempt.entries:
                leaf.amounts[entry] = 0.0
            self.refunded += held
            over, under = max(attempt.charged, held), 0.0
        elif held != attempt.charged:
            self._charge(attempt, held - attempt.charged, now)
        if held > own.longest:
            own.longest = held
        if under > own.under:
            own.under = under
        if over > own.over:
            own.over = over
        if held > own.ratio * estimate:
            own.ratio = held / estimate
        node: Track | None = leaf
        while node is not None:
            node.running -= 1
            node = node.parent
        if self._bounded:
            self._refresh(leaf)

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
