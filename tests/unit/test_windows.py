"""Read-ahead: how far windows reach, what is read next, and what it costs in memory."""

from __future__ import annotations

import pytest

from drr.backend import Window
from drr.dispatcher.windows import FIRST, LARGEST, SLOW, SPARE, LaneWindow, Windows
from drr.errors import CommitRefused
from drr.model import Header, Lane
from tests.helpers.desk import ACME, GLOBEX, Desk


def headers(lane: Lane, start: int, number: int) -> tuple[Header, ...]:
    return tuple(Header(lane, start + i, "n", "work", 0.0) for i in range(number))


class LongLane:
    """A lane of a million jobs that answers peeks."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.first = 0

    def answer(self, windows: Windows, limit: int = 1000) -> int:
        """Answer the next requests; return for how many headers they asked."""
        asked = 0
        for peek in windows.requests(limit):
            asked += peek.count
            entries = headers(self.lane, self.first + peek.offset, peek.count)
            windows.answer(Window(peek.lane, peek.offset, entries, 1_000_000 - self.first))
        return asked

    def use(self, windows: Windows, window: LaneWindow, number: int) -> int:
        """Dispatch up to ``number`` jobs; return how many there were."""
        used = min(number, len(window.entries))
        for _ in range(used):
            windows.use(window)
        self.first += used
        return used


def test_a_window_grows_while_it_is_used_up_and_shrinks_when_not() -> None:
    windows, lane = Windows(), LongLane(ACME)
    window = windows.open(ACME)
    lane.answer(windows)
    assert len(window.entries) == FIRST
    sizes = []
    for _ in range(12):
        lane.use(windows, window, 1000)
        lane.answer(windows)
        sizes.append(len(window.entries))
    assert sizes[-1] == LARGEST
    assert sizes == sorted(sizes)
    for _ in range(3000):
        lane.use(windows, window, 1)
        lane.answer(windows)
    assert window.target <= SLOW, "one job a pass needs no more"
    assert windows.headers == len(window.entries)


def test_dry_windows_are_read_before_low_ones() -> None:
    windows = Windows()
    low, dry = windows.open(ACME), windows.open(GLOBEX)
    for lane in (ACME, GLOBEX):
        windows.answer(Window(lane, 0, headers(lane, 0, FIRST), 100))
    windows.requests()
    low.rest = dry.rest = 96
    for _ in range(FIRST // 2):
        windows.use(low)
    for _ in range(FIRST):
        windows.use(dry)
    assert [peek.lane for peek in windows.requests()] == [GLOBEX, ACME]
    assert windows.requests() == [], "what was asked for is not asked for again"


def test_requests_keep_to_the_limit_and_forget_nobody() -> None:
    windows = Windows()
    lanes = [Lane("default", (f"o{number}", "p")) for number in range(700)]
    for lane in lanes:
        windows.open(lane, SPARE)
    asked = []
    while peeks := windows.requests(1000):
        assert sum(peek.count for peek in peeks) <= 1000
        for peek in peeks:
            windows.answer(Window(peek.lane, 0, headers(peek.lane, 0, peek.count), 50))
            asked.append(peek.lane)
    assert sorted(asked) == sorted(lanes)


def test_windows_stay_small_when_memory_is_short() -> None:
    """Beyond the budget no window holds more than the spare headers."""
    windows = Windows(budget=10)
    first = windows.open(ACME, 1000)
    windows.answer(Window(ACME, 0, headers(ACME, 0, 1000), 5000))
    windows.requests()
    second = windows.open(GLOBEX, 1000)
    assert [peek.count for peek in windows.requests()] == [SPARE]
    assert len(first.entries) == 1000
    assert second.rest == -1


@pytest.mark.parametrize(
    "reply",
    [
        Window(ACME, 0, headers(ACME, 0, 2), 1),
        Window(ACME, 0, headers(ACME, 2, 2), 4),
        Window(ACME, 2, (), 5),
    ],
    ids=["shorter than what is held", "at another place", "jobs that are not shown"],
)
def test_an_answer_that_contradicts_what_is_held_is_refused(reply: Window) -> None:
    windows = Windows()
    windows.open(ACME)
    windows.answer(Window(ACME, 0, headers(ACME, 0, 2), 2))
    with pytest.raises(CommitRefused):
        windows.answer(reply)


def test_an_answer_for_a_closed_lane_is_ignored() -> None:
    windows = Windows()
    windows.close(windows.open(ACME))
    assert windows.answer(Window(ACME, 0, headers(ACME, 0, 2), 2)) is None
    assert windows.requests() == []


def test_memory_follows_active_lanes_and_not_the_backlog() -> None:
    """A hundred thousand jobs in ten lanes, drained at fifty at a time: a few hundred headers in memory."""
    desk = Desk()
    lanes = [Lane("default", (f"org-{number}", "p")) for number in range(10)]
    for lane in lanes:
        for _ in range(10):
            desk.submit(lane, 1000)
    desk.join(slots=50)
    peak = 0
    for _ in range(200):
        desk.turn()
        peak = max(peak, desk.engine.backlog.windows.headers)
        for attempt in desk.take():
            desk.finish(attempt)
    assert desk.counters.succeeded >= 9_000
    assert peak < 600
    core_jobs = desk.engine.backlog.pools["default"].scheduler.queued
    assert core_jobs <= 2 * len(lanes), "the core is offered two jobs of a project ahead"


def test_a_lone_lane_keeps_a_big_pool_busy() -> None:
    """One tenant, 500 slots: after a few passes the window is large enough to fill every slot in one pass."""
    desk = Desk()
    for _ in range(10):
        desk.submit(ACME, 1000)
    desk.join(slots=500)
    for _ in range(6):
        desk.turn()
        for attempt in desk.take():
            desk.finish(attempt)
    before = len(desk.commits)
    desk.hear()
    commit = desk.step()
    assert commit is not None
    assert len(commit.dispatches) == 500
    assert len(desk.commits) == before + 1
