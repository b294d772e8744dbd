"""What ``drr simulate`` prints and writes of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drr.cli.reports import check_page, show_comparison, show_run
from drr.errors import InvalidValue
from tests.simulate.samples import run


def test_a_table_or_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    made = run("drr", "fifo")
    show_run(made, tenants=False, as_json=False, page=None)
    assert "wait p99" in capsys.readouterr().out
    show_run(made, tenants=False, as_json=True, page=None)
    found = json.loads(capsys.readouterr().out)
    assert list(found["policies"]) == ["drr", "fifo"]
    assert "tenants" not in found["policies"]["drr"]
    show_run(made, tenants=True, as_json=True, page=None)
    rows = json.loads(capsys.readouterr().out)["policies"]["fifo"]["tenants"]
    assert [row["tenant"] for row in rows] == ["acme", "globex", "acme/p01", "globex/p01"]


def test_a_comparison_as_table_json_and_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, page = run("today.toml", "new.toml"), tmp_path / "report.html"
    show_comparison(made, "today.toml", "new.toml", tenants=False, as_json=False, page=page)
    text = capsys.readouterr().out
    assert "from today.toml to new.toml\n0 gain, 2 lose, 0 see no change\n" in text
    assert page.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    show_comparison(made, "today.toml", "new.toml", tenants=False, as_json=True, page=None)
    found = json.loads(capsys.readouterr().out)
    assert [change["tenant"] for change in found["changes"]] == ["globex", "acme"]
    show_comparison(made, "today.toml", "new.toml", tenants=True, as_json=True, page=None)
    found = json.loads(capsys.readouterr().out)
    assert {change["tenant"] for change in found["changes"]} == {"acme", "globex", "acme/p01", "globex/p01"}


def test_a_page_without_a_place_is_refused_at_once(tmp_path: Path) -> None:
    check_page(None)
    check_page(tmp_path / "report.html")
    with pytest.raises(InvalidValue, match="not a directory"):
        check_page(tmp_path)
    with pytest.raises(InvalidValue, match="its directory does not exist"):
        check_page(tmp_path / "missing" / "report.html")


def test_a_page_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValue, match="it must be writable: Is a directory"):
        show_run(run("drr"), tenants=False, as_json=True, page=tmp_path)
