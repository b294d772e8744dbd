"""Hearing of jobs that were cancelled while they run."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from random import Random
from typing import Final

import anyio

from drr.backend import Backend
from drr.clock import Clock
from drr.errors import BackendError
from drr.timing import Backoff

log = logging.getLogger("drr.worker")

STOP_BLOCK: Final = 5.0
"""Seconds that one read waits in the store."""
EARLY_LIMIT: Final = 4096
"""Tokens remembered of attempts that are not in hand, most of them other workers'."""


class Stops:
    """Follows the store's list of attempts to be stopped.

    A token may be heard before its attempt has been read off the pool's stream: it is remembered for a while, so
    that the attempt is stopped when it comes (`was_stopped`).
    """

    def __init__(self, backend: Backend, clock: Clock, rng: Random, stop: Callable[[str], bool]) -> None:
        """``stop`` is called with each token, and says whether it was in hand."""
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._stop = stop
        self._early: OrderedDict[str, None] = OrderedDict()

    def was_stopped(self, token: str) -> bool:
        """Return whether an attempt that has just been taken was to be stopped before."""
        return token in self._early

    async def follow(self) -> None:
        """Listen for ever, over a connection of its own. May be cancelled: nothing is lost with an answer."""
        backend = self._backend.sibling()
        backoff = Backoff(self._rng)
        cursor = ""  # the first read brings what is to be stopped now
        failing = False
        try:
            while True:
                try:
                    cursor, tokens = await backend.stops(cursor, STOP_BLOCK)
                except BackendError as error:
                    if not failing:
                        log.warning("cannot hear of cancelled jobs (%s); trying again", error)
                    failing = True
                    cursor = ""  # ask for everything again: the store may have forgotten where we were
                    await self._clock.sleep(backoff.next())
                    continue
                failing = False
                backoff.reset()
                for token in tokens:
                    self._hear(token)
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()

    def _hear(self, token: str) -> None:
        if self._stop(token):
            return
        self._early[token] = None
        self._early.move_to_end(token)
        if len(self._early) > EARLY_LIMIT:
            self._early.popitem(last=False)
