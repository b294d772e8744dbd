"""A submitted job, as its client sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from drr.errors import JobCancelled, JobExpired, JobFailed, JobNotFound, ResultNotKept
from drr.model import Completion, JobState, JobStatus, check_number
from drr.payload import Progress, unpack_result

R_co = TypeVar("R_co", covariant=True)


class JobAccess(Protocol):
    """What a handle needs of its client."""

    async def look_up(self, job_id: str) -> JobStatus | None:
        """Return where a job stands, or ``None`` if the store knows nothing of it."""
        ...

    async def cancel(self, job_ids: Sequence[str]) -> None:
        """Ask for these jobs to be cancelled."""
        ...

    async def progress_of(self, job_id: str) -> Progress | None:
        """Return what the handler of a job said last."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait by the client's clock."""
        ...

    async def wait_for(self, job_id: str, *, own: bool, timeout: float | None) -> JobStatus | None:
        """Return where a job stands once it has ended, or ``None`` if the store knows nothing of it."""
        ...


class Handle(Generic[R_co]):
    """One job: its ``id``, where it stands, and how it ended. ``R_co`` is the type of the result.

    ``id`` may be stored and turned into a handle again with `Client.handle`, in any process. ``duplicate``: the job
    was there already, under the idempotency key of the submit that returned this handle.
    """

    __slots__ = ("_access", "_kept", "_own", "duplicate", "id")

    def __init__(
        self, job_id: str, access: JobAccess, *, own: bool, kept: bool = True, duplicate: bool = False
    ) -> None:
        """``own``: submitted by this client, so that it is told of the end. ``kept``: the end can be read."""
        self.id = job_id
        self.duplicate = duplicate
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

        Raises `JobFailed` if it failed, timed out or was given up, `JobCancelled` or `JobExpired` if it was not
        run to its end; otherwise as `wait` does.
        """
        completion = await self.wait(timeout)
        if completion.state is JobState.CANCELLED:
            raise JobCancelled(self.id)
        if completion.state is JobState.EXPIRED:
            raise JobExpired(self.id)
        if completion.state is not JobState.SUCCEEDED:
            raise JobFailed(self.id, completion.error, completion.attempt)
        value: Any = unpack_result(completion.value) if completion.value else None
        return value  # type: ignore[no-any-return]  # the type comes from the caller's own declaration

    async def cancel(self) -> None:
        """Ask for the job to be cancelled, in whatever state it is; durable when this returns.

        A job that waits is never started; the handler of a running one is stopped. One that has ended stays as it
        is. `wait` tells how it came out. Needs no dispatcher to be up, but one to be carried out.
        """
        await self._access.cancel([self.id])

    async def progress(self) -> Progress | None:
        """Return what the job's handler said last of its progress, if it said anything in the last hour."""
        return await self._access.progress_of(self.id)

    async def follow_progress(self, interval: float = 1.0) -> AsyncIterator[Progress]:
        """Yield what the handler says of its progress, each word once, until the job has ended.

        The store is asked every ``interval`` seconds. Raises `JobNotFound` if it knows nothing of the job.
        """
        check_number("interval", interval, 0.01, 86_400.0)
        said: Progress | None = None
        while True:
            status = await self._access.look_up(self.id)
            latest = await self._access.progress_of(self.id)
            if latest is not None and latest != said:
                said = latest
                yield latest
            if status is None:
                raise JobNotFound(self.id)
            if status.state.final:
                return
            await self._access.pause(interval)

    def __repr__(self) -> str:
        return f"<Handle of {self.id}>"
