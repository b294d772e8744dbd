"""News that wait for the passes: batches of facts, applied in order, each perhaps by several passes.

What was applied of a batch is remembered here; the engine's position moves on only when all of it was.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from drr.backend import Event, Facts, MalformedEvent, MalformedRequest, Position, Request


class Inbox:
    """Batches of news, oldest first."""

    def __init__(self) -> None:
        self._batches: deque[Facts] = deque()
        self._events = 0
        self._lanes_applied = False
        self._requests = 0

    def add(self, facts: Facts) -> None:
        """Note a batch that has come."""
        self._batches.append(facts)

    @property
    def first(self) -> Facts | None:
        """The batch that is being applied."""
        return self._batches[0] if self._batches else None

    def next_event(self) -> Event | MalformedEvent | None:
        """Return the next event of the first batch and count it as applied; ``None`` at the end."""
        events = self._batches[0].events
        if self._events >= len(events):
            return None
        self._events += 1
        return events[self._events - 1]

    def take_lanes(self) -> bool:
        """Return whether the first batch's announcements are still to be applied, and count them as applied."""
        applied, self._lanes_applied = self._lanes_applied, True
        return not applied

    def next_request(self) -> Request | MalformedRequest | None:
        """Return the next request of the first batch; ``None`` at the end. `request_done` moves on."""
        requests = self._batches[0].requests
        return requests[self._requests] if self._requests < len(requests) else None

    def request_done(self) -> None:
        """Count the next request as applied."""
        self._requests += 1

    def finish(self) -> Position:
        """Drop the first batch, which was applied; return its position."""
        self._events = self._requests = 0
        self._lanes_applied = False
        return self._batches.popleft().position

    def requests(self) -> Iterator[Request | MalformedRequest]:
        """Yield all requests that are not applied yet, in order."""
        for number, facts in enumerate(self._batches):
            yield from facts.requests if number else facts.requests[self._requests :]
