"""Progress: what handlers say of how far they are, sent to the store now and then.

A handler hands its latest word over and goes on: it is never delayed, and no failure of the store reaches it. Of
one attempt at most one report a second is sent, and the latest wins. What is unsent when the attempt ends is
dropped: then there is an outcome, which says more.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from drr.backend import Backend
from drr.clock import Clock
from drr.errors import BackendError
from drr.timing import Alarm
from drr.worker.state import Holding

log = logging.getLogger("drr.worker")

PROGRESS_INTERVAL: Final = 1.0
"""Seconds between two reports of one attempt."""


class ProgressReports:
    """The latest words of running attempts. `say` may be called from any thread, `run` is on the worker's loop."""

    def __init__(self, backend: Backend, clock: Clock) -> None:
        self._backend = backend
        self._clock = clock
        self._news = Alarm()
        self._lock = threading.Lock()
        self._said: dict[Holding, bytes] = {}
        self._sent_at: dict[Holding, float] = {}
        self._failing = False

    def say(self, holding: Holding, blob: bytes) -> None:
        """Take over an attempt's latest word."""
        with self._lock:
            known = holding in self._said
            self._said[holding] = blob
        if not known:
            self._news.set()

    async def run(self) -> None:
        """Send what is said, for ever."""
        while True:
            pause = await self._send_due()
            if pause is None:
                await self._news.wait()
            else:
                await self._news.wait_for(self._clock, pause)

    async def _send_due(self) -> float | None:
        """Send what may be sent now; return the seconds until more may, or ``None`` if nothing is left."""
        self._sent_at = {holding: at for holding, at in self._sent_at.items() if not holding.ended}
        with self._lock:
            waiting = list(self._said)
        pause: float | None = None
        for holding in waiting:
            left = self._sent_at.get(holding, float("-inf")) + PROGRESS_INTERVAL - self._clock.monotonic()
            if left > 0 and not holding.ended:
                pause = left if pause is None else min(pause, left)
                continue
            with self._lock:
                blob = self._said.pop(holding)
            if not holding.ended:
                self._sent_at[holding] = self._clock.monotonic()
                await self._send(holding, blob)
        return pause

    async def _send(self, holding: Holding, blob: bytes) -> None:
        attempt = holding.attempt
        try:
            await self._backend.report_progress(attempt.token, attempt.header.job_id, blob)
            self._failing = False
        except BackendError as error:
            if not self._failing:
                log.warning("progress of job %s could not be reported (%s)", attempt.header.job_id, error)
            self._failing = True
