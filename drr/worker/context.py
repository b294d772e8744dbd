"""What a handler may know of the attempt it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from drr.clock import Clock
from drr.errors import JobCancelled
from drr.model import TenantPath
from drr.payload import pack_progress

if TYPE_CHECKING:
    from drr.worker.state import Holding


class Context:
    """One attempt, as its handler sees it. A handler gets it by annotating its first parameter with this class.

    ``attempt`` counts from 1. ``timeout`` is the bound on this attempt in seconds (the smaller of the job's and
    the task's), or ``None``; ``deadline`` is where it ends on the worker's monotonic clock. Safe to use from a
    thread.
    """

    __slots__ = ("_clock", "_header", "_holding", "_say", "attempt", "deadline", "timeout")

    def __init__(self, holding: Holding, clock: Clock, say: Callable[[Holding, bytes], None]) -> None:
        """``say`` takes over what the handler says of its progress; from any thread."""
        self._holding = holding
        self._header = holding.attempt.header
        self._clock = clock
        self._say = say
        self.attempt = holding.attempt.number
        self.timeout = holding.timeout
        self.deadline = None if holding.timeout is None else holding.taken_at + holding.timeout

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

    @property
    def failures(self) -> int:
        """How many earlier attempts failed or timed out."""
        return self._header.failures

    @property
    def limits(self) -> tuple[str, ...]:
        """The shared limits that this attempt holds."""
        return self._header.lane.limits

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled. A handler on the loop is stopped anyway; one in a thread should look."""
        return self._holding.cancelled

    def check_cancelled(self) -> None:
        """Raise `JobCancelled` if the job was cancelled: for a handler in a thread, wherever it may stop."""
        if self._holding.cancelled:
            raise JobCancelled(self.job_id)

    def report_progress(self, fraction: float | None, message: str = "") -> None:
        """Say how far the attempt is: a ``fraction`` of 0 to 1, or ``None`` if that is not known, and words.

        Returns at once. It is sent in the background, at most once a second, the latest word each time, and kept
        for an hour; clients follow it with `Handle.follow_progress`. A long message is cut to about 4,000 bytes.
        Raises `InvalidValue` for a fraction outside 0 to 1.
        """
        self._say(self._holding, pack_progress(fraction, message))

    def remaining(self) -> float | None:
        """Return the seconds left until the deadline, at least 0, or ``None`` if there is none."""
        if self.deadline is None:
            return None
        return max(0.0, self.deadline - self._clock.monotonic())

    def __repr__(self) -> str:
        return f"<Context of {self.idempotency_key} ({self.task})>"
