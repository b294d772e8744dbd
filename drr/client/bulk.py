"""Submitting any number of jobs in bounded memory.

A packer turns submissions into specs and fills a buffer; a sender empties it, one call at a time, so that jobs
enter their lanes in the order in which they were given. While a call is under way the packer goes on, up to
`BUFFERED_BATCHES` ahead. A call takes whatever is there: a slow source gets small batches and little delay, a fast
one gets batches as large as they may be. The packer lets other tasks run after `STRETCH` seconds at the latest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Sequence
from typing import Final

import anyio
import anyio.lowlevel

from drr.backend import ITEM_LIMIT
from drr.client.room import Room
from drr.client.submission import Submission
from drr.clock import Clock
from drr.errors import AdmissionRefused
from drr.model import JobSpec
from drr.timing import Signal

BATCH_BYTES: Final = 1024 * 1024
"""Most payload bytes in one call, apart from a single larger job."""
BUFFERED_BATCHES: Final = 2
LEAST_PAUSE: Final = 0.01
"""Least seconds between two tries of what was refused."""
STRETCH: Final = 0.02
"""Seconds for which the packer may hold the event loop."""

Source = Iterable[Submission] | AsyncIterable[Submission]


class Buffer:
    """Specs on their way: synchronous, bounded by items and bytes."""

    def __init__(self, items: int = ITEM_LIMIT, size: int = BATCH_BYTES) -> None:
        self._items = items
        self._size = size
        self._specs: deque[JobSpec] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._specs)

    @property
    def full(self) -> bool:
        """Whether enough is buffered ahead."""
        return len(self._specs) >= BUFFERED_BATCHES * self._items or self._bytes >= BUFFERED_BATCHES * self._size

    def put(self, spec: JobSpec) -> None:
        """Append a spec."""
        self._specs.append(spec)
        self._bytes += len(spec.payload)

    def take(self) -> list[JobSpec]:
        """Remove and return the oldest specs, as many as fit one call."""
        batch: list[JobSpec] = []
        size = 0
        while self._specs and len(batch) < self._items:
            size += len(self._specs[0].payload)
            if batch and size > self._size:
                break
            batch.append(self._specs.popleft())
            self._bytes -= len(batch[-1].payload)
        return batch


class Bulk:
    """One run of `Client.submit_many`."""

    def __init__(
        self,
        clock: Clock,
        make: Callable[[Submission], JobSpec],
        submit: Callable[[Sequence[JobSpec]], Awaitable[list[str]]],
        accepted: Callable[[Sequence[str]], None] | None,
        patience: float = 0.0,
    ) -> None:
        """``patience``: seconds to wait for room where a tenant's quota is used up."""
        self._clock = clock
        self._make = make
        self._submit = submit
        self._accepted = accepted
        self._buffer = Buffer()
        self._room = Room(patience)
        self._filled = Signal()
        self._drained = Signal()
        self._exhausted = False
        self._failure: Exception | None = None
        self.count = 0
        """Jobs that the store has accepted so far."""

    async def run(self, source: Source) -> None:
        """Submit all of ``source``. What it, a job or the store raises is raised here as it is."""
        failure: Exception | None = None  # kept out of the task group, which would wrap it
        async with anyio.create_task_group() as group:
            group.start_soon(self._pack, source)
            try:
                await self._send()
            except Exception as error:
                failure = error
            group.cancel_scope.cancel()
        failure = failure or self._failure
        if failure is not None:
            failure.add_note(f"{self.count} jobs before this were submitted")
            if isinstance(failure, AdmissionRefused):
                failure.accepted = self.count
            raise failure

    async def _pack(self, source: Source) -> None:
        try:
            if isinstance(source, AsyncIterable):
                async for submission in source:
                    await self._add(submission)
            else:
                began = self._clock.monotonic()
                for submission in source:
                    await self._add(submission)
                    if self._clock.monotonic() - began > STRETCH:
                        await anyio.lowlevel.checkpoint()
                        began = self._clock.monotonic()
        except Exception as error:
            self._failure = error  # raised by `run` once what came before it is submitted
        finally:
            self._exhausted = True
            self._filled.set()

    async def _add(self, submission: Submission) -> None:
        self._buffer.put(self._make(submission))
        self._filled.set()
        while self._buffer.full:
            await self._drained.wait()

    async def _send(self) -> None:
        room = self._room
        while True:
            batch = room.due(self._clock.monotonic())
            if not batch and not room.full:
                batch = room.sift(self._buffer.take())
            if batch:
                self._drained.set()
                await self._deliver(batch)
                # Here too: while others submit without a pause, nobody ever waits for room.
                room.check(self._clock.monotonic())
            elif room and (room.full or not self._buffer):
                await self._wait_for_room()
            elif self._buffer:
                continue  # all that was taken off it is held
            elif self._exhausted:
                return
            else:
                await self._filled.wait()

    async def _deliver(self, batch: list[JobSpec]) -> None:
        """Submit a batch, or as much of it as there is room for."""
        while batch:
            try:
                ids = await self._submit(batch)
            except AdmissionRefused as error:
                if not self._room.patience:
                    raise
                batch = self._room.refused(error, batch, self._clock.monotonic())
                continue
            self._room.accepted(batch)
            self.count += len(ids)
            if self._accepted is not None:
                self._accepted(ids)
            return

    async def _wait_for_room(self) -> None:
        """Wait until a refused tenant may be asked again, or there is more to submit."""
        now = self._clock.monotonic()
        self._room.check(now)
        pause = max(self._room.pause(now), LEAST_PAUSE)
        if self._room.full or self._exhausted:
            await self._clock.sleep(pause)
        else:
            await self._filled.wait_for(self._clock, pause)
