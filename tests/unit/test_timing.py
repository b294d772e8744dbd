"""Waiting over an injected clock, and flags that cross event loops."""

from __future__ import annotations

import threading
from random import Random

import anyio
import anyio.lowlevel
import pytest

from drr.timing import BACKOFF_FIRST, BACKOFF_LONGEST, Alarm, Backoff, Signal, run_within
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio


def test_pauses_double_up_to_a_bound_with_jitter_in_their_upper_half() -> None:
    backoff = Backoff(Random(1))
    expected = BACKOFF_FIRST
    for _ in range(20):
        assert expected / 2 <= backoff.next() <= expected
        expected = min(2 * expected, BACKOFF_LONGEST)
    backoff.reset()
    assert backoff.next() <= BACKOFF_FIRST


def test_two_that_fail_together_do_not_come_back_together() -> None:
    one, other = Backoff(Random(1)), Backoff(Random(2))
    assert all(one.next() != other.next() for _ in range(20))


async def test_what_ends_in_time_has_ended() -> None:
    clock = ManualClock()
    assert await run_within(clock, 5.0, anyio.lowlevel.checkpoint)


async def test_what_does_not_is_cancelled() -> None:
    clock, seen = ManualClock(), []

    async def wait() -> None:
        seen.append(await run_within(clock, 5.0, anyio.sleep_forever))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.advance(4.9)
        assert seen == []
        await clock.advance(0.1)
        assert seen == [False]


async def test_its_exception_comes_out_as_it_is() -> None:
    async def fail() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        await run_within(ManualClock(), 5.0, fail)


async def test_a_cancellation_from_outside_is_not_swallowed() -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await run_within(ManualClock(), 5.0, anyio.sleep_forever)
    assert scope.cancelled_caught


async def test_a_signal_is_seen_once_by_who_waits_now_or_later() -> None:
    clock, signal = ManualClock(), Signal()
    signal.set()
    signal.set()
    assert await signal.wait_for(clock, 0.0)
    async with anyio.create_task_group() as group:
        seen: list[bool] = []

        async def wait() -> None:
            seen.append(await signal.wait_for(clock, 5.0))

        group.start_soon(wait)
        await clock.advance(5.0)
        assert seen == [False]
        group.start_soon(wait)
        await clock.settle()
        signal.set()
        await clock.settle()
        assert seen == [False, True]


async def test_an_alarm_is_raised_from_another_thread() -> None:
    alarm = Alarm()
    threading.Thread(target=alarm.set).start()
    with anyio.fail_after(30.0):
        await alarm.wait()
    assert not alarm.closed


def test_an_alarm_whose_loop_is_gone_harms_nobody() -> None:
    async def make() -> Alarm:
        return Alarm()

    alarm = anyio.run(make)
    assert alarm.closed
    alarm.set()
