"""``drr serve`` and ``drr init``: a dispatcher, and the store that it needs."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from drr.backend import open_backend
from drr.cli.entitlements import Entitlements, read_entitlements
from drr.cli.fields import DEFAULT_URL, Namespace, StoreArgument
from drr.cli.probing import Patience, ProbeOption, answering_probes
from drr.cli.recording import Anonymous, Keep, Limit, RecordFileOption, make_recorder
from drr.cli.runtime import LogLevel, LogOption, process_name, run, shown_url, start_log, until_stopped
from drr.clock import SystemClock
from drr.dispatcher import Dispatcher, Recorder

log = logging.getLogger("drr.serve")

_NODE = "[POOL:]TENANT=VALUE"

Weights = Annotated[
    list[str] | None,
    typer.Option("--weight", metavar=_NODE, help="Share relative to its siblings (1)."),
]
SoftCaps = Annotated[
    list[str] | None,
    typer.Option("--soft-cap", metavar=_NODE, help="Most running jobs while others wait: 3 or 20%."),
]
HardCaps = Annotated[
    list[str] | None,
    typer.Option("--hard-cap", metavar=_NODE, help="Most running jobs ever: 3 or 20%."),
]
Floors = Annotated[
    list[str] | None,
    typer.Option("--floor", metavar=_NODE, help="Running jobs it gets ahead of everyone: 1 or 5%."),
]
Ceilings = Annotated[
    list[str] | None,
    typer.Option("--ceiling", metavar=_NODE, help="Most credit earned while parked, worker-seconds."),
]
Quanta = Annotated[
    list[str] | None,
    typer.Option("--quantum", metavar="[POOL=]VALUE", help="Worker-seconds per round to weight 1 (1)."),
]
Reserves = Annotated[
    list[str] | None,
    typer.Option("--reserve", metavar="[POOL=]SLOTS", help="Slots kept free from borrowers (0)."),
]
Estimates = Annotated[
    list[str] | None,
    typer.Option(
        "--default-estimate", metavar="[POOL=]VALUE", help="Worker-seconds charged for a job that names none (1)."
    ),
]
DefaultCeilings = Annotated[
    list[str] | None,
    typer.Option("--default-ceiling", metavar="[POOL=]VALUE", help="Ceiling of nodes without their own (60)."),
]


def serve(
    url: StoreArgument = DEFAULT_URL,
    namespace: Namespace = "drr",
    name: Annotated[str, typer.Option(help="Name in status and log; by default host and process id.")] = "",
    lease: Annotated[float, typer.Option(help="Seconds of silence after which a worker counts as dead.")] = 30.0,
    heartbeat: Annotated[
        float | None, typer.Option(help="Longest seconds between heartbeats; a third of the lease at most.")
    ] = None,
    leader_lease: Annotated[float, typer.Option(help="Seconds after which a silent leader is replaced.")] = 3.0,
    patience: Annotated[
        float, typer.Option(help="Seconds to wait at the start for a store that cannot be reached.")
    ] = 0.0,
    poison_after: Annotated[int, typer.Option(help="Lost attempts after which a job is given up.")] = 3,
    pool: Annotated[str, typer.Option(help="Pool that options without a POOL are meant for.")] = "default",
    weight: Weights = None,
    soft_cap: SoftCaps = None,
    hard_cap: HardCaps = None,
    floor: Floors = None,
    ceiling: Ceilings = None,
    quantum: Quanta = None,
    reserve: Reserves = None,
    default_estimate: Estimates = None,
    default_ceiling: DefaultCeilings = None,
    plans: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Plans file to put into force, and to watch for changes.")
    ] = None,
    record: RecordFileOption = None,
    record_limit: Limit = None,
    record_keep: Keep = None,
    record_anonymous: Anonymous = False,
    probe: ProbeOption = None,
    probe_patience: Patience = 10.0,
    log_level: LogOption = LogLevel.INFO,
) -> None:
    """Run a dispatcher: it leads, or stands by and takes over when the leader fails.

    Entitlements given here are stored, and so survive restarts and takeovers. They are written whenever this
    process first comes to lead: a tenant (or pool) that any option names gets exactly what this command line
    says, with defaults for the rest; tenants and pools that no option names keep what is stored. So give all
    dispatchers of a namespace the same options.

    --plans puts a plans file into force, again whenever the file changes; a file with a mistake in it changes
    nothing. What single options say of a tenant or pool comes before what the plans say.

    With --record the jobs that end while this process leads become a trace for `drr simulate`.

    Stop it with SIGTERM or Ctrl-C: it hands over at once.
    """
    found = read_entitlements(
        pool,
        {
            "weight": weight or (),
            "soft_cap": soft_cap or (),
            "hard_cap": hard_cap or (),
            "floor": floor or (),
            "ceiling": ceiling or (),
        },
        {
            "quantum": quantum or (),
            "reserve": reserve or (),
            "default_estimate": default_estimate or (),
            "ceiling": default_ceiling or (),
        },
    )
    recorder = make_recorder(record, record_limit, record_keep, record_anonymous)
    dispatcher = _make(
        url, namespace, name, lease, heartbeat, leader_lease, patience, poison_after, found, plans, recorder
    )
    probing = answering_probes(probe, lambda: dispatcher.health(patience=probe_patience))
    start_log(log_level)
    log.info("serving namespace %s at %s", namespace, shown_url(url))
    with probing:
        run(lambda: _serve(dispatcher))


def _make(
    url: str,
    namespace: str,
    name: str,
    lease: float,
    heartbeat: float | None,
    leader_lease: float,
    patience: float,
    poison_after: int,
    found: Entitlements,
    plans: Path | None,
    recorder: Recorder | None,
) -> Dispatcher:
    return Dispatcher(
        url,
        namespace=namespace,
        name=name or process_name(),
        lease=lease,
        heartbeat=heartbeat,
        leader_lease=leader_lease,
        patience=patience,
        poison_after=poison_after,
        pools=found.pools,
        policies=found.policies,
        plans=plans,
        record=recorder,
    )


async def _serve(dispatcher: Dispatcher) -> None:
    async with dispatcher:
        await until_stopped(log)


def init(url: StoreArgument = DEFAULT_URL, namespace: Namespace = "drr") -> None:
    """Prepare a store: check its version, load the function library, write the schema number.

    May be repeated. The first `drr serve` does the same; use this where dispatchers have no right to load
    functions, or to let workers and clients start before any dispatcher.
    """

    async def prepare() -> None:
        backend = open_backend(url, namespace=namespace, clock=SystemClock())
        try:
            await backend.prepare()
        finally:
            await backend.close()

    run(prepare)
    typer.echo(f"namespace {namespace} at {shown_url(url)} is ready")
