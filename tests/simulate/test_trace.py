"""Traces in files: what is read, what is refused, and how it is said."""

from __future__ import annotations

import gzip
import itertools
import os
import tracemalloc
from collections.abc import Callable
from math import inf, nan
from pathlib import Path

import pytest

from drr.errors import InvalidValue, TraceError
from drr.simulate.swf import SwfTrace
from drr.simulate.trace import LINE_LIMIT, Arrival, Demand, open_source, open_sources
from tests.simulate.generate import arrivals, csv_text, swf_text, write

HEADER = "submit_s,duration_s,estimate_s,org,project"
GOOD = "0,1,1,acme,mail"
SWF_GOOD = "1 0 -1 10 1 -1 -1 1 20 -1 1 7 3 -1 1 -1 -1 -1"


def trace(tmp_path: Path, *rows: str, header: str = HEADER, name: str = "t.csv") -> str:
    return str(write(tmp_path / name, "\n".join([header, *rows]) + "\n"))


def swf(tmp_path: Path, *lines: str) -> str:
    return str(write(tmp_path / "t.swf", "\n".join(lines) + "\n"))


def refusal(path: str | Path) -> TraceError:
    """Return how a trace is refused, whether on opening it or on reading it."""
    with pytest.raises(TraceError) as caught:
        list(open_source(str(path)))
    error = caught.value
    assert isinstance(error, InvalidValue)
    assert error.file == str(path)
    assert str(path) in str(error), "the message names the file"
    assert error.rule in str(error), "and what would be right"
    if error.line:
        assert f"line {error.line}" in str(error)
    assert len(str(error)) < 1000
    return error


# --- what is read ------------------------------------------------------------------------------------------


def test_a_row_is_an_arrival(tmp_path: Path) -> None:
    source = open_source(trace(tmp_path, "0,10.2,9,acme,imports", "0.5,.3,,globex,mail"))
    assert source.name == "t.csv"
    assert list(source) == [
        Arrival(0.0, 10.2, 9.0, ("acme", "imports")),
        Arrival(0.5, 0.3, None, ("globex", "mail")),
    ]
    assert list(source.slots) == list(source.faults) == []


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.CSV.csv"])
def test_what_was_written_is_read(tmp_path: Path, name: str) -> None:
    jobs = arrivals(seed=3)
    assert list(open_source(str(write(tmp_path / name, csv_text(jobs))))) == jobs


@pytest.mark.parametrize("name", ["t.swf", "t.swf.gz"])
def test_what_was_written_in_swf_is_read(tmp_path: Path, name: str) -> None:
    jobs = arrivals(seed=4)
    expected = [
        job._replace(path=(f"g{int(job.path[0][1:])}", f"u{int(job.path[1][1:])}")) for job in jobs
    ]  # o003/p01 is group 3, user 1
    assert list(open_source(str(write(tmp_path / name, swf_text(jobs))))) == expected


def test_a_trace_is_made_from_its_seed() -> None:
    assert csv_text(arrivals(seed=1)) == csv_text(arrivals(seed=1)) != csv_text(arrivals(seed=2))


@pytest.mark.parametrize(
    ("organisation", "project", "path"),
    [
        ("o012", "o012/p03", ("o012", "p03")),
        ("o012", "p03", ("o012", "p03")),
        ("o012", "o012", ("o012", "o012")),
        ("a.b-c_d@e", "X" * 128, ("a.b-c_d@e", "X" * 128)),
    ],
)
def test_projects_may_repeat_their_organisation(
    tmp_path: Path, organisation: str, project: str, path: tuple[str, str]
) -> None:
    (job,) = open_source(trace(tmp_path, f"0,1,,{organisation},{project}"))
    assert job.path == path


def test_columns_are_found_by_name_and_others_ignored(tmp_path: Path) -> None:
    path = trace(tmp_path, "ok,mail,x,acme,2,1", header="outcome,project,note,org,duration_s,submit_s")
    assert list(open_source(path)) == [Arrival(1.0, 2.0, None, ("acme", "mail"))]


def test_files_of_other_systems_are_read(tmp_path: Path) -> None:
    """A byte order mark, lines that end as on Windows, quotes, blank lines, no end of the last line."""
    path = tmp_path / "t.csv"
    path.write_bytes(b'\xef\xbb\xbf"submit_s",duration_s,org,project\r\n0,1,"acme",mail\r\n\r\n2,1,acme,mail')
    assert [job.at for job in open_source(str(path))] == [0.0, 2.0]


def test_paths_are_shared(tmp_path: Path) -> None:
    first, second = open_source(trace(tmp_path, GOOD, GOOD))
    assert first.path is second.path


def test_a_source_is_read_again_from_the_start(tmp_path: Path) -> None:
    source = open_source(str(write(tmp_path / "t.csv", csv_text(arrivals()))))
    half = list(itertools.islice(source, 50))
    assert list(source)[:50] == half
    assert list(source) == list(source)


def test_demand_is_the_sum(tmp_path: Path) -> None:
    source = open_source(trace(tmp_path, "0,1,,a,b", "3,7.5,,a,b", "4,2,,c,d"))
    assert source.demand() == Demand(jobs=3, worker_seconds=10.5, span=4.0, longest=7.5)


def test_demand_is_read_once(tmp_path: Path) -> None:
    path = Path(trace(tmp_path, GOOD))
    source = open_source(str(path))
    before = source.demand()
    path.unlink()
    assert source.demand() is before


def test_speedup_divides_arrivals_only(tmp_path: Path) -> None:
    source = open_source(trace(tmp_path, "0,8,4,a,b", "10,8,4,a,b"), speedup=4.0)
    assert [(job.at, job.duration, job.estimate) for job in source] == [(0.0, 8.0, 4.0), (2.5, 8.0, 4.0)]
    assert source.demand().span == 2.5


def test_until_leaves_later_arrivals_out(tmp_path: Path) -> None:
    path = trace(tmp_path, *(f"{at},1,,a,b" for at in range(10)))
    assert [job.at for job in open_source(path, until=3.0)] == [0.0, 1.0, 2.0, 3.0]
    assert open_source(path, until=3.0).demand().jobs == 4
    assert [job.at for job in open_source(path, until=1.0, speedup=2.0)] == [0.0, 0.5, 1.0], "of the time simulated"


def test_until_before_the_first_arrival_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"--until is 4\.0, but the first job arrives only at 5") as caught:
        list(open_source(trace(tmp_path, "5,1,,a,b"), until=4.0))
    assert caught.value.line == 0


@pytest.mark.parametrize("until", [-1.0, nan, -inf])
def test_until_is_a_time(tmp_path: Path, until: float) -> None:
    with pytest.raises(TraceError, match="--until"):
        open_source(trace(tmp_path, GOOD), until=until)


@pytest.mark.parametrize("speedup", [0.0, -1.0, nan, inf, 1e10])
def test_speedup_is_above_zero(tmp_path: Path, speedup: float) -> None:
    with pytest.raises(TraceError, match="--speedup"):
        open_source(trace(tmp_path, GOOD), speedup=speedup)


def test_a_long_trace_is_not_held(tmp_path: Path) -> None:
    jobs = 30_000
    path = trace(tmp_path, *(f"{at},1,1,o{at % 50},p" for at in range(jobs)), name="t.csv.gz")
    source = open_source(path)
    tracemalloc.start()
    try:
        assert sum(1 for _ in source) == jobs
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 30 * jobs, "30 bytes a job would be a small part of holding it"


def test_several_traces_are_merged(tmp_path: Path) -> None:
    first = trace(tmp_path, "0,1,,a,b", "5,1,,a,b", name="1.csv")
    second = trace(tmp_path, "0,2,,c,d", "3,2,,a,b", name="2.csv")
    source = open_sources([first, second])
    assert source.name == "1.csv + 2.csv"
    assert [(job.at, job.path[0]) for job in source] == [(0.0, "a"), (0.0, "c"), (3.0, "a"), (5.0, "a")]
    assert source.demand() == Demand(jobs=4, worker_seconds=6.0, span=5.0, longest=2.0)


# --- the Standard Workload Format --------------------------------------------------------------------------


def test_swf_fields(tmp_path: Path) -> None:
    source = open_source(swf(tmp_path, "; comment", "", f"  {SWF_GOOD}  "))
    assert list(source) == [Arrival(0.0, 10.0, 20.0, ("g3", "u7"))]


def test_swf_unknown_values(tmp_path: Path) -> None:
    """-1 is unknown: no estimate, and a group and user of their own."""
    source = open_source(swf(tmp_path, "1 5 -1 10 1 -1 -1 1 -1 -1 1 -1 -1 -1 1 -1 -1 -1"))
    assert list(source) == [Arrival(5.0, 10.0, None, ("g-1", "u-1"))]


def test_swf_jobs_that_did_not_run_are_counted(tmp_path: Path) -> None:
    cancelled, unknown = SWF_GOOD.replace(" 10 ", " 0 "), SWF_GOOD.replace(" 10 ", " -1 ")
    source = open_source(swf(tmp_path, cancelled, SWF_GOOD, unknown))
    assert isinstance(source, SwfTrace)
    for _ in range(2):
        assert source.demand().jobs == len(list(source)) == 1
        assert source.left_out == 2, "anew in each reading"


def test_swf_requested_times_are_kept_in_range(tmp_path: Path) -> None:
    (job,) = open_source(swf(tmp_path, SWF_GOOD.replace(" 20 ", " 999999999999 ")))
    assert job.estimate == 1e8


@pytest.mark.parametrize(
    ("field", "text", "column"),
    [
        (2, "x", "submit time"),
        (2, "-1", "submit time"),
        (2, "nan", "submit time"),
        (4, "inf", "run time"),
        (9, "1e13", "requested time"),
        (12, "root", "user"),
        (12, "1.5", "user"),
        (13, "-inf", "group"),
        (13, "-1e300", "group"),
    ],
)
def test_swf_values_that_are_refused(tmp_path: Path, field: int, text: str, column: str) -> None:
    fields = SWF_GOOD.split()
    fields[field - 1] = text
    error = refusal(swf(tmp_path, "; header", SWF_GOOD, " ".join(fields)))
    assert (error.line, error.column, error.value) == (3, column, text)


def test_swf_rows_have_18_fields(tmp_path: Path) -> None:
    error = refusal(swf(tmp_path, ";", SWF_GOOD + " 1"))
    assert (error.line, error.value, error.rule) == (2, "19 fields", "a job has 18")


def test_swf_times_rise(tmp_path: Path) -> None:
    error = refusal(swf(tmp_path, SWF_GOOD.replace("1 0 ", "1 9 "), SWF_GOOD))
    assert (error.line, error.column, error.value) == (2, "submit time", 0.0)


def test_swf_without_a_job_that_ran(tmp_path: Path) -> None:
    assert "at least one job" in refusal(swf(tmp_path, "; only this")).rule


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "column", "value", "rule"),
    [
        ("x,1,1,acme,mail", "submit_s", "x", "a number"),
        (",1,1,acme,mail", "submit_s", "", "a number"),
        ("-1,1,1,acme,mail", "submit_s", "-1", "at least 0"),
        ("nan,1,1,acme,mail", "submit_s", "nan", "finite"),
        ("1e13,1,1,acme,mail", "submit_s", "1e13", "at most"),
        ("0,-2,1,acme,mail", "duration_s", "-2", "above 0"),
        ("0,0,1,acme,mail", "duration_s", "0", "above 0"),
        ("0,inf,1,acme,mail", "duration_s", "inf", "finite"),
        ("0,1e999,1,acme,mail", "duration_s", "1e999", "finite"),
        ("0,,1,acme,mail", "duration_s", "", "a number"),
        ("0,1,0,acme,mail", "estimate_s", "0", "at least"),
        ("0,1,-1,acme,mail", "estimate_s", "-1", "at least"),
        ("0,1,1e9,acme,mail", "estimate_s", "1e9", "at most"),
        ("0,1,later,acme,mail", "estimate_s", "later", "a number"),
        ("0,1,1,ac me,mail", "org", "ac me", "letters"),
        ("0,1,1,,mail", "org", "", "letters"),
        ("0,1,1,acme,", "project", "", "letters"),
        ("0,1,1,acme,globex/mail", "project", "globex/mail", "letters"),
        ("0,1,1,acme,müll", "project", "müll", "letters"),
        (f"0,1,1,acme,{'x' * 129}", "project", "x" * 129, "1 to 128"),
        ("0,1,1,acme", "", "4 fields", "5"),
        ("0,1,1,acme,mail,more", "", "6 fields", "5"),
        ('0,1,1,acme,"mail', "", '0,1,1,acme,"mail', "quotes"),
    ],
)
def test_a_row_that_is_refused(tmp_path: Path, row: str, column: str, value: str, rule: str) -> None:
    error = refusal(trace(tmp_path, GOOD, GOOD, row, GOOD))
    assert (error.line, error.column, error.value) == (4, column, value)
    assert rule in error.rule


def test_what_precedes_a_bad_row_is_yielded(tmp_path: Path) -> None:
    stream = iter(open_source(trace(tmp_path, GOOD, "x")))
    assert next(stream).at == 0.0
    with pytest.raises(TraceError):
        next(stream)


def test_times_do_not_go_back(tmp_path: Path) -> None:
    error = refusal(trace(tmp_path, "1,1,,a,b", "1,1,,a,b", "1000000.25,1,,a,b", "1000000,1,,a,b"))
    assert (error.line, error.column, error.value) == (5, "submit_s", 1000000.0)
    assert error.rule.endswith("from 1000000.25")


@pytest.mark.parametrize("column", ["submit_s", "duration_s", "org", "project"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    error = refusal(trace(tmp_path, GOOD, header=HEADER.replace(column, "other")))
    assert (error.line, error.column) == (1, column)
    assert "other" in str(error.value)


def test_all_missing_columns_are_named(tmp_path: Path) -> None:
    error = refusal(trace(tmp_path, GOOD, header="a;b;c"))
    assert error.column == "submit_s, duration_s, org, project"


def test_a_column_named_twice(tmp_path: Path) -> None:
    error = refusal(trace(tmp_path, "0,1,1,acme,mail,acme", header=HEADER + ",org"))
    assert (error.line, error.column) == (1, "org")


def test_an_empty_file(tmp_path: Path) -> None:
    assert refusal(write(tmp_path / "t.csv", "")).value == "an empty file"


def test_no_jobs(tmp_path: Path) -> None:
    assert "at least one job" in refusal(trace(tmp_path)).rule


def test_a_long_line_is_not_read_whole(tmp_path: Path) -> None:
    error = refusal(trace(tmp_path, GOOD, "0" * (LINE_LIMIT + 1)))
    assert (error.line, len(str(error.value))) == (3, 40)
    assert str(LINE_LIMIT) in error.rule


def test_a_file_without_line_ends_is_not_read_whole(tmp_path: Path) -> None:
    """As a gzip file of some kilobytes that unpacks to gigabytes would be."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"0" * 20_000_000, mtime=0))
    tracemalloc.start()
    try:
        error = refusal(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert error.line == 1
    assert peak < 2_000_000


def test_a_row_ends_with_its_line(tmp_path: Path) -> None:
    """Else one open quote gathers all that follows."""
    assert refusal(trace(tmp_path, GOOD, '0,1,1,acme,"', '","', '","')).line == 3


@pytest.mark.parametrize("good", [0, 1, 3000])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_line_that_is_not_utf8(tmp_path: Path, good: int, suffix: str) -> None:
    data = "\n".join([HEADER, *[GOOD] * good]).encode() + b"\n0,1,1,ac\xffme,mail\n" + GOOD.encode() * 5
    path = tmp_path / f"t.csv{suffix}"
    path.write_bytes(gzip.compress(data) if suffix else data)
    error = refusal(path)
    assert error.line == good + 2
    assert isinstance(error.value, bytes)
    assert error.value.startswith(b"\xffme,")


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def _damage(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(255 - byte for byte in data[middle : middle + 40]) + data[middle + 40 :]


def _wrong_sum(data: bytes) -> bytes:
    return data[:-8] + bytes(255 - byte for byte in data[-8:-4]) + data[-4:]


@pytest.mark.parametrize("breakage", [_cut, _damage, _wrong_sum, gzip.decompress], ids=lambda f: f.__name__)
@pytest.mark.parametrize("kind", [csv_text, swf_text])
def test_a_broken_gzip_file(
    tmp_path: Path, breakage: Callable[[bytes], bytes], kind: Callable[[list[Arrival]], str]
) -> None:
    path = write(tmp_path / f"t.{kind.__name__[:3]}.gz", kind(arrivals(jobs=2000)))
    path.write_bytes(breakage(path.read_bytes()))
    error = refusal(path)
    assert error.line >= 1


def test_a_gzip_file_cut_off_within_its_header(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", csv_text(arrivals()))
    path.write_bytes(path.read_bytes()[:5])
    assert "cut off" in refusal(path).rule


def test_a_gzip_file_whose_stream_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv.gz", csv_text(arrivals()))
    data = path.read_bytes()
    path.write_bytes(data[:10] + b"\xff" + data[11:])  # there is no such kind of block
    assert "broken" in refusal(path).rule


def test_gzip_without_the_suffix(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(gzip.compress(csv_text(arrivals()).encode()))
    assert "UTF-8" in refusal(path).rule


def test_no_such_file(tmp_path: Path) -> None:
    assert refusal(tmp_path / "nothing.csv").rule == "there is no such file"


def test_a_directory(tmp_path: Path) -> None:
    (tmp_path / "t.csv").mkdir()
    assert "regular file" in refusal(tmp_path / "t.csv").rule


def test_a_pipe(tmp_path: Path) -> None:
    """It could be read once only; opening it would wait for ever."""
    os.mkfifo(tmp_path / "t.csv")
    assert "regular file" in refusal(tmp_path / "t.csv").rule


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    path = trace(tmp_path, GOOD)
    source = open_source(path)
    Path(path).unlink()
    with pytest.raises(TraceError, match="No such file"):
        list(source)


@pytest.mark.parametrize("name", ["t.txt", "t", "t.gz", "csv", "t.toml.gz", "t.csv.bz2", ""])
def test_an_unknown_kind_of_file(tmp_path: Path, name: str) -> None:
    assert ".csv or .swf" in refusal(tmp_path / name if name else tmp_path).rule
