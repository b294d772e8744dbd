"""What the jobs of a world do, and what is known of each from outside the store.

A job says itself how it will end, so that every end can be checked: `Order` travels as its arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from random import Random
from typing import Any, Final

from drr.client.submission import JobOptions
from drr.errors import RetryAfter
from drr.model import JobState, RetryPolicy
from drr.worker import Context
from tests.world.life import Life

KEPT: Final = 1e6
"""Seconds for which outcomes are kept: for longer than any run."""


@dataclass(frozen=True, slots=True)
class Order:
    """One submit. ``failures``: attempts that fail before one succeeds; ``cancel_after``: seconds, or none."""

    label: int
    tenant: str
    seconds: float
    failures: int = 0
    cancel_after: float | None = None
    waits: bool = False
    options: JobOptions = field(default_factory=JobOptions)

    def ends(self, stopped: bool) -> set[JobState]:
        """How it may end, apart from being given up after too many losses.

        ``stopped``: some worker was. Then an attempt that was fast enough may be late, and one that was too slow may
        have its result when its worker goes on, before anybody notices that its time is over.
        """
        retry = self.options.get("retry")
        attempts = retry.attempts if isinstance(retry, RetryPolicy) else 1
        timeout = self.options.get("timeout")
        found = {JobState.FAILED if self.failures >= attempts else JobState.SUCCEEDED}
        if timeout is not None:
            if timeout < self.seconds and not stopped:
                found = {JobState.FAILED}
            elif stopped:
                found.add(JobState.FAILED)
        if self.cancel_after is not None:
            found.add(JobState.CANCELLED)
        if "deadline" in self.options:
            found.add(JobState.EXPIRED)
        return found


def draw_order(rng: Random, label: int, tenants: Sequence[str]) -> Order:
    """Return a job of one of many kinds; most of them simply succeed."""
    seconds = rng.choice((0.05, 0.1, 0.3, 0.6, 1.2))
    options = JobOptions(result_ttl=KEPT, estimate=seconds * rng.choice((1.0, 1.0, 0.3, 3.0)))
    failures, cancel_after = 0, None
    kind = rng.random()
    if kind < 0.12:
        failures = rng.choice((1, 2, 9))
        options["retry"] = RetryPolicy(attempts=3, delay=0.3)
    elif kind < 0.16:
        failures = 9
    elif kind < 0.24:
        cancel_after = rng.random() * 1.5
    elif kind < 0.32:
        options["delay"] = rng.random() * 3
    elif kind < 0.36:
        options["deadline"] = timedelta(seconds=rng.random() * 4 + 0.1)
    elif kind < 0.40:
        options["timeout"] = seconds * rng.choice((0.5, 2.0)) + 0.01
    elif kind < 0.46:
        options["key"] = f"key-{label}"
    options["priority"] = rng.choice((5, 5, 5, 0, 9))
    return Order(label, rng.choice(tenants), seconds, failures, cancel_after, rng.random() < 0.2, options)


@dataclass(slots=True)
class Run:
    """One start of a handler. ``ended``: when it returned by itself, in the world's time."""

    job_id: str
    label: int
    attempt: int
    life: Life
    began: float
    ended: float | None = None
    failed: bool = False

    @property
    def seconds(self) -> float:
        return (self.ended if self.ended is not None else self.began) - self.began


class Journal:
    """What handlers did, written by themselves. Nothing is ever taken back."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self.running: Counter[Life] = Counter()
        self.peaks: Counter[Life] = Counter()
        """Most handlers at work at once, by their worker's life."""
        self.by_attempt: dict[tuple[str, int], list[Run]] = {}

    async def handle(self, life: Life, now: Any, context: Context, label: int, seconds: float, failures: int) -> str:
        """Be the handler of every job."""
        run = Run(context.job_id, label, context.attempt, life, now())
        self.runs.append(run)
        self.by_attempt.setdefault((run.job_id, run.attempt), []).append(run)
        self.running[life] += 1
        self.peaks[life] = max(self.peaks[life], self.running[life])
        if label % 5 == 0:
            context.report_progress(0.5, "half of nothing")
        try:
            await life.sleep(seconds)
        finally:
            self.running[life] -= 1
        if life.alive:
            run.ended = now()
        if context.failures < failures:
            run.failed = True
            if label % 2:
                raise RetryAfter(0.2)
            raise ValueError("as ordered")
        return context.idempotency_key
