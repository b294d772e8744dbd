"""What worlds are made of: virtual time, lives, links, and a store that goes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, cast

import anyio
import pytest

from drr.backend import Backend, WorkerRecord
from drr.errors import StoreUnavailable
from drr.model import JobSpec, Lane
from drr_backends.memory import MemoryBackend
from drr_backends.memory.store import Store
from tests.world.life import Life
from tests.world.memory import go_back, image
from tests.world.network import Fate, Link, Network, Weather
from tests.world.virtual import run_virtual

LANE = Lane("default", ("acme", "web"))


class Seen:
    """A witness that keeps what it sees."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def carried_out(self, life: Life, name: str, args: tuple[Any, ...], result: object) -> None:
        self.calls.append(name)

    def note(self, who: str, *what: object) -> None:
        """Keep nothing of these."""


class Net:
    """A store, a network and one participant."""

    def __init__(self) -> None:
        self.life = Life("w1", 100.0)
        self.store = Store(Life("store", 0.0))
        self.seen = Seen()
        self.network = Network(MemoryBackend(self.store, self.store.clock), self.seen, Life.kill)
        self.link = cast("Backend", Link(self.network, self.life, "seed"))

    async def submit(self, call: int = 1) -> list[str]:
        spec = JobSpec(LANE, "work", b"", 0.0)
        return await self.link.submit("client", call, [spec])


def in_virtual_time(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def run() -> None:
        run_virtual(test())

    run.__doc__ = test.__doc__
    run.__name__ = test.__name__
    return run


# --- time


@in_virtual_time
async def test_time_goes_from_timer_to_timer() -> None:
    loop, woken = asyncio.get_running_loop(), []

    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds)
        woken.append((seconds, loop.time()))

    async with anyio.create_task_group() as group:
        for seconds in (3600.0, 0.5, 7.0):
            group.start_soon(sleep, seconds)
    assert woken == [(0.5, 0.5), (7.0, 7.0), (3600.0, 3600.0)]


@in_virtual_time
async def test_time_passes_while_a_cancelled_task_waits_for_what_is_shielded() -> None:
    """Anyio keeps the loop busy until then; without patience nothing would ever happen again."""

    async def stubborn() -> None:
        with anyio.CancelScope(shield=True):
            await asyncio.sleep(3.0)

    async with anyio.create_task_group() as group:
        group.start_soon(stubborn)
        await asyncio.sleep(1.0)
        group.cancel_scope.cancel()
    assert asyncio.get_running_loop().time() == pytest.approx(3.0)


def test_waiting_for_nothing_is_an_error() -> None:
    async def wait() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="nothing will ever happen"):
        run_virtual(wait())


# --- lives


@in_virtual_time
async def test_who_is_stopped_hears_nothing_until_it_goes_on() -> None:
    net = Net()
    loop = asyncio.get_running_loop()
    loop.call_later(0.0, net.life.stop)
    loop.call_later(9.0, net.life.go_on)
    began = net.life.monotonic()
    await asyncio.sleep(0.001)
    await net.life.sleep(1.0)
    assert net.life.monotonic() - began == pytest.approx(9.0)
    net.life.stop()
    loop.call_later(5.0, net.life.go_on)
    await net.submit()
    assert loop.time() > 14.0


@in_virtual_time
async def test_a_jump_moves_the_wall_clock_alone() -> None:
    life = Life("d1", 50.0)
    wall, monotonic = life.wall(), life.monotonic()
    life.wall_offset = -600.0
    assert (life.wall() - wall, life.monotonic() - monotonic) == (-600.0, 0.0)


# --- calls


@pytest.mark.parametrize(
    ("fate", "carried_out", "alive"),
    [
        (Fate.LOST, False, True),
        (Fate.REPLY_LOST, True, True),
        (Fate.LATE, True, True),
        (Fate.KILLED_BEFORE, False, False),
        (Fate.KILLED_AFTER, True, False),
    ],
)
def test_what_becomes_of_a_call(fate: Fate, carried_out: bool, alive: bool) -> None:
    """Its caller sees the same each time; the store may have carried it out, later perhaps."""

    async def test() -> None:
        net = Net()
        net.network.fail_at, net.network.fail_how = 1, fate
        unanswered = True
        with net.life.scope, suppress(StoreUnavailable):
            await net.submit()
            unanswered = False
        assert unanswered
        await asyncio.sleep(10.0)
        assert net.seen.calls == ["submit"] * carried_out
        assert net.life.alive is alive
        if alive:
            assert len(await net.submit(2)) == 1

    run_virtual(test())


@in_virtual_time
async def test_chances_are_met() -> None:
    net = Net()
    weather = Weather(lost=0.2, reply_lost=0.2, late=0.1)
    net.network.weather = weather
    failed = 0
    for call in range(1, 501):
        try:
            await net.submit(call)
        except StoreUnavailable:
            failed += 1
    await asyncio.sleep(10.0)
    assert 200 < failed < 300
    assert 360 < len(net.seen.calls) < 440, "a fifth never arrived"


@in_virtual_time
async def test_a_break_ends_all_calls_and_what_has_not_arrived_never_does() -> None:
    net = Net()
    async with anyio.create_task_group() as group:

        async def read() -> None:
            with pytest.raises(StoreUnavailable, match="broke"):
                await net.link.read_attempts("w1", "i1", "default", 1, 60.0)

        group.start_soon(read)
        await asyncio.sleep(1.0)
        assert len(net.store.waiters) == 1
        net.network.break_all()
    await asyncio.sleep(0.1)
    assert (net.network.waiting, len(net.store.waiters)) == (0, 0)


# --- a store that goes back


@in_virtual_time
async def test_a_store_goes_back_and_numbers_of_its_streams_go_on() -> None:
    net = Net()
    first = await net.submit(1)
    kept = image(net.store)
    second = await net.submit(2)
    await net.link.join(WorkerRecord("w1", "i1", {"default": 1}))
    last = net.store.events.last
    go_back(net.store, kept)
    assert net.store.workers == {}
    assert [entry.head.job_id for entry in net.store.lanes[LANE]] == first  # type: ignore[union-attr]
    assert net.store.events.last == last, "a reader that has read so far misses nothing that comes"
    assert await net.submit(2) != first
    assert second not in net.store.lanes.values()


@in_virtual_time
async def test_an_image_stays_what_it_was() -> None:
    net = Net()
    for call in range(1, 20):
        await net.submit(call)
    kept, length = image(net.store), net.store.lane_length(LANE)
    for call in range(20, 40):
        await net.submit(call)
    go_back(net.store, kept)
    assert net.store.lane_length(LANE) == length
    assert net.store.queued == length
