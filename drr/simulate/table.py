"""A run's results on a terminal: policies side by side, tenants, and who gains and loses; plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from rich.console import Console
from rich.table import Table
from rich.text import Text

from drr.simulate.results import PolicyResult, Run, TenantResult
from drr.simulate.text import change, count, duration, percent, points, printable, ratio, shorten
from drr.simulate.whatif import Change, Verdict, counted

Row: TypeAlias = tuple[str, list[str]]
"""Name of a figure, and what it is under each policy."""

Cells: TypeAlias = Sequence[Text | str]

_FIGURES: Final[Sequence[tuple[str, Callable[[PolicyResult], str]]]] = (
    ("jobs", lambda result: count(result.jobs)),
    ("makespan", lambda result: duration(result.makespan_s)),
    ("utilisation", lambda result: percent(result.utilisation)),
    ("wait p50", lambda result: duration(result.wait_s.p50)),
    ("wait p95", lambda result: duration(result.wait_s.p95)),
    ("wait p99", lambda result: duration(result.wait_s.p99)),
    ("wait max", lambda result: duration(result.wait_s.max)),
    ("small organisations' p95", lambda result: duration(result.small_orgs_p95_s)),
    ("worst organisation's p95", lambda result: duration(result.worst_org_p95_s)),
    ("worst tenant's p99", lambda result: duration(max((row.wait_s.p99 for row in result.tenants), default=None))),
    ("Jain's index of shares", lambda result: ratio(result.jain)),
    ("longest run of one tenant", lambda result: count(result.longest_run)),
    ("idle while jobs may start", lambda result: duration(result.idle_while_runnable_s)),
    ("drift / bound", lambda result: ratio(result.drift_over_bound)),
)
TENANT_COLUMNS: Final = (
    "tenant",
    "jobs",
    "worker-seconds",
    "wait p50",
    "p95",
    "p99",
    "max",
    "share",
    "entitled",
    "capped",
    "borrowing",
)
CHANGE_COLUMNS: Final = (
    "tenant",
    "jobs",
    "p50 before",
    "p50 after",
    "p99 before",
    "p99 after",
    "p99 change",
    "share before",
    "share after",
    "share change",
    "",
)
_TENANTS_DISPENSABLE: Final = ((6,), (10,), (2,), (9,), (3,), (7, 8))
_CHANGES_DISPENSABLE: Final = ((1,), (7, 8), (2, 3), (9,))
"""Columns that a narrow terminal does without: the first group first."""
_NARROW: Final = 100
"""Columns of a terminal on which names of policies are cut."""
_MOOD: Final = {Verdict.GAINS: "green", Verdict.LOSES: "red", Verdict.SAME: "dim"}
_LISTED: Final = 50
"""Organisations, or changes, on a terminal; all of them are in the JSON."""


def summary(run: Run) -> list[Row]:
    """Return the figures of a run as text, each for all policies."""
    return [(name, [shown(result) for result in run.policies.values()]) for name, shown in _FIGURES]


def tenant_row(row: TenantResult) -> list[str]:
    """Return a tenant's figures as text, in the order of `TENANT_COLUMNS`, without its name."""
    waited = row.backlogged_s > 0.0
    return [
        count(row.jobs),
        count(row.worker_seconds),
        duration(row.wait_s.p50),
        duration(row.wait_s.p95),
        duration(row.wait_s.p99),
        duration(row.wait_s.max),
        percent(row.share if waited else None),
        percent(row.entitled if waited else None),
        duration(row.capped_s),
        duration(row.borrowing_s),
    ]


def change_row(row: Change) -> list[str]:
    """Return what becomes of a tenant as text, in the order of `CHANGE_COLUMNS`, without its name."""
    return [
        count(row.jobs),
        duration(row.wait_p50.before),
        duration(row.wait_p50.after),
        duration(row.wait_p99.before),
        duration(row.wait_p99.after),
        change(row.wait_p99.change),
        percent(row.share.before),
        percent(row.share.after),
        points(row.share.change),
        str(row.verdict),
    ]


def print_run(console: Console, run: Run, *, tenants: bool = False) -> None:
    """Print the policies side by side, and with ``tenants`` who waited how long under each."""
    console.print(Text.assemble(("trace ", "dim"), (printable(run.trace), "bold"), f"   {run.workers:,} workers"))
    console.print(Text(f"simulated in {run.seconds:.1f} s, {run.dispatches_per_s:,.0f} dispatches a second", "dim"))
    names = [shorten(name, 12) for name in run.policies] if console.width < _NARROW else list(run.policies)
    rows: list[Cells] = [[name, *cells] for name, cells in summary(run)]
    _print_table(console, ["", *names], rows)
    if tenants:
        for name, result in run.policies.items():
            console.print()
            print_tenants(console, name, result)


def print_tenants(console: Console, policy: str, result: PolicyResult) -> None:
    """Print the organisations by worker-seconds, each with its projects."""
    organisations = sorted(
        (row for row in result.tenants if len(row.path) == 1), key=lambda row: (-row.worker_seconds, row.path)
    )
    below: dict[str, list[TenantResult]] = {}
    for row in result.tenants:
        if len(row.path) > 1:
            below.setdefault(row.path[0], []).append(row)
    console.print(Text.assemble(("policy ", "dim"), (printable(policy), "bold")))
    rows: list[Cells] = []
    for organisation in organisations[:_LISTED]:
        rows.append([Text(shorten(organisation.path[0]), "bold"), *tenant_row(organisation)])
        projects = sorted(below.get(organisation.path[0], ()), key=lambda row: row.path)
        rows.extend([Text("  " + shorten("/".join(row.path[1:]))), *tenant_row(row)] for row in projects)
    _print_table(console, TENANT_COLUMNS, rows, _TENANTS_DISPENSABLE)
    _print_rest(console, len(organisations), "organisations")


def print_changes(console: Console, before: str, after: str, changes: Sequence[Change]) -> None:
    """Print who gains and who loses, in the order of ``changes``."""
    counts = counted(changes)
    console.print(
        Text.assemble(("from ", "dim"), (printable(before), "bold"), (" to ", "dim"), (printable(after), "bold"))
    )
    console.print(
        Text(
            f"{counts[Verdict.GAINS]:,} gain, {counts[Verdict.LOSES]:,} lose, {counts[Verdict.SAME]:,} see no change"
        )
    )
    rows: list[Cells] = []
    for row in changes[:_LISTED]:
        *cells, verdict = change_row(row)
        rows.append([Text(shorten("/".join(row.path))), *cells, Text(verdict, _MOOD[row.verdict])])
    _print_table(console, CHANGE_COLUMNS, rows, _CHANGES_DISPENSABLE)
    _print_rest(console, len(changes), "tenants")


def _print_rest(console: Console, number: int, what: str) -> None:
    if number > _LISTED:
        console.print(Text(f"... and {number - _LISTED:,} more {what}; all of them: --json", "dim"))


def _print_table(
    console: Console, columns: Sequence[str], rows: Sequence[Cells], dispensable: Sequence[Sequence[int]] = ()
) -> None:
    """Print a table; a terminal that is too narrow does without some columns, rather than with half of each."""
    kept = list(range(len(columns)))
    table = _table(columns, rows, kept)
    for group in dispensable:
        wanted = console.measure(table, options=console.options.update(width=_ENDLESS)).maximum
        if wanted <= console.width:
            break
        kept = [column for column in kept if column not in group]
        table = _table(columns, rows, kept)
    console.print(table)
    if len(kept) < len(columns):
        left_out = ", ".join(columns[column] for column in range(len(columns)) if column not in kept)
        console.print(Text(f"(on a wider terminal, or with --json: {left_out})", "dim"))


_ENDLESS: Final = 10_000


def _table(columns: Sequence[str], rows: Sequence[Cells], kept: Sequence[int]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in kept:
        table.add_column(Text(shorten(columns[column])), justify="right" if column else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(row[column] for column in kept))
    return table
