"""The two loops that wait for jobs on behalf of all handles of a client, around `Waiters`.

One listens on the client's reply stream, the other looks jobs up. Both rest while nobody waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random
from typing import Final

import anyio

from drr.backend import Backend
from drr.client.waiters import Waiter, Waiters
from drr.clock import Clock
from drr.errors import BackendError, StoreUnavailable
from drr.timing import Backoff, Signal, run_within

log = logging.getLogger("drr.client")

REPLY_BLOCK: Final = 2.0
"""Seconds that one read of the reply stream waits in the store."""


class Lookout:
    """Waits for ends of jobs. Make it inside a running loop and start `listen` and `look` as tasks."""

    def __init__(self, backend: Backend, client: str, clock: Clock, rng: Random) -> None:
        self._backend = backend
        self._client = client
        self._clock = clock
        self._rng = rng
        self._waiters = Waiters()
        self._to_look = Signal()
        self._to_listen = Signal()

    async def wait(self, job_id: str, own: bool, timeout: float | None) -> Waiter:
        """Return once the job has ended or is unknown. Raises `TimeoutError` after ``timeout`` seconds."""
        waiter = self._waiters.add(job_id, own)
        try:
            self._to_look.set()
            self._to_listen.set()
            if timeout is None:
                await waiter.done.wait()
            elif not await run_within(self._clock, timeout, waiter.done.wait):
                raise TimeoutError(f"job {job_id} has not ended within {timeout:g} s")
            return waiter
        finally:
            self._waiters.drop(waiter)

    def moved(self, job_ids: Iterable[str]) -> None:
        """See `Waiters.moved`."""
        self._waiters.moved(job_ids)

    def close(self) -> None:
        """Nobody looks any more: whoever still waits, in a task of its own, is told."""
        self._waiters.give_up(StoreUnavailable("the client was closed while somebody waited for a job"))

    async def listen(self) -> None:
        """Read the reply stream for as long as somebody waits for a job of this client."""
        cursor = ""
        backoff = Backoff(self._rng)
        backend = self._backend.sibling()
        try:
            while True:
                if not self._waiters.own:
                    await self._to_listen.wait()
                    continue
                try:
                    cursor, ended = await backend.replies(self._client, cursor, REPLY_BLOCK)
                except BackendError as error:
                    log.debug("reading replies failed: %s", error)
                    self._waiters.doubt()
                    await self._clock.sleep(backoff.next())
                    self._to_look.set()
                    continue
                backoff.reset()
                if self._waiters.replied(ended):
                    self._to_look.set()
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()

    async def look(self) -> None:
        """Look jobs up as they become due."""
        backoff = Backoff(self._rng)
        while True:
            due = self._waiters.due(self._clock.monotonic())
            if not due:
                pause = self._waiters.pause(self._clock.monotonic())
                if pause is None:
                    await self._to_look.wait()
                else:
                    await self._to_look.wait_for(self._clock, pause)
                continue
            try:
                statuses = await self._backend.look_up([waiter.job_id for waiter in due])
            except StoreUnavailable as error:
                log.debug("looking up %d jobs failed: %s", len(due), error)
                self._waiters.missed(due)
                await self._clock.sleep(backoff.next())
            except BackendError as error:
                self._waiters.missed(due, error)
            else:
                backoff.reset()
                self._waiters.looked(due, statuses, self._clock.monotonic())
