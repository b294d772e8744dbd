"""A store that goes away, or loses a reply, as a test says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from drr.backend import Backend
from drr.errors import StoreUnavailable


class Faults:
    """Shared by all handles of a `FaultyBackend`: which calls fail, before or after they took effect."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        """Names of methods that fail without effect; "*" is all of them."""
        self.lost: set[str] = set()
        """Names of methods whose next reply is lost after they took effect."""
        self.error: type[Exception] = StoreUnavailable
        self.calls: list[str] = []


class FaultyBackend:
    """A handle on a store that goes away as the test says."""

    def __init__(self, inner: Backend, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def sibling(self) -> FaultyBackend:
        return FaultyBackend(self._inner.sibling(), self._faults)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            self._faults.calls.append(name)
            if name != "close" and self._faults.away & {name, "*"}:
                raise self._faults.error("away")
            reply = await method(*args, **kwargs)
            if name in self._faults.lost and reply != []:
                self._faults.lost.discard(name)
                raise StoreUnavailable("the reply was lost")
            return reply

        return call
