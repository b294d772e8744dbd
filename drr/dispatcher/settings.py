"""Changes of entitlement through a running dispatcher: validated, bound with the next pass, stored by its commit."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from drr.backend import Commit
from drr.dispatcher.engine import Engine
from drr.errors import InvalidPolicy, NotLeading
from drr.model import NodePolicy, PoolPolicy, TenantPath, check_name, check_path
from drr.timing import Signal


@dataclass(slots=True, eq=False)
class Change:
    """One change: of a node's policy (``policy`` is ``None`` to reset it), or of a pool if ``path`` is ``None``.

    ``lasting``: nobody waits for it, and it is kept for the next leadership if this one is lost.
    """

    pool: str
    path: TenantPath | None
    policy: NodePolicy | PoolPolicy | None
    lasting: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    error: NotLeading | None = None


class Changes:
    """The changes that were asked for and are not stored yet, in order."""

    def __init__(self, wake: Signal, first: Iterable[Change]) -> None:
        self._wake = wake
        self._waiting: deque[Change] = deque(first)
        self._bound: deque[Change] = deque()

    async def make(self, change: Change) -> None:
        """Return once the change is stored; raises `NotLeading` if the leadership is lost before."""
        self._waiting.append(change)
        self._wake.set()
        await change.over.wait()
        if change.error is not None:
            raise change.error

    def apply(self, engine: Engine) -> None:
        """Bind what was asked for since the last pass."""
        while self._waiting:
            change = self._waiting.popleft()
            if change.path is None:
                assert isinstance(change.policy, PoolPolicy)
                engine.set_pool(change.pool, change.policy)
            else:
                assert not isinstance(change.policy, PoolPolicy)
                engine.set_policy(change.pool, change.path, change.policy)
            self._bound.append(change)

    def stored(self, commit: Commit) -> None:
        """Note that a commit succeeded."""
        if commit.settings is not None:
            while self._bound:
                self._bound.popleft().over.set()

    def retry(self) -> None:
        """The engine was dropped: bind in the next one what this one may not have stored."""
        self._waiting.extendleft(reversed(self._bound))
        self._bound.clear()

    def refuse(self, error: NotLeading) -> None:
        """Another dispatcher leads: nothing can be changed here."""
        self.retry()
        asked = [change for change in self._waiting if not change.lasting]
        self._waiting = deque(change for change in self._waiting if change.lasting)
        for change in asked:
            change.error = error
            change.over.set()


def check_node_policy(path: object, policy: object, depth: int) -> TenantPath:
    """Return the validated path of a policy; raises `InvalidName` or `InvalidPolicy`."""
    checked = check_path(path)
    if len(checked) > depth:
        raise InvalidPolicy("tenant path", "/".join(checked), f"tenant paths here have at most {depth} names")
    if policy is not None and not isinstance(policy, NodePolicy):
        raise InvalidPolicy("policy", policy, "it must be a NodePolicy, or None to reset")
    return checked


def check_pool_policy(pool: object, policy: object) -> str:
    """Return the validated name of a pool whose settings are given; raises `InvalidName` or `InvalidPolicy`."""
    name = check_name("pool", pool)
    if not isinstance(policy, PoolPolicy):
        raise InvalidPolicy("pool policy", policy, "it must be a PoolPolicy")
    return name
