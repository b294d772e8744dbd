"""A producer: a process that submits what it is told to, one JSON order a line on standard input.

Half of an order goes one job at a time, half in batches, both at once, under one client. What was refused for
certain is submitted again after a pause; what may have been carried out is not. The result of one job in ten is
waited for and has to be that job's own. With an outbox an order is done once the outbox is empty.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final, NamedTuple

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from chaos.journal import Journal
from drr.client import Client, Outbox, Submission
from drr.errors import AdmissionRefused, DrrError, StoreFull, StoreNotPrepared, StoreUnavailable

PATIENCE: Final = 60.0
"""Seconds for which the client repeats a submit while the store is away: longer than any fault."""
PAUSE: Final = 0.2
"""Seconds after a refusal before the next try."""
BATCH: Final = 25
HORIZON: Final = 3.0
"""Seconds after which what a server with a slow flush still remembers is on its disk."""
RESULT_TTL: Final = 4 * 3600.0
"""Seconds for which results are kept: longer than any jump of the server's clock."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a producer is to do.

    ``number`` names the order in labels, ``first`` is the first label's number. ``seconds``: mean time that a job
    holds its slot. ``over``: seconds over which the second half of the jobs is spread; the first comes at once.
    """

    number: str
    first: int
    jobs: int
    seconds: float
    over: float
    seed: int
    organisations: int = 8
    projects: int = 40

    def encode(self) -> str:
        """Return the line that says this."""
        return json.dumps(asdict(self))


class Labelled(NamedTuple):
    """A job and what its producer calls it."""

    label: str
    job: Submission


class Producer:
    """One client and what it has been told to do. ``background``: where results are waited for."""

    def __init__(self, name: str, client: Client, journal: Journal, background: TaskGroup) -> None:
        self._name = name
        self._client = client
        self._journal = journal
        self._background = background

    async def carry_out(self, order: Order) -> None:
        """Submit everything of an order, and note that it is done."""
        rng = random.Random(f"{order.seed}{self._name}")
        jobs = [self._draw(order, number, rng) for number in range(order.first, order.first + order.jobs)]
        async with anyio.create_task_group() as group:
            group.start_soon(self._singly, jobs[::2], order.over)
            group.start_soon(self._in_batches, jobs[1::2], order.over)
        await self._client.confirmed()
        self._journal.note("D", order.number)

    def _draw(self, order: Order, number: int, rng: random.Random) -> Labelled:
        label = f"{order.number}.{self._name}.{number}"
        # One organisation makes four fifths of the load.
        organisation = 0 if rng.random() < 0.8 else rng.randrange(1, order.organisations)
        tenant = f"org-{organisation}/project-{rng.randrange(order.projects)}"
        seconds = min(rng.expovariate(1 / order.seconds), 4 * order.seconds)
        job = Submission("spend", [label, seconds], tenant=tenant, estimate=max(seconds, 1e-3), result_ttl=RESULT_TTL)
        return Labelled(label, job)

    async def _singly(self, jobs: Sequence[Labelled], over: float) -> None:
        for index, labelled in enumerate(jobs):
            await self._pace(index, len(jobs), over)
            await self._submit([labelled], check=index % 5 == 0)

    async def _in_batches(self, jobs: Sequence[Labelled], over: float) -> None:
        for index in range(0, len(jobs), BATCH):
            batch = jobs[index : index + BATCH]
            await self._pace(index, len(jobs), over * len(batch))
            await self._submit(batch)

    @staticmethod
    async def _pace(index: int, of: int, over: float) -> None:
        if index > of / 2:
            await anyio.sleep(over / (of / 2))

    async def _submit(self, jobs: Sequence[Labelled], *, check: bool = False) -> None:
        """Submit jobs, however often it takes; note what becomes of each. ``check``: wait for the first's result."""
        left = list(jobs)

        def accepted(ids: Sequence[str]) -> None:
            for job_id in ids:
                label = left.pop(0).label
                self._journal.note("A", label, job_id)
                if check:
                    self._background.start_soon(self._check_result, label, job_id)

        while left:
            try:
                await self._client.submit_many([labelled.job for labelled in left], accepted=accepted)
            except (StoreFull, StoreNotPrepared, AdmissionRefused) as error:
                self._journal.note("R", left[0].label, f"{type(error).__name__}: {error}")
                await anyio.sleep(PAUSE)
            except StoreUnavailable as error:
                # Of the jobs that are left only those of one call may be there; none is tried again.
                for labelled in left:
                    self._journal.note("U", labelled.label, error)
                return

    async def _check_result(self, label: str, job_id: str) -> None:
        try:
            found = await self._client.handle(job_id).result(timeout=PATIENCE)
        except (DrrError, TimeoutError):
            return  # what has no end is found by the verdict
        if found != label:
            self._journal.note("X", label, f"its result is {found!r}")


async def produce(url: str, namespace: str, name: str, outbox: str = "") -> None:
    """Carry out orders until standard input ends. ``outbox``: the file of an outbox to use."""
    kept = Outbox(outbox, horizon=HORIZON) if outbox else None
    async with (
        Client(url, namespace=namespace, patience=PATIENCE, outbox=kept) as client,
        anyio.create_task_group() as group,
    ):
        producer = Producer(name, client, Journal(), group)
        while line := await anyio.to_thread.run_sync(sys.stdin.readline):
            await producer.carry_out(Order(**json.loads(line)))
        group.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(produce, *sys.argv[1:])  # type: ignore[arg-type]  # three or four words
