"""Numbered logs, and readers that wait for them across threads and event loops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Hashable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")


class Log(Generic[T]):
    """Items under consecutive numbers after ``start``; trimmed at the old end, numbers are never used again."""

    def __init__(self, start: int = 0) -> None:
        self._items: deque[T] = deque()
        self.last = start

    def append(self, item: T) -> None:
        """Add an item under the next number."""
        self._items.append(item)
        self.last += 1

    def after(self, number: int) -> Iterator[tuple[int, T]]:
        """Yield what is kept after ``number``, each item with its own number."""
        trimmed = self.last - len(self._items)
        start = max(number, trimmed)
        return enumerate(islice(self._items, start - trimmed, None), start + 1)

    def trim(self, upto: int) -> None:
        """Forget the items up to and including number ``upto``."""
        while self._items and self.last - len(self._items) < upto:
            self._items.popleft()

    def __len__(self) -> int:
        return len(self._items)


class Waiters:
    """Who waits for which topic. Every method is called under the store's lock.

    A notice wakes everybody who waits for its topic, and each looks again: nobody is handed anything, so a
    waiter that is cancelled at that very moment takes nothing with it.
    """

    def __init__(self) -> None:
        self._by_topic: dict[Hashable, list[asyncio.Future[None]]] = {}

    def add(self, topic: Hashable) -> asyncio.Future[None]:
        """Return a future of the running loop that the topic's next notice resolves."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._by_topic.setdefault(topic, []).append(waiter)
        return waiter

    def discard(self, topic: Hashable, waiter: asyncio.Future[None]) -> None:
        """Forget a waiter that gave up; harmless if it was notified already."""
        waiting = self._by_topic.get(topic)
        if waiting is not None and waiter in waiting:
            waiting.remove(waiter)
            if not waiting:
                del self._by_topic[topic]

    def notify(self, topic: Hashable) -> None:
        """Wake the topic's waiters in the order in which they came."""
        for waiter in self._by_topic.pop(topic, ()):
            _wake(waiter)

    def notify_all(self) -> None:
        """Wake everybody."""
        for topic in list(self._by_topic):
            self.notify(topic)

    def __len__(self) -> int:
        return sum(map(len, self._by_topic.values()))


def _wake(waiter: asyncio.Future[None]) -> None:
    loop = waiter.get_loop()
    try:
        here = asyncio.get_running_loop()
    except RuntimeError:
        here = None
    if here is loop:
        _resolve(waiter)
        return
    # A loop that was closed with a waiter in it has nobody left to wake.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
