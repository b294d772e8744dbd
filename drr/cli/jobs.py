"""``drr jobs`` and ``drr cancel``: what jobs there are, and taking them back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.table import Table

from drr.backend import ITEM_LIMIT, Listed
from drr.cli.fields import DEFAULT_URL, Namespace, StoreOption
from drr.cli.runtime import run
from drr.cli.submit import PATIENCE
from drr.cli.tables import show_table
from drr.client import Client
from drr.client.operations import OPEN_STATES, check_state
from drr.errors import InvalidValue
from drr.model import JobState, check_path

TenantOption = Annotated[
    str, typer.Option("--tenant", metavar="ORG[/PROJECT]", help="Organisation, or one of its projects.")
]


def jobs(
    tenant: TenantOption,
    state: Annotated[str, typer.Option(metavar="STATE", help=f"One of {', '.join(JobState)}.")] = "queued",
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only jobs of this task.")] = None,
    limit: Annotated[int, typer.Option(help="Most jobs to show.")] = 100,
    cursor: Annotated[
        str, typer.Option(metavar="CURSOR", help="Go on where an earlier listing ended, which said it.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per job.")] = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """List a tenant's jobs in one state.

    Jobs that have ended are known as long as they are among the last 10,000 of their organisation, and for a
    week after its last one. If there are more than --limit, the last line on stderr says how to go on: a queue that
    moves meanwhile hides no job and shows none twice.
    """
    wanted = check_state(state)
    if limit < 1:
        raise InvalidValue("--limit", limit, "it must be at least 1")
    found, more = run(lambda: _listed(url, namespace, tenant, wanted, task, limit, cursor))
    if as_json:
        for job in found:
            typer.echo(json.dumps(plain(job)))
    else:
        show_table(_table(found))
    if more:
        typer.echo(f"there may be more: --cursor '{more}'", err=True)


def _table(found: Sequence[Listed]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in ("job", "task", "state", "attempt", "at", "seconds", "error"):
        table.add_column(column)
    for job in found:
        seconds = f"{job.seconds:.3f}" if job.state.final else ""
        table.add_row(job.job_id, job.task, job.state.value, str(job.attempt), shown(job.at), seconds, job.error)
    return table


async def _listed(
    url: str, namespace: str, tenant: str, state: JobState, task: str | None, limit: int, cursor: str
) -> tuple[list[Listed], str]:
    """Return the jobs and where to go on: no page looks at more than are still wanted, so none is passed over."""
    found: list[Listed] = []
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        while len(found) < limit:
            part = min(limit - len(found), ITEM_LIMIT)
            page = await client.jobs_page(tenant, state=state, task=task, limit=part, cursor=cursor)
            found += page.jobs
            cursor = page.cursor
            if not cursor:
                break
    return found, cursor


def plain(job: Listed) -> dict[str, Any]:
    """Return a listed job as plain data."""
    found: dict[str, Any] = {
        "job": job.job_id,
        "task": job.task,
        "state": job.state.value,
        "attempt": job.attempt,
        "at": round(job.at, 3),
    }
    if job.state.final:
        found |= {"seconds": round(job.seconds, 6), "error": job.error}
    return found


def shown(at: float) -> str:
    """Return a Unix time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def cancel(
    job_ids: Annotated[list[str] | None, typer.Argument(metavar="JOB...", help="Ids of jobs.")] = None,
    tenant: Annotated[
        str | None, typer.Option("--tenant", metavar="ORG[/PROJECT]", help="All jobs of this tenant, instead.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Of the tenant's jobs those of this task.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(metavar="STATE", help="Of the tenant's jobs those in this state; may be repeated."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before all jobs of a tenant are cancelled.")] = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Cancel jobs, in whatever state they are: what waits is never started, what runs is stopped.

    A dispatcher carries it out; until one is up the request waits in the store. Prints how many were asked for.
    """
    if bool(job_ids) == (tenant is not None):
        raise InvalidValue("JOB", job_ids or [], "give ids of jobs, or --tenant for all of a tenant's")
    if tenant is None:
        if task is not None or state:
            raise InvalidValue("--task", task, "it goes with --tenant")
        ids = job_ids or []
        run(lambda: _cancel(url, namespace, ids))
        typer.echo(len(ids))
        return
    check_path(tenant)
    states = [check_state(name) for name in state] if state else list(OPEN_STATES)
    if not yes:
        what = f"jobs of task {task}" if task else "jobs"
        typer.confirm(f"Cancel all {what} of {tenant} that are {', '.join(states)}?", abort=True)
    typer.echo(run(lambda: _cancel_all(url, namespace, tenant, task, states)))


async def _cancel(url: str, namespace: str, job_ids: list[str]) -> None:
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        await client.cancel(job_ids)


async def _cancel_all(url: str, namespace: str, tenant: str, task: str | None, states: list[JobState]) -> int:
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        return await client.cancel_all(tenant, task=task, states=states)
