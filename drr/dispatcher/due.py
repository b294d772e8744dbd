"""Jobs that were put off: when the next one is due, and bringing them back to their lanes.

The leader knows the next due time from its load, from announcements and from what it puts off itself, and asks
the store when that has come. A submit announces a due time only if no earlier one is in the store; so what was due
may have hidden later ones, and after every batch that leaves the due set the store is asked again.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from drr.backend import ITEM_LIMIT, DropDelayed, DueJobs, Mature
from drr.dispatcher.backlog import Backlog
from drr.dispatcher.batch import Batch
from drr.dispatcher.counters import Counters
from drr.dispatcher.endings import end_unstarted, has_expired
from drr.dispatcher.ledger import book_expired
from drr.model import JobState


class Due:
    """Due times by the leader's wall clock, Unix seconds."""

    def __init__(self, next_at: float | None) -> None:
        self.next_at = next_at
        """When to ask the store next; ``None``: nothing is put off, as far as is known."""
        self._found: DueJobs | None = None

    def hear(self, at: float | None) -> None:
        """Something is due at this time."""
        if at is not None and (self.next_at is None or at < self.next_at):
            self.next_at = at

    def has_come(self, wall: float) -> bool:
        """Whether the store is to be asked now."""
        return self._found is None and self.next_at is not None and self.next_at <= wall

    def answered(self, found: DueJobs) -> None:
        """Take over what the store said; the next pass acts on it."""
        self.next_at = found.next_at
        self._found = found if found.jobs else None

    def mature(self, batch: Batch, backlog: Backlog, tally: Counters, wall: float, dropped: Container[str]) -> None:
        """Bring what was found due back to the heads of its lanes, earliest in front; what has expired goes.

        ``dropped``: job ids that this pass has taken out of the due set already.
        """
        if self._found is None:
            return
        jobs, self._found = self._found.jobs, None
        self.next_at = 0.0  # whatever the wall clock does: at once
        for header in reversed(jobs):
            if header.job_id in dropped:
                continue
            if not has_expired(header, wall):
                batch.matures.append(Mature(header))
                backlog.give_back(replace(header, returned=True))
            elif len(batch.drops_delayed) < ITEM_LIMIT:
                batch.drops_delayed.append(DropDelayed(header, end_unstarted(header, JobState.EXPIRED, wall)))
                book_expired(batch, header)
                tally.expired += 1
