"""Watching a loop: who blocks it is named once per block, the end is told, and every block is counted."""

from __future__ import annotations

import asyncio
import logging

import pytest

from drr.worker.loopwatch import LoopWatch
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

LIMIT = 5.0


def named(task: asyncio.Task[object]) -> str:
    return f"task {task.get_name()}"


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    assert all(record.levelno == logging.WARNING for record in caplog.records)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_loop_that_is_closed_is_noticed_even_with_a_question_open(asked_before: bool) -> None:
    loop = asyncio.new_event_loop()
    watch = LoopWatch(loop, ManualClock(), LIMIT, named)
    if asked_before:
        watch.look()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        watch.look()


async def test_a_block_is_named_once_counted_once_and_its_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = LoopWatch(asyncio.get_running_loop(), clock, LIMIT, named)
    task = asyncio.current_task()
    assert task is not None
    task.set_name("send_email")
    assert not watch.look()
    clock.jump(LIMIT)
    assert (watch.look(), watch.blocked, watch.blocks, texts(caplog)) == (False, LIMIT, 0, [])
    clock.jump(1.0)
    assert [watch.look(), watch.look(), watch.look()] == [True, False, False]
    assert (watch.blocked, watch.blocks) == (LIMIT + 1, 1)
    [text] = texts(caplog)
    assert text.startswith("the event loop has been blocked for 6.0 s by task send_email, in ")
    assert "test_worker_loopwatch.py:" in text or "loopwatch.py:" in text
    clock.jump(3.0)
    await clock.settle()
    clock.jump(100.0)  # until somebody looks; it is no part of the block
    assert (watch.blocked, watch.look(), watch.blocks) == (0.0, False, 1)
    _, text = texts(caplog)
    assert text.startswith("the event loop turns again, after 9.0 s blocked by task send_email, in ")


async def test_each_block_is_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    watch = LoopWatch(asyncio.get_running_loop(), clock, LIMIT, named)
    for _ in range(3):
        watch.look()
        clock.jump(LIMIT + 1)
        watch.look()
        await clock.settle()
    watch.look()
    assert watch.blocks == 3
    assert len(caplog.records) == 6


async def test_a_block_that_ended_before_it_was_looked_at_is_counted_all_the_same(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = ManualClock()
    watch = LoopWatch(asyncio.get_running_loop(), clock, LIMIT, named)
    watch.look()
    clock.jump(LIMIT + 1)
    await clock.settle()
    assert (watch.look(), watch.blocks) == (True, 1)
    assert [text.partition(" s ")[0] for text in texts(caplog)] == [
        "the event loop has been blocked for 6.0",
        "the event loop turns again, after 6.0",
    ]


async def test_a_loop_that_turns_is_not_complained_of(caplog: pytest.LogCaptureFixture) -> None:
    """However rarely somebody looks."""
    clock = ManualClock()
    watch = LoopWatch(asyncio.get_running_loop(), clock, LIMIT, named)
    for _ in range(5):
        watch.look()
        await clock.advance(LIMIT + 1)
        assert watch.blocked == 0.0
    assert (watch.blocks, texts(caplog)) == (0, [])
    assert watch.interval < LIMIT
