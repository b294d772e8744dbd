"""``drr usage``: what an organisation's jobs took, and who paid for it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer
from rich.table import Table

from drr.backend import Usage, UsageKey
from drr.cli.fields import DEFAULT_URL, Namespace, StoreOption
from drr.cli.moments import read_since, read_time
from drr.cli.runtime import run
from drr.cli.submit import PATIENCE
from drr.cli.tables import show_table
from drr.client import Client


class By(StrEnum):
    """What usage is added up by."""

    PROJECT = "project"
    POOL = "pool"
    HOUR = "hour"
    DAY = "day"


_NAMES: dict[By, Callable[[UsageKey], str]] = {
    By.PROJECT: lambda key: "/".join(key.path),
    By.POOL: lambda key: key.pool,
    By.HOUR: lambda key: datetime.fromtimestamp(key.hour * 3600, UTC).strftime("%Y-%m-%d %H:00Z"),
    By.DAY: lambda key: datetime.fromtimestamp(key.hour * 3600, UTC).strftime("%Y-%m-%d"),
}


def usage(
    org: Annotated[str, typer.Option("--org", metavar="NAME", help="Organisation.")],
    since: Annotated[
        str, typer.Option(metavar="TIME", help="From when on: 24h, 7d, 2026-11-01, Unix seconds.")
    ] = "24h",
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Until when; by default now.")] = None,
    by: Annotated[By, typer.Option(help="What to add up by.")] = By.PROJECT,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Show an organisation's account: attempts by how they ended, and worker-seconds.

    Held is what workers spent on it, charged what it was charged for, refunded what the platform took upon itself
    (attempts lost with a worker for the first time, or handed back). Attempts count in the hour in which they
    ended, in UTC; accounts are kept for 400 days.
    """
    begin = read_since("--since", since)
    end = None if until is None else read_time("--until", until)

    async def read() -> dict[UsageKey, Usage]:
        async with Client(url, namespace=namespace, patience=PATIENCE) as client:
            return await client.usage(org, since=begin, until=end)

    rows = add_up(run(read), by)
    total = Usage.sum(rows.values())
    if as_json:
        found = {"organisation": org, "by": by.value, "rows": {name: plain(row) for name, row in rows.items()}}
        typer.echo(json.dumps({**found, "total": plain(total)}))
        return
    table = Table(box=None, pad_edge=False)
    table.add_column(by.value)
    for column in (*Usage._fields[:7], "held", "charged", "refunded"):
        table.add_column(column.replace("_", " "), justify="right")
    for name, row in (*rows.items(), ("total", total)):
        table.add_row(name, *(str(count) for count in row[:7]), *(f"{seconds:.3f}" for seconds in row[7:]))
    show_table(table)


def add_up(found: Mapping[UsageKey, Usage], by: By) -> dict[str, Usage]:
    """Return the accounts added up by project, pool, hour or day, in order of the names."""
    rows: dict[str, Usage] = {}
    for key, row in found.items():
        name = _NAMES[by](key)
        rows[name] = rows.get(name, Usage()).plus(row)
    return dict(sorted(rows.items()))


def plain(row: Usage) -> dict[str, float]:
    """Return an account as plain data."""
    counts = dict(zip(Usage._fields[:7], row[:7], strict=True))
    return {"attempts": row.attempts, **counts, **{name: round(getattr(row, name), 6) for name in Usage._fields[7:]}}
