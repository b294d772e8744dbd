"""The commands, put together."""

from __future__ import annotations

from typing import Annotated

import typer

from drr.cli.dead import dead
from drr.cli.demo import demo
from drr.cli.exits import EXIT_CODES, DrrGroup
from drr.cli.fields import examples
from drr.cli.health import health
from drr.cli.jobs import cancel, jobs
from drr.cli.plans import plans
from drr.cli.serve import init, serve
from drr.cli.simulate import simulate_command
from drr.cli.status import status
from drr.cli.submit import submit
from drr.cli.usage import usage
from drr.cli.worker import worker
from drr.core import is_compiled
from drr.dispatcher.options import package_version

app = typer.Typer(
    name="drr",
    cls=DrrGroup,
    help="Fair dispatch of background jobs: tenants share a pool of workers by weight, in worker-seconds.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"drr {package_version()}{' (compiled core)' if is_compiled() else ''}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    debug: Annotated[
        bool, typer.Option("--debug", envvar="DRR_DEBUG", help="Show the traceback of an error, too.")
    ] = False,
) -> None:
    del version, debug  # `DrrGroup` looks at the latter


app.command(
    epilog=examples(
        "drr serve",
        "drr serve redis://db:6379/1 --weight acme=2 --hard-cap acme/imports=3",
        "drr serve --soft-cap acme=20% --floor globex/mail=1 --reserve 2",
        "drr serve --quantum renders=10 --weight renders:acme=4",
        "drr serve --plans plans.toml",
    )
)(serve)
app.command(epilog=examples("drr init", "drr init redis://db:6379/1 --namespace staging"))(init)
app.command(
    epilog=examples(
        "drr worker jobs:worker",
        "drr worker jobs:tasks --url redis://db:6379/1 --slots 8",
        "drr worker jobs:worker --slots default=8 --slots renders=1 --grace 60",
    )
)(worker)
app.command(
    epilog=examples(
        'drr submit send_email --org globex --project mail --kwargs \'{"to": "ada@example.com"}\'',
        "drr submit add --org acme --args '[1, 2]' --wait",
        "drr submit import_row --org acme --project imports --count 50000 --estimate 0.2",
    )
)(submit)
app.command(
    epilog=examples(
        "drr jobs --tenant acme", "drr jobs --tenant acme/imports --state failed --task import_row --json"
    )
)(jobs)
app.command(
    epilog=examples(
        "drr cancel default:acme:imports:5:42~0f1e2d3c4b",
        "drr cancel --tenant acme/imports --task import_row --yes",
    )
)(cancel)
app.add_typer(dead, name="dead")
app.add_typer(plans, name="plans")
app.command(epilog=examples("drr usage --org acme", "drr usage --org acme --since 2026-11-01 --by day --json"))(usage)
app.command(epilog=examples("drr status", "drr status redis://db:6379/1 --json"))(status)
app.command(
    epilog=examples(
        "drr health",
        "drr health redis://db:6379/1 --worker w1 --worker w2 --strict",
        "drr health --dispatcher drr-0 --patience 5 --json",
    )
)(health)
app.command(
    "simulate",
    epilog=examples(
        "drr simulate traffic.csv.gz --workers 20",
        "drr simulate traffic.csv --load 0.95 --policy drr,fifo --html report.html",
        "drr simulate traffic.csv --workers 20 --plans today.toml --against proposed.toml",
    ),
)(simulate_command)
app.command(epilog=examples("drr demo", "drr demo --json --seconds 60"))(demo)


def main() -> None:
    """Run the command line and end the process with its exit code."""
    app()
