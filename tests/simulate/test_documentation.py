"""docs/simulate.md and docs/traces.md: traces and scenarios can be read, and tables are what is printed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from drr.dispatcher.recording_rows import COLUMNS
from drr.plans import load_plans, read_plans
from drr.simulate.results import Run
from drr.simulate.run import Setup, simulate
from drr.simulate.table import TENANT_COLUMNS, print_changes, print_run, summary
from drr.simulate.trace import open_source
from drr.simulate.whatif import compare, side_by_side, to_json
from tests.docs.markdown import ROOT, blocks
from tests.simulate.samples import run

PAGE = ROOT / "docs" / "simulate.md"
TRACES = ROOT / "docs" / "traces.md"
TEXTS = [block.text for page in (PAGE, TRACES) for block in blocks(page) if block.language == "text"]


def shown(first: str) -> str:
    (text,) = [text for text in TEXTS if text.startswith(first)]
    return text


def printed(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


@pytest.fixture
def tuesday(tmp_path: Path) -> Path:
    rows = ["0,10,10,importer,nightly"] * 200 + [f"{at},1,1,shop,mail" for at in range(5, 300, 30)]
    path = tmp_path / "tuesday.csv"
    path.write_text("submit_s,duration_s,estimate_s,org,project\n" + "\n".join(rows) + "\n")
    return path


def simulated(path: Path, setup: Setup, *policies: str) -> Run:
    return simulate(open_source(str(path)), setup, policies or ["drr"])


def test_the_table_is_what_is_printed(tuesday: Path) -> None:
    console = Console(file=io.StringIO(), width=140, highlight=False)
    print_run(console, simulated(tuesday, Setup([(0.0, 4)]), "drr", "fifo"))
    lines = printed(console)
    for line in shown("trace tuesday.csv").splitlines():
        assert line in lines


def test_the_comparison_is_what_is_printed(tuesday: Path) -> None:
    today, proposed = load_plans(ROOT / "docs" / "examples" / "plans.toml"), read_plans("")
    runs = [simulated(tuesday, Setup([(0.0, 4)], plans.pool(), plans.policy)) for plans in (today, proposed)]
    both = side_by_side(runs[0], runs[1], ("today", "proposed"))
    changes = compare(both.policies["today"], both.policies["proposed"])
    console = Console(file=io.StringIO(), width=140, highlight=False)
    print_changes(console, "today", "proposed", changes)
    assert printed(console) == shown("from today").splitlines()
    assert [change["tenant"] for change in to_json(changes)] == ["importer", "shop"]


def test_the_trace_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(shown("submit_s"))
    assert [(job.at, job.estimate, "/".join(job.path)) for job in open_source(str(path))] == [
        (0.0, 9.0, "acme/imports"),
        (0.5, None, "globex/mail"),
    ]


def test_the_scenarios_can_be_simulated(tmp_path: Path) -> None:
    scenarios = [block.text for block in blocks(TRACES) if block.language == "toml"]
    assert scenarios
    for scenario in scenarios:
        path = tmp_path / "flood.toml"
        path.write_text(scenario)
        source = open_source(str(path), until=20.0)
        assert simulate(source, Setup(source.slots, until=20.0)).policies["drr"].starts > 0


def test_every_column_of_a_recording_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8") + TRACES.read_text(encoding="utf-8")
    assert [column for column in COLUMNS if f"`{column}`" not in text] == []


def test_every_figure_is_explained() -> None:
    """Each row of the table, each column of the tenants', and each key of the JSON."""
    text = PAGE.read_text(encoding="utf-8")
    named = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    for figure, _ in summary(run("drr")):
        assert figure in named or figure.startswith("wait "), figure
    for column in TENANT_COLUMNS[2:]:
        assert column in named or column in ("wait p50", "p95", "p99", "max"), column
    for key in run("drr").to_dict()["policies"]["drr"]:
        assert f"`{key}`" in text, key
