"""``drr plans``: check a plans file, put it into force, and see what is."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer
from rich.console import Console
from rich.table import Table
from rich.tree import Tree

from drr.backend import Backend, ChangeRecord, Request, RequestKind, open_backend
from drr.cli.exits import Exit, complain
from drr.cli.fields import DEFAULT_URL, Namespace, StoreArgument, StoreOption
from drr.cli.jobs import shown
from drr.cli.planjson import plain
from drr.cli.runtime import run
from drr.cli.tree import PIPE_WIDTH
from drr.clock import SystemClock
from drr.errors import InvalidValue
from drr.model import ANY, NodePolicy, Quota, check_name
from drr.plans import DEFAULT_POOL, NO_PLANS, Plans, Terms, load_plans, read_plans, review

plans = typer.Typer(help="Billing plans: check a file, put it into force, see what is.", no_args_is_help=True)

ANSWER_WITHIN: Final = 10.0
"""Seconds to wait for a dispatcher to carry out what is asked."""
POLL: Final = 0.1

By = Annotated[str, typer.Option("--by", metavar="NAME", help="Who makes the change, for the log.")]


@plans.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plans file.")],
    slots: Annotated[int | None, typer.Option(metavar="N", help="Slots of a pool, to compare floors with.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 if there are warnings.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check a plans file without any store: print who gets what, and warn of what can hardly be meant.

    Every mistake is named with file, key, value and what would be right; the exit code is 2 then.
    """
    if slots is not None and slots < 1:
        raise InvalidValue("--slots", slots, "it must be at least 1")
    found = load_plans(file)
    doubts = review(found, slots)
    if as_json:
        doubtful = [{"key": doubt.key, "doubt": doubt.text} for doubt in doubts]
        typer.echo(json.dumps({"file": str(file), **plain(found), "warnings": doubtful}))
    else:
        _console().print(_tree(found))
    for doubt in doubts:
        typer.echo(f"warning: {file}: {doubt.key}: {doubt.text}", err=True)
    if doubts and strict:
        raise typer.Exit(Exit.FAILED)


@plans.command()
def apply(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Plans file.")],
    by: By = "",
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Put a plans file into force, at once, on the backlog too. A bad file changes nothing."""
    found = load_plans(file)
    _ask(url, namespace, Request(RequestKind.PLANS, file.name[:200], found.text.encode(), secrets.token_hex(8), by))


@plans.command()
def assign(
    organisation: Annotated[str, typer.Argument(metavar="ORG", help="Organisation.")],
    plan: Annotated[
        str | None, typer.Argument(metavar="PLAN", help="Its plan; without one, what the file says.")
    ] = None,
    by: By = "",
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Put an organisation on another plan. It comes before what the plans file says, until it is taken back."""
    check_name("organisation", organisation)
    subject = organisation if plan is None else f"{organisation} {check_name('plan', plan)}"
    _ask(url, namespace, Request(RequestKind.ASSIGN, subject, b"", secrets.token_hex(8), by))


@plans.command("log")
def show_log(
    limit: Annotated[int, typer.Option(help="Most lines to show.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """List the last changes of plans and assignments, latest first; refused ones too."""
    if not 1 <= limit <= 1000:
        raise InvalidValue("--limit", limit, "it must be from 1 to 1000")

    async def read() -> list[ChangeRecord]:
        backend = open_backend(url, namespace=namespace, clock=SystemClock())
        try:
            return await backend.changes(limit)
        finally:
            await backend.close()

    changes = run(read)
    if as_json:
        for change in changes:
            line = {"at": round(change.at, 3), "by": change.by, "what": change.what, "refused": change.refused}
            typer.echo(json.dumps(line))
        return
    table = Table("when", "by", "what", "refused", box=None, pad_edge=False)
    for change in changes:
        table.add_row(shown(change.at), change.by, change.what, change.refused)
    _console().print(table)


@plans.command()
def show(url: StoreArgument = DEFAULT_URL, namespace: Namespace = "drr") -> None:
    """Print the plans that are in force: who gets what, assignments included."""

    async def read() -> Plans:
        backend = open_backend(url, namespace=namespace, clock=SystemClock())
        try:
            settings = await backend.settings()
        finally:
            await backend.close()
        found = read_plans(settings.plans, source="plans in force") if settings.plans else NO_PLANS
        return found.with_assigned(settings.assigned)

    _console().print(_tree(run(read)))


# --- asking a dispatcher ----------------------------------------------------------------------------------


def _ask(url: str, namespace: str, request: Request) -> None:
    answer = run(lambda: _asked(url, namespace, request))
    if answer is None:
        complain(
            f"no dispatcher has answered within {ANSWER_WITHIN:g} s; the change waits in the store and is made "
            "by the next one that leads (see drr plans log)"
        )
        raise typer.Exit(Exit.FAILED)
    if answer.refused:
        complain(f"refused, and nothing has changed: {answer.refused}")
        raise typer.Exit(Exit.FAILED)
    typer.echo(answer.what)


async def _asked(url: str, namespace: str, request: Request) -> ChangeRecord | None:
    backend: Backend = open_backend(url, namespace=namespace, clock=SystemClock())
    try:
        await backend.request([request])
        with anyio.move_on_after(ANSWER_WITHIN):
            while True:
                for change in await backend.changes(100):
                    if change.id == request.id:
                        return change
                await anyio.sleep(POLL)
    finally:
        with anyio.CancelScope(shield=True):
            await backend.close()
    return None


# --- showing ----------------------------------------------------------------------------------------------


def _console() -> Console:
    """Return a console that prints what people wrote, keys in brackets too, as it is."""
    console = Console(markup=False, emoji=False, highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _by_pool(branch: Tree, found: Plans, terms: Terms) -> None:
    for name in found.pools:
        if terms.policy(name) != terms.policy(DEFAULT_POOL):
            branch.add(f"in pool {name}: {_policy_words(terms.policy(name))}")


def _tree(found: Plans) -> Tree:
    root = Tree(f"plans of {found.source}")
    pools = root.add("pools")
    for name, pool in found.pools.items():
        lease = "" if pool.lease is None else f", lease {pool.lease:g} s"
        estimate = f", ceiling {pool.ceiling:g}, default estimate {pool.default_estimate:g}"
        pools.add(f"{name}: quantum {pool.quantum:g}, reserve {pool.reserve}{estimate}{lease}")
    if found.limits:
        limits = root.add("limits")
        for name, limit in found.limits.items():
            limits.add(f"{name}: {_words(limit, ('concurrency', 'rate', 'per_organisation', 'per_project'))}")
    plan_list = root.add("plans")
    for name in found.names:
        mark = " (default)" if name == found.default_plan else ""
        organisation, project = found.plan_terms(name)
        branch = plan_list.add(f"{name}{mark}: {describe(organisation)}")
        _by_pool(branch, found, organisation)
        if project != Terms():
            _by_pool(branch.add(f"each project: {describe(project)}"), found, project)
    names = sorted({*found.organisations, *found.assigned})
    if names:
        organisations = root.add("organisations")
        for name in names:
            branch = organisations.add(
                f"{name} ({found.plan_of(name) or 'no plan'}): {describe(found.terms((name,)))}"
            )
            _by_pool(branch, found, found.terms((name,)))
            each = found.terms((name, ANY))
            if each != Terms():
                _by_pool(branch.add(f"each project: {describe(each)}"), found, each)
            for below in found.projects(name):
                terms = found.terms((name, below))
                _by_pool(branch.add(f"{below}: {describe(terms)}"), found, terms)
    return root


def describe(terms: Terms) -> str:
    """Return what a tenant gets, in words."""
    parts = [_policy_words(terms.policy(DEFAULT_POOL))]
    if terms.quota != Quota():
        parts.append(_words(terms.quota, ("jobs", "worker_seconds", "rate", "burst"), "backlog "))
    if terms.retry is not None:
        parts.append(f"{terms.retry.attempts} attempts")
    if terms.wait_target is not None:
        parts.append(f"to wait at most {terms.wait_target:g} s")
    return ", ".join(part for part in parts if part)


def _policy_words(policy: NodePolicy) -> str:
    default = NodePolicy()
    parts = [f"weight {policy.weight:g}"]
    parts.extend(
        f"{name.replace('_', ' ')} {getattr(policy, name)}"
        for name in ("soft_cap", "hard_cap", "floor", "ceiling")
        if getattr(policy, name) != getattr(default, name)
    )
    return ", ".join(parts)


def _words(value: object, names: Sequence[str], before: str = "") -> str:
    said = [(name, getattr(value, name)) for name in names if getattr(value, name) is not None]
    shown_names = {"jobs": f"{before}jobs", "worker_seconds": f"{before}worker-seconds"}
    return ", ".join(f"{shown_names.get(name, name.replace('_', ' '))} {number:g}" for name, number in said)
