"""One run of a worker, from joining to leaving: the loops around `Hands`, `Pulse` and `Handlers`.

Tasks and their lifetimes
    - for the whole run: the heart, the reporter, who hears of cancelled jobs, who sends progress, the deadlines'
      watch, and handlers in threads (they cannot be cancelled, so they outlive whatever happens to the incarnation);
    - for one *term*: a reader per pool, and the handlers on the loop. A term ends when the store refuses the
      incarnation, when the lease may have lapsed, or when the worker stops and is done. Ending it cancels the
      handlers on the loop.

What happens when
    refused       everything in hand is void; join as a new incarnation, begin a term
    lapsed        no heartbeat got through for a whole lease, so others may be running these jobs by now: handlers
                  on the loop are cancelled and handed back; what had ended before is still reported, for if the
                  store itself was away the dispatcher honours the lease. Wait until the store answers, then begin a
                  term. So choose a lease longer than the outages that running jobs should survive
    store away    (for less than a lease) handlers run on, their events are kept; reader, reporter and heart each try
                  again with growing pauses; a reader asks for its pending entries first, because the reply
                  that carried them may have been lost
    stop          take nothing new, finish within the grace period, hand the rest back, leave
    stop again    hand back at once, leave
    cancellation  of ``run`` from outside: hand back at once, also what a cancelled read may have brought; this is
                  shielded, and bounded by `FAREWELL_LIMIT`

No wait is shielded inside a scope that this file cancels: anyio would spin until it ends. So readers are not
cancelled at the end of a term; they see that it is over.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from random import Random
from typing import Final

import anyio
from anyio.abc import TaskGroup

from drr.backend import ITEM_LIMIT, Attempt, Backend, Malformed
from drr.clock import Clock
from drr.errors import BackendError, DrrError, StoreNotPrepared, StoreUnavailable, WorkerNameInUse
from drr.timing import Alarm, Backoff, Signal, run_within
from drr.worker.handlers import Handlers
from drr.worker.heart import Heart
from drr.worker.options import Options
from drr.worker.progress import ProgressReports
from drr.worker.state import Hands, Holding
from drr.worker.stops import Stops
from drr.worker.takeover import Sight, Takeover
from drr.worker.tasks import Tasks

log = logging.getLogger("drr.worker")

READ_BLOCK: Final = 1.0
"""Seconds that one read waits in the store. A drain lets it lapse, so this is what it may take longer for."""
FAREWELL_LIMIT: Final = 5.0
"""Seconds that the last reports and the goodbye may take."""
HEART_LIMIT: Final = 5.0
"""Seconds that the heart's thread is waited for at the end."""


class Shift:
    """A worker at work. Made inside a running loop; `work` may be called once."""

    def __init__(
        self, hands: Hands, tasks: Tasks, options: Options, backend: Backend, clock: Clock, rng: Random
    ) -> None:
        self._hands = hands
        self._options = options
        self._backend = backend
        self._clock = clock
        self._rng = rng
        self._news: Signal = Alarm()
        self._unsent = Signal()
        self._freed = {pool: Signal() for pool in options.slots}
        self._progress = ProgressReports(backend, clock)
        self.handlers = Handlers(hands, tasks, options, clock, self._ended, self._progress.say)
        self._stops = Stops(backend, clock, rng, self.handlers.stop)
        self._heart = Heart(
            hands,
            backend.sibling(),
            clock,
            interval=options.heartbeat,
            lease=options.lease,
            rng=rng,
            news=self._news,
            blocked_after=options.blocked_after,
            describe=self.handlers.describe,
        )
        self._heart_over: Alarm | None = None
        self._sending = asyncio.Lock()
        self._left = False
        self._interrupted: set[str] = set()
        """Pools whose last read was cancelled."""

    # --- the whole run ------------------------------------------------------------------------------

    async def work(self, *, handle_signals: bool = False) -> None:
        """Join, work until stopped, leave."""
        failure: DrrError | None = None  # kept out of the task groups, which would wrap it
        try:
            async with anyio.create_task_group() as run:
                if handle_signals:
                    run.start_soon(self._listen)
                async with anyio.create_task_group() as threads:
                    try:
                        if await self._join(patience=self._options.patience):
                            self._start(run)
                            await self._terms(threads)
                    except DrrError as error:
                        failure = error
                    threads.cancel_scope.cancel()
                await self._farewell()  # while reporter and heart still work
                run.cancel_scope.cancel()
        finally:
            if not self._left:
                with anyio.CancelScope(shield=True):
                    await self._farewell()
            await self._stop_heart()
        if failure is not None:
            raise failure

    @property
    def heart(self) -> Heart:
        """What beats for this worker; its notes may be read from any thread."""
        return self._heart

    def stop(self) -> None:
        """Begin to drain; the second call hands back at once. Call it on the worker's loop."""
        if self._hands.stopping:
            self._hands.giving_back = True
        self._hands.stopping = True
        for freed in self._freed.values():
            freed.set()
        self._heart.hurry()
        self._news.set()

    async def _listen(self) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info(
                    "%s: %s",
                    signal.Signals(number).name,
                    "handing back what runs" if self._hands.stopping else "taking nothing new, finishing what runs",
                )
                self.stop()

    def _start(self, run: TaskGroup) -> None:
        run.start_soon(self._report)
        run.start_soon(self._progress.run)
        run.start_soon(self._stops.follow)
        run.start_soon(self.handlers.deadlines.watch)
        if self._options.heartbeat_in_thread:
            self._heart_over = self._heart.start_thread()
        else:
            run.start_soon(self._heart.run)

    async def _terms(self, threads: TaskGroup) -> None:
        hands = self._hands
        while True:
            await self._term(threads)
            if hands.stopping and (hands.idle or hands.giving_back or hands.lapsed):
                return
            if hands.is_refused:
                log.warning(
                    "worker %s: declared dead or replaced; what was in hand is void, joining anew", hands.name
                )
                if not await self._join(patience=None):
                    return
            while hands.lapsed and not hands.stopping and not hands.is_refused:
                await self._news.wait()

    async def _term(self, threads: TaskGroup) -> None:
        """Read and run until the term is over; then cancel what runs on the loop and let the readers end."""
        hands = self._hands
        hands.open = True
        try:
            async with anyio.create_task_group() as readers, anyio.create_task_group() as jobs:
                for pool in self._options.slots:
                    readers.start_soon(self._read, pool, jobs, threads)
                await self._until_over()
                hands.open = False
                if hands.is_refused:
                    hands.void()  # before the handlers are cancelled, so that they are not handed back
                for freed in self._freed.values():
                    freed.set()
                jobs.cancel_scope.cancel()
        finally:
            hands.open = False

    async def _until_over(self) -> None:
        hands = self._hands
        grace_ends: float | None = None
        while not (hands.is_refused or hands.lapsed or hands.giving_back):
            if not hands.stopping:
                await self._news.wait()
                continue
            if hands.idle:
                return
            if grace_ends is None:
                grace_ends = self._clock.monotonic() + self._options.grace
            left = grace_ends - self._clock.monotonic()
            if left <= 0 or not await self._news.wait_for(self._clock, left):
                log.warning("worker %s: grace is over, handing back %d attempts", hands.name, hands.busy)
                hands.giving_back = True

    async def _farewell(self) -> None:
        """Report what is left and leave, within a bound: somebody waits for this process to end."""

        async def part() -> None:
            backoff = Backoff(self._rng)
            while True:
                try:
                    await self._hand_back_interrupted()
                    while self._hands.unsent:
                        await self._send()
                    if self._hands.incarnation and not self._hands.is_refused:
                        await self._backend.leave(self._hands.name, self._hands.incarnation)
                    return
                except BackendError as error:
                    log.warning("worker %s: cannot take leave yet: %s", self._hands.name, error)
                await self._clock.sleep(backoff.next())

        if not await run_within(self._clock, FAREWELL_LIMIT, part):
            log.warning(
                "worker %s: left without a word; %d attempts come back after one lease",
                self._hands.name,
                self._hands.unsent,
            )
        self._left = True

    async def _stop_heart(self) -> None:
        self._heart.stop()
        if not self._heart.started:
            await self._heart.close()
        if self._heart_over is not None:
            with anyio.CancelScope(shield=True):
                if not await self._heart_over.wait_for(self._clock, HEART_LIMIT):
                    log.warning("worker %s: the heartbeat's thread still waits for the store", self._hands.name)

    async def _hand_back_interrupted(self) -> None:
        """A read that was cancelled may have been answered: what it was to bring goes back."""
        while self._interrupted and not self._hands.is_refused:
            pool = next(iter(self._interrupted))
            self._take(pool, await self._fetch(self._backend, pool, 0))
            self._interrupted.discard(pool)

    # --- joining ------------------------------------------------------------------------------------

    async def _join(self, patience: float | None) -> bool:
        """Register a new incarnation; return false if the worker was stopped meanwhile.

        While the store is not reachable or not prepared, try again: for ``patience`` seconds, then raise.
        """
        began = self._clock.monotonic()
        backoff = Backoff(self._rng)
        incarnation = f"{self._rng.getrandbits(64):016x}"
        takeover = Takeover(self._options.lease)
        tries = 0
        while not self._hands.stopping:
            try:
                pause = await self._try_to_join(incarnation, takeover)
                if pause is None:
                    return True
            except (StoreUnavailable, StoreNotPrepared) as error:
                if patience is not None and self._clock.monotonic() - began >= patience:
                    raise
                tries += 1
                if tries == 1:
                    log.warning("worker %s cannot join yet: %s", self._hands.name, error)
                pause = backoff.next()
            await self._news.wait_for(self._clock, pause)
        return False

    async def _try_to_join(self, incarnation: str, takeover: Takeover) -> float | None:
        """Join if the name is free or its holder is dead; else return the seconds until the next look."""
        hands = self._hands
        found = await self._backend.worker_record(hands.name)
        now = self._clock.monotonic()
        replacing = ""
        if found is not None and found.incarnation != incarnation:
            sight = takeover.look(found, now)
            if sight is Sight.ALIVE:
                raise WorkerNameInUse(hands.name, found.incarnation)
            if sight is Sight.UNKNOWN:
                return self._options.lease / 10
            replacing = found.incarnation
        await self._backend.join(hands.record(incarnation), replacing)
        self._heart.joined(now)
        hands.begin(incarnation)
        log.info("worker %s joined with slots %s", hands.name, hands.slots)
        return None

    # --- reading ------------------------------------------------------------------------------------

    async def _read(self, pool: str, jobs: TaskGroup, threads: TaskGroup) -> None:
        """Take attempts of one pool until the term is over. Ends by itself, within one block of its read."""
        hands = self._hands
        backend = self._backend.sibling()
        backoff = Backoff(self._rng)
        doubtful = True  # the last term may have left entries behind, just as a lost reply does
        try:
            while hands.taking:
                room = hands.room(pool)
                if not room and not doubtful:
                    await self._freed[pool].wait()
                    continue
                try:
                    entries = await self._fetch(backend, pool, 0 if doubtful else room)
                except BackendError as error:
                    if not doubtful:
                        log.warning("worker %s: reading pool %s failed (%s); trying again", hands.name, pool, error)
                    doubtful = True
                    await self._freed[pool].wait_for(self._clock, backoff.next())
                    continue
                if not doubtful:
                    backoff.reset()  # only what failed before says that it works again
                doubtful = False
                for holding in self._take(pool, entries):
                    holding.cancelled = self._stops.was_stopped(holding.attempt.token)
                    group = jobs if self.handlers.prepare(holding) else threads
                    group.start_soon(self.handlers.run, holding, name=holding.attempt.header.task)
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()

    async def _fetch(self, backend: Backend, pool: str, room: int) -> list[Attempt | Malformed]:
        """Read up to ``room`` new attempts, or with no room those that were delivered before."""
        name, incarnation = self._hands.name, self._hands.incarnation
        if not room:
            return await backend.pending_attempts(name, incarnation, pool)
        try:
            return await backend.read_attempts(name, incarnation, pool, min(room, ITEM_LIMIT), READ_BLOCK)
        except asyncio.CancelledError:
            self._interrupted.add(pool)
            raise

    def _take(self, pool: str, entries: list[Attempt | Malformed]) -> list[Holding]:
        """Take what was read into the hands; return what is to be run."""
        attempts: list[Attempt] = []
        for entry in entries:
            if isinstance(entry, Attempt):
                attempts.append(entry)
            else:
                # It has no token to answer for; the dispatcher takes its lease back when nobody claims it.
                log.error("pool %s: an entry cannot be decoded: %s: %.200r", pool, entry.reason, entry.raw)
        started = self._hands.take(pool, attempts, self._clock.monotonic())
        if self._hands.unsent:
            self._unsent.set()
        return started

    def _ended(self, holding: Holding) -> None:
        """A handler is gone: there is room, and something to report."""
        self._freed[holding.pool].set()
        self._unsent.set()
        if holding.void:
            self._heart.hurry()  # a slot that was left out of the record is usable again

    # --- reporting ----------------------------------------------------------------------------------

    async def _report(self) -> None:
        """Send events as they come: at once when idle, and whatever came meanwhile in the next call."""
        backoff = Backoff(self._rng)
        while True:
            await self._unsent.wait()
            while self._hands.unsent:
                try:
                    await self._send()
                    backoff.reset()
                except BackendError as error:
                    log.warning("worker %s: reporting failed (%s); trying again", self._hands.name, error)
                    await self._clock.sleep(backoff.next())
            if self._hands.stopping:
                self._news.set()

    async def _send(self) -> None:
        async with self._sending:
            events = self._hands.batch()
            if events:
                await self._backend.report(events)
                self._hands.acknowledge(events)
