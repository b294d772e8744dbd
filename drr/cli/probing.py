"""The options of ``drr serve`` and ``drr worker`` for HTTP probes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Annotated, TypeAlias

import typer

from drr.health import Health
from drr.probe import Probe

ProbeOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--probe", metavar="HOST:PORT", help="Answer GET /livez and /readyz there, for orchestrators."),
]
Patience: TypeAlias = Annotated[
    float,
    typer.Option("--probe-patience", min=0.0, help="Seconds of a blocked event loop after which /livez fails."),
]


def answering_probes(address: str | None, health: Callable[[], Health]) -> AbstractContextManager[object]:
    """Return a context in which probes are answered at ``address``; with none, one in which nothing happens."""
    return nullcontext() if address is None else Probe(address, health)
