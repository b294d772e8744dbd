"""Recompute everything derivable of a scheduler and compare. For tests, the simulator and reconciliation.

`check` walks the whole tree, so it costs O(nodes + leases + queued jobs); it changes nothing. What is
compared: running counts and charges against the leases, queued counts against the backlogs, each node's lane against
what its caps, floor and work say, ring membership against lanes (calendars included), the counts of active
and clean children, and the heads of the backlogs.
"""

from __future__ import annotations

from collections import Counter
from math import isfinite

from drr.core.jobs import Backlog, RunningLease
from drr.core.limits import resolve
from drr.core.node import BORROW, FLOOR, MIDDLE, PARKED, Node
from drr.core.ring import NEWCOMER, Ring, Seat
from drr.core.scheduler import Scheduler
from drr.core.tree import Tree
from drr.model import TenantPath


def check(scheduler: Scheduler) -> None:
    """Raise `AssertionError`, naming node and difference, if any derived fact is out of step."""
    tree = scheduler.tree
    running: Counter[TenantPath] = Counter()
    for token, lease in scheduler.leases.items():
        _same((), "token of a lease", lease.token, token)
        assert isfinite(lease.charged), f"charge of {lease!r} is not finite"
        assert scheduler.job(lease.job.id) is lease.job, f"{lease!r} has a job that is not known"
        seen = lease in scheduler._late or lease.started + lease.charged >= scheduler._next_overrun
        assert seen, f"{lease!r} will overrun unnoticed"
        for depth in range(len(lease.job.path) + 1):
            running[lease.job.path[:depth]] += 1
    queued = _check_backlogs(scheduler)
    for path, node in tree.nodes.items():
        _same(path, "path", node.path, path)
        _same(path, "running leases", node.running, running[path])
        _same(path, "queued jobs", node.queued, queued[path])
        _check_node(tree, node)
    assert set(running) <= set(tree.nodes), f"leases of unknown nodes: {set(running) - set(tree.nodes)}"
    _check_limits(scheduler)
    _same((), "known jobs", len(scheduler._jobs), len(scheduler.leases) + queued[()])


def _check_backlogs(scheduler: Scheduler) -> Counter[TenantPath]:
    queued: Counter[TenantPath] = Counter()
    for node in scheduler.tree.nodes.values():
        if node.lines is None:
            _check_chain(scheduler, node, node, queued)
            continue
        _same(node.path, "last jobs beside those of the lines", node.tails, {})
        for line in node.lines.values():
            _check_chain(scheduler, node, line, queued)
    return queued


def _check_chain(scheduler: Scheduler, node: Node, chain: Backlog, queued: Counter[TenantPath]) -> None:
    """Add the jobs of ``chain``, the backlog of ``node`` or one of its lines, to ``queued``."""
    job, last, tails = chain.head, None, {}
    assert job is None or not job.withdrawn, f"{node.path}: a withdrawn job stands at the front"
    while job is not None:
        assert last is None or last.priority <= job.priority, f"{node.path}: {job!r} stands behind {last!r}"
        tails[job.priority] = job
        if not job.withdrawn:
            assert scheduler.job(job.id) is job, f"{node.path}: queued {job!r} is not known"
            for depth in range(len(node.path) + 1):
                queued[node.path[:depth]] += 1
        job, last = job.next, job
    _same(node.path, "last job of each priority", chain.tails, tails)


def _check_limits(scheduler: Scheduler) -> None:
    """What is held of a limit is the leases; who waits or may start is where its line says."""
    gate, book = scheduler.gate, scheduler.limits
    if gate is None:
        assert not any(lease.job.limits for lease in scheduler.leases.values()), "a limit is held that nobody counts"
        return
    holders: dict[str, set[RunningLease]] = {}
    for lease in scheduler.leases.values():
        for name in lease.job.limits:
            holders.setdefault(name, set()).add(lease)
    lines = [line for node in scheduler.tree.nodes.values() for line in (node.lines or {}).values()]
    for name, limit in book.known.items():
        mine = {lease for lease in limit.leases if scheduler.leases.get(lease.token) is lease}
        _same((), f"holders of {name}", mine, holders.pop(name, set()))
        held = Counter(("organisation", lease.job.path[:1]) for lease in limit.leases)
        held += Counter(("project", lease.job.path) for lease in limit.leases)
        _same((), f"tenants that hold {name}", dict(limit.held), dict(held))
        named = [line for line in lines if limit in line.limits]
        hall = limit.hall(gate)
        _same((), f"open lines of {name}", set(hall.open), {line for line in named if line.at is None})
        assert not hall.open or len(hall.open) <= limit.free(limit.claim), (
            f"{name}: more lines are open than units free"
        )
        waiting = {line for line in named if line.at is limit}
        found = [line for org in hall.root.below.values() for one in org.below.values() for line in one.lines]
        _same((), f"lines that wait for {name}", set(found), waiting)
        _same((), f"number of lines that wait for {name}", (hall.waiting, len(found)), (len(waiting), len(waiting)))
        for organisation in hall.root.below.values():
            for project in organisation.below.values():
                assert bool(project.stamp) != (project.away is not None), f"{project.path} is lost to {name}"
                if project.stamp:
                    ready = organisation.stamp or organisation.away is not None
                    assert ready, f"{organisation.path} is lost to {name}"
        if waiting and limit.free() > len(hall.open):
            assert limit in gate.stirred, f"{name} has room and waiters, and nobody will look"
    _same((), "limits held but not known", set(holders), set())
    for node in scheduler.tree.nodes.values():
        if node.lines is not None:
            assert node.lines, f"{node.path}: no line is left"
            assert all(line.head is not None for line in node.lines.values()), f"{node.path}: an empty line"
            heads = [line.head for line in node.lines.values() if line.at is None and line.head is not None]
            first = min(heads, key=lambda job: (job.priority, job.order), default=None)
            _same(node.path, "head", node.head, first)


def _check_node(tree: Tree, node: Node) -> None:
    path = node.path
    bounds = resolve(node.policy, tree.slots)
    _same(path, "bounds", (node.soft, node.hard, node.floor), tuple(bounds))
    _same(path, "quantum", node.quantum, tree.pool.quantum * node.policy.weight)
    assert isfinite(node.credit), f"{path}: credit is not finite"
    assert node.leaf or not node.tails, f"{path}: an inner node has jobs"
    _same(path, "leaves below with more", node.more, _leaves_with_more(node))
    if node.parent is not None:
        _same(path, "lane", node.lane, tree.lane_for(node))
        _same(path, "parent's entry", node.parent.children.get(node.name), node)
        if node.lane == PARKED:
            _same(path, "stamp of a parked node", node.stamp, 0)
        clean = tree.tracking and node.lane in (FLOOR, MIDDLE) and (node.head is not None or node.clean_children > 0)
        _same(path, "whether it can start unborrowed", node.clean, clean)
    children = list(node.children.values())
    _same(path, "active children", node.active, sum(child.lane != PARKED for child in children))
    _same(path, "clean children", node.clean_children, sum(child.clean for child in children))
    by_lane = {lane: [child for child in children if child.lane == lane] for lane in (FLOOR, MIDDLE, BORROW)}
    _check_ring(tree, node, node.floors, [child.floor_seat or child for child in by_lane[FLOOR]])
    _check_ring(tree, node, node.middle, list(by_lane[MIDDLE]))
    _check_ring(tree, node, node.borrow, list(by_lane[BORROW]))


def _leaves_with_more(node: Node) -> int:
    if not node.children:
        return node.more if node.more in (0, 1) else -1
    return sum(_leaves_with_more(child) for child in node.children.values())


def _check_ring(tree: Tree, level: Node, ring: Ring | None, seats: list[Seat]) -> None:
    if ring is None:
        _same(level.path, "members of a ring that is not there", len(seats), 0)
        return
    entries = ring.clean.entries(), ring.dirty.entries()
    clean, dirty = ([seat for _, (stamp, seat) in found if seat.stamp == stamp] for found in entries)
    stale = sum(len(found) for found in entries) - len(clean) - len(dirty)
    _same(level.path, "stale entries", ring.stale, stale)
    for calendar, found in zip((ring.clean, ring.dirty), entries, strict=True):
        _same(level.path, "rounds of a calendar", sorted(calendar.rounds), sorted({turn for turn, _ in found}))
        _same(level.path, "front of a calendar", list(calendar.front), [e for t, e in found if t == found[0][0]])
        for turn, (stamp, seat) in found:
            if seat.stamp == stamp:
                _same(seat.node.path, "due round", seat.due, turn)
    if ring.solo is not None:
        _same(level.path, "seats beside a solo one", clean + dirty, [])
        (clean if ring.clean_members else dirty).append(ring.solo)
    _same(level.path, "ring members", ring.members, len(seats))
    _same(level.path, "clean ring members", ring.clean_members, len(clean))
    _same(level.path, "seats", sorted(map(id, clean + dirty)), sorted(map(id, seats)))
    for found_seats, is_clean in ((clean, True), (dirty, False)):
        for seat in found_seats:
            _same(seat.node.path, "calendar", not tree.tracking or seat.node.clean, is_clean)
    for seat in seats:
        assert seat.granted <= ring.round, f"{seat.node.path}: was granted round {seat.granted} before it began"
        assert seat.due >= NEWCOMER, f"{seat.node.path}: stands in round {seat.due}"


def _same(path: TenantPath, what: str, found: object, expected: object) -> None:
    if found != expected:
        raise AssertionError(f"{'/'.join(path) or 'the pool'}: {what}: found {found!r}, recomputed {expected!r}")
