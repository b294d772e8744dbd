"""``drr status``: what the leader says of its tree, who leads, who works."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import anyio
import typer

from drr.backend import Backend, LeaderRecord, StoredStatus, WorkerRecord, open_backend
from drr.cli.fields import DEFAULT_URL, AsJson, Namespace, StoreArgument
from drr.cli.runtime import run
from drr.cli.tree import print_report
from drr.clock import SystemClock
from drr.dispatcher import Status, decode_status
from drr.model import Settings

FRESH: Final = 3.0
"""Seconds within which a description proves that its leader lives."""
WATCH: Final = 2.0
"""Seconds for which the renewal counter of a leader with an older description is watched."""
LOOK: Final = 0.1


@dataclass(frozen=True, slots=True)
class Report:
    """All there is to show. ``alive``: whether the leader gave a sign of life. ``age``: of its description.

    ``settings``: those in force, whose quotas the backlogs are shown against.
    """

    namespace: str
    leader: LeaderRecord
    alive: bool
    age: float | None
    status: Status | None
    workers: tuple[WorkerRecord, ...]
    settings: Settings = field(default_factory=Settings)


def status(url: StoreArgument = DEFAULT_URL, namespace: Namespace = "drr", as_json: AsJson = False) -> None:
    """Show the leader, the workers and the tree of tenants of every pool.

    Per tenant: weight, queued and running jobs (and its caps), credit in worker-seconds (negative is debt), its
    share of the worker-seconds of the last minute, how long its next job has waited (and should at most), and why
    nothing of it starts now. Then the shared limits, and organisations' backlogs against their quotas. It is the
    leader's own description, about a second old.
    """
    report = run(lambda: _ask(url, namespace))
    if as_json:
        typer.echo(json.dumps(_plain(report)))
    else:
        print_report(report)


async def _ask(url: str, namespace: str) -> Report:
    clock = SystemClock()
    backend = open_backend(url, namespace=namespace, clock=clock)
    try:
        stored = await backend.read_status()
        described = decode_status(stored.blob) if stored.blob else None
        age = None if described is None else max(0.0, clock.wall() - described.at)
        settings = await backend.settings()
        alive = bool(stored.leader.token) and ((age is not None and age < FRESH) or await _is_alive(backend, stored))
    finally:
        await backend.close()
    workers = tuple(sorted(stored.workers, key=lambda record: record.name))
    return Report(namespace, stored.leader, alive, age, described, workers, settings)


async def _is_alive(backend: Backend, stored: StoredStatus) -> bool:
    """Return whether the leader's counters move: the description of an idle dispatcher is not refreshed."""
    with anyio.move_on_after(WATCH):
        while True:
            await anyio.sleep(LOOK)
            if await backend.leader() != stored.leader:
                return True
    return False


def _plain(report: Report) -> dict[str, Any]:
    """Return the report as plain data: the fields of `Status` and its parts under their own names."""
    described = None if report.status is None else asdict(report.status)
    return {
        "namespace": report.namespace,
        "leader": {"token": report.leader.token, "alive": report.alive, "passes": report.leader.passes},
        "age": report.age,
        "status": described,
        "workers": [
            {
                "name": record.name,
                "slots": dict(record.slots),
                "running": len(record.held),
                "draining": record.draining,
                "blocks": record.blocks,
                "version": record.version,
            }
            for record in report.workers
        ],
    }
