"""``drr simulate`` with plans: what they change, who gains and loses, the page, and files that are wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from drr.cli.exits import Exit
from tests.cli.command import drr

FAIR = "[pools.default]\nquantum = 10\n"
CAPPED = FAIR + '[plans.slow]\nhard_cap = 1\n[organisations.importer]\nplan = "slow"\n[pools.renders]\nquantum = 20\n'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a trace, ``today.toml`` and ``capped.toml``."""
    monkeypatch.chdir(tmp_path)
    rows = ["0,10,10,importer,nightly"] * 40 + [f"{at},1,1,shop,mail" for at in range(5, 100, 30)]
    Path("tuesday.csv").write_text("submit_s,duration_s,estimate_s,org,project\n" + "\n".join(rows) + "\n")
    Path("today.toml").write_text(FAIR)
    Path("capped.toml").write_text(CAPPED)
    return tmp_path


def figures(*options: str) -> dict[str, object]:
    done = drr("simulate", "tuesday.csv", "--workers", "4", "--seed", "1", "--json", *options)
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.stdout)["policies"]["drr"]
    return found


@pytest.mark.usefixtures("folder")
def test_plans_bind_the_simulation() -> None:
    assert figures()["makespan_s"] == 101.0, "404 worker-seconds on four slots"
    assert figures("--plans", "today.toml")["makespan_s"] == 101.0
    assert figures("--plans", "capped.toml")["makespan_s"] == 400.0, "one at a time"
    (importer,) = [
        row
        for row in figures("--plans", "capped.toml", "--tenants")["tenants"]  # type: ignore[attr-defined]
        if row["tenant"] == "importer"
    ]
    assert importer["capped_s"] == pytest.approx(390.0)


@pytest.mark.usefixtures("folder")
def test_who_gains_and_who_loses() -> None:
    options = ("tuesday.csv", "--workers", "4", "--plans", "today.toml", "--against", "capped.toml")
    done = drr("simulate", *options)
    assert done.exit_code == 0
    assert "from today to proposed\n1 gain, 1 lose, 0 see no change\n" in done.stdout
    done = drr("simulate", *options, "--json", "--seed", "1")
    assert done.stdout == drr("simulate", *options, "--json", "--seed", "1").stdout
    found = json.loads(done.stdout)
    assert list(found["policies"]) == ["today", "proposed"]
    assert [(change["tenant"], change["verdict"]) for change in found["changes"]] == [
        ("importer", "loses"),
        ("shop", "gains"),
    ]


def test_the_page(folder: Path) -> None:
    done = drr("simulate", "tuesday.csv", "--workers", "4", "--policy", "drr,fifo", "--html", "report.html")
    assert done.exit_code == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<title>Simulation of tuesday.csv</title>" in page
    assert "importer" in page
    options = ("--plans", "today.toml", "--against", "capped.toml", "--html", "report.html")
    assert drr("simulate", "tuesday.csv", "--workers", "4", *options).exit_code == 0
    assert "<title>What if: tuesday.csv</title>" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("folder")
def test_a_pool_has_terms_of_its_own() -> None:
    Path("pools.toml").write_text("[organisations.importer.pools.renders]\nhard_cap = 1\n[pools.renders]\n")
    assert figures("--plans", "pools.toml")["makespan_s"] == 101.0
    assert figures("--plans", "pools.toml", "--pool", "renders")["makespan_s"] == 400.0


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--plans", "missing.toml"),
            "the file is 'missing.toml', but it cannot be read: No such file",
        ),
        (("--plans", "wrong.toml"), "wrong.toml: plans.a.weight is 0, but it must be between 0.001"),
        (("--plans", "wrong.toml"), "wrong.toml: organisations.x.plan is 'b', but there is no such plan; known: a"),
        (("--plans", "torn.toml"), "torn.toml: line 2, column 3 is"),
        (("--plans", "today.toml", "--against", "wrong.toml"), "wrong.toml: plans.a.weight"),
        (("--against", "today.toml"), "give both"),
        (("--plans", "today.toml", "--against", "capped.toml", "--policy", "fifo"), "under drr"),
        (
            ("--plans", "capped.toml", "--pool", "render"),
            "--pool is 'render', but capped.toml has these: default, renders",
        ),
        (("--html", "missing/report.html"), "its directory does not exist"),
    ],
)
def test_what_is_wrong_is_named_in_one_line(options: tuple[str, ...], said: str) -> None:
    Path("wrong.toml").write_text('[plans.a]\nweight = 0\n[organisations.x]\nplan = "b"\n')
    Path("torn.toml").write_text("[plans.a]\nx y")
    done = drr("simulate", "tuesday.csv", "--workers", "4", *options)
    assert done.exit_code == 2
    assert done.stdout == ""
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.usefixtures("folder")
def test_a_page_without_its_library_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = drr("simulate", "tuesday.csv", "--workers", "4", "--html", "report.html")
    assert done.exit_code == Exit.USAGE
    assert done.stdout == ""
    assert "pip install 'drr-dispatcher[report]'" in done.stderr
