"""Backends around a backend: one that fails on purpose, one that remembers what was asked of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from drr.backend import Backend
from drr.errors import StoreUnavailable

WRITES_AND_READS = frozenset(
    {
        "leader",
        "elect",
        "renew",
        "load",
        "receive",
        "peek",
        "commit",
        "workers",
        "lane_lengths",
        "write_status",
        "await_resignation",
    }
)
"""What a dispatcher asks of a store once it runs; ``resign`` and ``close`` are for the way out."""


@dataclass
class Plan:
    """When to fail, shared by a handle and its siblings: the ``fail_at``-th call (from 1 on), or none if it is 0.

    ``after``: the call takes effect and only its reply is lost. ``only``: count calls of these kinds alone.
    """

    fail_at: int = 0
    after: bool = False
    only: frozenset[str] = WRITES_AND_READS
    times: int = 1
    calls: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)


class FaultyBackend:
    """Passes every call on; at the planned one it raises `StoreUnavailable`, before or after the effect."""

    def __init__(self, inner: Backend, plan: Plan) -> None:
        self.inner = inner
        self.plan = plan

    def sibling(self) -> Backend:
        return FaultyBackend(self.inner.sibling(), self.plan)

    def __getattr__(self, name: str) -> Any:
        method: Callable[..., Awaitable[Any]] = getattr(self.inner, name)
        if name not in self.plan.only:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            plan = self.plan
            plan.calls += 1
            plan.by_kind[name] += 1
            strikes = plan.fail_at and plan.fail_at <= plan.calls < plan.fail_at + plan.times
            if not strikes:
                return await method(*args, **kwargs)
            plan.failed.append(name)
            if plan.after:
                await method(*args, **kwargs)
            raise StoreUnavailable(f"planned failure of {name}")

        return call
