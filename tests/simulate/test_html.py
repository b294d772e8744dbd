"""The report: what stands on the page, for one policy, several, and before and after; and a browser that draws it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from drr.simulate.html import render_comparison, render_report
from drr.simulate.results import Run, Usage
from drr.simulate.whatif import compare
from tests.simulate.samples import policy, run
from tests.simulate.test_page import HOSTILE, Reader

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def comparison(made: Run) -> str:
    before, after = made.policies
    return render_comparison(made, before, after, compare(made.policies[before], made.policies[after]))


def headings(page: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", page)


def test_one_policy() -> None:
    page = render_report(run("drr"))
    assert headings(page) == [
        "The run",
        "Wait over time",
        "Shares over time",
        "Utilisation",
        "Organisations under drr",
    ]
    waits, shares, busy = Reader(page).figures
    assert [trace["name"] for trace in waits["data"]] == ["acme", "globex"]
    assert waits["data"][0]["y"] == [1.0, None, 1.0]
    assert [trace["y"] for trace in shares["data"]] == [[0.5, 0.0, 0.5]] * 2
    assert busy["data"][0]["y"] == [0.9] * 3


@pytest.mark.parametrize("policies", [("drr", "fifo"), ("drr", "fifo", "round-robin", "least-recently-served")])
def test_several_policies_side_by_side(policies: tuple[str, ...]) -> None:
    page = render_report(run(*policies))
    assert headings(page)[0] == "Side by side"
    assert headings(page)[-len(policies) :] == [f"Organisations under {name}" for name in policies]
    waits, _, busy, dots = Reader(page).figures
    assert [note["text"] for note in waits["layout"]["annotations"]] == [f"<b>{name}</b>" for name in policies]
    assert len(waits["data"]) == 2 * len(policies)
    assert [trace["name"] for trace in busy["data"]] == list(policies)
    assert [trace["name"] for trace in dots["data"][1:]] == list(policies)


def test_before_and_after() -> None:
    page = comparison(run("today.toml", "proposed.toml"))
    reader = Reader(page)
    assert headings(page)[:3] == ["Side by side", "p99 wait by tenant", "Who gains and who loses"]
    assert 'class="worse">loses<' in page
    assert reader.figures[0]["data"][1]["customdata"][0] == ["globex", "3.0 s"], "the largest change first"


def test_a_tenant_has_one_colour_in_all_charts() -> None:
    colours: dict[str, set[str]] = {}
    for figure in Reader(render_report(run("drr", "fifo"))).figures[:2]:
        for trace in figure["data"]:
            colours.setdefault(trace["name"], set()).add(trace["line"]["color"])
    assert {name: len(found) for name, found in colours.items()} == {"acme": 1, "globex": 1}


def test_many_tenants_are_the_largest_and_all_others() -> None:
    made = run("drr", "fifo", organisations=[f"o{number:04d}" for number in range(300)])
    waits, shares, _, dots = Reader(render_report(made)).figures
    names = list(dict.fromkeys(trace["name"] for trace in waits["data"]))
    assert names == [f"o{number:04d}" for number in range(10)] + ["290 others"]
    assert sum(trace["y"][0] for trace in shares["data"][:11]) == pytest.approx(1.0, abs=1e-3)
    assert waits["data"][10]["y"][0] == 1.0, "the mean of all the others"
    assert len(dots["layout"]["yaxis"]["ticktext"]) == 20


def test_where_nothing_ran_there_is_nothing() -> None:
    made = Run("t", 1, {"drr": policy("drr", [], [{}, {"a": Usage(0.0, 0, 0.0, 0.0)}])})
    waits, shares, _ = Reader(render_report(made)).figures
    assert waits["data"] == shares["data"] == []


def test_hostile_names_make_no_elements() -> None:
    hostile, harmless = ((run(who, "b", organisations=[who, "x"])) for who in (HOSTILE, "acme"))
    for render in (render_report, comparison):
        tags = [[tag for tag, _ in Reader(render(made)).elements] for made in (hostile, harmless)]
        assert tags[0] == tags[1]


def test_the_same_run_gives_the_same_page() -> None:
    assert render_report(run("drr", "fifo")) == render_report(run("drr", "fifo"))


@pytest.mark.processes
@pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")
def test_a_browser_draws_the_page_without_a_complaint(tmp_path: Path) -> None:
    made = run("drr", "fifo", organisations=["acme", "globex", HOSTILE])
    path = tmp_path / "report.html"
    path.write_text(comparison(made), encoding="utf-8")
    quiet = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
    done = subprocess.run(
        [
            str(BROWSER),
            *quiet.split(),
            "--disable-component-update",
            "--enable-logging=stderr",
            "--virtual-time-budget=5000",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert "CONSOLE" not in done.stderr, [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert 'data-drawn="4"' in done.stdout
    assert done.stdout.count('js-plotly-plot" style=') == 4
    assert "<img src=" not in done.stdout
