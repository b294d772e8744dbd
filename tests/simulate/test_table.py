"""A run on a terminal: policies side by side, tenants, changes; plain lines where nobody has a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from drr.simulate.results import Run
from drr.simulate.table import (
    CHANGE_COLUMNS,
    TENANT_COLUMNS,
    change_row,
    print_changes,
    print_run,
    summary,
    tenant_row,
)
from drr.simulate.whatif import compare
from tests.simulate.samples import policy, run, tenant


def plain(width: int = 160) -> Console:
    return Console(file=io.StringIO(), width=width, highlight=False)


def said(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines: list[str], first: str) -> list[str]:
    """Return the cells of the line that begins with ``first``."""
    (found,) = [line for line in lines if line.startswith(first + "  ")]
    return found.removeprefix(first).split()


def test_policies_stand_side_by_side() -> None:
    console = plain()
    print_run(console, run("drr", "fifo"))
    lines = said(console)
    assert lines[0] == "trace tuesday.csv.gz   42 workers"
    assert "2,480 dispatches a second" in lines[1]
    assert lines[2].split() == ["drr", "fifo"]
    assert row(lines, "jobs") == ["1,234", "1,234"]
    assert row(lines, "utilisation") == ["90.0%", "90.0%"]
    assert row(lines, "wait p95") == ["5.0", "s", "5.0", "s"]
    assert row(lines, "worst tenant's p99") == ["3.0", "s", "30.0", "s"]
    assert row(lines, "longest run of one tenant") == ["7", "7"]
    assert row(lines, "drift / bound") == ["0.250", "0.250"]
    assert len(lines) == 3 + len(summary(run("drr")))


def test_tenants_are_shown_with_their_projects_when_asked_for() -> None:
    console = plain()
    print_run(console, run("drr"), tenants=True)
    lines = said(console)
    assert "policy drr" in lines
    acme, globex = (next(i for i, line in enumerate(lines) if line.startswith(who)) for who in ("acme", "globex"))
    assert acme < globex, "the one with more worker-seconds first"
    assert lines[acme + 1].startswith("  p01")
    assert lines[acme].split()[1:3] == ["100", "1,000"]


def test_rows_have_a_cell_for_each_column() -> None:
    made = tenant(("acme",))
    assert len(tenant_row(made)) == len(TENANT_COLUMNS) - 1
    (change,) = compare(policy("a", [made]), policy("b", [made]))
    assert len(change_row(change)) == len(CHANGE_COLUMNS) - 1


def test_a_tenant_that_never_waited_has_no_share() -> None:
    assert tenant_row(tenant(("acme",), backlogged=0.0))[6:8] == ["-", "-"]
    assert tenant_row(tenant(("acme",)))[6:8] == ["50.0%", "50.0%"]


def test_who_gains_and_who_loses() -> None:
    before = policy("today.toml", [tenant(("acme",), p99=100.0), tenant(("globex",), p99=10.0)])
    after = policy("new.toml", [tenant(("acme",), p99=5.0), tenant(("globex",), p99=20.0)])
    console = plain()
    print_changes(console, before.name, after.name, compare(before, after))
    lines = said(console)
    assert lines[0] == "from today.toml to new.toml"
    assert lines[1] == "1 gain, 1 lose, 0 see no change"
    assert lines[3].startswith("acme")
    assert lines[3].endswith("gains")
    assert "-1 min 35 s" in lines[3]
    assert lines[4].startswith("globex")
    assert lines[4].endswith("loses")


def test_long_lists_say_what_is_left_out() -> None:
    many = run("a", "b", organisations=[f"o{number:03d}" for number in range(60)])
    console = plain()
    print_run(console, many, tenants=True)
    print_changes(console, "a", "b", compare(*many.policies.values()))
    lines = said(console)
    assert lines.count("... and 10 more organisations; all of them: --json") == 2
    assert "... and 10 more tenants; all of them: --json" in lines


def test_names_are_text_whatever_they_look_like() -> None:
    """Markup of the terminal in a name, or an escape sequence, is shown, not obeyed."""
    name = "[red]x[/red]\x1b[31m"
    console = Console(file=io.StringIO(), width=160, force_terminal=True, color_system=None, highlight=False)
    print_run(console, run("drr", organisations=[name]), tenants=True)
    text = "\n".join(said(console))
    assert "[red]x[/red]" in text
    assert "\x1b[31m" not in text


def test_without_a_terminal_nothing_but_text_is_written() -> None:
    console = plain()
    print_run(console, run("drr", "fifo"), tenants=True)
    text = "\n".join(said(console))
    assert text.isascii()
    assert "\x1b" not in text


def test_an_empty_run_is_shown() -> None:
    console = plain()
    print_run(console, Run("t", 1, {"drr": policy("drr", [])}), tenants=True)
    assert row(said(console), "worst tenant's p99") == ["-"]


def test_a_narrow_terminal_does_without_some_columns_and_says_so() -> None:
    wide, narrow = plain(160), plain(72)
    for console in (wide, narrow):
        made = run("today", "proposed")
        print_run(console, made, tenants=True)
        print_changes(console, "today", "proposed", compare(*made.policies.values()))
    assert all(len(line) <= 72 for line in said(narrow))
    assert not any("…" in line for line in said(narrow)), "no cell is cut"
    assert any(line.startswith("(on a wider terminal, or with --json: jobs, ") for line in said(narrow))
    assert not any("wider terminal" in line for line in said(wide))
    (columns,) = [line.split() for line in said(narrow) if line.startswith("tenant") and "p99 before" in line]
    assert columns[0] == "tenant"


def test_four_policies_fit_into_eighty_columns() -> None:
    console = plain(80)
    print_run(console, run("drr", "fifo", "round-robin", "least-recently-served"))
    assert all(len(line) <= 80 for line in said(console))
    assert row(said(console), "longest run of one tenant") == ["7"] * 4
    assert "least-re…ved" in said(console)[2]
