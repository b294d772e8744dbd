"""The nodes of a pool by their path: made when first named, forgotten when nothing depends on them.

Rules of this file: it keeps nodes and binds policies to them; who is served when is `drr.core.tree`'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from drr.core.limits import follows_slots, resolve
from drr.core.node import DEFAULT_POLICY, NO_RING, Node
from drr.core.ring import Ring
from drr.errors import InvalidValue
from drr.model import NodePolicy, PoolPolicy, TenantPath

PolicyOf: TypeAlias = Callable[[TenantPath], NodePolicy]


def _no_policies(path: TenantPath) -> NodePolicy:
    return DEFAULT_POLICY


class Registry:
    """Nodes, their policies, and which accounts have changed.

    ``elastic``: nodes whose bounds are shares of the live slots. ``restoring``: accounts are being put back
    after a takeover; no amnesty, no newcomers' turns, no rounds.
    """

    def __init__(self, pool: PoolPolicy) -> None:
        self.pool = pool
        self.policies: dict[TenantPath, NodePolicy] = {}
        self.policy_of: PolicyOf = _no_policies
        """What holds for a node that is not in ``policies``."""
        self.slots = 0
        self.restoring = False
        self.touched: list[Node] = []
        self.root = Node((), None, DEFAULT_POLICY, pool)
        self.nodes: dict[TenantPath, Node] = {(): self.root}
        self.elastic: dict[TenantPath, Node] = {}

    def node(self, path: TenantPath) -> Node:
        """Return the node at ``path``, making it and its ancestors if needed."""
        node = self.nodes.get(path)
        if node is None:
            parent = self.node(path[:-1])
            if parent.leaf:
                raise InvalidValue(
                    "tenant path",
                    "/".join(path),
                    f"{'/'.join(parent.path)!r} has jobs of its own: only the innermost level may",
                )
            policy = self.policy(path)
            node = Node(path, parent, policy, self.pool)
            if parent.middle is NO_RING:
                parent.middle = Ring()
            node.granted = parent.middle.round - 1
            node.void = parent.middle.voids
            parent.children[node.name] = node
            self.nodes[path] = node
            self.bind(node, policy)
        return node

    def policy(self, path: TenantPath) -> NodePolicy:
        """Return the policy that holds for a node: its own, or what the source of the others says."""
        return self.policies.get(path) or self.policy_of(path)

    def leaf(self, path: TenantPath) -> Node:
        """Return the node at ``path`` as one that holds jobs; raises `InvalidValue` if it has children."""
        node = self.node(path)
        if not node.leaf:
            if node.children or node.parent is None:
                raise InvalidValue(
                    "tenant path", "/".join(path), "it has tenants below it: only the innermost level may have jobs"
                )
            node.leaf = True
        return node

    def bind(self, node: Node, policy: NodePolicy) -> None:
        """Apply ``policy`` to ``node``; the caller places it afterwards."""
        node.policy = policy
        node.ceiling = self.pool.ceiling if policy.ceiling is None else policy.ceiling
        node.quantum = self.pool.quantum * policy.weight
        if node.floor_seat is not None:
            node.floor_seat.quantum = node.quantum
        node.set_bounds(resolve(policy, self.slots))
        if follows_slots(policy):
            self.elastic[node.path] = node
        else:
            self.elastic.pop(node.path, None)

    def forget(self, node: Node) -> None:
        """Drop a childless, idle node."""
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.name]
        del self.nodes[node.path]
        self.elastic.pop(node.path, None)

    def says_nothing(self, node: Node) -> bool:
        """Return whether forgetting the account of an idle ``node`` changes no later decision.

        So it is when its debt is forgiven by now, its credit dropped and its newcomer's turn free again,
        or when nobody waits at its level, which voids all that at the next arrival.
        """
        parent = node.parent
        assert parent is not None, "the root is never idle"
        ring, floor = parent.middle, node.floor_seat
        if floor is not None and parent.floors is not None and parent.floors.members and floor.credit < 0.0:
            return False
        if not parent.active:
            return not self.restoring
        missed = ring.round - 1 - node.granted
        debt = node.credit if node.void == ring.voids else 0.0
        return missed >= 0 and debt + missed * node.quantum >= 0.0 and ring.round - node.served_round >= 2

    def touch(self, node: Node) -> None:
        """Note that ``node``'s account has changed."""
        if not node.touched:
            node.touched = True
            self.touched.append(node)
