"""Tables for people and for pipes: as wide as what they hold, so that no figure or id is cut on a narrow terminal."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

WIDEST = 10_000


def show_table(table: Table) -> None:
    """Print a table at its natural width; a terminal that is narrower wraps its lines."""
    console = Console()
    room = console.options.update(max_width=WIDEST)
    console = Console(width=max(1, Measurement.get(console, room, table).maximum))
    with console.capture() as text:
        console.print(table)
    for line in text.get().splitlines():
        typer.echo(line.rstrip())
