"""Who leads, from one dispatcher's point of view: when to stand for election, and under which token.

Rules of this file: no I/O, no clock; ``now`` is monotonic. A leader is alive while its renewal counter
moves; it has failed when the counter stood still for one leader lease *while we were watching*. If more
than half of that lies between two looks, we were stopped, and watching begins anew: a standby that wakes
up must not depose a leader that it has not looked at.

A token is ``epoch:uuid``. The epoch is for people; the uuid makes it unique even if the store lost its
last moments and hands out an epoch twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from drr.backend import LeaderRecord

WATCHFUL: Final = 0.5
"""Longest gap between two looks, in leader leases, over which a counter that stood still counts."""

REMEMBERED: Final = 16
"""Bids whose outcome may be unknown that are remembered."""


class Election:
    """One dispatcher's watch on the leadership. ``unique`` returns a new unique string at each call."""

    def __init__(self, leader_lease: float, unique: Callable[[], str]) -> None:
        self._lease = leader_lease
        self._unique = unique
        self._seen = LeaderRecord()
        self._moved_at = float("-inf")
        self._looked_at = float("-inf")
        self._epoch = 0
        self._own: deque[str] = deque(maxlen=REMEMBERED)
        """Tokens under which this dispatcher has stood since another one last led: any may have won unheard."""

    @property
    def tokens(self) -> list[str]:
        """Tokens under which this dispatcher may be on record as leader, the latest first."""
        return list(reversed(self._own))

    def look(self, record: LeaderRecord, now: float) -> tuple[str, str] | None:
        """Take in the leader record; return (expected token, new token) if it is time to stand for election.

        It is if nobody leads, if the leader is our own former self (whose memory was dropped: it leads
        nothing), or if the leader has failed.
        """
        gap = now - self._looked_at
        self._looked_at = now
        moved = (record.token, record.renewals) != (self._seen.token, self._seen.renewals)
        self._seen = record
        if moved or gap > self._lease * WATCHFUL:
            self._moved_at = now
        self._epoch = max(self._epoch, _epoch(record.token))
        if record.token and record.token not in self._own and now - self._moved_at < self._lease:
            self._own.clear()
            return None
        self._epoch += 1
        token = f"{self._epoch}:{self._unique()}"
        self._own.append(token)
        return record.token, token


def _epoch(token: str) -> int:
    number = token.partition(":")[0]
    return int(number) if number.isdecimal() and len(number) < 16 else 0
