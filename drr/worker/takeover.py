"""Is the holder of a worker's name alive? A synchronous state machine over renewal counters.

The answer needs no clock but the observer's own: a counter that moves is a live worker, one that stood still for
a whole lease is a dead one. A store's expiry or the other machine's clock never come into it.
"""

from __future__ import annotations

from enum import Enum

from drr.backend import WorkerRecord


class Sight(Enum):
    """What is known of the holder of a name."""

    UNKNOWN = "unknown"
    ALIVE = "alive"
    DEAD = "dead"


class Takeover:
    """Watches the record of one name; times are seconds of the observer's monotonic clock."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._first: tuple[str, int] | None = None
        self._since = 0.0

    def look(self, record: WorkerRecord, now: float) -> Sight:
        """Take note of the record as it was at ``now``; return what follows from all looks so far."""
        seen = (record.incarnation, record.renewals)
        if self._first is None or self._first[0] != seen[0]:
            # Another incarnation than at the first look: somebody has just joined, which proves nothing about
            # how it does now; it is watched for a lease of its own.
            self._first, self._since = seen, now
            return Sight.UNKNOWN
        if seen != self._first:
            return Sight.ALIVE
        return Sight.DEAD if now - self._since > self._lease else Sight.UNKNOWN
