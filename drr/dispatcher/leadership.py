"""One leadership, from the election to the first error: the thin loop around the `Engine`.

Reads and commits are strictly one after the other, so the engine is never asked for a pass while the
outcome of the last one is open. While a commit is under way news pile up; the next pass takes them all. So
a lone fact is committed at once, and under load batches form by themselves.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from typing import Final

import anyio
import anyio.lowlevel

from drr.backend import Backend
from drr.clock import Clock
from drr.dispatcher.auditing import Auditor
from drr.dispatcher.batch import Plan, Rules
from drr.dispatcher.counters import Counters
from drr.dispatcher.describe import StatusWriter
from drr.dispatcher.engine import Engine
from drr.dispatcher.news import News
from drr.dispatcher.recording import Recorder
from drr.dispatcher.settings import Changes
from drr.dispatcher.vitals import Vitals
from drr.timing import Signal

log = logging.getLogger("drr.dispatcher")

RENEWALS_PER_LEASE: Final = 3
LOOKS_PER_LEASE: Final = 6
LONGEST_BETWEEN_LOOKS: Final = 5.0
LONGEST_TICK: Final = 0.5
LONGEST_PAUSE: Final = 1.0
"""Most seconds of waiting for something that is due: by then the wall clock is looked at again."""
SHORTEST_PAUSE: Final = 0.001


def tick_of(lease: float, leader_lease: float) -> float:
    """Return the seconds between two wake-ups that suffice for everything that happens by time alone."""
    return min(leader_lease / RENEWALS_PER_LEASE / 2, lease / LOOKS_PER_LEASE / 2, LONGEST_TICK)


def _look_every(engine: Engine) -> float:
    """Return the seconds between two looks at the workers."""
    return min(engine.liveness.shortest_lease / LOOKS_PER_LEASE, LONGEST_BETWEEN_LOOKS)


class Leadership:
    """Leads under ``token`` until something fails. Every failure of the store is raised, and ends it."""

    def __init__(
        self,
        backend: Backend,
        clock: Clock,
        token: str,
        rules: Rules,
        leader_lease: float,
        *,
        news: News,
        wake: Signal,
        changes: Changes,
        counters: Counters,
        status: StatusWriter,
        trusting: bool,
        vitals: Vitals,
        recorder: Recorder | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """``rng``: for the jitter of retries."""
        self._rng = rng
        self._backend = backend
        self._clock = clock
        self._token = token
        self._rules = rules
        self._renew_every = leader_lease / RENEWALS_PER_LEASE
        self._news = news
        self._wake = wake
        self._changes = changes
        self._counters = counters
        self._status = status
        self._trusting = trusting
        self._vitals = vitals
        self._recorder = recorder
        now = clock.monotonic()
        self._renewed_at = now
        self._looked_at = now
        self._auditor = Auditor(clock)

    async def run(self, on_leading: Callable[[], None], on_progress: Callable[[], None]) -> None:
        """Load, then make passes for ever; tell when loaded, and of each commit."""
        engine = await self._load()
        self._changes.loaded(engine.settings, self._clock.monotonic())
        self._news.start(engine.position)
        self._status.start()
        if self._recorder is not None:
            self._recorder.resume(self._clock.monotonic(), self._clock.wall())
        self._vitals.leads()
        on_leading()
        try:
            while True:
                await self._pass(engine, on_progress)
        finally:
            if self._recorder is not None:
                running = [hold.lease for hold in engine.liveness.holds.values()]
                self._recorder.pause(running, engine.slots, self._clock.monotonic(), self._clock.wall())

    async def _load(self) -> Engine:
        snapshot = await self._backend.load(self._token)
        engine = Engine(
            snapshot,
            self._token,
            self._clock.monotonic(),
            self._clock.wall(),
            self._rules,
            self._counters,
            trusting=self._trusting,
            rng=self._rng,
        )
        while peeks := engine.opening():
            engine.opened(await self._backend.peek(peeks))
            await self._renew_if_due()
        log.info(
            "loaded: %d active lanes, %d attempts in flight, %d workers",
            len(engine.backlog.windows.by_lane),
            len(engine.liveness.holds),
            len(snapshot.workers),
        )
        return engine

    async def _pass(self, engine: Engine, on_progress: Callable[[], None]) -> None:
        for facts in self._news.take():
            engine.feed(facts)
            self._auditor.heard(facts)
        now = self._clock.monotonic()
        if engine.workers_due or now - self._looked_at >= _look_every(engine):
            records = await self._backend.workers()
            self._vitals.answered()
            self._looked_at = self._clock.monotonic()
            engine.look(records, now, self._looked_at)
        describing = await self._status.go_on(engine, self._backend)
        await self._auditor.go_on(engine, self._backend)
        self._changes.apply(engine)
        wall = self._clock.wall()
        await self._inquire(engine, wall)
        plan = engine.step(self._clock.monotonic(), wall)
        if plan is not None:
            await self._carry_out(engine, plan)
            if plan.commit is not None:
                on_progress()
            return
        await self._renew_if_due()
        if describing:
            await anyio.lowlevel.checkpoint()
        else:
            await self._pause(engine)

    async def _inquire(self, engine: Engine, wall: float) -> None:
        """Read what the next pass needs. Only commits move jobs, and none comes between: it holds till then."""
        inquiry = engine.inquiry(wall)
        if inquiry.empty:
            return
        due = None if inquiry.until is None else await self._backend.due(inquiry.until)
        located = await self._backend.locate(inquiry.jobs) if inquiry.jobs else []
        letters = await self._backend.letters(inquiry.letters) if inquiry.letters else []
        engine.inform(
            due,
            dict(zip(inquiry.jobs, located, strict=True)),
            dict(zip(inquiry.letters, letters, strict=True)),
        )

    async def _pause(self, engine: Engine) -> None:
        """Wait until something happens, or something is due. The wall clock may jump, so no wait on it is long."""
        now = self._clock.monotonic()
        at = engine.next_at(now, self._clock.wall())
        if at is None:
            await self._wake.wait()
        else:
            await self._wake.wait_for(self._clock, min(max(at - now, SHORTEST_PAUSE), LONGEST_PAUSE))

    async def _carry_out(self, engine: Engine, plan: Plan) -> None:
        if plan.commit is None:
            engine.confirm(await self._backend.peek(plan.peeks))
            await self._renew_if_due()
            return
        # Shielded: a commit that was cut off half-way would leave its outcome unknown to nobody's gain.
        with anyio.CancelScope(shield=True):
            replies = await self._backend.commit(plan.commit, plan.peeks)
        self._counters.commits += 1
        self._vitals.committed()
        self._renewed_at = self._clock.monotonic()
        self._changes.stored(plan.commit, self._renewed_at)
        self._auditor.committed(plan.commit)
        engine.confirm(replies)
        if self._recorder is not None and plan.commit.settlements:
            ended = plan.commit.settlements
            self._recorder.ended(ended, engine.slots, self._renewed_at, self._clock.wall())

    async def _renew_if_due(self) -> None:
        now = self._clock.monotonic()
        if now - self._renewed_at >= self._renew_every:
            await self._backend.renew(self._token)
            self._vitals.answered()
            self._renewed_at = now
