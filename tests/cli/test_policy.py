"""Plans, jobs, the dead and the account from the command line, on a real server with a dispatcher and a worker."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from drr.backend import ChangeRecord
from drr.cli.exits import Exit
from drr.cli.moments import read_deadline, read_since, read_time
from drr.dispatcher import Dispatcher
from drr.embedded import EmbeddedServer
from drr.errors import InvalidValue
from drr.plans import read_plans
from drr.worker import Tasks, Worker
from tests.cli.command import drr

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "plans.toml"


# --- plans without a store --------------------------------------------------------------------------------


def test_the_example_is_in_order() -> None:
    done = drr("plans", "check", str(EXAMPLE), "--strict", "--slots", "40")
    assert (done.exit_code, done.stderr) == (0, "")
    for words in ("free (default)", "acme (enterprise)", "postgres-main", "imports", "backlog jobs 20000"):
        assert words in done.stdout


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[plans.a]\nfloor = '60%'\n[organisations.x]\nplan='a'\n[organisations.y]\nplan='a'\n", "add up to 120%"),
        ("[plans.a]\n", "nobody is on this plan"),
        ("[organisations.x]\nfloor = 5\nhard_cap = '10%'\n", "is above its cap"),
        ("[pools.default]\nquantum = 1000\n", "1000 times the typical job"),
        ("[pools.default]\nquantum = 0.001\n", "of the typical job"),
        ("[plans.a]\n[organisations.x]\n", "it is on no plan"),
        ("[limits.db]\nconcurrency = 2\nper_project = 3\n", "more than there is for all"),
        ("[limits.db]\n", "it limits nothing"),
        ("[limits.db]\nper_organisation = 2\nper_project = 3\n", "3 per project is more than per organisation (2)"),
        ("default_plan = 'a'\n[plans.a]\nbacklog = 5\neach_project.backlog = 6\n", "6 per project is more than"),
    ],
)
def test_what_can_hardly_be_meant_is_doubted(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "plans.toml"
    file.write_text(text)
    done = drr("plans", "check", str(file), "--slots", "10")
    assert done.exit_code == 0
    assert words in done.stderr
    assert drr("plans", "check", str(file), "--slots", "10", "--strict").exit_code == Exit.FAILED
    found = json.loads(drr("plans", "check", str(file), "--slots", "10", "--json").stdout)
    assert any(words in warning["doubt"] for warning in found["warnings"])


def test_the_resolved_terms_are_data_under_the_keys_of_the_file() -> None:
    found = json.loads(drr("plans", "check", str(EXAMPLE), "--json").stdout)
    free, globex, hooli = found["plans"]["free"], found["organisations"]["globex"], found["organisations"]["hooli"]
    assert (found["default_plan"], free["weight"], free["hard_cap"], free["backlog"]) == ("free", 1, "25%", 20_000)
    assert free["retry"]["attempts"] == 3
    assert (globex["plan"], globex["weight"], globex["wait_target"]) == ("pro", 5, 60)
    assert (hooli["plan"], hooli["hard_cap"]) == ("free", None), "an organisation's own word comes before its plan's"
    assert set(found["pools"]) == {"default", "renders"}
    assert found["limits"]["postgres-main"]["concurrency"] > 0
    assert set(globex["projects"]) == set(read_plans(EXAMPLE.read_text()).projects("globex"))


def test_terms_of_single_pools_and_of_each_project_are_printed(tmp_path: Path) -> None:
    file = tmp_path / "[a].toml"
    file.write_text(
        "[organisations.x]\nhard_cap = 9\npools.renders.hard_cap = 1\neach_project.hard_cap = 4\n[pools.renders]\n"
    )
    said = drr("plans", "check", str(file)).stdout
    for words in ("[a].toml", "in pool renders: weight 1, hard cap 1", "each project: weight 1, hard cap 4"):
        assert words in said


def test_the_log_prints_what_people_wrote_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Store:
        async def changes(self, limit: int) -> list[ChangeRecord]:
            return [ChangeRecord(1.0, "", "[/red]", "plans p.toml", "it must be a table: [plans.a]")]

        async def close(self) -> None:
            pass

    monkeypatch.setattr("drr.cli.plans.open_backend", lambda *_, **__: Store())
    done = drr("plans", "log")
    assert done.exit_code == 0
    assert "[/red]" in done.stdout
    assert "it must be a table: [plans.a]" in done.stdout


def test_every_mistake_is_named_with_file_key_and_value(tmp_path: Path) -> None:
    file = tmp_path / "plans.toml"
    file.write_text(
        "[plans.free]\nbacklog = 0\nrate = 'fast'\nretry = {attempts = 0}\n[limits.db]\nconcurrency = -1\n"
    )
    done = drr("plans", "check", str(file))
    assert done.exit_code == Exit.USAGE
    for key in (
        "plans.free.backlog is 0",
        "plans.free.rate is 'fast'",
        "retry.attempts is 0",
        "limits.db.concurrency",
    ):
        assert key in done.stderr


# --- on a server ------------------------------------------------------------------------------------------


class Shop:
    """A dispatcher and a worker in a thread of their own."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self._ready, self._stop = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=anyio.run, args=(self._run,), daemon=True)

    async def _run(self) -> None:
        tasks = Tasks()

        @tasks.task("add")
        async def add(left: int, right: int) -> int:
            return left + right

        @tasks.task("fail")
        async def fail() -> None:
            raise RuntimeError("as told")

        async with Dispatcher(self.url, namespace=self.namespace) as dispatcher:
            await dispatcher.wait_leading()
            worker = Worker(self.url, namespace=self.namespace, slots=2, tasks=tasks)
            async with anyio.create_task_group() as group:
                group.start_soon(worker.run)
                self._ready.set()
                await anyio.to_thread.run_sync(self._stop.wait, abandon_on_cancel=True)
                worker.stop()

    def __enter__(self) -> Shop:
        self.thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self.thread.join(30)


@pytest.fixture
def shop(server: EmbeddedServer, fresh_namespace: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("DRR_URL", server.url)
    monkeypatch.setenv("DRR_NAMESPACE", fresh_namespace)
    with Shop(server.url, fresh_namespace) as made:
        yield made


def lines(*arguments: str) -> list[dict[str, Any]]:
    done = drr(*arguments, "--json")
    assert done.exit_code == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.redis
@pytest.mark.usefixtures("shop")
def test_plans_are_applied_assigned_logged_and_shown(tmp_path: Path) -> None:
    done = drr("plans", "apply", str(EXAMPLE), "--by", "ada")
    assert done.exit_code == 0, done.stderr
    assert drr("plans", "assign", "newco", "pro", "--by", "billing").exit_code == 0
    refused = drr("plans", "assign", "newco", "gold")
    assert refused.exit_code == Exit.FAILED
    assert "refused" in refused.stderr
    bad = tmp_path / "plans.toml"
    bad.write_text("[plans.free]\nweight = -1\n")
    assert drr("plans", "apply", str(bad)).exit_code == Exit.USAGE
    log = lines("plans", "log")
    assert [(line["by"], bool(line["refused"])) for line in log] == [("", True), ("billing", False), ("ada", False)]
    shown = drr("plans", "show").stdout
    assert "newco (pro)" in shown
    assert "acme (enterprise)" in shown


@pytest.mark.redis
@pytest.mark.usefixtures("shop")
def test_jobs_fail_are_buried_come_back_and_are_accounted_for() -> None:
    done = drr("submit", "add", "--org", "acme", "--project", "web", "--args", "[1, 2]", "--wait", "--id", "sum-1")
    assert json.loads(done.stdout)["result"] == 3
    failed = drr("submit", "fail", "--org", "acme", "--project", "web", "--attempts", "1", "--wait")
    assert failed.exit_code == Exit.FAILED
    [letter] = lines("dead", "list", "--tenant", "acme")
    assert (letter["cause"], letter["task"]) == ("failed", "fail")
    number = str(letter["number"])
    assert json.loads(drr("dead", "show", number).stdout)["args"] == []
    assert drr("dead", "requeue", number).stdout.strip() == "1"
    [ended] = lines("jobs", "--tenant", "acme/web", "--state", "succeeded")
    assert ended["task"] == "add"
    while not (again := lines("dead", "list")) or again[0]["number"] == letter["number"]:
        pass  # it fails again
    assert drr("dead", "purge", "--all", "--yes").stdout.strip() == "1"
    assert lines("dead", "list") == []
    for gone in (drr("dead", "show", number), drr("dead", "requeue", number)):
        assert gone.exit_code == Exit.FAILED
        assert f"there is no dead letter {number}" in gone.stderr
    [heading, row, total_row] = drr("usage", "--org", "acme").stdout.splitlines()
    assert (row.split()[0], total_row.split()[0], len(row.split())) == ("acme/web", "total", 11)
    assert "…" not in heading + row + total_row
    [account] = lines("usage", "--org", "acme")
    total = account["total"]
    assert (total["succeeded"], total["failed"], total["attempts"]) == (1, 2, 3)
    assert total["held"] == pytest.approx(total["charged"] + total["refunded"], abs=1e-6)


@pytest.mark.redis
@pytest.mark.usefixtures("shop")
def test_delayed_jobs_are_listed_and_cancelled() -> None:
    ids = drr("submit", "add", "--org", "acme", "--count", "3", "--delay", "3600").stdout.split()
    delayed = lines("jobs", "--tenant", "acme", "--state", "delayed")
    assert sorted(job["job"] for job in delayed) == sorted(ids)
    assert all(job_id in drr("jobs", "--tenant", "acme", "--state", "delayed").stdout for job_id in ids)
    assert drr("cancel", ids[0]).stdout.strip() == "1"
    while len(lines("jobs", "--tenant", "acme", "--state", "cancelled")) < 1:
        pass
    assert drr("cancel", "--tenant", "acme", "--yes").stdout.strip() == "2"
    assert drr("submit", "add", "--org", "acme", "--key", "k", "--delay", "60").stdout != ""
    while lines("jobs", "--tenant", "acme", "--state", "delayed", "--limit", "1")[0]["job"] in ids:
        pass


# --- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("jobs", "--tenant", "acme", "--state", "gone"),
        ("jobs", "--tenant", "a b"),
        ("jobs", "--tenant", "acme", "--limit", "0"),
        ("cancel",),
        ("cancel", "nonsense"),
        ("cancel", "x", "--tenant", "acme"),
        ("cancel", "default:a:b:5:1~n", "--task", "x"),
        ("cancel", "--tenant", "acme", "--state", "succeeded", "--yes"),
        ("dead", "list", "--cause", "sad"),
        ("dead", "requeue"),
        ("dead", "purge", "1", "--all"),
        ("dead", "requeue", "-1"),
        ("dead", "purge", "1", "--tenant", "acme"),
        ("dead", "requeue", "1", "--cause", "failed"),
        ("usage", "--org", "acme", "--since", "yesterday"),
        ("usage", "--org", "acme", "--since", "1h", "--until", "2020-01-01"),
        ("plans", "log", "--limit", "0"),
        ("plans", "check", "missing.toml"),
        ("submit", "add", "--org", "acme", "--at", "soon"),
        ("submit", "add", "--org", "acme", "--deadline", "+soon"),
        ("submit", "add", "--org", "acme", "--key", "a", "--id", "b"),
        ("submit", "add", "--org", "acme", "--attempts", "0"),
    ],
)
def test_mistakes_cost_one_line_and_exit_code_2(arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRR_URL", "memory://")
    done = drr(*arguments)
    assert done.exit_code == Exit.USAGE, done.stderr
    assert "Traceback" not in done.stderr


def test_times_are_read_as_they_are_typed() -> None:
    assert read_time("t", "1700000000.5") == 1700000000.5
    assert str(read_time("t", "2026-12-24T18:00:00")) == "2026-12-24 18:00:00+00:00"
    assert str(read_since("t", "90m")) == "1:30:00"
    assert str(read_deadline("t", "+15m")) == str(read_deadline("t", "+900")) == "0:15:00"
    for wrong in ("", "24 h", "2026-13-01"):
        with pytest.raises(InvalidValue):
            read_since("t", wrong)
