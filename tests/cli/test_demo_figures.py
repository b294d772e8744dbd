"""The demo's figures follow from what was written down, and each tells when something is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

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
from drr.demo.journal import Reader, Run, Writer
from drr.errors import DemoFailed, InvalidConfiguration
from drr.model import Lane, format_job_id
from tests.helpers.manual_clock import ManualClock

GOOD = Figures(4.0, 2_500_000.0, 3, 0.02, 1200.0, 0, 0, 0, 290, 31.0)


def runs(*spans: tuple[str, float, float | None]) -> list[Run]:
    return [Run(str(number), 1, name, start, 0.0, end) for number, (name, start, end) in enumerate(spans)]


def test_most_at_once_counts_overlaps_only() -> None:
    assert most_at_once([]) == 0
    assert most_at_once(runs(("a", 0, 1), ("a", 1, 2), ("a", 2, 3))) == 1
    assert most_at_once(runs(("a", 0, 2), ("a", 1, 3), ("a", 1.5, 1.6))) == 3
    assert most_at_once(runs(("a", 0, None), ("a", 5, 6))) == 2, "what never ended still runs"


def test_seconds_are_clipped_to_the_time_that_counts() -> None:
    held = held_by(runs(("a", 0, 4), ("a", 9, 20), ("b", 5, None), ("b", 0, 2)), 3, 10)
    assert held == {"a": 2.0, "b": 5.0}


def test_share_error_is_the_largest_difference() -> None:
    weights = {"a": 1, "b": 2, "c": 4}
    assert share_error({"a": 10, "b": 20, "c": 40, "crowd": 99}, weights) == pytest.approx(0)
    assert share_error({"a": 70, "crowd": 99}, weights) == pytest.approx(6 / 7)
    assert share_error({"a": 1, "b": 1, "c": 1}, weights) == pytest.approx(4 / 7 - 1 / 3)
    assert shares_of({}, weights) == {"a": 0.0, "b": 0.0, "c": 0.0}


def test_fifo_makes_a_newcomer_wait_for_everybody_before_it() -> None:
    assert fifo_wait([(0.0, 0.2)] * 50_000, 2.0, 4) == pytest.approx(50_000 * 0.2 / 4 - 2)
    assert fifo_wait([(0.0, 5.0)], 2.0, 1) == pytest.approx(3)
    assert fifo_wait([(0.0, 5.0)], 2.0, 2) == 0
    assert fifo_wait([(0.0, 1.0)], 2.0, 1) == 0


def test_the_first_start_after_a_moment() -> None:
    assert first_start_after(runs(("a", 1, 2), ("a", 5, 6), ("a", 4, 6)), 3) == 4
    assert first_start_after(runs(("a", 1, 2)), 3) is None


def test_a_lost_job_shows_by_its_id_and_by_the_number() -> None:
    assert Count(10, ended=4, queued=5, leased=1, unknown=0).lost == 0
    assert Count(10, ended=4, queued=4, leased=1, unknown=0).lost == 1, "by number"
    assert Count(10, ended=4, queued=6, leased=0, unknown=2).lost == 2, "by id, though a copy makes up the number"
    assert Count(10, ended=4, queued=8, leased=0, unknown=0).surplus == 2
    assert Count(10, ended=4, queued=8, leased=0, unknown=0).lost == 0


def test_an_end_too_many_shows() -> None:
    assert extra_ends(["a", "b", "a", "a"]) == 2
    assert extra_ends(["a", "b"]) == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("newcomer_wait_ms", 50.0),
        ("max_running_acme", 4),
        ("max_running_acme", 2),
        ("share_error", 0.05),
        ("takeover_ms", 5000.0),
        ("lost", 1),
        ("duplicated_completions", 1),
        ("leases_left", 1),
    ],
)
def test_a_figure_that_is_not_as_expected_is_named(name: str, value: float) -> None:
    expected = expectations(0.05)
    assert GOOD.disappointments(expected) == []
    values = {field: getattr(GOOD, field) for field in Figures.__dataclass_fields__}
    [line] = Figures(**{**values, name: value}).disappointments(expected)
    assert line.startswith(f"{name} is {value}, expected ")


def test_only_a_short_run_may_be_less_exact() -> None:
    assert plot.Timeline(30).share_error == plot.Timeline(60).share_error == 0.05
    assert 0.05 < plot.Timeline(12).share_error < plot.Timeline(8).share_error < 0.3
    for seconds in (7.9, 3601, float("nan"), float("inf")):
        with pytest.raises(InvalidConfiguration):
            plot.Timeline(seconds)


def test_the_same_jobs_come_in_every_run_and_say_how_long_they_take() -> None:
    first, again = (plot.weighted("hooli") for _ in range(2))
    for job, same in zip((next(first) for _ in range(1000)), again, strict=False):
        assert job == same
        assert list(job.arguments) == [job.estimate]
        assert job.estimate is not None
        assert plot.SHORTEST <= job.estimate <= plot.LONGEST
    assert sum(1 for _ in plot.crowd()) == 50_000


def test_a_journal_is_read_as_it_grows(tmp_path: Path) -> None:
    clock = ManualClock()
    writer, reader = Writer(tmp_path, clock), Reader(tmp_path)
    job = format_job_id(Lane("default", ("acme", "imports")), 7, "x")
    reader.read()
    assert reader.runs == []
    began = clock.monotonic()
    writer.start(job, 1, clock.wall() - 2.5)
    reader.read()
    [run] = reader.runs
    assert (run.organisation, run.attempt, run.ended) == ("acme", 1, None)
    assert run.started == pytest.approx(began)
    assert run.waited == pytest.approx(2.5)
    writer.end(job, 1)
    writer.start(job, 2, clock.wall())
    reader.read()
    assert [(run.attempt, run.ended is None) for run in reader.runs] == [(1, False), (2, True)]


def test_half_a_line_is_left_for_later(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    path = tmp_path / "1.journal"
    path.write_text("S default:acme:imports:5:1~x 1 2.0 0.0\nE default:acme:im")
    reader.read()
    assert [run.ended for run in reader.runs] == [None]
    with path.open("a") as file:
        file.write("ports:5:1~x 1 3.5\n")
    reader.read()
    assert [run.ended for run in reader.runs] == [3.5]


def test_a_demo_that_failed_shows_a_log() -> None:
    assert str(DemoFailed("worker-1 ended", "last words")) == "worker-1 ended; its log ends with:\nlast words"
    assert str(DemoFailed("too slow")) == "too slow"
