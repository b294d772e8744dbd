"""The scheduler of one pool: facts in, decisions out.

Rules of this file and all of `drr.core`: no I/O, no clock (``now`` is an argument, seconds of a clock that
never goes back), no randomness. The same facts in the same order give the same decisions. A refused call
(an exception of `drr.errors`) leaves the state as it was.

The caller pushes what happened: `Scheduler.offer`, `Scheduler.settle`, `Scheduler.accrue`, `Scheduler.set_slots` and
so on, and pulls one decision at a time with `Scheduler.take`. What must be stored to continue elsewhere
comes from `Scheduler.touched` and goes back through `Scheduler.restore` and `Scheduler.adopt`.

A job's way: offered -> queued -> taken (a lease begins, its estimate is charged to the project and to every
ancestor) -> overruns charged as they happen -> settled (the charge becomes what it really held, and the
slot is released at every level). How much anybody has running is the number of live leases, kept nowhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping
from itertools import islice

from drr.core.jobs import Job, RunningLease, pop, push, withdraw
from drr.core.lines import Gate
from drr.core.node import FLOOR, Node
from drr.core.registry import PolicyOf
from drr.core.shared import LimitBook
from drr.core.tree import Tree
from drr.core.view import NodeView, view_of, walk
from drr.errors import DuplicateJob, InvalidValue, UnknownLease
from drr.model import NodePolicy, NodeState, Outcome, Policies, PoolPolicy, TenantPath, check_path

__all__ = ["Job", "NodeView", "RunningLease", "Scheduler"]


class Scheduler:
    """Shares the slots of one pool among its tenants, by hierarchical deficit round robin in worker-seconds."""

    def __init__(
        self,
        pool: PoolPolicy | None = None,
        policies: Policies | None = None,
        *,
        limits: LimitBook | None = None,
        policy_of: PolicyOf | None = None,
    ) -> None:
        """``policies`` by path; ``policy_of`` says what holds for all others, by default that of `NodePolicy`.

        ``limits``: the shared limits, one book for the schedulers of all pools.
        """
        self._tree = Tree(pool or PoolPolicy())
        self._tree.policies.update(policies or {})
        if policy_of is not None:
            self._tree.policy_of = policy_of
        self._book = limits if limits is not None else LimitBook()
        self._gate: Gate | None = None
        """Made for the first job that names a limit: without any, a decision costs nothing more."""
        self._leases: dict[Hashable, RunningLease] = {}
        self._jobs: dict[Hashable, Job] = {}
        self._capacity = 0
        self._withheld = 0
        self._idle: deque[Node] = deque()
        self._forgotten: dict[TenantPath, None] = {}
        self._late: list[RunningLease] = []
        """Leases that had outlived their charge when last looked at; they stay late until they end."""
        self._next_overrun = float("inf")
        """No lease but those becomes late before this time."""

    # --- what there is --------------------------------------------------------------------------------

    @property
    def tree(self) -> Tree:
        """The tree below the facade, for invariants and descriptions."""
        return self._tree

    @property
    def pool(self) -> PoolPolicy:
        """The pool's settings."""
        return self._tree.pool

    @property
    def slots(self) -> int:
        """Live slots of the pool."""
        return self._tree.slots

    @property
    def running(self) -> int:
        """Live leases."""
        return len(self._leases)

    @property
    def free(self) -> int:
        """Slots that could take a job now."""
        return max(0, self._capacity - len(self._leases))

    @property
    def queued(self) -> int:
        """Jobs offered and not yet taken."""
        return self._tree.root.queued

    @property
    def visits(self) -> int:
        """Visits so far that started nothing: what decisions have cost beyond themselves."""
        return self._tree.visits

    @property
    def leases(self) -> Mapping[Hashable, RunningLease]:
        """The live leases by token."""
        return self._leases

    @property
    def policies(self) -> Policies:
        """The policies in force, by path."""
        return self._tree.policies

    @property
    def limits(self) -> LimitBook:
        """The shared limits."""
        return self._book

    @property
    def gate(self) -> Gate | None:
        """Who waits for a shared limit, for invariants; ``None`` while no job ever named one."""
        return self._gate

    def _make_gate(self) -> Gate:
        if self._gate is None:
            self._gate = Gate(self._tree, self._book)
        return self._gate

    def job(self, job_id: Hashable) -> Job | None:
        """Return the queued or running job with this id."""
        return self._jobs.get(job_id)

    # --- facts ----------------------------------------------------------------------------------------

    def set_slots(self, slots: int, withheld: int = 0) -> None:
        """The pool has ``slots`` live slots, of which ``withheld`` cannot take a job though no lease of
        this scheduler holds them (a cancelled job's worker that is still busy, say).

        Caps and floors given as shares follow at once. Fewer slots than running jobs preempt nothing.
        """
        if slots < 0 or withheld < 0:
            raise InvalidValue("slots", (slots, withheld), "slots and withheld slots must be at least 0")
        self._capacity = slots - withheld
        if slots != self._tree.slots:
            self._tree.set_slots(slots)
            self._reconsider()

    def set_policy(self, path: TenantPath, policy: NodePolicy | None) -> None:
        """Set (or with ``None`` reset) the policy of the tenant at ``path``; it binds on the backlog too."""
        check_path(path)
        if policy is None:
            self._tree.policies.pop(path, None)
        else:
            self._tree.policies[path] = policy
        node = self._tree.nodes.get(path)
        if node is not None:
            self._tree.rebind(node, self._tree.policy(path))
            self._reconsider()

    def rebind(self, policy_of: PolicyOf) -> None:
        """Put another source of policies into force for all tenants that have none of their own; binds at once."""
        tree = self._tree
        tree.policy_of = policy_of
        for path, node in list(tree.nodes.items()):
            if path and path not in tree.policies:
                policy = policy_of(path)
                if policy != node.policy:
                    tree.rebind(node, policy)
        self._reconsider()

    def set_pool(self, pool: PoolPolicy) -> None:
        """Change quantum, default ceiling and reserve; they bind at once."""
        self._tree.set_pool(pool)
        self._reconsider()

    def _reconsider(self) -> None:
        if self._gate is not None:
            self._gate.reconsider()

    def offer(self, job: Job, *, front: bool = False) -> None:
        """A job waits. ``front``: it came back (a lost attempt, a due retry) and goes to the head of its priority.

        Raises `DuplicateJob` if a job of this id is queued or running, `InvalidValue` for a path that has
        tenants below it.
        """
        if job.id in self._jobs:
            raise DuplicateJob(str(job.id))
        tree = self._tree
        leaf = tree.nodes.get(job.path)
        if leaf is None or not leaf.leaf:
            leaf = tree.leaf(job.path)
        self._jobs[job.id] = job
        node: Node | None = leaf
        while node is not None:
            if not node.queued and not node.more and not (tree.restoring and node.restored):
                node.drained = True
            node.queued += 1
            node = node.parent
        if job.limits or (self._gate is not None and leaf.lines is not None):
            self._make_gate().offer(leaf, job, front=front)
        elif push(leaf, job, front=front):
            tree.place(leaf)
            tree.hasten(leaf)

    def expect(self, path: TenantPath, more: bool) -> None:
        """Whether the store holds more of this project than was offered.

        If so, a project whose offered jobs run out is parked and not drained: it keeps its credit. To be
        told after the project's first `offer`: told before, the project counts as having waited.
        """
        leaf = self._tree.leaf(path)
        if bool(leaf.more) == more:
            return
        node: Node | None = leaf
        while node is not None:
            node.more += 1 if more else -1
            node = node.parent
        self._tree.touch(leaf)
        self._note_idle(leaf)

    def withdraw(self, job_id: Hashable) -> Job | None:
        """A queued job is gone (cancelled). Returns it, or ``None`` if it is not queued here."""
        job = self._jobs.get(job_id)
        leaf = self._tree.nodes.get(job.path) if job is not None else None
        if job is None or leaf is None or job.taken:
            return None
        del self._jobs[job_id]
        changed = False
        if leaf.lines is None:
            changed = withdraw(leaf, job)
        node: Node | None = leaf
        while node is not None:
            node.queued -= 1
            node = node.parent
        if leaf.lines is not None:
            self._make_gate().withdraw(leaf, job)
        elif changed:
            self._tree.place(leaf)
            self._tree.hasten(leaf)
        self._tree.touch(leaf)
        self._note_idle(leaf)
        return job

    def take(self, token: Hashable, now: float) -> RunningLease | None:
        """Decide which job starts next; ``None`` if none may (no free slot, or everybody is capped or idle).

        The lease of the attempt begins at ``now`` under ``token``; its estimate is charged to the project and
        every ancestor.
        """
        tree = self._tree
        tree.restoring = False
        free = self._capacity - len(self._leases)
        root = tree.root
        clean_only = free <= tree.pool.reserve
        gate = self._gate
        while True:
            if gate is not None:
                gate.let_in(now, free, tree.pool.reserve)
            if free <= 0 or not root.active or (clean_only and not root.clean_children):
                return None
            if token in self._leases:
                raise InvalidValue("token", token, "it already names a live lease; tokens are never reused")
            cost = tree.pick(root, clean_only)
            leaf = root.chosen
            while not leaf.leaf:
                leaf = leaf.chosen
            job = pop(leaf) if gate is None or leaf.lines is None else gate.take(leaf, now)
            if job is not None:
                break
        lease = RunningLease(token, job, leaf, now, cost)
        self._leases[token] = lease
        if now + cost < self._next_overrun:
            self._next_overrun = now + cost
        self._start(lease, cost)
        if gate is not None and leaf.lines is not None:
            gate.started(lease)
        return lease

    def _start(self, lease: RunningLease, cost: float) -> None:
        """Charge a new lease to its project and every ancestor, and let each find its lane again."""
        tree, node, bounded, newcomer = self._tree, lease.leaf, False, False
        parent = node.parent
        while parent is not None:
            if node.lane == FLOOR or lease.written_off is not None:
                self._start_in_floor(lease, node, parent, cost)
            else:
                node.credit -= cost
                node.charged += cost
            if node.fresh:
                node.fresh = False
                newcomer = True
            node.served_round = parent.middle.round
            node.running += 1
            node.queued -= 1
            node.starts += 1
            if node.bounded:
                bounded = True
            if not node.touched:
                tree.touch(node)
            node = parent
            parent = node.parent
        node.running += 1
        node.queued -= 1
        if not node.touched:
            tree.touch(node)
        leaf = lease.leaf
        if leaf.head is None:
            tree.place(leaf)
        if bounded:
            self._place_bounded(leaf)
        if newcomer:
            tree.settle_in(leaf)

    def _start_in_floor(self, lease: RunningLease, node: Node, parent: Node, cost: float) -> None:
        if lease.written_off is None:
            depth = len(lease.leaf.path) - len(node.path)
            lease.written_off = [-1.0] * depth
        if node.lane == FLOOR:
            lease.written_off.append(self._tree.charge_floor(node, parent, cost, 0.0))
        else:
            lease.written_off.append(-1.0)
            self._tree.charge(node, parent, cost)

    def _place_bounded(self, leaf: Node) -> None:
        node: Node | None = leaf
        while node is not None:
            if node.bounded:
                self._tree.place(node)
            node = node.parent

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> RunningLease:
        """An attempt has ended after holding its slot for ``held`` worker-seconds.

        Its charge becomes what it held; if the platform lost it for the first time, nothing. The slot is
        released at every level, and whoever waited for that can start in the same pass. The job is forgotten:
        a retry is offered anew. Raises `UnknownLease` for a token that names no live lease.
        """
        lease = self._leases.get(token)
        if lease is None:
            raise UnknownLease(str(token))
        if not 0.0 <= held < float("inf"):
            raise InvalidValue("held time", held, "it must be finite worker-seconds, at least 0")
        del self._leases[token]
        del self._jobs[lease.job.id]
        delta = self.final_charge(lease, outcome, held) - lease.charged
        if delta:
            self._charge(lease, delta)
        tree, leaf, bounded = self._tree, lease.leaf, False
        node: Node | None = leaf
        while node is not None:
            node.running -= 1
            if node.bounded:
                bounded = True
            if not node.touched:
                tree.touch(node)
            node = node.parent
        if outcome is Outcome.LOST or outcome is Outcome.RETURNED:
            self._record_loss(leaf, held - lease.charged)
        if self._gate is not None and lease.job.limits:
            self._gate.release(lease)
        if bounded:
            self._place_bounded(leaf)
            if self._gate is not None and self._gate.away:
                self._gate.uncapped(leaf)
        if delta < 0.0 or bounded:
            tree.hasten(leaf)
        if not leaf.queued and not leaf.running:
            self._note_idle(leaf)
        return lease

    def final_charge(self, lease: RunningLease, outcome: Outcome, held: float) -> float:
        """Return what an attempt costs in the end: what it held, unless its first loss is refunded."""
        if (outcome is Outcome.LOST or outcome is Outcome.RETURNED) and lease.job.losses == 0:
            return 0.0
        return held

    @staticmethod
    def _record_loss(leaf: Node, refunded: float) -> None:
        node: Node | None = leaf
        while node is not None:
            node.losses += 1
            node.lost += refunded
            node = node.parent

    def _charge(self, lease: RunningLease, delta: float) -> None:
        """Charge (or with a negative ``delta`` refund) a live lease at every level."""
        tree, node, written_off = self._tree, lease.leaf, lease.written_off
        lease.charged += delta
        if self._gate is not None and lease.job.limits:
            self._gate.charge(lease, delta)
        level = 0
        while (parent := node.parent) is not None:
            if written_off is not None and written_off[level] >= 0.0:
                written_off[level] = tree.charge_floor(node, parent, delta, written_off[level])
            else:
                tree.charge(node, parent, delta)
            if not node.touched:
                tree.touch(node)
            level += 1
            node = parent

    def accrue(self, now: float) -> list[RunningLease]:
        """Charge every lease that is older than its charge for the time since; return those.

        To be called at least once a second, so that an overrun counts while it happens.
        """
        if now >= self._next_overrun:
            self._find_late(now)
        else:
            self._late = [lease for lease in self._late if self._leases.get(lease.token) is lease]
        grown = [lease for lease in self._late if now - lease.started > lease.charged]
        for lease in grown:
            self._charge(lease, now - lease.started - lease.charged)
        return grown

    def _find_late(self, now: float) -> None:
        """Sort all leases into those that outlived their charge, and the time when the next one will."""
        late, upcoming = [], float("inf")
        for lease in self._leases.values():
            ends = lease.started + lease.charged
            if now > ends:
                late.append(lease)
            elif ends < upcoming:
                upcoming = ends
        self._late, self._next_overrun = late, upcoming

    # --- persistence ----------------------------------------------------------------------------------

    def restore(self, states: Mapping[TenantPath, NodeState]) -> None:
        """Put back stored accounts, before anything else. Then adopt the leases and offer the backlog.

        Until the first `take`, joining counts as going on waiting: it voids no debts and gives no
        newcomer's turn to a node that is known.
        """
        if self._jobs or self._tree.root.children:
            raise InvalidValue("scheduler", "used", "accounts can be restored only into a new scheduler")
        self._tree.restoring = True
        for path in sorted(states, key=len):
            node = self._tree.node(path)
            node.restore(states[path])
            if path:
                self._note_idle(node)

    def adopt(
        self, job: Job, token: Hashable, started: float, charged: float, excused: tuple[float, ...] = ()
    ) -> RunningLease:
        """Go on with a lease that the stored accounts already contain the charge of."""
        if token in self._leases:
            raise InvalidValue("token", token, "it already names a live lease")
        if job.id in self._jobs:
            raise DuplicateJob(str(job.id))
        leaf = self._tree.leaf(job.path)
        job.taken = True
        lease = RunningLease(token, job, leaf, started, charged)
        if len(excused) == len(job.path):
            lease.written_off = list(reversed(excused))
        self._leases[token] = lease
        self._next_overrun = min(self._next_overrun, started + charged)
        self._jobs[job.id] = job
        node: Node | None = leaf
        while node is not None:
            node.running += 1
            node = node.parent
        self._place_bounded(leaf)
        if job.limits:
            self._make_gate().adopt(lease)
        return lease

    def touched(self) -> dict[TenantPath, NodeState | None]:
        """Return the accounts that have changed since the last call; ``None`` for one that is forgotten."""
        states: dict[TenantPath, NodeState | None] = dict(self._forgotten)
        for node in self._tree.touched:
            node.touched = False
            if self._tree.nodes.get(node.path) is node:
                states[node.path] = node.state()
        self._tree.touched.clear()
        self._forgotten.clear()
        return states

    def sweep(self, limit: int = 1000) -> None:
        """Forget nodes that have nothing queued or running and an account that says nothing any more.

        Looks at ``limit`` of them at most, so that memory follows the active tenants at a bounded cost a call.
        """
        for _ in range(min(limit, len(self._idle))):
            node = self._idle.popleft()
            node.idling = False
            if node.queued or node.running or node.more or node.children:
                continue
            if self._tree.nodes.get(node.path) is not node or node.parent is None:
                continue
            if not self._tree.says_nothing(node):
                self._note_idle(node)
                continue
            self._tree.forget(node)
            self._forgotten[node.path] = None
            self._note_idle(node.parent)

    def _note_idle(self, node: Node) -> None:
        if not node.idling and node.parent is not None:
            node.idling = True
            self._idle.append(node)

    # --- descriptions ---------------------------------------------------------------------------------

    def describe(self, limit: int = 1000) -> list[NodeView]:
        """Return up to ``limit`` nodes for people, parents before children."""
        return [view_of(node) for node in islice(walk(self._tree.root), limit)]

    def view(self, path: TenantPath) -> NodeView | None:
        """Return one node for people, or ``None`` if there is none at ``path`` now."""
        node = self._tree.nodes.get(path)
        return view_of(node) if node is not None else None
