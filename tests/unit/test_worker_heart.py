"""The heartbeat's thread: it beats by itself and ends with its worker."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from drr.backend import Backend, WorkerRecord, open_backend
from drr.clock import Clock, SystemClock
from drr.timing import Alarm
from drr.worker.heart import Heart
from drr.worker.state import Hands
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

PATIENCE = 30.0


def make_heart(hands: Hands, store: Backend, clock: Clock, interval: float, news: Alarm) -> Heart:
    return Heart(
        hands,
        store,
        clock,
        interval=interval,
        lease=3 * interval,
        rng=Random(1),
        news=news,
        blocked_after=5.0,
        describe=str,
    )


async def started(namespace: str, interval: float) -> tuple[Backend, Heart, Alarm]:
    """A heart that beats in its thread for a worker which has joined."""
    clock = SystemClock()
    store = open_backend("memory://heart", namespace=namespace, clock=clock)
    hands = Hands("w1", {"default": 1})
    await store.join(hands.record("i1"))
    heart = make_heart(hands, store.sibling(), clock, interval, Alarm())
    heart.joined(clock.monotonic())
    hands.begin("i1")
    return store, heart, heart.start_thread()


def renewals_without_the_loop(store: Backend) -> int:
    """Ask the store from this thread without giving the event loop a turn."""
    found: list[WorkerRecord | None] = []

    async def ask() -> None:
        handle = store.sibling()
        found.append(await handle.worker_record("w1"))
        await handle.close()

    thread = threading.Thread(target=anyio.run, args=(ask,))
    thread.start()
    thread.join(PATIENCE)
    [record] = found
    assert record is not None
    return record.renewals


async def test_it_beats_while_the_loop_is_blocked_and_ends_when_told(fresh_namespace: str) -> None:
    store, heart, over = await started(fresh_namespace, interval=0.05)
    deadline = time.monotonic() + PATIENCE
    while renewals_without_the_loop(store) < 3:  # this loop has no turn in between
        assert time.monotonic() < deadline
    heart.stop()
    with anyio.fail_after(PATIENCE):
        await over.wait()
    await store.close()


async def test_it_ends_with_the_loop_of_its_worker(fresh_namespace: str) -> None:
    """A worker whose loop is gone must not keep its lease."""

    async def leave_behind() -> set[threading.Thread]:
        before = set(threading.enumerate())
        await started(fresh_namespace, interval=0.05)
        return set(threading.enumerate()) - before

    def run() -> set[threading.Thread]:
        return anyio.run(leave_behind)

    [thread] = await anyio.to_thread.run_sync(run)
    with anyio.fail_after(PATIENCE):
        await anyio.to_thread.run_sync(thread.join, PATIENCE)
    assert not thread.is_alive()


class Stuck:
    """A store whose heartbeat never answers; everything else is as it should be."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self.asked = 0

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method: Callable[..., Awaitable[Any]] = getattr(self._inner, name)
        return method

    async def heartbeat(self, record: WorkerRecord) -> bool:
        self.asked += 1
        await anyio.sleep_forever()
        raise AssertionError


async def test_a_beat_without_an_answer_is_given_up_and_repeated_until_the_lease_has_lapsed(
    fresh_namespace: str,
) -> None:
    clock = ManualClock()
    store = open_backend("memory://heart", namespace=fresh_namespace, clock=clock)
    stuck: Any = Stuck(store)
    hands, news = Hands("w1", {"default": 1}), Alarm()
    heart = make_heart(hands, stuck, clock, 10.0, news)
    heart.joined(clock.monotonic())
    hands.begin("i1")
    async with anyio.create_task_group() as group:
        group.start_soon(heart.run)
        await clock.advance(29.0)
        assert stuck.asked >= 2
        lapsed = [hands.lapsed]
        await clock.advance(12.0)
        lapsed.append(hands.lapsed)
        assert lapsed == [False, True]
        await news.wait()
        heart.stop()
        await clock.advance(10.0)
    await store.close()
