"""What other queues do: unfair by design, on the driver's interface, to show that the checks can fail."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

from drr.core.scheduler import Job
from drr.model import Outcome, TenantPath


@dataclass(frozen=True, slots=True)
class Start:
    """A decision of a baseline."""

    job: Job


class Fifo:
    """First in, first out over all tenants; no caps, no accounts."""

    def __init__(self) -> None:
        self._queue: deque[Job] = deque()

    def set_slots(self, slots: int, withheld: int = 0) -> None:
        """Take note of nothing: the driver asks only while a slot is free."""

    def offer(self, job: Job, *, front: bool = False) -> None:
        """Append a job, or put a returned one first."""
        if front:
            self._queue.appendleft(job)
        else:
            self._queue.append(job)

    def take(self, token: Hashable, now: float) -> Start | None:
        """Start the oldest job."""
        return Start(self._queue.popleft()) if self._queue else None

    def settle(self, token: Hashable, outcome: Outcome, held: float) -> None:
        """Forget an attempt: there are no accounts."""

    def accrue(self, now: float) -> None:
        """Charge nothing."""


class RoundRobinByCount(Fifo):
    """One job of each project in turn, however long the jobs are."""

    def __init__(self) -> None:
        super().__init__()
        self._queues: dict[TenantPath, deque[Job]] = {}

    def offer(self, job: Job, *, front: bool = False) -> None:
        """Queue a job in its project."""
        queue = self._queues.setdefault(job.path, deque())
        if front:
            queue.appendleft(job)
        else:
            queue.append(job)

    def take(self, token: Hashable, now: float) -> Start | None:
        """Start the first job of the project whose turn it is; the project goes to the end of the line."""
        for path in list(self._queues):
            queue = self._queues.pop(path)
            if queue:
                self._queues[path] = queue
                return Start(queue.popleft())
        return None
