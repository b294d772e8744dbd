"""Whatever crashes when: what a client with an outbox was told to be submitted is in the store once, at the end.

Stores go back by up to `LOSS` seconds, replies and connections are lost, clients die after any number of turns of
the event loop and start again with the file that they left. All in virtual time.
"""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drr.client import Client, Outbox
from drr.errors import SubmitPending
from drr.payload import unpack_arguments
from tests.helpers.client_bench import LANE, ClientBench
from tests.helpers.rollback import Image, rolled_back, saved, store_of

LOSS = 2.0
"""Seconds of which the store may lose what it has acknowledged."""

Step: TypeAlias = tuple[Any, ...]
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("submit"), st.integers(1, 3), st.sampled_from(["", "lost", "away"])),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 0.4, 1.0, 3.0, 6.0])),
        st.tuples(st.just("roll back"), st.floats(0.0, LOSS)),
        st.tuples(st.just("die"), st.integers(0, 40), st.sampled_from(["", "lost", "away"])),
    ),
    min_size=4,
    max_size=25,
)


@dataclass
class Run:
    """One run: the world, and what the caller was told."""

    path: Path
    horizon: float
    forgetful: bool = False
    """Whether the store forgets who submitted what."""
    bench: ClientBench = field(default_factory=lambda: ClientBench(f"crashes-{uuid.uuid4().hex}"))
    images: list[tuple[float, Image]] = field(default_factory=list)
    sure: list[int] = field(default_factory=list)
    """Numbers of jobs that were acknowledged, or promised by `SubmitPending`."""
    perhaps: list[int] = field(default_factory=list)
    """Numbers of jobs whose client died while it submitted them."""
    clients: int = 0
    numbers: int = 0

    def client(self) -> Client:
        self.clients += 1
        outbox = Outbox(self.path, horizon=self.horizon, in_thread=False)
        return self.bench.client(self.clients, patience=0.0, outbox=outbox)

    def keep(self) -> None:
        if self.forgetful:
            store_of(self.bench.store).calls.clear()
        now = self.bench.clock.monotonic()
        self.images = [(at, image) for at, image in self.images if at >= now - LOSS]
        self.images.append((now, saved(self.bench.store)))

    def roll_back(self, age: float) -> None:
        now = self.bench.clock.monotonic()
        at = next(number for number, (taken, _) in enumerate(self.images) if taken >= now - age)
        rolled_back(self.bench.store, self.images[at][1])
        del self.images[at + 1 :]

    def fail(self, how: str) -> None:
        self.bench.faults.away = {"submit", "calls"} if how == "away" else set()
        self.bench.faults.lost = {"submit"} if how == "lost" else set()

    async def submit(self, client: Client, number: int) -> None:
        with suppress(SubmitPending):
            await client.submit("echo", [number], tenant="acme/web")
        self.sure.append(number)

    async def take(self, client: Client, step: Step) -> None:
        kind, *rest = step
        if kind == "submit":
            count, how = rest
            for _ in range(count):
                self.numbers += 1
                self.fail(how)
                await self.submit(client, self.numbers)
            self.fail("")
        elif kind == "wait":
            await self.bench.clock.advance(rest[0])
        else:
            self.roll_back(rest[0])
        self.keep()

    async def live(self, steps: list[Step]) -> None:
        """Take steps until the client dies of one, or there are no more and all is confirmed."""
        async with self.client() as client:
            while steps:
                step = steps.pop(0)
                if step[0] == "die":
                    await self.die(client, *step[1:])
                    return
                await self.take(client, step)
            await self.bench.clock.advance(4 * self.horizon + 30.0)
            assert client._outbox is not None
            assert len(client._outbox) == 0

    async def die(self, client: Client, turns: int, how: str) -> None:
        self.numbers += 1
        self.perhaps.append(self.numbers)
        self.fail(how)
        task = asyncio.ensure_future(client.submit("echo", [self.numbers], tenant="acme/web"))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()

    def queued(self) -> Counter[int]:
        entries = store_of(self.bench.store).lanes.get(LANE, ())
        return Counter(unpack_arguments(entry.payload)[0][0] for entry in entries)


def play(steps: Sequence[Step], horizon: float, forgetful: bool = False) -> tuple[list[int], list[int]]:
    """Return the numbers of jobs that were lost, and of those that are there more than once."""

    async def main() -> tuple[list[int], list[int]]:
        with tempfile.TemporaryDirectory() as place:
            run = Run(Path(place) / "outbox", horizon, forgetful)
            run.keep()
            todo = list(steps)
            while todo:
                await run.live(todo)
                run.fail("")
            await run.live([])
            queued = run.queued()
            assert set(queued) <= {*run.sure, *run.perhaps}
            await run.bench.store.close()
            return [n for n in run.sure if not queued[n]], [n for n, times in queued.items() if times > 1]

    return anyio.run(main)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_no_crash_loses_or_doubles_a_job(steps: list[Step]) -> None:
    assert play(steps, horizon=LOSS + 1.0) == ([], [])


@pytest.mark.parametrize(
    "steps",
    [
        [("submit", 3, ""), ("wait", 1.0), ("roll back", 2.0), ("wait", 3.0)],
        [("submit", 1, ""), ("wait", 0.4), ("die", 9, ""), ("roll back", 1.0), ("submit", 1, "lost")],
    ],
)
def test_a_horizon_that_is_too_short_loses_jobs(steps: list[Step]) -> None:
    """The control: these are lost if a call counts as kept at once, and not otherwise."""
    lost, doubled = play(steps, horizon=0.0)
    assert lost
    assert not doubled
    assert play(steps, horizon=LOSS + 1.0) == ([], [])


def test_a_store_that_forgets_calls_has_jobs_twice() -> None:
    """The control: it is by the numbers of calls that a repetition is recognised."""
    steps = [("submit", 2, "lost"), ("wait", 6.0)]
    assert play(steps, horizon=LOSS + 1.0) == ([], [])
    lost, doubled = play(steps, horizon=LOSS + 1.0, forgetful=True)
    assert doubled
    assert not lost
