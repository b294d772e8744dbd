"""What the commands are made of: help, entitlements, URLs, the tree that is drawn."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from drr.backend import LeaderRecord, WorkerRecord
from drr.cli import app
from drr.cli.entitlements import read_entitlements
from drr.cli.loading import load_worker
from drr.cli.runtime import process_name, run, shown_url, unless_stopped
from drr.cli.status import Report
from drr.cli.tree import print_report
from drr.core import is_compiled
from drr.dispatcher.options import package_version
from drr.dispatcher.status import BacklogStatus, LimitStatus, NodeStatus, PoolStatus, Status
from drr.errors import InvalidPolicy
from drr.model import NodePolicy, PoolPolicy, Quota, Settings, Share, check_name
from drr.worker import Worker
from tests.cli.command import drr

COMMANDS = ["serve", "init", "worker", "submit", "jobs", "cancel", "usage", "status", "health", "simulate", "demo"]


def test_every_command_is_known_here() -> None:
    found = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    assert found == COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command: str) -> None:
    done = drr(command, "--help")
    assert done.exit_code == 0
    assert re.search(rf"Examples:\n +drr {command}", done.stdout)


def test_help_tells_the_exit_codes() -> None:
    done = drr("--help")
    assert done.exit_code == 0
    text = " ".join(done.stdout.split())
    assert "Exit codes: 0 done; 1 a job failed" in text
    assert all(re.search(rf"^  {command} ", done.stdout, re.MULTILINE) for command in COMMANDS)


def test_version() -> None:
    done, core = drr("--version"), " (compiled core)" if is_compiled() else ""
    assert (done.exit_code, done.stdout) == (0, f"drr {package_version()}{core}\n")


def test_without_a_command_there_is_help() -> None:
    assert "Commands:" in drr().output


# --- entitlements -----------------------------------------------------------------------------------------


def test_options_make_whole_policies() -> None:
    found = read_entitlements(
        "default",
        {
            "weight": ["acme=2", "renders:acme=4"],
            "hard_cap": ["acme/imports=3", "acme=50%"],
            "soft_cap": ["acme=20%"],
            "floor": ["globex=1"],
            "ceiling": ["globex=7.5"],
        },
        {},
    )
    assert found.policies == {
        "default": {
            ("acme",): NodePolicy(2.0, soft_cap=Share(0.2), hard_cap=Share(0.5)),
            ("acme", "imports"): NodePolicy(hard_cap=3),
            ("globex",): NodePolicy(floor=1, ceiling=7.5),
        },
        "renders": {("acme",): NodePolicy(4.0)},
    }
    assert found.pools == {}


def test_options_of_pools() -> None:
    found = read_entitlements(
        "renders", {"weight": ["acme=2"]}, {"quantum": ["2", "mail=0.5"], "reserve": ["3"], "default_estimate": []}
    )
    assert found.pools == {"renders": PoolPolicy(quantum=2.0, reserve=3), "mail": PoolPolicy(quantum=0.5)}
    assert found.policies == {"renders": {("acme",): NodePolicy(2.0)}}


def test_a_refused_policy_names_its_node() -> None:
    with pytest.raises(InvalidPolicy, match="hard cap of acme/imports is 0") as caught:
        read_entitlements("default", {"hard_cap": ["acme/imports=0"]}, {})
    assert caught.value.value == 0


# --- workers ----------------------------------------------------------------------------------------------


def test_a_worker_of_the_current_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "found_jobs.py").write_text(
        "from drr.worker import Worker\nclass Here:\n    worker = Worker('redis://localhost', slots=7)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    found = load_worker("found_jobs:Here.worker")
    assert isinstance(found, Worker)
    assert found.slots == {"default": 7}


def test_options_win_over_what_a_worker_was_made_with() -> None:
    worker = Worker("redis://localhost", name="first", slots=7, lease=60.0)

    @worker.task()
    async def add() -> None: ...

    other = worker.with_options(pools={"renders": 2})
    assert (other.slots, other.name) == ({"renders": 2}, "first")
    assert other.tasks is worker.tasks
    assert worker.with_options(name="second").slots == {"default": 7}
    assert worker.with_options().name == "first"


# --- the process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://ada:secret@db:1/2", "redis://ada:***@db:1/2"),
        ("rediss://:secret@db/0?x=1", "rediss://:***@db/0?x=1"),
        ("unix:///run/server.sock", "unix:///run/server.sock"),
        (
            "redis+sentinel://me:secret@one,two:1/jobs?sentinel_password=secret&tls=yes&ssl_password=secret",
            "redis+sentinel://me:***@one,two:1/jobs?sentinel_password=***&tls=yes&ssl_password=***",
        ),
    ],
)
def test_a_shown_url_has_no_password(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def test_a_process_has_a_name_within_the_alphabet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "höst name" * 40)
    check_name("dispatcher", process_name())


def test_what_a_stoppable_function_raises_and_returns_comes_out_as_it_is() -> None:
    async def fails() -> None:
        raise ValueError("mine")

    async def works() -> int:
        return 3

    with pytest.raises(ValueError, match="mine"):
        run(lambda: unless_stopped(fails))
    assert run(lambda: unless_stopped(works)) == 3


# --- the tree ---------------------------------------------------------------------------------------------


def test_workers_whose_loop_was_blocked_are_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    records = (WorkerRecord("w1", "i1", {"default": 1}, blocks=3), WorkerRecord("w2", "i1", {"default": 1}))
    print_report(Report("drr", LeaderRecord(), False, None, None, records))
    [first, second] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("w")][-2:]
    assert re.fullmatch(r"w1 +1 default +0 +working, loop blocked 3x +\?", first.rstrip())
    assert re.fullmatch(r"w2 +1 default +0 +working +\?", second.rstrip())


def test_backlogs_stand_against_quotas_waits_against_targets_and_a_pool_without_workers_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def node(organisation: str, wait: float, target: float | None) -> NodeStatus:
        accounts = (0.0, 0.0, 0.0, 0, 0, 0.0)
        return NodeStatus(
            (organisation,), 1.0, 7, 0, *accounts, "under cap", "no workers", None, None, 0, wait, target
        )

    nodes = (node("acme", 12.0, 5.0), node("globex", 2.0, None))
    pool = PoolStatus("renders", 0, 0, 0, 0, 0, 14, 0, 2, 0.0, nodes, 0)
    status = Status(
        at=1.0,
        dispatcher="d1",
        version="1",
        leading_for=1.0,
        counters={},
        pools=(pool,),
        limits=(LimitStatus("db", 50, None, 7, 1200), LimitStatus("api", None, 2.5, 1, 0)),
        backlogs=(BacklogStatus("acme", 10_000, 12.5, 3), BacklogStatus("globex", 0, 0.0, 0)),
    )
    settings = Settings(quotas={("*",): Quota(jobs=10_000, worker_seconds=3_000_000.0)})
    print_report(Report("drr", LeaderRecord("t"), True, 0.1, status, (), settings))
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "pool renders no workers: its jobs wait, 14 queued, 2 projects with work" in lines
    assert "acme 1 7 0 +0.00 0.0% 12.0 s (of 5.0 s) under cap no workers" in lines
    assert "globex 1 7 0 +0.00 0.0% 2.0 s under cap no workers" in lines
    assert "db 7/50 1,200" in lines
    assert "api 1 0 2.5" in lines
    assert "acme 10,000 of 10,000 12.5 of 3,000,000.0 3" in lines
    assert not any(line.startswith("globex 0") for line in lines), "who has nothing waiting is left out"
