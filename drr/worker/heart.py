"""The heartbeat: a thin loop around `Pulse`, in a thread of its own or as a task.

In a thread it has an event loop and connections of its own, so that a handler that blocks the worker's loop
keeps its lease. As a task (``heartbeat_in_thread=False``) it is for simulations, where nothing blocks and all
time is virtual. It is the same coroutine in both cases.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from random import Random

import anyio

from drr.backend import Backend
from drr.clock import Clock
from drr.errors import BackendError
from drr.timing import Alarm, Signal, run_within
from drr.worker.loopwatch import LoopWatch
from drr.worker.pulse import Pulse
from drr.worker.state import Hands

log = logging.getLogger("drr.worker")


class Heart:
    """Beats for one worker through all its incarnations. Create it on the worker's loop."""

    def __init__(
        self,
        hands: Hands,
        backend: Backend,
        clock: Clock,
        *,
        interval: float,
        lease: float,
        rng: Random,
        news: Signal,
        blocked_after: float,
        describe: Callable[[asyncio.Task[object]], str],
    ) -> None:
        """``backend`` is the heart's own handle, which it closes; ``news`` wakes the worker.

        ``blocked_after`` and ``describe``: see `LoopWatch`.
        """
        self._hands = hands
        self._backend = backend
        self._clock = clock
        self._interval = interval
        self._news = news
        self._pulse = Pulse(interval, lease, rng)
        self._lock = threading.Lock()
        self._told: frozenset[str] = frozenset()
        self._wake: Alarm | None = None
        self._hurried = False
        self._stopped = False
        self._failures = 0
        self._blocked_after = blocked_after
        self._describe = describe
        self._watch: LoopWatch | None = None
        self.started = False
        self.ended = False
        """Whether the loop is over, by `stop` or by an error of drr itself."""

    # --- called by the worker -------------------------------------------------------------------------

    def joined(self, sent_at: float) -> None:
        """The present incarnation was registered by a call sent at ``sent_at``: beat for it from now on."""
        with self._lock:
            self._told = frozenset()
            self._pulse.joined(sent_at)
        self.hurry(now=False)

    def hurry(self, *, now: bool = True) -> None:
        """Look again, and beat at once if ``now``: the record has changed."""
        self._hurried = self._hurried or now
        if self._wake is not None:
            self._wake.set()

    @property
    def blocked(self) -> float:
        """Seconds, at least, for which the worker's event loop has not turned, as far as a thread watches it."""
        return 0.0 if self._watch is None else self._watch.blocked

    @property
    def beaten_at(self) -> float | None:
        """When the last heartbeat that got through was sent; ``None`` before the worker has joined."""
        return self._pulse.accepted_at if self._hands.incarnation else None

    def stop(self) -> None:
        """End the loop, as soon as it sees it."""
        self._stopped = True
        if self._wake is not None:
            self._wake.set()

    async def close(self) -> None:
        """Close the heart's handle on the store; the loop does it itself at its end."""
        with anyio.CancelScope(shield=True):
            await self._backend.close()

    def start_thread(self) -> Alarm:
        """Run in a daemon thread; return what goes off when it is over.

        A daemon, because a process whose main thread has died must not keep its lease.
        """
        self.started = True
        over = Alarm()
        self._watch = LoopWatch(asyncio.get_running_loop(), self._clock, self._blocked_after, self._describe)
        threading.Thread(target=self._thread, args=(over,), name="drr heartbeat", daemon=True).start()
        return over

    def _thread(self, over: Alarm) -> None:
        try:
            anyio.run(self.run)
        except RuntimeError as error:
            if not over.closed:
                log.exception("the heartbeat has ended: %s", error)
        except Exception:
            log.exception("the heartbeat has ended")
        finally:
            over.set()

    # --- the loop -------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Beat until `stop`."""
        self.started = True
        self._wake = Alarm()
        try:
            while not self._stopped:
                longest = self._look()
                if self._hands.incarnation and not self._hands.is_refused:
                    pause = await self._turn()
                else:
                    pause = self._interval
                if not self._stopped:
                    await self._wake.wait_for(self._clock, min(pause, longest))
        finally:
            self.ended = True
            await self.close()

    def _look(self) -> float:
        """Look whether the worker's loop turns; return the seconds until the next look, at most."""
        if self._watch is None:
            return self._interval
        if self._watch.look():
            self._hands.blocks = self._watch.blocks
        return self._watch.interval

    async def _turn(self) -> float:
        """Beat if it is time to; return the seconds until the next look."""
        now = self._clock.monotonic()
        untold = self._hands.untold_since(self._told)
        with self._lock:
            if self._hurried:
                self._hurried = False
                self._pulse.hurry(now)
            due = self._pulse.due(now, untold)
        if due:
            await self._beat(now)
        with self._lock:
            now = self._clock.monotonic()
            self._set_lapsed(self._pulse.lapsed(now))
            return self._pulse.pause(now)

    async def _beat(self, now: float) -> None:
        record = self._hands.record()
        accepted: list[bool] = []

        async def send() -> None:
            accepted.append(await self._backend.heartbeat(record))

        try:
            # Bounded, so that a connection that hangs costs one beat and not the lease.
            answered = await run_within(self._clock, self._interval, send)
            reason = "no answer"
        except BackendError as error:
            answered, reason = False, str(error)
        except Exception:
            log.exception("a heartbeat failed in an unforeseen way")
            answered, reason = False, "unforeseen error"
        with self._lock:
            if record.incarnation != self._hands.incarnation:
                return  # the worker has joined anew meanwhile; this answer is about its past
            if not answered:
                self._pulse.failed(self._clock.monotonic())
                self._failures += 1
                if self._failures == 1:
                    log.warning("worker %s: heartbeat failed (%s); trying again", record.name, reason)
                return
            self._failures = 0
            self._pulse.accepted(now)
            self._told = frozenset(record.held)
        if not accepted[0]:
            self._hands.refused = record.incarnation
            self._news.set()

    def _set_lapsed(self, lapsed: bool) -> None:
        if lapsed != self._hands.lapsed:
            self._hands.lapsed = lapsed
            self._news.set()
