"""``drr demo``: the product at work, on real parts, in half a minute."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from drr.cli.exits import Exit, complain
from drr.cli.runtime import run, unless_stopped
from drr.cli.tree import make_console
from drr.clock import SystemClock
from drr.demo import Timeline, View, expectations, perform


def demo(
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print the figures as one JSON object on stdout, everything else on stderr."),
    ] = False,
    seconds: Annotated[float, typer.Option(help="Length, at least 8.")] = 30.0,
) -> None:
    """Watch tenants share four workers: a crowd, a newcomer, weights, and the loss of the leader.

    Starts a Valkey server, two dispatchers and four workers. acme floods the queue with 50,000 jobs; two seconds
    later globex submits one email; then three organisations of weights 1, 2 and 4 compete. Midway the leading
    dispatcher is killed. At the end everything is stopped and counted. The exit code is 1 if a figure is not as
    expected.
    """
    timeline = Timeline(seconds)
    view = View(make_console(stderr=as_json))
    figures = run(lambda: unless_stopped(lambda: perform(timeline, view, SystemClock())))
    disappointments = figures.disappointments(expectations(timeline.share_error))
    for line in disappointments:
        complain(line)
    if as_json:
        typer.echo(json.dumps(asdict(figures)))
    if disappointments:
        raise typer.Exit(Exit.FAILED)
