"""Submitting through an outbox: record, send, confirm, and send again what the store has lost.

Numbers
    Calls are numbered within *segments* of at most `CALLS_REMEMBERED` calls: to the store a segment's name is a
    client of its own, so that it remembers each of the segment's calls, however many came after, and repeating one
    of them is always recognised. A segment takes no more calls once its first is a horizon old; when all are
    confirmed, the store is told that it may forget them.

A call is
    *sent*: on its way for the first time, by the task that wants its jobs submitted;
    *open*: nobody knows whether the store has it. It is sent again, under its number, until that is known;
    *acknowledged*: the store has answered. It is looked at once its horizon has passed, and at any sign of trouble.
    If the store does not remember it, the store has lost it, and it is open again. If it does, after the horizon, it
    is confirmed and leaves the outbox.

A refusal (a quota, a taken id) ends a call that is sent, since its caller is told: it leaves the outbox before. Of
an open call nobody is there to be told. Quotas and a full store pass, so it is tried again; other refusals set it
aside, like an age at which the store could have forgotten it (`Outbox.max_age`).

A lost job that was submitted again may have another number, so another id. Handles of this client follow it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Final

import anyio

from drr.backend import CALLS_REMEMBERED, Backend
from drr.client.journal import Record
from drr.client.outbox import Outbox
from drr.clock import Clock
from drr.errors import (
    AdmissionRefused,
    BackendError,
    DrrError,
    InvalidValue,
    NotReplicated,
    OutboxError,
    OutboxFull,
    StoreFull,
    StoreNotPrepared,
    StoreUnavailable,
    SubmitPending,
)
from drr.model import JobSpec, call_nonce, parse_job_id
from drr.timing import Backoff, Signal, run_within

log = logging.getLogger("drr.client")

LEAST_PAUSE: Final = 0.25
"""Least seconds between two looks at what has been acknowledged."""
REFUSED_PAUSE: Final = 1.0
"""Seconds after which an open call that found the store full, or not prepared, is tried again."""


class Held:
    """One call in the outbox. Times are seconds of the client's monotonic clock."""

    __slots__ = ("acked_at", "expires", "ids", "not_before", "open", "record")

    def __init__(self, record: Record, expires: float, *, open: bool) -> None:
        self.record = record
        self.expires = expires
        """When it is too old to be repeated."""
        self.open = open
        self.acked_at: float | None = None
        self.ids: list[str] = []
        self.not_before = float("-inf")


class Replay:
    """All calls of one client that are in its outbox. Make it inside a running loop and start `run` as a task."""

    def __init__(
        self, outbox: Outbox, backend: Backend, clock: Clock, rng: Random, moved: Callable[[Sequence[str]], None]
    ) -> None:
        """``moved``: told of ids of jobs that have other ids from now on."""
        self._outbox = outbox
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._moved = moved
        self._held: dict[int, Held] = {}
        self._by_nonce: dict[str, Held] = {}
        self._left: dict[str, int] = {}
        """How many held calls each segment has."""
        self._segment = ""
        self._calls = 0
        self._segment_began = float("-inf")
        self._news: dict[str, str] = {}
        """Ids of jobs that were lost to those they have now; bounded."""
        self._work = Signal()
        self._resting = False
        """Whether `run` waits without an end."""
        self._room = anyio.Event()
        self._round = anyio.Event()
        self._stopped = False
        self._doubted = False
        self.lost = 0
        """Acknowledged jobs so far that the store had lost and that were submitted again."""

    # --- life -----------------------------------------------------------------------------------------

    async def start(self, namespace: str) -> None:
        """Open the outbox. Everything in it is open. Raises `OutboxError` of the file."""
        records = await self._outbox.open(namespace, self._clock, self._more_room)
        age_of = self._clock.wall() - self._clock.monotonic()
        for record in records:
            if not record.aside:
                # By the monotonic clock from here on: the other one may jump.
                self._hold(Held(record, record.recorded_at - age_of + self._outbox.max_age, open=True))
                self._left[record.segment] = self._left.get(record.segment, 0) + 1
        if self._held:
            log.info("the outbox %s has %d calls to be repeated", self._outbox.path, len(self._held))
        self._work.set()

    async def stop(self) -> None:
        """Close the outbox; what is not confirmed stays in it."""
        self._stopped = True
        self._room.set()
        self._round.set()
        await self._outbox.close()

    async def run(self) -> None:
        """Repeat and confirm, for ever."""
        backoff = Backoff(self._rng)
        while True:
            pause = self._pause()
            if pause is None:
                self._resting = True
                await self._work.wait()
                self._resting = False
            elif pause > 0.0:
                await self._work.wait_for(self._clock, pause)
            try:
                await self._repeat()
                await self._look()
            except (StoreUnavailable, OutboxError) as error:
                log.debug("the outbox waits: %s", error)
                self._doubted = True
                await self._clock.sleep(backoff.next())
            except BackendError as error:
                log.warning("the store refuses to say which calls it remembers: %s", error)
                await self._clock.sleep(backoff.next())
            else:
                backoff.reset()
                over, self._round = self._round, anyio.Event()
                over.set()

    def doubt(self) -> None:
        """The store was away: what it has acknowledged is looked at as soon as it answers."""
        if self._held:
            self._doubted = True
            self._work.set()

    # --- submitting -----------------------------------------------------------------------------------

    async def submit(
        self,
        specs: Sequence[JobSpec],
        patience: float,
        patiently: Callable[[Callable[[], Awaitable[list[str]]]], Awaitable[list[str]]],
    ) -> tuple[list[str], str]:
        """Record a call, send it, and return the ids and the nonce of the jobs that it added.

        Raises `OutboxFull` after ``patience`` seconds without room, `SubmitPending` if the store does not answer.
        """
        held = await self._record(specs, patience)
        record = held.record
        try:
            ids = await patiently(lambda: self._backend.submit(record.segment, record.call, specs))
        except StoreUnavailable as error:
            self._reopen(held)
            raise SubmitPending(self._outbox.path, record.jobs, error) from error
        except NotReplicated as shortfall:
            self._acknowledge(held, shortfall.job_ids)  # stored; should a failover lose it, it is repeated
            raise
        except DrrError:
            with anyio.CancelScope(shield=True):
                await self._drop([held])
            raise
        except BaseException:
            self._reopen(held)  # cancelled: the store may have it
            raise
        self._acknowledge(held, ids)
        return ids, call_nonce(record.segment, record.call)

    async def _record(self, specs: Sequence[JobSpec], patience: float) -> Held:
        began = self._clock.monotonic()
        while True:
            room = self._room
            try:
                record, body = self._outbox.make(*self._place(), specs)
            except OutboxFull as full:
                left = began + patience - self._clock.monotonic()
                if full.wanted > full.limit or left <= 0.0 or self._stopped:
                    raise
                await run_within(self._clock, left, room.wait)
                continue
            held = Held(record, self._clock.monotonic() + self._outbox.max_age, open=False)
            self._calls += 1
            self._left[record.segment] = self._left.get(record.segment, 0) + 1
            self._hold(held)
            try:
                await self._outbox.put(record, body)
            except Exception:
                self._release(held)
                raise
            except BaseException:
                self._reopen(held)  # cancelled: it is on disk
                raise
            return held

    def _place(self) -> tuple[str, int]:
        """Return segment and number of the next call."""
        now = self._clock.monotonic()
        aged = now - self._segment_began > max(self._outbox.horizon, LEAST_PAUSE)
        if not self._segment or aged or self._calls >= CALLS_REMEMBERED:
            self._segment = f"{self._rng.getrandbits(96):024x}"
            self._calls = 0
            self._segment_began = now
        return self._segment, self._calls + 1

    # --- what there is to do --------------------------------------------------------------------------

    def _pause(self) -> float | None:
        """Return the seconds until something is to be done, or ``None``."""
        if self._doubted:
            return 0.0
        now = self._clock.monotonic()
        times = [held.not_before for held in self._held.values() if held.open]
        # In order of acknowledgement, nearly: the first tells when to look, and then all are looked at.
        acked = next((held.acked_at for held in self._held.values() if held.acked_at is not None), None)
        if acked is not None:
            times.append(max(acked + self._outbox.horizon, now + LEAST_PAUSE))
        return max(0.0, min(times) - now) if times else None

    async def _repeat(self) -> None:
        """Send what is open, in order."""
        for held in [held for held in self._held.values() if held.open]:
            if held.not_before > self._clock.monotonic():
                continue
            if self._clock.monotonic() > held.expires:
                await self._set_aside(held, "it is too old: the store may have had it and forgotten that")
                continue
            await self._send(held)

    async def _send(self, held: Held) -> None:
        record = held.record
        try:
            specs = await self._outbox.read(record.number)
            try:
                ids = await self._backend.submit(record.segment, record.call, specs)
            except NotReplicated as shortfall:
                ids = shortfall.job_ids
        except (StoreUnavailable, OutboxError):
            raise
        except AdmissionRefused as refusal:
            held.not_before = self._clock.monotonic() + max(refusal.retry_after, LEAST_PAUSE)
        except (StoreFull, StoreNotPrepared):
            held.not_before = self._clock.monotonic() + REFUSED_PAUSE
        except DrrError as refusal:
            await self._set_aside(held, str(refusal))
        else:
            self._acknowledge(held, ids)

    async def _look(self) -> None:
        """Ask the store what it remembers: confirm what is old enough, reopen what is gone."""
        now = self._clock.monotonic()
        doubted, self._doubted = self._doubted, False
        segments: dict[str, list[Held]] = {}
        for held in self._held.values():
            if held.acked_at is not None and (doubted or held.acked_at + self._outbox.horizon <= now):
                segments.setdefault(held.record.segment, []).append(held)
        confirmed: list[Held] = []
        try:
            for segment, calls in segments.items():
                remembered = set(await self._backend.calls(segment))
                gone = [held for held in calls if held.record.call not in remembered]
                if gone:
                    self._lost(gone)
                confirmed += [
                    held
                    for held in calls
                    if held.record.call in remembered
                    and held.acked_at is not None
                    and held.acked_at + self._outbox.horizon <= now
                ]
        finally:
            emptied = await self._drop(confirmed)
        for segment in emptied:
            await self._backend.release_calls(segment)

    def _lost(self, gone: Sequence[Held]) -> None:
        jobs = sum(held.record.jobs for held in gone)
        self.lost += jobs
        log.warning("the store has lost %d jobs that it had acknowledged; they are submitted again", jobs)
        for held in gone:
            self._reopen(held)

    # --- what is held ---------------------------------------------------------------------------------

    def _hold(self, held: Held) -> None:
        record = held.record
        self._held[record.number] = held
        self._by_nonce[call_nonce(record.segment, record.call)] = held

    def _release(self, held: Held) -> str | None:
        """Hold a call no longer; return its segment if that is empty now and closed."""
        record = held.record
        if self._held.pop(record.number, None) is None:
            return None
        self._by_nonce.pop(call_nonce(record.segment, record.call), None)
        self._left[record.segment] -= 1
        if self._left[record.segment]:
            return None
        del self._left[record.segment]
        if record.segment == self._segment:
            self._segment = ""
        return record.segment

    def _reopen(self, held: Held) -> None:
        held.open = True
        held.acked_at = None
        held.not_before = float("-inf")
        self._work.set()

    def _acknowledge(self, held: Held, ids: list[str]) -> None:
        held.open = False
        held.acked_at = self._clock.monotonic()
        changed = {old: new for old, new in zip(held.ids, ids, strict=False) if old != new}
        held.ids = ids
        # At the end, so that what was acknowledged first is found first.
        self._held[held.record.number] = self._held.pop(held.record.number)
        if changed:
            self._news |= changed
            for old in list(self._news)[: max(0, len(self._news) - self._outbox.max_jobs)]:
                del self._news[old]
            self._moved(list(changed))
        if self._resting:
            self._work.set()

    async def _drop(self, calls: Sequence[Held]) -> list[str]:
        """Take calls out of the outbox; return the segments that are empty now."""
        await self._outbox.remove([held.record.number for held in calls])
        return [segment for held in calls if (segment := self._release(held)) is not None]

    async def _set_aside(self, held: Held, reason: str) -> None:
        log.error(
            "call %d of %d jobs is set aside in the outbox %s: %s",
            held.record.number,
            held.record.jobs,
            self._outbox.path,
            reason,
        )
        await self._outbox.set_aside(held.record.number, reason)
        self._release(held)

    # --- for those who follow jobs --------------------------------------------------------------------

    def current(self, job_id: str) -> str:
        """Return the id that a job has now."""
        while job_id in self._news:
            job_id = self._news[job_id]
        return job_id

    async def settle(self, job_id: str) -> bool:
        """The store does not know a job: see whether it has lost it, and bring it back if so.

        Returns false, at once, if the job's submit is confirmed or not of this client: then the store is right.
        """
        try:
            _, _, nonce = parse_job_id(job_id)
        except InvalidValue:
            return False
        nonce, _, _ = nonce.partition(".")
        held = self._by_nonce.get(nonce)
        if held is None or (not held.open and held.acked_at is None):
            return False
        self.doubt()
        await self._next_round()  # it may have asked before this
        self.doubt()
        await self._next_round()
        while held.open and self._by_nonce.get(nonce) is held:
            await self._next_round()
        return True

    async def confirmed(self) -> None:
        """Return once nothing is held that could still be confirmed."""
        while self._held:
            await self._next_round()

    async def _next_round(self) -> None:
        """Return once `run` has been through without trouble. Raises `StoreUnavailable` when the client closes."""
        if not self._stopped:
            await self._round.wait()
        if self._stopped:
            raise StoreUnavailable("the client was closed while somebody waited for its outbox")

    def _more_room(self) -> None:
        room, self._room = self._room, anyio.Event()
        room.set()
