"""A submitted job, as its client sees it."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from drr.errors import JobFailed, JobNotFound, ResultNotKept
from drr.model import Completion, JobState, JobStatus
from drr.payload import unpack_result

R_co = TypeVar("R_co", covariant=True)


class JobAccess(Protocol):
    """What a handle needs of its client."""

    async def look_up(self, job_id: str) -> JobStatus | None:
        """Return where a job stands, or ``None`` if the store knows nothing of it."""
        ...

    async def wait_for(self, job_id: str, *, own: bool, timeout: float | None) -> JobStatus | None:
        """Return where a job stands once it has ended, or ``None`` if the store knows nothing of it."""
        ...


class Handle(Generic[R_co]):
    """One job: its ``id``, where it stands, and how it ended. ``R_co`` is the type of the result.

    ``id`` may be stored and turned into a handle again with `Client.handle`, in any process.
    """

    __slots__ = ("_access", "_kept", "_own", "id")

    def __init__(self, job_id: str, access: JobAccess, *, own: bool, kept: bool = True) -> None:
        """``own``: submitted by this client, so that it is told of the end. ``kept``: the end can be read."""
        self.id = job_id
        self._access = access
        self._own = own
        self._kept = kept

    async def status(self) -> JobStatus:
        """Return where the job stands now. Raises `JobNotFound` if the store knows nothing of it."""
        status = await self._access.look_up(self.id)
        if status is None:
            raise JobNotFound(self.id)
        return status

    async def wait(self, timeout: float | None = None) -> Completion:
        """Return how the job ended, whether well or not, as soon as it has.

        Raises `TimeoutError` after ``timeout`` seconds, `JobNotFound` if the store knows nothing of the job, and
        `ResultNotKept` at once if it was submitted with ``result_ttl=0``.
        """
        if not self._kept:
            raise ResultNotKept(self.id)
        status = await self._access.wait_for(self.id, own=self._own, timeout=timeout)
        if status is None or status.completion is None:
            raise JobNotFound(self.id)
        return status.completion

    async def result(self, timeout: float | None = None) -> R_co:
        """Return what the handler returned, as soon as it has.

        Raises `JobFailed` if it failed, timed out or was given up; otherwise as `wait` does.
        """
        completion = await self.wait(timeout)
        if completion.state is not JobState.SUCCEEDED:
            raise JobFailed(self.id, completion.error, completion.attempt)
        value: Any = unpack_result(completion.value) if completion.value else None
        return value  # type: ignore[no-any-return]  # the type comes from the caller's own declaration

    def __repr__(self) -> str:
        return f"<Handle of {self.id}>"
