"""The play: who submits what when, the incident in the middle, the count at the end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

import anyio

from drr.backend import ITEM_LIMIT, Backend, Snapshot
from drr.client import Client, Submission
from drr.clock import Clock
from drr.demo import plot
from drr.demo.figures import (
    Count,
    Figures,
    expectations,
    extra_ends,
    fifo_wait,
    first_start_after,
    held_by,
    most_at_once,
    share_error,
    shares_of,
)
from drr.demo.stage import Stage
from drr.demo.view import View
from drr.errors import DemoFailed

TOP_UP: Final = 0.25
"""Seconds between two looks at the backlogs that are kept up, and at the journals for the display."""
LISTEN: Final = 1.0


class Play:
    """One run. Everything measured is kept here until `count` makes figures of it."""

    def __init__(self, stage: Stage, clock: Clock, timeline: plot.Timeline, view: View) -> None:
        self._stage = stage
        self._clock = clock
        self._timeline = timeline
        self._view = view
        self._began = 0.0
        self._acknowledged: dict[str, list[str]] = {organisation: [] for organisation in plot.LANES}
        self._crowd_at: list[tuple[float, int]] = []
        """When the store acknowledged how many jobs of the crowd."""
        self._newcomer_at = 0.0
        self._backlogged: dict[str, float] = {}
        self._killed_at = 0.0
        self._elected_at = 0.0
        self._ended: list[str] = []
        """The job of every end that the store accepted, as it told the client."""
        self._heard = ""
        self.shares: dict[str, float] = {}
        """What part of the worker-seconds of the three each of them had; there at the end."""

    async def perform(self) -> Figures:
        """Play it, and return what was measured."""
        stage = self._stage
        async with Client(stage.url, namespace=plot.NAMESPACE, clock=self._clock) as client:
            self._began = self._clock.monotonic()
            async with anyio.create_task_group() as listening:
                listening.start_soon(self._listen, client.name)
                async with anyio.create_task_group() as acting:
                    acting.start_soon(self._crowd, client)
                    acting.start_soon(self._newcomer, client)
                    for organisation in plot.WEIGHTS:
                        acting.start_soon(self._keep_backlog, client, organisation)
                    acting.start_soon(self._incident)
                    acting.start_soon(self._show)
                    await self._at(self._timeline.seconds)
                    acting.cancel_scope.cancel()
                over = self._clock.monotonic()
                self._tell("time is up: workers finish what they run, then the dispatcher stops")
                snapshot = await stage.stop()
                stopped = self._clock.monotonic()
                listening.cancel_scope.cancel()
            while await self._hear(stage.backend, client.name, 0.0):
                pass
        stage.journal.read()
        return self._figures(over, stopped, snapshot, await self._count(snapshot))

    async def _at(self, seconds: float) -> None:
        await self._clock.sleep(max(0.0, self._began + seconds - self._clock.monotonic()))

    def _tell(self, text: str) -> None:
        self._view.announce(self._clock.monotonic() - self._began, text)

    # --- the actors -----------------------------------------------------------------------------------

    async def _crowd(self, client: Client) -> None:
        self._tell(
            f"{plot.CROWD} (weight 1, at most {plot.CROWD_CAP} at once) submits {plot.CROWD_JOBS:,} imports "
            f"of {plot.CROWD_SECONDS:g} s each"
        )

        await self._submit(client, plot.CROWD, plot.crowd())
        self._tell(f"all {plot.CROWD_JOBS:,} are acknowledged")

    async def _newcomer(self, client: Client) -> None:
        await self._at(plot.NEWCOMER_AT)
        self._tell(f"{plot.NEWCOMER} submits one email")
        self._newcomer_at = self._clock.monotonic()
        await self._submit(client, plot.NEWCOMER, [plot.newcomer()])

    async def _keep_backlog(self, client: Client, organisation: str) -> None:
        await self._at(plot.WEIGHTED_AT)
        jobs = plot.weighted(organisation)
        await self._submit(client, organisation, _some(jobs, plot.BACKLOG))
        self._backlogged[organisation] = self._clock.monotonic()
        if len(self._backlogged) == len(plot.WEIGHTS):
            weights = ", ".join(f"{name} (weight {weight})" for name, weight in plot.WEIGHTS.items())
            self._tell(f"{weights} now keep a backlog of mixed jobs")
        while True:
            await self._clock.sleep(TOP_UP)
            [waiting] = await self._stage.backend.lane_lengths([plot.LANES[organisation]])
            if not waiting:
                raise DemoFailed(f"{organisation} ran out of waiting jobs, so its share cannot be measured")
            await self._submit(client, organisation, _some(jobs, plot.BACKLOG - waiting))

    async def _submit(self, client: Client, organisation: str, jobs: Iterable[Submission]) -> None:
        def accepted(ids: Sequence[str]) -> None:
            self._acknowledged[organisation].extend(ids)
            if organisation == plot.CROWD:
                self._crowd_at.append((self._clock.monotonic(), len(ids)))

        # Shielded: the store may have what a call that was cut off has submitted, and nobody would have noted it.
        with anyio.CancelScope(shield=True):
            await client.submit_many(jobs, accepted=accepted)

    async def _incident(self) -> None:
        await self._at(self._timeline.kill_at)
        record, name = await self._stage.leader()
        self._killed_at = self._clock.monotonic()
        self._stage.kill(name)
        self._tell(f"{name}, the leading dispatcher, is killed (SIGKILL)")
        await self._stage.another_leads(record)
        self._elected_at = self._clock.monotonic()
        self._tell(f"{next(iter(self._stage.dispatchers))} has taken over")

    async def _listen(self, client: str) -> None:
        """Note every end that the store tells the client of."""
        backend = self._stage.backend.sibling()
        try:
            while True:
                await self._hear(backend, client, LISTEN)
        finally:
            with anyio.CancelScope(shield=True):
                await backend.close()

    async def _hear(self, backend: Backend, client: str, block: float) -> int:
        self._heard, ended = await backend.replies(client, self._heard, block)
        self._ended.extend(ended)
        return len(ended)

    async def _show(self) -> None:
        lanes = list(plot.LANES.values())
        while True:
            self._stage.check()
            self._stage.journal.read()
            lengths = await self._stage.backend.lane_lengths(lanes)
            queued = dict(zip(plot.LANES, lengths, strict=True))
            at = self._clock.monotonic() - self._began
            self._view.show(at, self._stage.journal.runs, queued, self._since)
            await self._clock.sleep(TOP_UP)

    # --- the count ------------------------------------------------------------------------------------

    @property
    def _since(self) -> float | None:
        """When all weighted organisations had their backlogs."""
        return max(self._backlogged.values()) if len(self._backlogged) == len(plot.WEIGHTS) else None

    async def _count(self, snapshot: Snapshot) -> list[Count]:
        """Find every acknowledged job."""
        backend = self._stage.backend
        counts = []
        for organisation, lane in plot.LANES.items():
            ids = self._acknowledged[organisation]
            ended = unknown = 0
            for first in range(0, len(ids), ITEM_LIMIT):
                for status in await backend.look_up(ids[first : first + ITEM_LIMIT]):
                    unknown += status is None
                    ended += status is not None and status.state.final
            [queued] = await backend.lane_lengths([lane])
            leased = sum(1 for lease in snapshot.leases if lease.header.lane == lane)
            counts.append(Count(len(ids), ended, queued, leased, unknown))
        return counts

    def _figures(self, over: float, stopped: float, snapshot: Snapshot, counts: Sequence[Count]) -> Figures:
        runs = self._stage.journal.runs
        since = self._since
        newcomer = next((run for run in runs if run.organisation == plot.NEWCOMER), None)
        resumed = first_start_after(runs, self._elected_at) if self._elected_at else None
        if since is None or newcomer is None or resumed is None:
            raise DemoFailed("the demo was too short, or the machine too slow: not everything happened in its time")
        held = held_by(runs, since, over)
        self.shares = shares_of(held, plot.WEIGHTS)
        arrivals = [
            (at, plot.CROWD_SECONDS) for at, jobs in self._crowd_at if at <= self._newcomer_at for _ in range(jobs)
        ]
        return Figures(
            newcomer_wait_ms=round((newcomer.started - self._newcomer_at) * 1000, 1),
            fifo_wait_ms=round(fifo_wait(arrivals, self._newcomer_at, plot.WORKERS) * 1000, 1),
            max_running_acme=most_at_once(run for run in runs if run.organisation == plot.CROWD),
            share_error=round(share_error(held, plot.WEIGHTS), 4),
            takeover_ms=round((resumed - self._killed_at) * 1000, 1),
            lost=sum(count.lost for count in counts),
            duplicated_completions=extra_ends(self._ended) + sum(count.surplus for count in counts),
            leases_left=len(snapshot.leases),
            dispatched=len(runs),
            seconds=round(stopped - self._began, 1),
        )


def _some(jobs: Iterator[Submission], count: int) -> list[Submission]:
    return list(islice(jobs, max(0, count)))


async def perform(timeline: plot.Timeline, view: View, clock: Clock) -> Figures:
    """Set the stage, play, show what was measured, and leave nothing behind; return the figures.

    Raises `DemoFailed`, `ServerNotFound`, `ServerFailed`, or what the store raises.
    """
    try:
        async with Stage(clock) as stage:
            view.announce(0.0, f"{stage.server_name}, two dispatchers and {plot.WORKERS} workers are up")
            play = Play(stage, clock, timeline, view)
            with view:
                figures = await play.perform()
    except BaseExceptionGroup as group:
        raise _first(group) from group
    view.conclude(figures, play.shares, expectations(timeline.share_error))
    return figures


def _first(error: BaseException) -> BaseException:
    """Return the error that came first of a nest of groups: the others followed from it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
