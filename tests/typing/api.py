"""What a type checker makes of the public surface. Checked by ``make types``, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, assert_type

from drr.backend import DeadLetter, Listed, Usage, UsageKey
from drr.client import Client, Handle, Submission
from drr.health import WorkerHealth
from drr.model import RetryPolicy
from drr.payload import Call, Progress
from drr.worker import Context, Worker

worker = Worker("memory://", slots=4)


@worker.task("send_email", timeout=30)
async def send_email(context: Context, to: str, subject: str = "") -> str:
    assert_type(context.attempt, int)
    assert_type(context.remaining(), float | None)
    assert_type(context.organisation, str)
    return f"{to}: {subject}"


@worker.task("resize")
def resize(path: str, width: int) -> dict[str, int]:
    return {path: width}


@worker.task()
async def ping() -> None: ...


@worker.task()
def thumbnail(context: Context, path: str) -> bytes:
    return path.encode()


assert_type(worker.health(), WorkerHealth)


def direct_calls(context: Context) -> None:
    assert_type(resize("a.png", 100), dict[str, int])
    assert_type(thumbnail(context, "a.png"), bytes)
    resize("a.png", "100")  # type: ignore[arg-type]


async def direct_calls_of_coroutines(context: Context) -> None:
    assert_type(await send_email(context, "ada@example.com"), str)
    await send_email("ada@example.com", "Hi")  # type: ignore[arg-type]


def bound_calls() -> None:
    assert_type(send_email.bind("ada@example.com", subject="Hi"), Call[str])
    assert_type(resize.bind("a.png", width=100), Call[dict[str, int]])
    assert_type(thumbnail.bind("a.png"), Call[bytes])
    assert_type(ping.bind(), Call[None])
    send_email.bind(42)  # type: ignore[arg-type]
    send_email.bind()  # type: ignore[call-arg]
    resize.bind("a.png", height=1)  # type: ignore[call-arg]


async def handles(client: Client) -> None:
    typed = await client.submit(send_email.bind("ada@example.com"), tenant="globex/mail")
    assert_type(typed, Handle[str])
    assert_type(await typed.result(timeout=5), str)
    named = await client.submit("send_email", {"to": "ada@example.com"}, tenant=("globex", "mail"), priority=3)
    assert_type(named, Handle[Any])
    await client.submit("send_email", {"to": "ada@example.com"})  # type: ignore[call-overload]
    await client.submit(resize.bind("a.png", 1), {"x": 1}, tenant="globex/mail")  # type: ignore[call-overload]
    await client.submit("send_email", 42, tenant="globex/mail")  # type: ignore[call-overload]


async def many(client: Client) -> None:
    async def source() -> AsyncIterator[Submission]:
        yield Submission(ping.bind(), tenant="globex/mail")

    assert_type(await client.submit_many(source()), int)
    assert_type(await client.submit_many([Submission("ping", tenant="globex/mail")]), int)
    Submission("ping")  # type: ignore[call-arg]


async def options_and_operations(client: Client) -> None:
    job = await client.submit(resize.bind("a.png", 1), tenant="a/b", delay=timedelta(hours=1), retry=3, key="k")
    assert_type(job, Handle[dict[str, int]])
    assert_type(job.duplicate, bool)
    assert_type(await job.progress(), Progress | None)
    async for said in job.follow_progress():
        assert_type(said, Progress)
    await client.submit("x", tenant="a/b", retry=RetryPolicy(attempts=2), deadline=timedelta(hours=1), limits=["db"])
    await client.submit("x", tenant="a/b", delay="soon")  # type: ignore[call-overload]
    async for listed in client.jobs("a", state="queued"):
        assert_type(listed, Listed)
    async for letter in client.dead("a", cause="poison"):
        assert_type(letter, DeadLetter)
    assert_type(await client.find("a/b", "mine"), Handle[Any])
    assert_type(await client.cancel_all("a"), int)
    assert_type(await client.usage("a", since=timedelta(days=1)), dict[UsageKey, Usage])
