"""Rows of a recording from values alone: columns, times on one axis, names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drr.dispatcher.recording_rows import HEADER, PATHS_KEPT, Batch, End, Names, Scribe, Timeline, sort_key
from drr.model import JobState, Lane
from tests.helpers.traffic import WALL, lease, row


def scribe(now: float = 0.0, wall: float | None = None, *, anonymous: bool = False) -> Scribe:
    return Scribe(now, WALL + now if wall is None else wall, anonymous=anonymous)


def test_a_job_from_end_to_end() -> None:
    """Submitted 5 s after the start of recording, started 3 s later as its second attempt, ran for 1.5 s."""
    job = lease(42, submitted=105.0, started=108.0, attempt=2, estimate=4.0, lane=Lane("gpu", ("acme", "web"), 3))
    batch = Batch(109.5, WALL + 109.5, {"gpu": 7}, [End(job, JobState.SUCCEEDED, 1.5)])
    assert scribe(100.0).rows(batch) == (
        b"42,5.000000,1.500000,4.000000,acme,acme/web,1,ok,mail,2,gpu,3,8.000000,3.000000,7\n"
    )
    assert HEADER == (
        b"job_id,submit_s,duration_s,estimate_s,org,project,width,outcome,kind,"
        b"attempts,pool,priority,start_s,wait_s,workers\n"
    )


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (JobState.SUCCEEDED, "ok"),
        (JobState.FAILED, "failed"),
        (JobState.DEAD, "unknown"),
        (JobState.RUNNING, "unfinished"),
    ],
)
def test_outcomes(state: JobState, outcome: str) -> None:
    assert row(scribe(), lease(), 1.0, state=state)["outcome"] == outcome


def test_what_was_there_before_the_recording_arrives_at_its_start() -> None:
    """A backlog, and what runs, are part of the load: they are there at 0. The wait is told as it was."""
    waiting = row(scribe(100.0), lease(submitted=40.0, started=103.0), 104.0)
    assert (waiting["submit_s"], waiting["start_s"], waiting["wait_s"]) == ("0.000000", "3.000000", "63.000000")
    running = row(scribe(100.0), lease(submitted=40.0, started=50.0), 104.0, seconds=54.0)
    assert (running["submit_s"], running["start_s"], running["duration_s"]) == ("0.000000", "0.000000", "54.000000")


def test_a_job_that_took_no_time_takes_the_least_that_can_be_written() -> None:
    assert row(scribe(), lease(), 1.0, seconds=0.0)["duration_s"] == "0.000001"


@pytest.mark.parametrize("estimate", [None, 1e-9, 1e12])
def test_an_estimate_that_was_not_used_is_left_blank(estimate: float | None) -> None:
    assert row(scribe(), lease(estimate=estimate), 1.0)["estimate_s"] == ""


def test_a_pool_that_is_gone_has_no_workers() -> None:
    assert row(scribe(), lease(lane=Lane("other", ("a", "b"))), 1.0)["workers"] == "0"


def test_a_new_file_counts_from_its_own_start() -> None:
    writer = scribe(100.0)
    assert row(writer, lease(submitted=110.0, started=111.0), 112.0)["submit_s"] == "10.000000"
    writer.begin(112.0)
    assert row(writer, lease(submitted=115.0, started=116.0), 117.0)["submit_s"] == "3.000000"


# --- jumps of the wall clock


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1e9, -1e9])
def test_a_jump_of_the_wall_clock_moves_nothing(jump: float) -> None:
    """Before, across and after it: jobs submitted and started at 10/12, 20/60 and 70/71, the jump at 50."""
    writer = scribe()
    before = row(writer, lease(submitted=10.0, started=12.0), 45.0)
    across = row(writer, lease(submitted=20.0, started=60.0 + jump), 65.0, WALL + 65.0 + jump)
    after = row(writer, lease(submitted=70.0 + jump, started=71.0 + jump), 75.0, WALL + 75.0 + jump)
    late = row(writer, lease(submitted=30.0, started=40.0), 80.0, WALL + 80.0 + jump)
    found = [(float(each["submit_s"]), float(each["start_s"])) for each in (before, across, after, late)]
    assert found == [(10.0, 12.0), (20.0, 60.0), (70.0, 71.0), (30.0, 40.0)]


def test_a_client_whose_clock_is_ahead_has_waited_for_nothing() -> None:
    ahead = row(scribe(), lease(submitted=500.0, started=10.0), 11.0)
    assert (ahead["submit_s"], ahead["start_s"], ahead["wait_s"]) == ("10.000000", "10.000000", "0.000000")


@given(
    st.lists(st.tuples(st.floats(0, 1e4), st.floats(-1e5, 1e5)), max_size=100),
    st.floats(0, 1e11),
    st.floats(0, 1e11),
)
def test_no_clock_makes_a_negative_time(steps: list[tuple[float, float]], submitted: float, started: float) -> None:
    writer, now = scribe(), 0.0
    job = lease(submitted=submitted - WALL, started=started - WALL)
    for forward, offset in steps:
        now += forward
        found = row(writer, job, now, WALL + now + offset)
        submit, start, wait = (float(found[name]) for name in ("submit_s", "start_s", "wait_s"))
        assert 0.0 <= submit <= start <= now + 1e-6
        assert wait >= 0.0


def test_only_the_last_jumps_are_kept() -> None:
    line = Timeline(0.0, WALL)
    for number in range(1, 1000):
        line.note(float(number), WALL + number + 10 * number)
    assert len(line._stretches) == 64
    assert line.place(WALL + 11 * 998) == 998.0


# --- names


def test_anonymous_names_are_numbers_in_order_of_first_appearance() -> None:
    writer = scribe(anonymous=True)
    rows = [
        row(writer, lease(lane=Lane(pool, path), task=task), 1.0)
        for pool, path, task in (
            ("gpu", ("acme", "web"), "mail"),
            ("cpu", ("globex", "web"), "render"),
            ("gpu", ("acme", "imports"), "mail"),
            ("gpu", ("acme", "web"), "render"),
        )
    ]
    assert [(each["project"], each["pool"], each["kind"]) for each in rows] == [
        ("o0/p0", "q0", "k0"),
        ("o1/p0", "q1", "k1"),
        ("o0/p1", "q0", "k0"),
        ("o0/p0", "q0", "k1"),
    ]
    text = "".join(",".join(each.values()) for each in rows)
    assert not any(name in text for name in ("acme", "globex", "web", "imports", "mail", "render", "gpu", "cpu"))


def test_a_path_has_two_columns_whatever_its_depth() -> None:
    names = Names(anonymous=False)
    assert names.tenant(("acme",)) == "acme,acme/acme"
    assert names.tenant(("acme", "web", "eu")) == "acme,acme/web.eu"
    assert names.tenant(("acme", "a" * 128, "b" * 128)) == f"acme,acme/{'b' * 128}"


def test_numbers_stay_though_what_is_remembered_of_paths_is_bounded() -> None:
    names = Names(anonymous=True)
    first = names.tenant(("acme", "p"))
    for number in range(PATHS_KEPT):
        names.tenant(("acme", str(number)))
    assert len(names._paths) <= PATHS_KEPT
    assert names.tenant(("acme", "p")) == first == "o0,o0/p0"


# --- reading rows back


def test_a_row_is_sorted_by_its_time_and_number() -> None:
    rows = scribe().rows(
        Batch(9.0, WALL + 9.0, {}, [End(lease(7, submitted=2.5, started=3.0), JobState.FAILED, 1.0)])
    )
    assert sort_key(rows) == (2.5, 7)


@pytest.mark.parametrize(
    "line", [HEADER, b"", b"\n", b"1,2.0\n", b"1,2.0,1.0,,a,a/b,1,ok,k,1,p,5,1.0,1.0,", b"x" + b",1" * 14 + b"\n"]
)
def test_what_is_no_row(line: bytes) -> None:
    """A header, and what was cut off or overwritten."""
    assert sort_key(line) is None
