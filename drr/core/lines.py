"""Jobs that name shared limits: the lines of a project, and the gate through which they come into the tree.

Rules of this file: no I/O, no clock, no randomness.

Theory of operation
    The jobs of a project that name the same limits are a *line*, with an order of its own; those that name none
    are one, too. The tree sees a project's head: the first, by priority and then arrival, of the heads of its *open*
    lines. A line is open if its job may start for all that limits say, else it waits at one of its limits.

    Of one limit no pool has more open lines than units are free. So a release lets in the next line only, in
    the order of `drr.core.turns`, not everybody, and what the tree picks may start. What is held up by something
    else (a cap, a bound of its organisation) steps aside, as a whole organisation where it is the organisation's,
    until that is released; there can be no more of those than running jobs.

    A job that needs several limits takes all or none, and holds nothing while it waits. If it finds another of
    its limits taken `PATIENCE` times when it is its turn, one unit of each is kept back for it as it frees (for one
    line at a time, in all pools), so that it starts when the slowest of them was released once.

    This is bookkeeping about who is *shown*; that no limit is ever exceeded follows from one look at the
    limits in `Gate.take`, when the lease begins.
"""

from __future__ import annotations

from itertools import count, islice
from typing import TYPE_CHECKING, Final

from drr.core.jobs import Job, Line, RunningLease, pop, push, urgency, withdraw
from drr.core.shared import Limit, LimitBook
from drr.core.tree import Tree
from drr.core.turns import Waiter

if TYPE_CHECKING:
    from drr.core.node import Node

PATIENCE: Final = 8
"""Turns after which a job that needs several limits has units kept back."""
GLANCE: Final = 8
"""Open lines of a limit that are looked at per decision, in turn, whether a cap is in their way."""
_RESERVE: Final = ("the reserve of the pool",)


class Gate:
    """The lines of one pool. ``stirred``: limits at which somebody may have to be let in."""

    def __init__(self, tree: Tree, book: LimitBook) -> None:
        self.tree = tree
        self.book = book
        self.stirred: dict[Limit, None] = {}
        self.away: dict[tuple[str, ...], dict[Waiter, None]] = {}
        """Who is held up by the hard cap of the node at a path."""
        self._orders = count(1)

    # --- jobs -----------------------------------------------------------------------------------------

    def offer(self, leaf: Node, job: Job, *, front: bool) -> None:
        """Queue a job of a project that has lines, or gets some with this job."""
        if leaf.lines is None:
            self._divide(leaf)
        lines = leaf.lines
        assert lines is not None, "it was just divided"
        if not job.order:
            number = next(self._orders)
            job.order = -number if front else number
        line = lines.get(job.limits)
        if line is None:
            line = lines[job.limits] = Line(leaf, tuple(self.book.limit(name) for name in job.limits))
            for limit in line.limits:
                limit.lines += 1
        fresh = line.head is None
        if not push(line, job, front=front):
            return
        if fresh:
            self._arrive(line, fresh=True)
        elif line.at is None:
            self._show(leaf)

    def _divide(self, leaf: Node) -> None:
        """Make the backlog so far the line of the jobs that name no limit."""
        leaf.lines = {}
        if leaf.head is None:
            return
        plain = leaf.lines[()] = Line(leaf, ())
        plain.head, plain.tails, leaf.tails = leaf.head, leaf.tails, {}
        job: Job | None = leaf.head
        while job is not None:
            job.order = job.order or next(self._orders)
            job = job.next

    def withdraw(self, leaf: Node, job: Job) -> None:
        """Mark a queued job as gone."""
        assert leaf.lines is not None, "a project with lines"
        line = leaf.lines[job.limits]
        if withdraw(line, job):
            if line.head is None:
                self._end(line)
            elif line.at is None:
                self._show(leaf)

    def take(self, leaf: Node, now: float) -> Job | None:
        """Take the head off a project with lines; ``None`` if a limit is in the way after all: then it waits."""
        assert leaf.lines is not None, "a project with lines"
        assert leaf.head is not None, "only a leaf with a head is picked"
        line = leaf.lines[leaf.head.limits]
        for limit in line.limits:
            limit.refill(now)
        hindrance = self._hindrance(line)
        if hindrance is not None:
            self._shut(line, hindrance)
            return None
        return pop(line)

    def started(self, lease: RunningLease) -> None:
        """A lease of a project with lines has begun: it holds its limits."""
        leaf, job = lease.leaf, lease.job
        assert leaf.lines is not None, "a project with lines"
        line = leaf.lines[job.limits]
        if not line.limits:
            if line.head is None:
                self._end(line)
            else:
                self._show(leaf)
            return
        self._close(line)
        line.misses = 0
        if self.book.claimant is line:
            self._unclaim(line)
        for limit in line.limits:
            limit.serve(lease)
            limit.take(lease)
        if line.head is None:
            self._end(line)
        else:
            self._arrive(line, fresh=False)
        for limit in line.limits:
            for gate in list(limit.halls):
                gate.trim(limit)

    def adopt(self, lease: RunningLease) -> None:
        """A lease of a predecessor holds its limits."""
        for name in lease.job.limits:
            limit = self.book.limit(name)
            limit.take(lease)
            for gate in list(limit.halls):
                gate.trim(limit)

    def charge(self, lease: RunningLease, delta: float) -> None:
        """The charge of a lease has changed."""
        for name in lease.job.limits:
            self.book.limit(name).correct(lease, delta)

    def release(self, lease: RunningLease) -> None:
        """A lease has ended."""
        for name in lease.job.limits:
            limit = self.book.limit(name)
            limit.release(lease)
            self.book.tidy(limit)

    # --- who is let in --------------------------------------------------------------------------------

    def uncapped(self, leaf: Node) -> None:
        """A slot of ``leaf`` was released: who was held up by a cap on its line stands in order again."""
        node: Node | None = leaf
        while node is not None:
            if node.path in self.away and node.running < node.hard:
                self._let_in(node.path)
            node = node.parent

    def reconsider(self) -> None:
        """Settings have changed: whoever was held up looks again."""
        for path in list(self.away):
            self._let_in(path)
        for limit in self.book.known.values():
            limit.stir()

    def _let_in(self, path: tuple[str, ...]) -> None:
        for waiter in list(self.away.pop(path, ())):
            waiter.queue()
        for limit in self.book.known.values():
            if self in limit.halls and limit.halls[self].waiting:
                self.stirred[limit] = None

    def let_in(self, now: float, free: int, reserve: int) -> None:
        """Open lines before a decision with ``free`` slots: those whose turn it is, and if nothing could start
        without, whoever can.
        """
        if free <= 0 or not self.stirred:
            return
        root, clean_only = self.tree.root, free <= reserve
        self._open_stirred(now, clean_only=clean_only, thorough=False)
        if self.stirred and not (root.clean_children if clean_only else root.active):
            self._open_stirred(now, clean_only=clean_only, thorough=True)

    def _open_stirred(self, now: float, *, clean_only: bool, thorough: bool) -> None:
        """Open lines of stirred limits while units are free.

        ``clean_only``: only who would not borrow. ``thorough``: look at all open lines, not at some in turn.
        """
        if not clean_only and _RESERVE in self.away:
            self._let_in(_RESERVE)
        for limit in list(self.stirred):
            limit.refill(now)
            hall = limit.hall(self)
            if hall.waiting and limit.free(limit.claim) > 0:
                self._look_over(limit, None if thorough else GLANCE, clean_only=clean_only)
                self._open_some(limit, clean_only=clean_only)
            if not hall.waiting or limit.free(limit.claim) <= 0:
                self.stirred.pop(limit, None)

    def _look_over(self, limit: Limit, number: int | None, *, clean_only: bool) -> None:
        """Shut open lines that a cap, a bound or the reserve holds up, in favour of those that wait."""
        hall = limit.hall(self)
        for line in list(islice(hall.open, number)):
            del hall.open[line]
            hall.open[line] = None  # the next glance begins behind it
            hindrance = self._hindrance(line)
            if hindrance is not None or self._capped(line, clean_only=clean_only) is not None:
                if self.book.claimant is line:
                    self._unclaim(line)
                self._shut(line, hindrance or limit)

    def _open_some(self, limit: Limit, *, clean_only: bool) -> None:
        hall = limit.hall(self)
        claimant = limit.claim
        if claimant is not None and claimant.at is limit and self._is_mine(claimant):
            if self._capped(claimant, clean_only=clean_only) is not None:
                self._unclaim(claimant)
            else:
                self._try(claimant, limit)
        while len(hall.open) < limit.free() and (line := self._next(limit, clean_only=clean_only)):
            self._try(line, limit)

    def _is_mine(self, line: Line) -> bool:
        return self.tree.nodes.get(line.leaf.path) is line.leaf

    def _try(self, line: Line, limit: Limit) -> None:
        """Open a line whose turn it is, or let it wait at another of its limits."""
        self._stop_waiting(line)
        hindrance = self._obstacle(line)
        if hindrance is None:
            self._open(line)
            return
        if hindrance is not limit:
            line.misses += 1
            if line.misses >= PATIENCE and self.book.claimant is None:
                self._claim(line)
        self._wait(line, hindrance, fresh=False)

    def _next(self, limit: Limit, *, clean_only: bool) -> Line | None:
        """Return the line whose turn it is; who is held up by something else steps aside on the way."""
        root = limit.hall(self).root
        while (organisation := root.first()) is not None:
            project = organisation.first()
            if project is None:
                organisation.stamp = 0  # until one of its projects comes back
                continue
            line = min(project.lines, key=urgency)
            bound = limit.bound(line.leaf.path)
            if bound is not None:
                waiter = organisation if bound[0] == "organisation" else project
                waiter.step_aside(limit.away.setdefault(bound, {}))
                continue
            cap = self._capped(line, clean_only=clean_only)
            if cap is None:
                return line
            waiter = organisation if cap == organisation.path else project
            waiter.step_aside(self.away.setdefault(cap, {}))
        return None

    def _capped(self, line: Line, *, clean_only: bool) -> tuple[str, ...] | None:
        """Return what holds up ``line`` apart from limits: the path of a node at its cap, or the reserve."""
        node, found = line.leaf, None
        while node.parent is not None:
            if node.running >= node.hard:
                found = node.path
            elif clean_only and found is None and node.running >= node.soft:
                found = _RESERVE
            node = node.parent
        return found

    @staticmethod
    def _hindrance(line: Line) -> Limit | None:
        """Return the first limit under which a start of ``line`` is not allowed now."""
        for limit in line.limits:
            if limit.free(line) <= 0 or limit.bound(line.leaf.path) is not None:
                return limit
        return None

    def _obstacle(self, line: Line) -> Limit | None:
        """The same, where a unit that another open line may take counts as taken."""
        for limit in line.limits:
            if limit.bound(line.leaf.path) is not None:
                return limit
            if limit.free(line) <= len(limit.hall(self).open):
                return limit
        return None

    # --- units kept back ------------------------------------------------------------------------------

    def _claim(self, line: Line) -> None:
        self.book.claimant = line
        for limit in line.limits:
            limit.claim = line
            for gate in list(limit.halls):
                gate.trim(limit)

    def _unclaim(self, line: Line) -> None:
        self.book.claimant = None
        line.misses = 0
        for limit in line.limits:
            limit.claim = None
            limit.stir()

    # --- states of a line -----------------------------------------------------------------------------

    def _arrive(self, line: Line, *, fresh: bool) -> None:
        """A line has a job that may start or wait: open it if nobody waits where it would pass."""
        for limit in line.limits:
            if limit.waiting:
                self._wait(line, limit, fresh=fresh)
                return
        hindrance = self._obstacle(line)
        if hindrance is None:
            self._open(line)
        else:
            self._wait(line, hindrance, fresh=fresh)

    def _open(self, line: Line) -> None:
        line.at = None
        for limit in line.limits:
            limit.hall(self).open[line] = None
        self._show(line.leaf)

    def _close(self, line: Line) -> None:
        for limit in line.limits:
            limit.hall(self).open.pop(line, None)

    def _shut(self, line: Line, limit: Limit) -> None:
        """An open line waits at ``limit`` again."""
        self._close(line)
        self._wait(line, limit, fresh=False)
        for other in line.limits:
            other.stir()

    def trim(self, limit: Limit) -> None:
        """Shut the open lines of this pool for which no unit of ``limit`` is left, the last let in first."""
        hall = limit.hall(self)
        room = max(0, limit.free() + (limit.claim in hall.open))
        while len(hall.open) > room:
            self._shut(next(reversed(hall.open)), limit)

    def _wait(self, line: Line, limit: Limit, *, fresh: bool) -> None:
        path, hall = line.leaf.path, limit.hall(self)
        line.at = limit
        project = hall.root.child(path[:1], fresh=fresh).child(path, fresh=fresh)
        project.lines[line] = None
        hall.waiting += 1
        if project.away is None:
            project.queue()
        self.stirred[limit] = None
        self._show(line.leaf)

    def _stop_waiting(self, line: Line) -> None:
        limit, path = line.at, line.leaf.path
        assert limit is not None, "it waits"
        hall = limit.hall(self)
        project = hall.root.below[path[:1]].below[path]
        del project.lines[line]
        hall.waiting -= 1
        if not project.lines:
            project.leave()
        line.at = None

    def _end(self, line: Line) -> None:
        """A line has no job left."""
        leaf = line.leaf
        if line.at is not None:
            self._stop_waiting(line)
        self._close(line)
        if self.book.claimant is line:
            self._unclaim(line)
        assert leaf.lines is not None, "a project with lines"
        del leaf.lines[tuple(limit.name for limit in line.limits)]
        for limit in line.limits:
            limit.lines -= 1
            limit.stir()
            self.book.tidy(limit)
        self._show(leaf)
        if not leaf.lines:
            leaf.lines = None

    def _show(self, leaf: Node) -> None:
        """Let the tree see the first of the heads of the open lines."""
        assert leaf.lines is not None, "a project with lines"
        heads = [line.head for line in leaf.lines.values() if line.at is None and line.head is not None]
        head = min(heads, key=lambda job: (job.priority, job.order), default=None)
        if head is not leaf.head:
            leaf.head = head
            self.tree.place(leaf)
            self.tree.hasten(leaf)
