"""``drr worker``: runs a worker's handlers in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from drr.cli.fields import DEFAULT_URL, URL_VARIABLE, read_count, read_named
from drr.cli.loading import load_worker
from drr.cli.probing import Patience, ProbeOption, answering_probes
from drr.cli.runtime import LogLevel, LogOption, start_log
from drr.worker import Worker

Where = Annotated[str, typer.Argument(metavar="MODULE:NAME", help="A Worker, or a Tasks, and the module it is in.")]
Slots = Annotated[
    list[str] | None,
    typer.Option("--slots", metavar="[POOL=]COUNT", help="Jobs at a time, of the pool default if none is named."),
]


def worker(
    where: Where,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", envvar=URL_VARIABLE, help="Store: redis://, rediss:// or unix://."),
    ] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", envvar="DRR_NAMESPACE", help="Namespace.")] = None,
    slots: Slots = None,
    name: Annotated[str | None, typer.Option(help="Name, unique among live workers.")] = None,
    lease: Annotated[float | None, typer.Option(help="Seconds, as the dispatcher has it.")] = None,
    heartbeat: Annotated[float | None, typer.Option(help="Seconds between two signs of life.")] = None,
    grace: Annotated[float | None, typer.Option(help="Seconds that running jobs get after SIGTERM.")] = None,
    patience: Annotated[
        float | None, typer.Option(help="Seconds to wait at the start for the store to be there and prepared.")
    ] = None,
    blocked_after: Annotated[
        float | None, typer.Option(help="Seconds of a blocked event loop after which the log names the job.")
    ] = None,
    probe: ProbeOption = None,
    probe_patience: Patience = 600.0,
    log_level: LogOption = LogLevel.INFO,
) -> None:
    """Run a worker: take jobs from its pools, run their handlers, report how they end.

    NAME is a Worker, or a Tasks that gets a worker around it. Modules of the current directory are found. What
    an option (or DRR_URL, DRR_NAMESPACE) says wins over what the Worker was made with.

    SIGTERM or Ctrl-C: take nothing new, finish what runs within the grace period, hand the rest back
    unpenalised. A second signal hands back at once.
    """
    pools = None if slots is None else read_named("slots", slots, "default", read_count)
    found = load_worker(where)
    if not isinstance(found, Worker):
        found = Worker(url or DEFAULT_URL, tasks=found)
    chosen = found.with_options(
        store=url,
        namespace=namespace,
        pools=pools,
        name=name,
        lease=lease,
        heartbeat=heartbeat,
        grace=grace,
        patience=patience,
        blocked_after=blocked_after,
    )
    probing = answering_probes(probe, lambda: chosen.health(patience=probe_patience))
    start_log(log_level)
    with probing:
        chosen.main()
