"""What a client can do with jobs that are there: find, list, cancel, bury, revive, and account for them.

Listings are read part by part: what ends or begins meanwhile may be missed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Any, Final, TypeVar

from drr.backend import (
    ITEM_LIMIT,
    Backend,
    DeadLetter,
    DeathCause,
    Listed,
    Request,
    RequestKind,
    Usage,
    UsageKey,
    Work,
)
from drr.client.handle import Handle
from drr.client.submission import Tenant
from drr.client.times import read_moment
from drr.clock import Clock
from drr.errors import DeadLetterNotFound, DeadlinePassed, InvalidValue, JobNotFound, MalformedMessage
from drr.model import JobState, check_name, check_path, parse_job_id
from drr.payload import Progress, unpack_progress

T = TypeVar("T")

OPEN_STATES: Final = (JobState.DELAYED, JobState.QUEUED, JobState.RUNNING)
"""States of jobs that can be cancelled, in the order in which `Operations.cancel_all` looks: no job goes back."""
HOUR: Final = 3600
SPOOLED: Final = 8 * 1024 * 1024
"""Characters of ids that `Operations.cancel_all` keeps in memory."""
LETTERS_READ: Final = 100
"""Dead letters in one answer: each brings its payload."""


class Operations(ABC):
    """The part of `drr.client.Client` that is about jobs which somebody has submitted."""

    _clock: Clock

    @abstractmethod
    def _opened(self) -> tuple[Backend, Any]: ...

    @abstractmethod
    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T: ...

    @abstractmethod
    def _current(self, job_id: str) -> str: ...

    @abstractmethod
    def handle(self, job_id: str) -> Handle[Any]:
        """Return a handle on any job of the namespace by its id."""

    # --- finding --------------------------------------------------------------------------------------

    async def find(self, tenant: Tenant, id: str) -> Handle[Any]:
        """Return a handle on the job of ``"organisation/project"`` that was submitted with this ``id`` (or ``key``).

        Raises `JobNotFound` if there is none, or if it is longer ago than the submit's ``key_ttl``.
        """
        backend, _ = self._opened()
        path, name = check_path(tenant, depth=2), check_name("id of a job", id)
        job_id = await self._patiently(lambda: backend.find(path, name))
        if job_id is None:
            raise JobNotFound(f"{id!r} of {'/'.join(path)}")
        return self.handle(job_id)

    async def jobs(
        self, tenant: Tenant, *, state: JobState | str = JobState.QUEUED, task: str | None = None
    ) -> AsyncIterator[Listed]:
        """Yield the jobs of an organisation, or of an ``"organisation/project"``, that are in a state.

        ``task``: only those of this task. Of jobs that have ended, the last 10,000 of an organisation are known, for
        a week after its last one; they come latest first, the others in the order in which they wait.
        """
        backend, _ = self._opened()
        path, wanted = check_path(tenant), check_state(state)
        cursor = ""
        while True:
            page = await self._patiently(partial(backend.list_jobs, path, wanted, ITEM_LIMIT, cursor))
            for listed in page.jobs:
                if task is None or listed.task == task:
                    yield listed
            cursor = page.cursor
            if not cursor:
                return

    async def waiting(self, tenant: Tenant) -> Work:
        """Return what waits of an organisation or project, as its backlog limits count it."""
        backend, _ = self._opened()
        path = check_path(tenant)
        [work] = await self._patiently(lambda: backend.waiting([path]))
        return work

    # --- cancelling -----------------------------------------------------------------------------------

    async def cancel(self, job_ids: Iterable[str]) -> None:
        """Ask for jobs to be cancelled, in whatever state they are; see `Handle.cancel`.

        Raises `InvalidValue` for what is no job id; then nothing was asked.
        """
        ids = list(job_ids)
        for job_id in ids:
            parse_job_id(job_id)
        await self._request([Request(RequestKind.CANCEL, self._current(job_id)) for job_id in ids])

    async def cancel_all(
        self,
        tenant: Tenant,
        *,
        task: str | None = None,
        states: Sequence[JobState | str] = OPEN_STATES,
    ) -> int:
        """Ask for all jobs of an organisation or project to be cancelled; return how many were asked for.

        ``task`` and ``states`` narrow it down. Jobs that are submitted, started or put back meanwhile may be missed.
        The ids of each state are gathered first, in a temporary file if they are many.
        """
        wanted = [check_state(state) for state in states]
        for state in wanted:
            if state.final:
                raise InvalidValue("state", state.value, "only jobs that have not ended can be cancelled")
        asked = 0
        for state in wanted:
            # A listing goes on by how many jobs it has passed: what is cancelled before its end would shift the rest
            # to the front, and as many would be passed over.
            with SpooledTemporaryFile(SPOOLED, "w+", encoding="ascii", newline="\n") as spool:
                async for listed in self.jobs(tenant, state=state, task=task):
                    spool.write(f"{listed.job_id}\n")
                spool.seek(0)
                lines = iter(spool)
                while ids := [line.rstrip() for line in islice(lines, ITEM_LIMIT)]:
                    await self.cancel(ids)
                    asked += len(ids)
        return asked

    async def _request(self, requests: Iterable[Request]) -> None:
        backend, _ = self._opened()
        left = iter(requests)
        while batch := list(islice(left, ITEM_LIMIT)):
            await self._patiently(partial(backend.request, batch))

    # --- the dead -------------------------------------------------------------------------------------

    async def dead(
        self, tenant: Tenant | None = None, *, cause: DeathCause | str | None = None
    ) -> AsyncIterator[DeadLetter]:
        """Yield the jobs that were given up, oldest first: all of them, or those of an organisation or project.

        ``cause``: only those given up for this reason.
        """
        backend, _ = self._opened()
        path = () if tenant is None else check_path(tenant)
        wanted = None if cause is None else check_cause(cause)
        organisation, after = path[0] if path else "", 0
        while True:
            letters = await self._patiently(partial(backend.dead_letters, organisation, LETTERS_READ, after))
            for letter in letters:
                if letter.lane.path[: len(path)] == path and wanted in (None, letter.cause):
                    yield letter
            if not letters:
                return
            after = letters[-1].number

    async def letter(self, number: int) -> DeadLetter:
        """Return a dead letter by its number; raises `DeadLetterNotFound`."""
        backend, _ = self._opened()
        after = check_letter(number) - 1
        letters = await self._patiently(lambda: backend.dead_letters("", 1, after))
        if not letters or letters[0].number != number:
            raise DeadLetterNotFound(number)
        return letters[0]

    async def requeue_dead(self, numbers: Iterable[int]) -> int:
        """Ask for the jobs of dead letters to be queued again, in front, as if they had never been tried.

        Returns how many that are. Raises `DeadLetterNotFound`, or `DeadlinePassed` for a job that would only expire;
        then nothing was asked.
        """
        chosen = list(dict.fromkeys(check_letter(number) for number in numbers))
        now = self._clock.wall()
        for number in chosen:
            letter = await self.letter(number)
            if letter.expired(now):
                assert letter.header is not None
                raise DeadlinePassed(number, letter.header.deadline or 0.0, now)
        await self._request([Request(RequestKind.REVIVE, str(number)) for number in chosen])
        return len(chosen)

    async def purge_dead(self, numbers: Iterable[int]) -> int:
        """Delete dead letters for good; return how many there were."""
        backend, _ = self._opened()
        left = iter([check_letter(number) for number in numbers])
        gone = 0
        while batch := list(islice(left, ITEM_LIMIT)):
            gone += await self._patiently(partial(backend.purge_dead, batch))
        return gone

    # --- accounts and progress ------------------------------------------------------------------------

    async def usage(
        self,
        organisation: str,
        *,
        since: float | datetime | timedelta,
        until: float | datetime | None = None,
    ) -> dict[UsageKey, Usage]:
        """Return what an organisation's attempts took, by hour, project and pool, for up to 400 days.

        ``since`` and ``until``: aware `datetime`, Unix seconds, or for ``since`` a `timedelta` before now; hours are
        whole, so the one that ``since`` falls into is in it. Attempts count in the hour in which they ended.
        `Usage.sum` adds up what is returned.
        """
        backend, _ = self._opened()
        name = check_name("organisation", organisation)
        now = self._clock.wall()
        begin = now - since.total_seconds() if isinstance(since, timedelta) else read_moment("since", since)
        end = now + 1.0 if until is None else read_moment("until", until)
        if begin > end:
            raise InvalidValue("since", since, "it must not be after the end of the time that is asked for")
        hours = int(max(0.0, begin) // HOUR), int(-(-end // HOUR))
        return await self._patiently(lambda: backend.usage(name, *hours))

    async def progress_of(self, job_id: str) -> Progress | None:
        """Return what the handler of a job said last of its progress."""
        backend, _ = self._opened()
        parse_job_id(job_id)
        [blob] = await self._patiently(lambda: backend.progress([job_id]))
        try:
            return None if blob is None else unpack_progress(blob)
        except MalformedMessage:
            return None  # a handler in another language has a form of its own

    async def pause(self, seconds: float) -> None:
        """Wait by this client's clock."""
        await self._clock.sleep(seconds)


def check_state(state: JobState | str) -> JobState:
    """Return a state by its name; raises `InvalidValue` if there is no such state."""
    try:
        return JobState(state)
    except ValueError:
        raise InvalidValue("state", state, f"it must be one of {', '.join(JobState)}") from None


def check_cause(cause: DeathCause | str) -> DeathCause:
    """Return a cause by its name; raises `InvalidValue` if there is no such cause."""
    try:
        return DeathCause(cause)
    except ValueError:
        raise InvalidValue("cause", cause, f"it must be one of {', '.join(DeathCause)}") from None


def check_letter(number: int) -> int:
    """Return the number of a dead letter; raises `InvalidValue` if it cannot be one."""
    if type(number) is not int or not 1 <= number <= 2**53:
        raise InvalidValue("number of a dead letter", number, "it must be a whole number from 1, as `dead` tells")
    return number
