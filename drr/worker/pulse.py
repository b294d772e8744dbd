"""When to beat: a synchronous state machine. Time is an argument, in seconds of the worker's monotonic clock.

A beat is due every ``interval``. It comes early when an attempt has been in hand, unannounced, for a quarter of
that: so the dispatcher soon knows who runs what lasts, at four beats per interval at most, however many short
attempts pass through in between. A beat that failed is repeated with growing pauses, all shorter than half an
interval.

If no beat got through for longer than a lease, counted from when the last accepted one was *sent*, the lease
may be gone: the dispatcher counts from when it saw it, which is later.
"""

from __future__ import annotations

from random import Random
from typing import Final

from drr.timing import Backoff

EARLY: Final = 0.25
"""Part of the interval after which an unannounced attempt brings the beat forward; also how often that is asked."""


class Pulse:
    """Decides when the next heartbeat is due and whether the lease may have run out."""

    def __init__(self, interval: float, lease: float, rng: Random) -> None:
        self._interval = interval
        self._lease = lease
        self._backoff = Backoff(rng, first=interval / 20, longest=interval / 2)
        self._accepted_at = 0.0
        self._next = 0.0
        self._failing = False

    def joined(self, now: float) -> None:
        """A new incarnation was registered by a call that was sent at ``now``: that counts as a beat."""
        self.accepted(now)

    @property
    def accepted_at(self) -> float:
        """When the last beat that the store took was sent."""
        return self._accepted_at

    def accepted(self, sent_at: float) -> None:
        """The store took a beat that was sent at ``sent_at``."""
        self._accepted_at = max(self._accepted_at, sent_at)
        self._next = sent_at + self._interval
        self._failing = False
        self._backoff.reset()

    def failed(self, now: float) -> None:
        """A beat did not get through, as far as is known."""
        self._failing = True
        self._next = now + self._backoff.next()

    def hurry(self, now: float) -> None:
        """Something that the dispatcher should know at once has changed: beat now."""
        self._next = min(self._next, now)

    def due(self, now: float, untold_since: float | None) -> bool:
        """Return whether to beat now; ``untold_since``: when the oldest unannounced attempt was taken."""
        if now >= self._next:
            return True
        return not self._failing and untold_since is not None and now - untold_since >= self._interval * EARLY

    def pause(self, now: float) -> float:
        """Return the seconds until `due` should be asked again."""
        return max(0.0, min(self._next - now, self._interval * EARLY))

    def lapsed(self, now: float) -> bool:
        """Return whether the lease may have run out."""
        return now - self._accepted_at > self._lease
