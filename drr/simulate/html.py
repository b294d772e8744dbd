"""The report of a run as one HTML page: the figures, charts over time for each policy, tenants before and after."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from drr.simulate.charts import (
    OTHERS_COLOUR,
    PALETTE,
    Dots,
    Line,
    Panel,
    fraction_lines,
    share_areas,
    wait_dots,
    wait_lines,
)
from drr.simulate.page import Cell, Chart, Listing, Part, render
from drr.simulate.results import PolicyResult, Run, TimeWindow, Usage
from drr.simulate.table import CHANGE_COLUMNS, TENANT_COLUMNS, change_row, summary, tenant_row
from drr.simulate.text import count, shorten
from drr.simulate.whatif import Change, Verdict, compare, counted

_TOP: Final = len(PALETTE)
"""Organisations that have a line of their own."""
_ROWS: Final = 20
"""Tenants in the comparison."""
_LISTED: Final = 100
"""Tenants in a table of the page; all of them are in the JSON."""
_WORDS: Final = {Verdict.GAINS: "gain", Verdict.LOSES: "lose", Verdict.SAME: "see no change"}
_MOOD: Final = {Verdict.GAINS: "better", Verdict.LOSES: "worse", Verdict.SAME: ""}


def render_report(run: Run) -> str:
    """Return the page for all policies of a run. Raises `ReportUnavailable` if the charting library is missing."""
    parts: list[Part] = [_summary(run), *_over_time(run)]
    if len(run.policies) > 1:
        parts.append(_dots(run, _moved_most(run), "Those whose p99 wait differs most, the largest difference first."))
    for name, result in run.policies.items():
        parts.append(_tenants(name, result))
    return render(f"Simulation of {run.trace}", _facts(run), parts)


def render_comparison(run: Run, before: str, after: str, changes: Sequence[Change]) -> str:
    """Return the page for what becomes of everybody from ``before`` to ``after``, two policies of the run.

    Raises `ReportUnavailable` if the charting library is missing.
    """
    counts = counted(changes)
    facts = [*_facts(run), ("from", before), ("to", after)]
    facts += [(word, count(counts[verdict])) for verdict, word in _WORDS.items()]
    paths = [change.path for change in changes[:_ROWS]]
    parts = [
        _summary(run),
        _dots(run, paths, "The largest change first: p99 wait of each tenant before and after."),
        _changes(changes),
        *_over_time(run),
    ]
    return render(f"What if: {run.trace}", facts, parts)


def _facts(run: Run) -> list[tuple[str, str]]:
    jobs = max((result.jobs for result in run.policies.values()), default=0)
    return [("workers", count(run.workers)), ("jobs", count(jobs))]


def _summary(run: Run) -> Listing:
    rows = [[name, *cells] for name, cells in summary(run)]
    note = (
        "Waits run from submission to start. Small organisations are those with at most ten jobs. "
        "Jain's index is 1 where shares are as the weights say. The drift between siblings is against the bound of "
        "the documentation: at most 1 where it was held."
    )
    return Listing("Side by side" if len(run.policies) > 1 else "The run", note, ["", *run.policies], rows)


def _over_time(run: Run) -> list[Part]:
    groups = _groups(run)
    waits, shares, busy = [], [], []
    for index, (policy, result) in enumerate(run.policies.items()):
        times = [(window.start + window.end) / 2 for window in result.windows]
        wholes = [sum(use.worker_seconds for use in window.usage.values()) for window in result.windows]
        wait_series, share_series = [], []
        for group in groups:
            used = [group.usage(window) for window in result.windows]
            wait = [use.wait_sum / use.starts if use.starts else None for use in used]
            share = [use.worker_seconds / whole if whole else None for use, whole in zip(used, wholes, strict=True)]
            wait_series.append(Line(group.name, group.colour, times, wait))
            share_series.append(Line(group.name, group.colour, times, share))
        waits.append(Panel(policy, wait_series))
        shares.append(Panel(policy, share_series))
        utilisation = [window.utilisation for window in result.windows]
        busy.append(Line(policy, PALETTE[index % len(PALETTE)], times, utilisation))
    who = "The organisations with most worker-seconds" + (", and all others together." if len(groups) > _TOP else ".")
    return [
        Chart("Wait over time", f"Mean wait of the jobs that started in each interval. {who}", wait_lines(waits)),
        Chart("Shares over time", f"Worker-seconds held in each interval. {who}", share_areas(shares)),
        Chart("Utilisation", "Slots that ran a job, of all slots.", fraction_lines(Panel("", busy), "slots busy")),
    ]


@dataclass(frozen=True, slots=True)
class _Group:
    """One organisation, or with ``left_out`` all that are not among those."""

    name: str
    colour: str
    left_out: frozenset[str] | None = None

    def usage(self, window: TimeWindow) -> Usage:
        if self.left_out is None:
            return window.usage.get(self.name, _UNUSED)
        parts = [use for name, use in window.usage.items() if name not in self.left_out]
        return Usage(
            sum(part.worker_seconds for part in parts),
            sum(part.starts for part in parts),
            sum(part.wait_sum for part in parts),
            max((part.wait_max for part in parts), default=0.0),
        )


_UNUSED: Final = Usage(0.0, 0, 0.0, 0.0)


def _groups(run: Run) -> list[_Group]:
    """Return what is drawn over time: the largest organisations, by what they used at most, and the rest in one."""
    used: dict[str, float] = {}
    for result in run.policies.values():
        for row in result.tenants:
            if len(row.path) == 1:
                used[row.path[0]] = max(used.get(row.path[0], 0.0), row.worker_seconds)
    top = sorted(used, key=lambda name: (-used[name], name))[:_TOP]
    groups = [_Group(name, colour) for name, colour in zip(top, PALETTE, strict=False)]
    if len(used) > len(top):
        groups.append(_Group(f"{len(used) - len(top):,} others", OTHERS_COLOUR, frozenset(top)))
    return groups


def _moved_most(run: Run) -> list[tuple[str, ...]]:
    first, *others = run.policies.values()
    sizes: dict[tuple[str, ...], float] = {}
    for other in others:
        for change in compare(first, other):
            sizes[change.path] = max(sizes.get(change.path, 0.0), change.size[0])
    return sorted(sizes, key=lambda path: (-sizes[path], path))[:_ROWS]


def _dots(run: Run, paths: Sequence[tuple[str, ...]], note: str) -> Chart:
    series = []
    for index, (name, result) in enumerate(run.policies.items()):
        waits = {row.path: row.wait_s.p99 for row in result.tenants}
        series.append(Dots(name, PALETTE[index % len(PALETTE)], [waits.get(path) for path in paths]))
    return Chart("p99 wait by tenant", note, wait_dots(["/".join(path) for path in paths], series))


def _tenants(policy: str, result: PolicyResult) -> Listing:
    rows = sorted((row for row in result.tenants if len(row.path) == 1), key=lambda row: -row.worker_seconds)
    note = "By worker-seconds. Share and entitled share are taken while the organisation had work waiting."
    if len(rows) > _LISTED:
        note += f" The first {_LISTED} of {count(len(rows))}."
    cells = [[shorten(row.path[0], 40), *tenant_row(row)] for row in rows[:_LISTED]]
    return Listing(f"Organisations under {policy}", note, TENANT_COLUMNS, cells)


def _changes(changes: Sequence[Change]) -> Listing:
    note = "Largest change first."
    if len(changes) > _LISTED:
        note += f" The first {_LISTED} of {count(len(changes))}."
    rows: list[Sequence[Cell | str]] = []
    for change in changes[:_LISTED]:
        mood = _MOOD[change.verdict]
        *cells, verdict = change_row(change)
        rows.append([shorten("/".join(change.path), 40), *cells, Cell(verdict, mood)])
    return Listing("Who gains and who loses", note, CHANGE_COLUMNS, rows)
