"""The figures of a run as a table, between two marks of a page of the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

BEGIN: Final = "<!-- figures: written by python -m chaos --write -->"
END: Final = "<!-- end of figures -->"
COLUMNS: Final = ("faults", "jobs", "lost", "lost_allowed", "duplicated_completions", "stale_writes")


def written(page: str, found: Mapping[str, Any]) -> str:
    """Return the page with the figures of a run in place of those that it has. Raises `ValueError` without marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(found, datetime.now(UTC))}\n{END}{after}"


def table(found: Mapping[str, Any], at: datetime) -> str:
    """Return a line on the whole run, and a table with a row for each fault and server."""
    takeover = found["takeover_p99_ms"]
    lines = [
        f"Run of {at:%d %B %Y}: {found['faults']:,} faults, {found['jobs']:,} jobs, {found['lost']:,} lost "
        f"(of {found['lost_allowed']:,} that might be), {found['duplicated_completions']} completions twice, "
        f"{found['stale_writes']} stale writes, {found['leaks']} leaks"
        + ("." if takeover is None else f"; 99 % of takeovers within {takeover:,} ms."),
        "",
        "| fault | server | faults | jobs | lost (allowed) | twice | stale | leaks | verdict, and what was counted |",
        "|---|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for fault, by_server in found["by_fault"].items():
        for server, result in by_server.items():
            lines.append(f"| {fault} | {server} | {_cells(result)} |")
    return "\n".join(lines) + "\n"


def _cells(result: Mapping[str, Any]) -> str:
    if "skipped" in result:
        return f"| | | | | | skipped: {result['skipped']}"
    faults, jobs, lost, allowed, twice, stale = (result[name] for name in COLUMNS)
    leaks = ", ".join(f"{count} {kind}" for kind, count in result["leaks"].items()) or "0"
    notes = ", ".join(_told(name, value) for name, value in result["notes"].items())
    verdict = "good" if result["good"] else "bad: " + "; ".join(result["problems"] or ["see the columns"])
    told = "; ".join(filter(None, (verdict, notes)))
    return f"{faults:,} | {jobs:,} | {lost} ({allowed}) | {twice} | {stale} | {leaks} | {told}"


def _told(name: str, value: float) -> str:
    if name.endswith("_s"):
        return f"{name.removesuffix('_s').replace('_', ' ')} {value:.2f} s"
    return f"{name.replace('_', ' ')} {value:,}"
