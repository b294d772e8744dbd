"""``drr simulate``: one trace or several, several policies, the same bytes twice, and input that is wrong."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from drr.simulate.policies import POLICIES
from tests.cli.command import drr, run
from tests.simulate.generate import arrivals, csv_text, swf_text, write

HEADER = "submit_s,duration_s,estimate_s,org,project\n"
KEYS = {"trace", "workers", "seconds", "dispatches_per_s", "policies"}
FIGURES = {
    "jobs", "makespan_s", "utilisation", "wait_s", "small_orgs_p95_s", "worst_org_p95_s", "jain", "longest_run",
    "idle_while_runnable_s", "drift_over_bound",
}  # fmt: skip
SCENARIO = """
workers = [{ at = 0, slots = 4 }, { at = 50, slots = 8 }]
faults = [{ at = 20, lose = 1 }]
[[tenants]]
organisation = "o"
organisations = 5
arrivals = { kind = "poisson", rate = 0.5, end = 100 }
durations = { kind = "lognormal", median = 2, sigma = 1 }
estimates = { kind = "factor", factor = 3 }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a trace in both formats and a scenario."""
    monkeypatch.chdir(tmp_path)
    jobs = arrivals(seed=3, jobs=150)
    write(tmp_path / "trace.csv", csv_text(jobs))
    write(tmp_path / "trace.csv.gz", csv_text(jobs))
    write(tmp_path / "trace.swf", swf_text(jobs))
    (tmp_path / "scenario.toml").write_text(SCENARIO)
    return tmp_path


def output(*arguments: str) -> dict[str, Any]:
    done = drr("simulate", *arguments, "--json")
    assert done.exit_code == 0, done.output
    assert done.stderr == "", "progress is for terminals"
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.usefixtures("folder")
def test_the_object_has_its_keys_and_every_policy() -> None:
    found = output(
        "trace.csv", "--load", "0.95", "--policy", "drr,fifo", "--policy", "round-robin,least-recently-served"
    )
    assert set(found) == KEYS
    assert list(found["policies"]) == list(POLICIES)
    for result in found["policies"].values():
        assert set(result) >= FIGURES
        assert set(result["wait_s"]) == {"p50", "p95", "p99", "max"}
        assert result["jobs"] == 150
        assert result["idle_while_runnable_s"] == 0.0
        assert "tenants" not in result
    assert found["seconds"] > 0
    assert found["dispatches_per_s"] > 0
    rows = output("trace.csv", "--workers", "3", "--tenants")["policies"]["drr"]["tenants"]
    assert sum(row["jobs"] for row in rows if "/" not in row["tenant"]) == 150


@pytest.mark.usefixtures("folder")
def test_the_same_seed_gives_the_same_bytes_and_another_does_not() -> None:
    """In processes of their own, since hashes of strings differ between them."""
    options = ("scenario.toml", "--policy", ",".join(POLICIES), "--tenants", "--json")
    one, same, other = (
        run("simulate", *options, "--seed", seed, PYTHONHASHSEED=hashes)
        for seed, hashes in (("7", "1"), ("7", "2"), ("8", "1"))
    )
    assert one.returncode == same.returncode == other.returncode == 0, one.stderr
    assert one.stdout == same.stdout
    assert one.stdout != other.stdout
    found = json.loads(one.stdout)
    assert (found["seconds"], found["dispatches_per_s"]) == (None, None), "what the machine does is not in it"


@pytest.mark.usefixtures("folder")
def test_packed_or_not_is_the_same_trace() -> None:
    plain, packed = (output(name, "--workers", "2", "--seed", "1") for name in ("trace.csv", "trace.csv.gz"))
    assert plain["policies"] == packed["policies"]
    log = output("trace.swf", "--workers", "2", "--seed", "1")
    assert log["policies"]["drr"]["jobs"] == 150


@pytest.mark.usefixtures("folder")
def test_several_traces_are_played_together() -> None:
    one = output("trace.csv", "--workers", "4")["policies"]["drr"]
    both = output("trace.csv", "scenario.toml", "--workers", "4")
    assert both["trace"] == "trace.csv + scenario.toml"
    assert both["policies"]["drr"]["jobs"] > one["jobs"]
    assert drr("simulate", "trace.csv", "trace.swf").exit_code == 2, "neither says how many workers there are"


@pytest.mark.usefixtures("folder")
def test_speedup_and_until() -> None:
    """Ten times faster, jobs wait; until half of the time, fewer arrive."""
    slow, fast = (output("trace.csv", "--workers", "4", "--speedup", speedup) for speedup in ("1", "10"))
    assert fast["policies"]["drr"]["wait_s"]["p50"] > slow["policies"]["drr"]["wait_s"]["p50"]
    assert output("trace.csv", "--workers", "4", "--until", "300")["policies"]["drr"]["jobs"] < 150


@pytest.mark.usefixtures("folder")
def test_a_table_is_printed_without_json() -> None:
    done = drr("simulate", "trace.csv", "--workers", "4", "--policy", "drr,fifo", "--tenants")
    assert done.exit_code == 0, done.output
    assert "round-robin" not in done.stdout
    for shown in ("drr", "fifo", "makespan", "o001"):
        assert shown in done.stdout


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("t.csv", b"", ("t.csv", "an empty file")),
        ("t.csv", HEADER.encode(), ("t.csv", "at least one job")),
        ("t.csv", b"submit_s,org\n0,a\n", ("t.csv, line 1", "duration_s", "project")),
        ("t.csv", HEADER.encode() + b"0,-1,,a,b\n", ("t.csv, line 2, column duration_s", "'-1'")),
        ("t.csv", HEADER.encode() + b"0,nan,,a,b\n", ("line 2, column duration_s", "'nan'", "finite")),
        ("t.csv", HEADER.encode() + b"5,1,,a,b\n4,1,,a,b\n", ("line 3, column submit_s", "4", "go back from 5")),
        ("t.csv", HEADER.encode() + b"0,1,,a,\xff\n", ("line 2", "UTF-8")),
        ("t.csv", HEADER.encode() + b"0,1,,a b,c\n", ("line 2, column org", "'a b'")),
        ("t.csv", HEADER.encode() + b"0,1e99,,a,b\n", ("line 2, column duration_s", "'1e99'")),
        ("t.csv.gz", gzip.compress((HEADER + "0,1,,a,b\n" * 9000).encode())[:-40], ("t.csv.gz", "cut off")),
        ("t.swf", b"1 0 0 x 1 -1 -1 1 9 -1 1 1 1 -1 1 -1 -1 -1\n", ("line 1, column run time", "'x'")),
        ("t.toml", b"workers = 2\n[[tenants]]\n", ("t.toml, tenants[0]",)),
        ("t.txt", b"x", ("t.txt", ".csv")),
    ],
)
def test_a_bad_trace_is_named_in_one_line(tmp_path: Path, name: str, content: bytes, said: tuple[str, ...]) -> None:
    """File, line, column and value; exit code 2, no traceback, nothing on stdout."""
    (tmp_path / name).write_bytes(content)
    done = drr("simulate", str(tmp_path / name), "--workers", "2")
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for part in said:
        assert part in done.stderr


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--workers or --load"),
        (("--workers", "0"), "workers"),
        (("--workers", "2", "--load", "0.9"), "either workers or a load"),
        (("--load", "nan"), "load"),
        (("--workers", "2", "--speedup", "0"), "--speedup"),
        (("--workers", "2", "--policy", "lifo"), "'lifo'"),
        (("--workers", "2", "--plans", "none.toml"), "none.toml"),
    ],
)
def test_an_option_that_is_wrong_is_named_in_one_line(options: tuple[str, ...], said: str) -> None:
    done = drr("simulate", "trace.csv", *options)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert said in done.stderr
