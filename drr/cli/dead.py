"""``drr dead``: jobs that were given up, and what may be done with them."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from drr.backend import DeadLetter, DeathCause
from drr.cli.fields import DEFAULT_URL, Namespace, StoreOption
from drr.cli.jobs import shown
from drr.cli.runtime import run
from drr.cli.submit import PATIENCE
from drr.cli.tables import show_table
from drr.client import Client
from drr.client.operations import check_cause
from drr.clock import SystemClock
from drr.errors import InvalidValue, MalformedMessage
from drr.payload import unpack_arguments

dead = typer.Typer(help="Jobs that were given up: look at them, queue them again, delete them.", no_args_is_help=True)

Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="ORG[/PROJECT]", help="Of this organisation or project only.")
]
Cause = Annotated[str | None, typer.Option(metavar="CAUSE", help=f"One of {', '.join(DeathCause)}.")]
Numbers = Annotated[list[int] | None, typer.Argument(metavar="NUMBER...", help="Numbers of dead letters.")]
All = Annotated[bool, typer.Option("--all", help="All that --tenant and --cause leave.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@dead.command("list")
def list_dead(
    tenant: Tenant = None,
    cause: Cause = None,
    limit: Annotated[int, typer.Option(help="Most to show.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per letter.")] = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """List dead letters, oldest first."""
    if limit < 1:
        raise InvalidValue("--limit", limit, "it must be at least 1")
    found = run(lambda: _letters(url, namespace, tenant, cause, limit))
    if as_json:
        for letter in found:
            typer.echo(json.dumps(plain(letter)))
        return
    table = Table(box=None, pad_edge=False)
    for column in ("number", "when", "job", "task", "cause", "reason"):
        table.add_column(column)
    for letter in found:
        header = letter.header
        job, task = (header.job_id, header.task) if header is not None else (f"in {letter.lane}", "")
        table.add_row(str(letter.number), shown(letter.buried_at), job, task, letter.cause.value, letter.reason)
    show_table(table)


@dead.command()
def show(
    number: Annotated[int, typer.Argument(help="Number of a dead letter.")],
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Show one dead letter with its arguments, as JSON."""

    async def read() -> DeadLetter:
        async with Client(url, namespace=namespace, patience=PATIENCE) as client:
            return await client.letter(number)

    letter = run(read)
    shown_letter = plain(letter)
    try:
        args, kwargs = unpack_arguments(letter.payload)
        shown_letter |= {"args": args, "kwargs": kwargs}
    except MalformedMessage:
        shown_letter["payload"] = letter.payload[:4096].decode("utf-8", "backslashreplace")
    typer.echo(json.dumps(shown_letter, default=lambda value: value.decode("utf-8", "backslashreplace"), indent=2))


@dead.command()
def requeue(
    numbers: Numbers = None,
    tenant: Tenant = None,
    cause: Cause = None,
    every: All = False,
    yes: Yes = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Queue dead jobs again, in front, as if they had never been tried. A dispatcher carries it out."""
    typer.echo(
        run(lambda: _act(url, namespace, _chosen(numbers, every, tenant, cause), tenant, cause, purge=False, yes=yes))
    )


@dead.command()
def purge(
    numbers: Numbers = None,
    tenant: Tenant = None,
    cause: Cause = None,
    every: All = False,
    yes: Yes = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Delete dead letters for good."""
    typer.echo(
        run(lambda: _act(url, namespace, _chosen(numbers, every, tenant, cause), tenant, cause, purge=True, yes=yes))
    )


def plain(letter: DeadLetter) -> dict[str, Any]:
    """Return a dead letter as plain data, without its payload."""
    header = letter.header
    return {
        "number": letter.number,
        "at": round(letter.buried_at, 3),
        "tenant": "/".join(letter.lane.path),
        "job": header.job_id if header is not None else None,
        "task": header.task if header is not None else None,
        "attempts": header.attempts + 1 if header is not None else None,
        "cause": letter.cause.value,
        "reason": letter.reason,
    }


def _chosen(numbers: list[int] | None, every: bool, tenant: str | None, cause: str | None) -> list[int]:
    if bool(numbers) == every:
        raise InvalidValue("NUMBER", numbers or [], "give numbers of dead letters, or --all")
    for option, value in (("--tenant", tenant), ("--cause", cause)):
        if numbers and value is not None:
            raise InvalidValue(option, value, "it goes with --all; numbers say already which letters are meant")
    return numbers or []


async def _letters(
    url: str, namespace: str, tenant: str | None, cause: str | None, limit: int | None
) -> list[DeadLetter]:
    wanted = None if cause is None else check_cause(cause)
    found: list[DeadLetter] = []
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        async for letter in client.dead(tenant, cause=wanted):
            found.append(letter)
            if len(found) == limit:
                break
    return found


async def _act(
    url: str, namespace: str, numbers: list[int], tenant: str | None, cause: str | None, *, purge: bool, yes: bool
) -> int:
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        if not numbers:
            late, now = 0, SystemClock().wall()
            async for letter in client.dead(tenant, cause=cause):
                if not purge and letter.expired(now):
                    late += 1
                else:
                    numbers.append(letter.number)
            if late:
                typer.echo(f"{late} left out: their deadline is over, so they would expire at once", err=True)
            what = "Delete" if purge else "Queue"
            if numbers and not yes:
                typer.confirm(f"{what} {len(numbers)} dead jobs{'' if purge else ' again'}?", abort=True)
        if purge:
            return await client.purge_dead(numbers)
        return await client.requeue_dead(numbers)
