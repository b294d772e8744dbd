"""A service that embeds dispatcher, worker and client, and cancels what it does with them at random moments.

Run as a process: ``URL NAMESPACE ORDER SEED ROUNDS``. Each round does one thing and cancels it after a random time,
at whatever await it has come to. What is then left of it (tasks, threads, connections) is noted as impossible.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from operator import le
from typing import Final

import anyio

from chaos.handlers import tasks
from chaos.journal import Journal
from chaos.producer import RESULT_TTL, Labelled
from chaos.scale import SHORT
from drr.client import Client, Submission
from drr.dispatcher import Dispatcher
from drr.worker import Worker

LONGEST: Final = {"submit": 0.02, "batches": 0.05, "result": 0.2, "client": 0.05, "worker": 1.5, "dispatcher": 1.0}
"""What there is to do, and seconds after which it is cancelled at the latest."""
PARTING: Final = 15.0
"""Seconds within which what was cancelled has to be gone."""
BATCH: Final = 20


class Service:
    """One client that stays, and one thing after the other that does not."""

    def __init__(self, url: str, namespace: str, order: str, seed: int, client: Client) -> None:
        self._url = url
        self._namespace = namespace
        self._name = f"{order}.service-{seed}"
        self._rng = random.Random(seed)
        self._client = client
        self._journal = Journal()
        self._number = 0
        self._last = ""

    def _job(self) -> Labelled:
        self._number += 1
        label = f"{self._name}.{self._number}"
        tenant = f"org-{self._rng.randrange(8)}/project-{self._rng.randrange(40)}"
        job = Submission("spend", [label, 0.05], tenant=tenant, estimate=0.05, result_ttl=RESULT_TTL)
        return Labelled(label, job)

    async def _submit_on(self, client: Client, number: int) -> None:
        """Submit so many at a time, again and again; note what is acknowledged."""
        while True:
            batch = [self._job() for _ in range(number)]
            labels = deque(labelled.label for labelled in batch)

            def accepted(ids: Sequence[str], labels: deque[str] = labels) -> None:
                for job_id in ids:
                    self._last = job_id
                    self._journal.note("A", labels.popleft(), job_id)

            await client.submit_many([labelled.job for labelled in batch], accepted=accepted)

    async def submit(self) -> None:
        """Submit one job after the other."""
        await self._submit_on(self._client, 1)

    async def batches(self) -> None:
        """Submit many at a time."""
        await self._submit_on(self._client, BATCH)

    async def result(self) -> None:
        """Wait for a result."""
        if self._last:
            await self._client.handle(self._last).wait()

    async def client(self) -> None:
        """Open another client and submit with it."""
        async with Client(self._url, namespace=self._namespace) as client:
            await self._submit_on(client, 1)

    async def worker(self) -> None:
        """Run jobs."""
        name = f"service-{self._rng.getrandbits(32):08x}"
        worker = Worker(self._url, namespace=self._namespace, name=name, slots=2, lease=SHORT.lease, tasks=tasks)
        await worker.run()

    async def dispatcher(self) -> None:
        """Lead, or stand by."""
        lease, leader_lease = SHORT.lease, SHORT.leader_lease
        async with Dispatcher(self._url, namespace=self._namespace, lease=lease, leader_lease=leader_lease):
            await anyio.sleep_forever()

    async def round(self) -> None:
        """Do one thing, cancel it, and see that nothing of it is left."""
        name = self._rng.choice(list(LONGEST))
        doing: Callable[[], Awaitable[None]] = getattr(self, name)
        before = _alive()
        with anyio.move_on_after(self._rng.random() * LONGEST[name]):
            await doing()
        await self.gone(f"after {name}", lambda: all(map(le, _alive(), before)))

    async def gone(self, when: str, holds: Callable[[], bool]) -> None:
        """Note it if something does not hold in time."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > PARTING:
                left = f"{when}: {_alive()} tasks and threads, {_sockets()} sockets"
                self._journal.note("X", f"{self._name}.0", left)
                return
            await anyio.sleep(0.02)


def _alive() -> tuple[int, int]:
    return len(asyncio.all_tasks()), threading.active_count()


def _sockets() -> int:
    """Return how many sockets this process has open; 0 where that cannot be seen."""
    count = 0
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except OSError:
            continue  # the descriptor of the listing itself
    return count


async def serve(url: str, namespace: str, order: str, seed: int, rounds: int) -> None:
    """Do so many rounds, and note it if a connection is left at the end."""
    before = _sockets()
    async with Client(url, namespace=namespace) as client:
        service = Service(url, namespace, order, seed, client)
        for _ in range(rounds):
            await service.round()
    await service.gone("at the end", lambda: _sockets() <= before)


if __name__ == "__main__":
    anyio.run(serve, sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
