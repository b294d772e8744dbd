"""Deadlines of running attempts: in order, and forgotten with their attempts."""

from __future__ import annotations

import anyio
import pytest

from drr.backend import Attempt
from drr.model import Header, Lane
from drr.worker.handlers import Deadlines
from drr.worker.state import Holding
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

ATTEMPT = Attempt("d", "t", 1, Header(Lane("default", ("acme", "web"), 5), 1, "n", "task", 0.0), b"")


async def test_deadlines_expire_in_order_and_forget_what_ended() -> None:
    deadlines = Deadlines(ManualClock())
    late, early, over = (Holding(ATTEMPT, "default", 0.0) for _ in range(3))
    over.ended = True
    for holding, deadline in ((late, 30.0), (early, 10.0), (over, 5.0)):
        deadlines.add(holding, deadline)
    assert deadlines.expire(4.0) == 6.0, "what ended is passed over"
    assert deadlines.expire(10.0) == 20.0
    assert [holding.expired for holding in (early, late, over)] == [True, False, False]
    assert deadlines.expire(31.0) is None
    assert [holding.expired for holding in (early, late, over)] == [True, True, False]


async def test_deadlines_of_ended_attempts_take_no_memory_for_long() -> None:
    deadlines = Deadlines(ManualClock())
    for _ in range(20_000):
        holding = Holding(ATTEMPT, "default", 0.0)
        deadlines.add(holding, 1e9)
        holding.ended = True
    assert len(deadlines) <= 2048


async def test_an_earlier_deadline_wakes_the_watch() -> None:
    clock = ManualClock()
    deadlines = Deadlines(clock)
    late, early = (Holding(ATTEMPT, "default", 0.0) for _ in range(2))
    async with anyio.create_task_group() as group:
        group.start_soon(deadlines.watch)
        await clock.settle()
        deadlines.add(late, clock.monotonic() + 50.0)
        await clock.advance(1.0)
        deadlines.add(early, clock.monotonic() + 2.0)
        await clock.advance(2.0)
        assert [early.expired, late.expired] == [True, False]
        group.cancel_scope.cancel()
