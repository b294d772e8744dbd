"""A client's outbox: submits are on the client's own disk until the store is sure to keep them.

A submit is recorded here before it is sent, and taken out once the store still remembers it ``horizon`` seconds after
it was acknowledged. What a server loses when it is killed, loses power or fails over to a replica that was behind are
its last moments, so what it remembers after the horizon it had on disk, or on the replica. Until then the client
(`drr.client.replay`) repeats what the store does not have, under the same numbers: the store adds a call once.

Here are the limits, and the turns at the file: calls that are recorded at the same time share one flush to disk.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from drr.backend import CALLS_KEPT_SECONDS, ITEM_LIMIT
from drr.client.journal import BODY_LIMIT, Journal, Record, encode
from drr.clock import Clock, SystemClock
from drr.errors import InvalidConfiguration, InvalidValue, OutboxFull
from drr.model import JobSpec, check_number

T = TypeVar("T")

MAX_JOBS: Final = 100_000
MAX_BYTES: Final = 256 * 1024 * 1024
HORIZON: Final = 5.0
MAX_AGE: Final = CALLS_KEPT_SECONDS / 2
AGE_LIMIT: Final = CALLS_KEPT_SECONDS - 3600.0
"""The store forgets calls after `CALLS_KEPT_SECONDS` by its own clock, which may be off by this hour."""


@dataclass(frozen=True, slots=True)
class SetAside:
    """A call that the outbox does not repeat: how many ``jobs`` it has, when it was recorded (Unix seconds), why."""

    number: int
    jobs: int
    recorded_at: float
    reason: str


class _Work:
    """What somebody wants written, until it is."""

    def __init__(self, added: Sequence[tuple[Record, bytes]], removed: Sequence[int]) -> None:
        self.added = added
        self.removed = removed
        self.done = False
        self.error: Exception | None = None


class Outbox:
    """A bounded file of submits that the store may not have for good; given to `drr.Client` as ``outbox``.

    ``path``: the file, made if it is not there, readable by its owner only; ``path-wal`` is beside it. It belongs to
    one namespace of one store, and to one client at a time.
    ``max_jobs`` (1,000 or more) and ``max_bytes`` (8 MiB or more, of encoded jobs): what it holds at most. A submit
    without room waits for some as long as the client is patient, and then raises `OutboxFull`.
    ``horizon``: seconds after its acknowledgement until a submit counts as kept, 0 to 3600. It has to be longer than
    what a server can lose: with ``appendfsync everysec`` that is one to two seconds.
    ``max_age``: seconds (60 to 82,800) after which an unconfirmed submit is set aside instead of repeated: the store
    recognises a repetition for a day, and later it would be added twice.
    ``in_thread``: write in a thread, as is right for everything but simulations.

    Raises `InvalidConfiguration` for settings out of range. `Client` raises the errors of the file on entering.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_jobs: int = MAX_JOBS,
        max_bytes: int = MAX_BYTES,
        horizon: float = HORIZON,
        max_age: float = MAX_AGE,
        in_thread: bool = True,
    ) -> None:
        wrong = InvalidConfiguration
        self.path = Path(path)
        self.max_jobs = int(check_number("max_jobs of an outbox", max_jobs, ITEM_LIMIT, 1e9, error=wrong))
        self.max_bytes = int(check_number("max_bytes of an outbox", max_bytes, BODY_LIMIT, 1e12, error=wrong))
        self.horizon = check_number("horizon of an outbox", horizon, 0.0, 3600.0, error=wrong)
        self.max_age = check_number("max_age of an outbox", max_age, 60.0, AGE_LIMIT, error=wrong)
        self._in_thread = in_thread
        self._journal = Journal(self.path)
        self._records: dict[int, Record] = {}
        self._next = 1
        self._jobs = self._bytes = 0
        self._waiting: list[_Work] = []
        self._turn = anyio.Lock()
        self._opened = False
        self._freed: Callable[[], None] = lambda: None
        self._clock: Clock = SystemClock()

    def __len__(self) -> int:
        """How many calls are held, those that are set aside included."""
        return len(self._records)

    @property
    def jobs(self) -> int:
        """Jobs that are held, those that are set aside included."""
        return self._jobs

    @property
    def size(self) -> int:
        """Bytes of the encoded jobs that are held; the file is somewhat larger."""
        return self._bytes

    # --- for people and their programs ----------------------------------------------------------------

    def aside(self) -> list[SetAside]:
        """Return what is set aside, oldest first: too old, refused for good, or unreadable. It keeps its room.

        Whether the store has these jobs is not known, except of refused ones, which it has not.
        """
        return [SetAside(r.number, r.jobs, r.recorded_at, r.aside) for r in self._records.values() if r.aside]

    async def discard(self, numbers: Sequence[int]) -> None:
        """Drop calls that are set aside, by their numbers. Raises `InvalidValue` for others, and drops none."""
        self._check_aside(numbers)
        await self.remove(numbers)

    async def retry(self, numbers: Sequence[int]) -> None:
        """Have calls that were set aside repeated, at the client's next start, as if they had been recorded now.

        Their jobs are added a second time if the store had them and has forgotten the call. Raises `InvalidValue` for
        calls that are not set aside.
        """
        self._check_aside(numbers)
        now = self._clock.wall()
        await self._in_turn(lambda: self._journal.set_aside([(number, "") for number in numbers], at=now))
        for number in numbers:
            self._records[number] = replace(self._records[number], aside="", recorded_at=now)

    def _check_aside(self, numbers: Sequence[int]) -> None:
        known = {entry.number for entry in self.aside()}
        for number in numbers:
            if number not in known:
                raise InvalidValue("call in the outbox", number, "it must be one that is set aside (Outbox.aside)")

    # --- for the client -------------------------------------------------------------------------------

    async def open(self, namespace: str, clock: Clock, freed: Callable[[], None]) -> list[Record]:
        """Take hold of the file; return what is in it. ``freed`` is called whenever there is more room.

        Raises `OutboxInUse`, `OutboxCorrupt` or `OutboxFailed`.
        """
        if self._opened:
            raise InvalidConfiguration("outbox", str(self.path), "a client has it already; make another Outbox")
        self._opened = True
        try:
            records = await self._in_turn(lambda: self._journal.open(namespace))
        except BaseException:
            self._opened = False
            raise
        self._freed = freed
        self._clock = clock
        self._records = {record.number: record for record in records}
        self._jobs = sum(record.jobs for record in records)
        self._bytes = sum(record.size for record in records)
        self._next = records[-1].number + 1 if records else 1
        return records

    async def close(self) -> None:
        """Let go of the file. What is in it stays."""
        await self._in_turn(self._journal.close)
        self._opened = False

    def make(self, segment: str, call: int, specs: Sequence[JobSpec]) -> tuple[Record, bytes]:
        """Keep room for a call; `put` has to follow. Raises `OutboxFull`."""
        body = encode(specs)
        self._check_room("jobs", self._jobs, len(specs), self.max_jobs)
        self._check_room("bytes", self._bytes, len(body), self.max_bytes)
        record = Record(self._next, segment, call, len(specs), len(body), self._clock.wall())
        self._next += 1
        self._records[record.number] = record
        self._jobs += record.jobs
        self._bytes += record.size
        return record, body

    async def put(self, record: Record, body: bytes) -> None:
        """Put a call on disk, before it is sent. Raises `OutboxFailed`; then nothing is held of it.

        Whoever is cancelled here has it on disk.
        """
        try:
            await self._write(_Work([(record, body)], ()))
        except Exception:
            self._let_go(record.number)
            raise

    async def remove(self, numbers: Sequence[int]) -> None:
        """Take calls off the disk; they are off when this returns."""
        if numbers:
            await self._write(_Work((), numbers))
            for number in numbers:
                self._let_go(number)
            self._freed()

    async def read(self, number: int) -> list[JobSpec]:
        """Return the jobs of a call. Raises `MalformedMessage` if they are damaged."""
        return await self._in_turn(lambda: self._journal.read(number))

    async def set_aside(self, number: int, reason: str) -> None:
        """Do not repeat a call any more: ``reason`` is for people."""
        await self._in_turn(lambda: self._journal.set_aside([(number, reason)]))
        self._records[number] = replace(self._records[number], aside=reason)

    # --- turns at the file ----------------------------------------------------------------------------

    def _check_room(self, what: str, held: int, wanted: int, limit: int) -> None:
        if held + wanted > limit:
            raise OutboxFull(self.path, what, held, wanted, limit)

    def _let_go(self, number: int) -> None:
        record = self._records.pop(number, None)
        if record is not None:
            self._jobs -= record.jobs
            self._bytes -= record.size

    async def _write(self, work: _Work) -> None:
        """Write together with whatever else waits for its turn."""
        self._waiting.append(work)
        await self._untorn(self._write_waiting(work))
        if work.error is not None:
            raise work.error

    async def _write_waiting(self, work: _Work) -> None:
        async with self._turn:
            if not work.done:
                batch, self._waiting = self._waiting, []
                await self._write_batch(batch)

    async def _write_batch(self, batch: Sequence[_Work]) -> None:
        added = [pair for work in batch for pair in work.added]
        removed = [number for work in batch for number in work.removed]
        error: Exception | None = None
        try:
            await self._run(lambda: self._journal.write(added, removed))
        except Exception as raised:
            error = raised
        for work in batch:
            work.done = True
            work.error = error

    async def _in_turn(self, operation: Callable[[], T]) -> T:
        return await self._untorn(self._run_in_turn(operation))

    async def _run_in_turn(self, operation: Callable[[], T]) -> T:
        async with self._turn:
            return await self._run(operation)

    @staticmethod
    async def _untorn(work: Coroutine[object, object, T]) -> T:
        """Await work that goes on to its end when the caller is cancelled, who then waits for that end.

        A shielded scope would not do: it does not hold off `asyncio.Task.cancel`, and a second writer would meet the
        thread of the first.
        """
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # so that nobody misses it: the cancellation goes first
            raise

    async def _run(self, operation: Callable[[], T]) -> T:
        return await anyio.to_thread.run_sync(operation) if self._in_thread else operation()
