"""What a handler may know of the attempt it runs."""

from __future__ import annotations

from drr.clock import Clock
from drr.model import Header, TenantPath


class Context:
    """One attempt, as its handler sees it. A handler gets it by annotating its first parameter with this class.

    ``attempt`` counts from 1. ``timeout`` is the bound on this attempt in seconds (the smaller of the job's and
    the task's), or ``None``; ``deadline`` is where it ends on the worker's monotonic clock. Safe to read from a
    thread.
    """

    __slots__ = ("_clock", "_header", "attempt", "deadline", "timeout")

    def __init__(
        self, header: Header, attempt: int, *, clock: Clock, timeout: float | None, deadline: float | None
    ) -> None:
        self._header = header
        self._clock = clock
        self.attempt = attempt
        self.timeout = timeout
        self.deadline = deadline

    @property
    def job_id(self) -> str:
        """The id that `Client.submit` returned."""
        return self._header.job_id

    @property
    def idempotency_key(self) -> str:
        """``<job id>#<attempt>``: names this attempt and no other; to be passed to services that deduplicate.

        Use ``job_id`` instead for an effect that must not be repeated by a later attempt of the same job.
        """
        return f"{self._header.job_id}#{self.attempt}"

    @property
    def task(self) -> str:
        """The name under which the handler is registered."""
        return self._header.task

    @property
    def pool(self) -> str:
        """The pool that the job was submitted to."""
        return self._header.lane.pool

    @property
    def tenant(self) -> TenantPath:
        """Whose job it is, outermost name first."""
        return self._header.lane.path

    @property
    def organisation(self) -> str:
        """The outer level of the tenant."""
        return self._header.lane.path[0]

    @property
    def project(self) -> str:
        """The innermost level of the tenant."""
        return self._header.lane.path[-1]

    @property
    def priority(self) -> int:
        """0 (first) to 9, as submitted."""
        return self._header.lane.priority

    @property
    def submitted_at(self) -> float:
        """When the client submitted the job, in Unix seconds by its clock."""
        return self._header.submitted_at

    @property
    def losses(self) -> int:
        """How many earlier attempts were lost with their worker."""
        return self._header.losses

    def remaining(self) -> float | None:
        """Return the seconds left until the deadline, at least 0, or ``None`` if there is none."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self._clock.monotonic())

    def __repr__(self) -> str:
        return f"<Context of {self.idempotency_key} ({self.task})>"
