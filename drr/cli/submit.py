"""``drr submit``: jobs from a terminal or a script."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
import typer

from drr.cli.exits import Exit, complain
from drr.cli.fields import DEFAULT_URL, Namespace, StoreOption, read_json
from drr.cli.moments import read_deadline, read_time
from drr.cli.runtime import run
from drr.client import Client, Handle, Submission
from drr.errors import InvalidValue, JobError
from drr.model import DEFAULT_PRIORITY, JobState
from drr.payload import Call, unpack_result

PATIENCE = 2.0
"""Seconds for which a submit is repeated while the store is not reachable: somebody is watching."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be submitted, how often, how long to wait for it (``None``: for ever), and for room (seconds)."""

    submission: Submission
    count: int
    wait: bool
    within: float | None
    room: float


def submit(
    task: Annotated[str, typer.Argument(help="Name of a task that workers have a handler for.")],
    org: Annotated[str, typer.Option("--org", metavar="NAME", help="Organisation that the job is for.")],
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="Its project.")] = "default",
    args: Annotated[str | None, typer.Option("--args", metavar="JSON", help="Arguments by position.")] = None,
    kwargs: Annotated[str | None, typer.Option("--kwargs", metavar="JSON", help="Arguments by name.")] = None,
    pool: Annotated[str, typer.Option(metavar="NAME", help="Which workers.")] = "default",
    delay: Annotated[float | None, typer.Option(metavar="SECONDS", help="Queue it only after that time.")] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="Queue it then: 2026-12-24T18:00:00+01:00, or Unix seconds.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(metavar="TIME", help="Not to be started later: like --at, or +SECONDS from now.")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(metavar="N", help="Try so often in all; by default what the plan says.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option("--limit", metavar="NAME", help="Shared limit that it needs; may be repeated.")
    ] = None,
    key: Annotated[
        str | None, typer.Option(metavar="KEY", help="Idempotency key: with one that is taken, mean the first job.")
    ] = None,
    job_id: Annotated[
        str | None, typer.Option("--id", metavar="NAME", help="A name of your own for it, unique in the project.")
    ] = None,
    key_ttl: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="How long --key or --id is remembered; a day, and 30 days."),
    ] = None,
    priority: Annotated[int, typer.Option(help="0 (first) to 9 (last) within the project.")] = DEFAULT_PRIORITY,
    estimate: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Expected worker-seconds; by default what the pool assumes."),
    ] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", help="Bound on each attempt.")] = None,
    result_ttl: Annotated[float, typer.Option(metavar="SECONDS", help="How long the outcome is kept.")] = 3600.0,
    count: Annotated[int, typer.Option(help="Submit that many alike.")] = 1,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the jobs to end.")] = False,
    within: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Longest wait; exit code 1 when it is over.")
    ] = None,
    wait_for_room: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Wait so long, while the tenant's quota is used up, before giving up."),
    ] = 0.0,
    url: StoreOption = DEFAULT_URL,
    namespace: Namespace = "drr",
) -> None:
    """Submit a job and print its id; or many alike, one id per line.

    With --wait, print one JSON object per job instead, as each has ended, in the order of submission: its id,
    state, attempt, seconds and result or error. The exit code is 1 if any did not succeed. Submitting needs no
    dispatcher to be up.
    """
    call: Call[Any] = Call(
        task,
        read_json("--args", args, list, '["ada@example.com", 3]') or [],
        read_json("--kwargs", kwargs, dict, '{"to": "ada@example.com"}') or {},
    )
    submission = Submission(
        call,
        tenant=(org, project),
        pool=pool,
        priority=priority,
        estimate=estimate,
        timeout=timeout,
        result_ttl=result_ttl,
        delay=delay,
        at=None if at is None else read_time("--at", at),
        deadline=None if deadline is None else read_deadline("--deadline", deadline),
        retry=attempts,
        limits=limit or (),
        key=key,
        id=job_id,
        key_ttl=key_ttl,
    )
    if count < 1:
        raise InvalidValue("--count", count, "it must be at least 1")
    if within is not None and not 0.0 < within < float("inf"):
        raise InvalidValue("--within", within, "it must be a number of seconds above 0")
    wait = wait or within is not None
    if wait and result_ttl <= 0:
        raise InvalidValue(
            "--result-ttl", result_ttl, "nothing of the end is kept then: give it above 0 to wait for it"
        )
    order = Order(submission, count, wait, within, wait_for_room)
    if not run(lambda: _submit(url, namespace, order)):
        raise typer.Exit(Exit.FAILED)


async def _submit(url: str, namespace: str, order: Order) -> bool:
    """Carry out the order; return whether all is well."""
    async with Client(url, namespace=namespace, patience=PATIENCE) as client:
        ids: list[str] = []

        def accepted(batch: Sequence[str]) -> None:
            if order.wait:
                ids.extend(batch)
            else:
                typer.echo("\n".join(batch))

        await client.submit_many(_copies(order), accepted=accepted, wait=order.room)
        if not order.wait:
            return True
        with anyio.move_on_after(order.within) as limit:
            outcomes = [await _print_end(Handle(job_id, client, own=True)) for job_id in ids]
        if limit.cancelled_caught:
            complain(f"not all jobs have ended within {order.within:g} s; they stay where they are")
            return False
        return all(outcomes)


def _copies(order: Order) -> Iterator[Submission]:
    for _ in range(order.count):
        yield order.submission


async def _print_end(handle: Handle[Any]) -> bool:
    """Wait for a job, print how it ended, return whether it succeeded."""
    try:
        end = await handle.wait()
    except JobError as error:
        complain(str(error))
        return False
    succeeded = end.state is JobState.SUCCEEDED
    shown: dict[str, Any] = {
        "job": handle.id,
        "state": end.state.value,
        "attempt": end.attempt,
        "seconds": round(end.seconds, 6),
    }
    if succeeded:
        shown["result"] = unpack_result(end.value) if end.value else None
    else:
        shown["error"] = end.error
        complain(f"job {handle.id} {end.state.value} at attempt {end.attempt}: {end.error}")
    typer.echo(json.dumps(shown, default=_plain))
    return succeeded


def _plain(value: object) -> str:
    """Return what stands in JSON for a value that it has no notation for: bytes."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else repr(value)
