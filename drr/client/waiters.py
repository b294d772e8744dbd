"""Who waits for which job, and when to ask the store: a synchronous state machine.

A job that this client submitted is announced on the client's reply stream when it ends. A reply is only a
hint to look: the outcome itself is read with ``look_up``, as many jobs in one call as are due. So nothing depends
on a reply arriving, and these rules cover every way of losing one:

    - who begins to wait causes a look at once: the job may have ended before;
    - a reply causes a look, also if it comes while an earlier look is under way;
    - a break in the connection causes a look at everything;
    - otherwise a job is looked at again after `OWN_PERIOD`, in case the stream was trimmed, or, for a job of
      another client, of which no reply can come, after a time that grows from `FOREIGN_FIRST` to `FOREIGN_LONGEST`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from drr.backend import ITEM_LIMIT
from drr.errors import BackendError
from drr.model import JobStatus

OWN_PERIOD: Final = 30.0
FOREIGN_FIRST: Final = 0.25
FOREIGN_LONGEST: Final = 4.0


class Waiter:
    """All that wait for one job. ``done`` is set when ``status`` (``None``: unknown) or ``error`` is there."""

    __slots__ = ("done", "error", "job_id", "looking", "next_look", "notified", "own", "period", "status", "users")

    def __init__(self, job_id: str, own: bool) -> None:
        self.job_id = job_id
        self.own = own
        self.users = 0
        self.done = anyio.Event()
        self.status: JobStatus | None = None
        self.error: BackendError | None = None
        self.next_look = float("-inf")
        self.period = OWN_PERIOD if own else FOREIGN_FIRST
        self.looking = False
        self.notified = False


class Waiters:
    """The jobs that somebody waits for. Times are seconds of the client's monotonic clock."""

    def __init__(self) -> None:
        self._waiters: dict[str, Waiter] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def own(self) -> bool:
        """Whether somebody waits for a job that replies can come for."""
        return any(waiter.own for waiter in self._waiters.values())

    def add(self, job_id: str, own: bool) -> Waiter:
        """Wait for a job, together with whoever does already. To be given up with `drop`."""
        waiter = self._waiters.get(job_id)
        if waiter is None:
            waiter = self._waiters[job_id] = Waiter(job_id, own)
        waiter.users += 1
        return waiter

    def drop(self, waiter: Waiter) -> None:
        """One user less; the last one takes the job off the list."""
        waiter.users -= 1
        if not waiter.users and self._waiters.get(waiter.job_id) is waiter:
            del self._waiters[waiter.job_id]

    def replied(self, job_ids: Iterable[str]) -> bool:
        """These jobs are said to have ended; return whether anybody waits for one of them."""
        wanted = False
        for job_id in job_ids:
            waiter = self._waiters.get(job_id)
            if waiter is not None:
                waiter.notified = wanted = True
        return wanted

    def doubt(self) -> None:
        """Replies may have been lost: everything is due."""
        for waiter in self._waiters.values():
            waiter.notified = True

    def due(self, now: float) -> list[Waiter]:
        """Return the jobs to be looked up now, as many as fit one call; `looked` or `missed` must follow."""
        due: list[Waiter] = []
        for waiter in self._waiters.values():
            if not waiter.looking and (waiter.notified or now >= waiter.next_look):
                waiter.looking = True
                waiter.notified = False
                due.append(waiter)
                if len(due) == ITEM_LIMIT:
                    break
        return due

    def pause(self, now: float) -> float | None:
        """Return the seconds until something is due, or ``None`` if nothing will be."""
        times = [
            float("-inf") if waiter.notified else waiter.next_look
            for waiter in self._waiters.values()
            if not waiter.looking
        ]
        return max(0.0, min(times) - now) if times else None

    def looked(self, waiters: Sequence[Waiter], statuses: Sequence[JobStatus | None], now: float) -> None:
        """The answers of a look: who has its answer leaves the list, the others are looked at again later."""
        for waiter, status in zip(waiters, statuses, strict=True):
            waiter.looking = False
            if status is None or status.state.final:
                waiter.status = status
                self._finish(waiter)
            else:
                waiter.next_look = now + waiter.period
                if not waiter.own:
                    waiter.period = min(waiter.period * 2, FOREIGN_LONGEST)

    def missed(self, waiters: Sequence[Waiter], error: BackendError | None = None) -> None:
        """The look failed: it is due again, or, with an ``error`` that repeating does not cure, all is over."""
        for waiter in waiters:
            waiter.looking = False
            waiter.notified = True
            if error is not None:
                waiter.error = error
                self._finish(waiter)

    def moved(self, job_ids: Iterable[str]) -> None:
        """These jobs have other ids now: whoever waits for them is told that the store does not know them."""
        for job_id in job_ids:
            waiter = self._waiters.get(job_id)
            if waiter is not None:
                self._finish(waiter)

    def give_up(self, error: BackendError) -> None:
        """No more looks: all waiting ends with ``error``."""
        for waiter in list(self._waiters.values()):
            waiter.error = error
            self._finish(waiter)

    def _finish(self, waiter: Waiter) -> None:
        waiter.done.set()
        if self._waiters.get(waiter.job_id) is waiter:
            del self._waiters[waiter.job_id]
