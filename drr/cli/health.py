"""``drr health``: does a deployment work? Asked of the store, from outside, with an exit code.

Who lives is judged by counters that move while they are watched, as everywhere in drr: by no clock of anybody.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, TypeVar

import anyio
import typer

from drr.backend import Backend, StoredStatus, Survey, WorkerRecord, open_backend
from drr.cli.exits import Exit
from drr.cli.fields import DEFAULT_URL, AsJson, Namespace, StoreArgument
from drr.cli.runtime import run, shown_url
from drr.clock import Clock, SystemClock
from drr.dispatcher import Status, decode_status
from drr.durability import Level
from drr.errors import BackendError, MalformedMessage, StoreUnavailable, StoreUnsupported

T = TypeVar("T")

LOOK: Final = 0.1
"""Seconds between two looks at counters that should move."""


class Fault(StrEnum):
    """What may be wrong with a deployment. Stable names, for alerts and scripts."""

    NONE = ""
    STORE_UNREACHABLE = "store_unreachable"
    STORE_SILENT = "store_silent"
    """Nothing was answered within ``--timeout``."""
    STORE_UNSUPPORTED = "store_unsupported"
    """The server is too old, or lacks a command."""
    STORE_REFUSES = "store_refuses"
    """Credentials or rights are missing, or a reply makes no sense."""
    STORE_UNSAFE = "store_unsafe"
    """With ``--strict``: its settings are warned of."""
    NO_LEADER = "no_leader"
    LEADER_SILENT = "leader_silent"
    DISPATCHER_UNKNOWN = "dispatcher_unknown"
    DISPATCHER_SILENT = "dispatcher_silent"
    WORKER_UNKNOWN = "worker_unknown"
    WORKER_SILENT = "worker_silent"


STORE_FAULTS: Final = frozenset(
    {
        Fault.STORE_UNREACHABLE,
        Fault.STORE_SILENT,
        Fault.STORE_UNSUPPORTED,
        Fault.STORE_REFUSES,
    }
)


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what, what is wrong with it if anything is, and words.

    ``warned``: something is, though it is no fault.
    """

    name: str
    fault: Fault
    detail: str
    warned: bool = False


@dataclass(frozen=True, slots=True)
class Findings:
    """All that was found. ``committed``: seconds since the leader's last commit; ``None`` if not known."""

    namespace: str
    checks: tuple[Check, ...]
    level: Level = Level.UNKNOWN
    cautions: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    committed: float | None = None

    @property
    def exit(self) -> Exit:
        """The exit code that says the same."""
        faults = {check.fault for check in self.checks} - {Fault.NONE}
        if not faults:
            return Exit.OK
        return Exit.NO_STORE if faults & STORE_FAULTS else Exit.FAILED


def health(
    url: StoreArgument = DEFAULT_URL,
    namespace: Namespace = "drr",
    dispatcher: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A dispatcher that has to live, as leader or standby.")
    ] = None,
    worker: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A worker that has to live; may be given many times.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail if the store's settings are warned of.")] = False,
    patience: Annotated[
        float, typer.Option(min=0.0, help="Seconds to watch for signs of life; at least one leader lease.")
    ] = 3.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds that all of it may take.")] = 10.0,
    as_json: AsJson = False,
) -> None:
    """Ask the store whether a deployment works: is the store there, does a leader live, do named processes?

    Ends with 0 if all is well, 3 if the store cannot be reached or used, 1 for anything else; every fault has a
    name. A leader lives if its counters move while they are watched. A worker lives while it is on record and
    a leader lives, which takes the dead off the record after one lease; without a leader its own counter has to move,
    as that of a dispatcher always has to.
    """
    asked = Asked(url, namespace, tuple(dispatcher or ()), tuple(worker or ()), strict, patience, timeout)
    findings = run(lambda: examine(asked, SystemClock()))
    if as_json:
        typer.echo(json.dumps(_plain(findings)))
    else:
        _print(findings)
    raise typer.Exit(findings.exit)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is to be looked at; see `health`."""

    url: str
    namespace: str
    dispatchers: tuple[str, ...]
    workers: tuple[str, ...]
    strict: bool
    patience: float
    timeout: float


async def examine(asked: Asked, clock: Clock) -> Findings:
    """Look at everything within the time there is. Raises `UnknownBackend` or `InvalidValue` for what cannot be."""
    backend = open_backend(asked.url, namespace=asked.namespace, clock=clock)
    try:
        with anyio.move_on_after(asked.timeout):
            return await _examine(backend, asked, clock)
        silent = f"{shown_url(asked.url)} did not answer within {asked.timeout:g} s"
        return Findings(asked.namespace, (Check("store", Fault.STORE_SILENT, silent),))
    except BackendError as error:
        return Findings(asked.namespace, (Check("store", _fault_of(error), str(error)),))
    finally:
        with anyio.move_on_after(1.0, shield=True):
            await backend.close()


async def _examine(backend: Backend, asked: Asked, clock: Clock) -> Findings:
    began = clock.monotonic()
    stored = await backend.read_status()
    seconds = clock.monotonic() - began
    survey = await backend.survey()
    who = survey.server or "a server that does not say what it is"
    fault = Fault.STORE_UNSUPPORTED if survey.supported is False else Fault.NONE
    store = Check("store", fault, f"{who} at {shown_url(asked.url)} answered in {seconds * 1000:.1f} ms")
    leader, alive = await _leader(backend, stored, asked.patience, clock)
    status = _decoded(stored)
    checks = [store, _durability(survey, strict=asked.strict), leader]
    leading = "" if status is None or not alive else status.dispatcher
    # At once, since each may have to be watched for as long as there is patience.
    named = [_dispatcher(backend, name, leading, asked.patience, clock) for name in asked.dispatchers]
    named += [_worker(backend, name, asked.patience, clock, alive=alive) for name in asked.workers]
    checks += await asyncio.gather(*named)
    at = None if status is None else status.committed_at
    committed = None if at is None else max(0.0, clock.wall() - at)
    cautions = tuple(remark.caution.value for remark in survey.warnings)
    return Findings(asked.namespace, tuple(checks), survey.level, cautions, survey.unknown, committed)


def _fault_of(error: BackendError) -> Fault:
    if isinstance(error, StoreUnavailable):
        return Fault.STORE_UNREACHABLE
    return Fault.STORE_UNSUPPORTED if isinstance(error, StoreUnsupported) else Fault.STORE_REFUSES


def _decoded(stored: StoredStatus) -> Status | None:
    """Return the leader's description; one of another version is no fault of the deployment."""
    try:
        return decode_status(stored.blob) if stored.blob else None
    except MalformedMessage:
        return None


def _durability(survey: Survey, *, strict: bool) -> Check:
    warnings = survey.warnings
    said = [remark.text for remark in warnings]
    if survey.unknown:
        said.append(f"not told by the server: {', '.join(survey.unknown)}")
    fault = Fault.STORE_UNSAFE if strict and warnings else Fault.NONE
    return Check("durability", fault, "; ".join([survey.level.value, *said]), warned=bool(warnings))


async def _moves(read: Callable[[], Awaitable[T]], first: T, patience: float, clock: Clock) -> T:
    """Return what ``read`` returns as soon as it is not ``first`` any more; ``first`` after ``patience`` seconds."""
    ends = clock.monotonic() + patience
    while clock.monotonic() < ends:
        await clock.sleep(LOOK)
        if (found := await read()) != first:
            return found
    return first


async def _leader(backend: Backend, stored: StoredStatus, patience: float, clock: Clock) -> tuple[Check, bool]:
    """Return what is to be said of the leader, and whether it lives."""
    first = stored.leader
    if not first.token:
        return Check("leader", Fault.NO_LEADER, "no dispatcher leads, so jobs wait (start: drr serve)"), False
    found = await _moves(backend.leader, first, patience, clock)
    if found == first:
        detail = f"{first.token} gave no sign of life in {patience:g} s, so jobs wait until a dispatcher leads"
        return Check("leader", Fault.LEADER_SILENT, detail), False
    if not found.token:
        return Check("leader", Fault.NO_LEADER, f"{first.token} has just resigned; jobs wait for the next"), False
    return Check("leader", Fault.NONE, f"{found.token} leads, {found.passes:,} commits"), True


async def _dispatcher(backend: Backend, name: str, leading: str, patience: float, clock: Clock) -> Check:
    """Return what is to be said of a dispatcher. ``leading``: the name of the one that leads, if any."""
    title = f"dispatcher {name}"
    first = await backend.attendance(name)
    if first is None:
        detail = "has not been seen in the last minute; is that its --name?"
        return Check(title, Fault.DISPATCHER_UNKNOWN, detail)

    async def counter() -> int:
        return await backend.attendance(name) or 0

    if await _moves(counter, first, patience, clock) in (first, 0):
        return Check(title, Fault.DISPATCHER_SILENT, f"gave no sign of life in {patience:g} s")
    return Check(title, Fault.NONE, "leads" if leading == name else "stands by")


async def _worker(backend: Backend, name: str, patience: float, clock: Clock, *, alive: bool) -> Check:
    """Return what is to be said of a worker. ``alive``: whether a leader lives, which knows of the dead."""
    title = f"worker {name}"
    first = await backend.worker_record(name)
    if first is None:
        return Check(title, Fault.WORKER_UNKNOWN, "is not on record: it never joined, has left, or missed a lease")
    if not alive:
        found = await _moves(lambda: _renewals(backend, name), first.renewals, patience, clock)
        if found in (first.renewals, -1):
            detail = f"gave no sign of life in {patience:g} s, and no leader knows more"
            return Check(title, Fault.WORKER_SILENT, detail)
    return Check(title, Fault.NONE, _described(first))


async def _renewals(backend: Backend, name: str) -> int:
    """Return a worker's counter of heartbeats, -1 if it has gone."""
    record = await backend.worker_record(name)
    return -1 if record is None else record.renewals


def _described(record: WorkerRecord) -> str:
    slots = ", ".join(f"{count} {pool}" for pool, count in sorted(record.slots.items()))
    words = ["draining" if record.draining else "working", f"{len(record.held)} jobs in hand, slots: {slots}"]
    if record.blocks:
        words.append(f"event loop blocked {record.blocks:,}x")
    return "; ".join(words)


def _plain(findings: Findings) -> dict[str, Any]:
    return {
        "ok": findings.exit is Exit.OK,
        "namespace": findings.namespace,
        "checks": [
            {"name": check.name, "ok": not check.fault, "reason": check.fault.value, "detail": check.detail}
            for check in findings.checks
        ],
        "durability": {
            "level": findings.level.value,
            "cautions": list(findings.cautions),
            "unknown": list(findings.unknown),
        },
        "last_commit_age": findings.committed,
    }


def _print(findings: Findings) -> None:
    width = max(len(check.name) for check in findings.checks)
    for check in findings.checks:
        verdict = f"FAILED ({check.fault})" if check.fault else "warning" if check.warned else "ok"
        typer.echo(f"{check.name:<{width}}  {verdict}: {' / '.join(check.detail.splitlines())}")
    if findings.committed is not None:
        typer.echo(f"{'last commit':<{width}}  {findings.committed:.1f} s ago by the leader's clock")
