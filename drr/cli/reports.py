"""What ``drr simulate`` prints and writes: tables, one JSON object, a page of charts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import typer

from drr.cli.tree import make_console
from drr.errors import InvalidValue
from drr.simulate.html import render_comparison, render_report
from drr.simulate.page import check_library
from drr.simulate.results import Run
from drr.simulate.table import print_changes, print_run
from drr.simulate.whatif import Change, compare, to_json

_DEPTH = 2
"""Levels of tenants that ``--tenants`` compares: organisations and projects."""


def check_page(path: Path | None) -> None:
    """See, before hours of work, that a report can be made and has a place.

    Raises `ReportUnavailable` without the charting library and `InvalidValue` for a path that cannot be written.
    """
    if path is None:
        return
    check_library()
    if path.is_dir():
        raise InvalidValue("--html", str(path), "it must be a file, not a directory")
    if not path.parent.is_dir():
        raise InvalidValue("--html", str(path), "its directory does not exist")


def show_run(run: Run, *, tenants: bool, as_json: bool, page: Path | None, timing: bool = True) -> None:
    """Print a run's results, and write them to ``page`` if there is one."""
    if page is not None:
        _write(page, render_report(run))
    if as_json:
        typer.echo(run.to_json(tenants=tenants, timing=timing))
    else:
        print_run(make_console(), run, tenants=tenants)


def show_comparison(
    run: Run, before: str, after: str, *, tenants: bool, as_json: bool, page: Path | None, timing: bool = True
) -> None:
    """Print two results of ``run`` side by side, and who gains and loses between them; ``tenants``: projects too.

    The JSON is that of a run with ``changes``, largest first.
    """
    changes: Sequence[Change] = compare(run.policies[before], run.policies[after], depth=_DEPTH if tenants else 1)
    if page is not None:
        _write(page, render_comparison(run, before, after, changes))
    if as_json:
        found = run.to_dict(tenants=tenants, timing=timing)
        typer.echo(json.dumps({**found, "changes": to_json(changes)}, allow_nan=False))
        return
    console = make_console()
    print_run(console, run)
    console.print()
    print_changes(console, before, after, changes)


def _write(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidValue("--html", str(path), f"it must be writable: {error.strerror}") from None
