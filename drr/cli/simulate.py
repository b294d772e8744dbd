"""``drr simulate``: what a policy does to a trace, before it goes live."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from drr.cli.reports import check_page, show_comparison, show_run
from drr.errors import InvalidValue
from drr.simulate import engine
from drr.simulate.results import Run
from drr.simulate.run import Setup, simulate, slots_of
from drr.simulate.trace import Source, open_sources
from drr.simulate.whatif import side_by_side

TODAY, PROPOSED = "today", "proposed"
DEFAULT_POOL = "default"


def simulate_command(
    trace: Annotated[
        list[str],
        typer.Argument(
            metavar="TRACE...",
            help="Traces (.csv or .swf, with .gz or without) or scenarios (.toml).",
        ),
    ],
    workers: Annotated[int | None, typer.Option(metavar="N", help="Slots, for all of the time.")] = None,
    load: Annotated[
        float | None, typer.Option(metavar="X", help="As many slots as make the mean demand this part of them.")
    ] = None,
    speedup: Annotated[float, typer.Option(metavar="X", help="Divide the times of arrival by this.")] = 1.0,
    plans: Annotated[Path | None, typer.Option(metavar="FILE", help="Who is entitled to what.")] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Other plans: show who gains and who loses by them.")
    ] = None,
    pool: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Pool to simulate: its terms, and of a trace that names pools, its jobs."),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="drr, fifo, round-robin, least-recently-served; several to compare."),
    ] = None,
    until: Annotated[float, typer.Option(metavar="SECONDS", help="Virtual time at which to stop.")] = inf,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draws a scenario's jobs, and makes the JSON the same, byte by byte."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    tenants: Annotated[bool, typer.Option("--tenants", help="Say it of each organisation and project, too.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with charts.")] = None,
) -> None:
    """Replay a trace in virtual time through the scheduler's core, and say who waits how long.

    The table goes to stdout, progress to stderr. Real time and speed are left out of the JSON (null) when a seed
    is given, since they differ from run to run; nothing else does.
    """
    check_page(html)
    shown = {"tenants": tenants, "as_json": as_json, "timing": seed is None}
    source = open_sources(trace, speedup=speedup, until=until, seed=seed or 0, pool=pool)
    slots = slots_of(source, workers, load)
    terms = pool or source.pool or DEFAULT_POOL
    today = _setup(plans, terms, slots, until)
    if against is None:
        names = [name for given in policy or ["drr"] for name in given.split(",")]
        show_run(_run(source, today, names), page=html, **shown)
        return
    if plans is None:
        raise InvalidValue("--against", str(against), "it is compared with --plans: give both")
    if policy:
        raise InvalidValue("--policy", ", ".join(policy), "plans are compared under drr: leave it out with --against")
    proposed = _setup(against, terms, slots, until)
    both = side_by_side(_run(source, today, ["drr"]), _run(source, proposed, ["drr"]), (TODAY, PROPOSED))
    show_comparison(both, TODAY, PROPOSED, page=html, **shown)


def _setup(file: Path | None, pool: str, slots: Sequence[tuple[float, int]], until: float) -> Setup:
    if file is None:
        return Setup(slots, until=until)
    from drr.plans import load_plans  # it brings pydantic, a tenth of a second that no other command needs

    plans = load_plans(file)
    if pool not in plans.pools:
        raise InvalidValue("--pool", pool, f"{file} has these: {', '.join(plans.pools)}")
    return Setup(slots, plans.pool(pool), partial(plans.policy, pool=pool), until)


def _run(source: Source, setup: Setup, names: list[str]) -> Run:
    console = Console(stderr=True)
    if not console.is_terminal:
        return simulate(source, setup, names)
    total = source.demand().jobs
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:

        def bar(name: str) -> engine.Progress:
            task = bars.add_task(name, total=total)
            return lambda arrived, _: bars.update(task, completed=arrived)

        return simulate(source, setup, names, bar)
