"""Who takes part: dispatchers, workers and clients of the product, each restarted by a patient supervisor.

A `Part` plays one participant through all its lives. `Part.crash` ends a life as SIGKILL does; `Part.leave` cancels
it, as a host does that shuts down: then its last words count.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

import anyio

from drr.backend import Backend
from drr.client import Client, Handle, Submission
from drr.client.outbox import Outbox
from drr.clock import Clock
from drr.dispatcher import Dispatcher
from drr.errors import (
    BackendError,
    DrrError,
    JobCancelled,
    JobExpired,
    JobFailed,
    StoreUnavailable,
    SubmitPending,
    WorkerNameInUse,
)
from drr.model import NodePolicy, PoolPolicy, TenantPath
from drr.worker import Context, Worker
from drr.worker.state import Hands
from tests.world.jobs import Journal, Order
from tests.world.ledger import Ledger
from tests.world.life import Life
from tests.world.network import Link, Network
from tests.world.scene import QUANTUM

log = logging.getLogger("drr.tests.world")

LEASE = 3.0
LEADER_LEASE = 1.0
HORIZON = 2.0
"""Seconds after which an outbox believes that the store keeps a submit: longer than what a restart takes back."""


@dataclass
class Stage:
    """What all participants share."""

    seed: str
    network: Network
    ledger: Ledger
    journal: Journal
    policies: Mapping[str | TenantPath, NodePolicy] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """Errors that no participant may end by."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()


def describe(error: BaseException) -> str:
    """Return what an error says, and what the errors in it say."""
    inner = [describe(each) for each in error.exceptions] if isinstance(error, BaseExceptionGroup) else []
    return f"{type(error).__name__}: {error} {'; '.join(inner)}"


class Part(ABC):
    """A participant over all its lives."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.name = name
        self.lives = 0
        self.life: Life | None = None
        self.wall_offset = 0.0
        self.closing = False
        self.over = asyncio.Event()
        self.rng = Random(f"{stage.seed}/{name}")

    async def play(self) -> None:
        """Live again and again, until `leave` or the end of what there is to do."""
        while not self.closing:
            self.lives += 1
            life = self.life = Life(f"{self.name}.{self.lives}", self.rng.random() * 1e4)
            life.wall_offset = self.wall_offset
            self.stage.ledger.note(life.name, "begins")
            finished = False
            with life.scope:
                finished = await self._live(life)
            self.stage.ledger.note(life.name, "is over" if life.alive else "was killed")
            life.alive = False
            if finished:
                break
            life.go_on()
            if not self.closing:
                await asyncio.sleep(self.rng.random() * 1.5)
        self.over.set()

    async def _live(self, life: Life) -> bool:
        link = Link(self.stage.network, life, f"{self.stage.seed}/{life.name}")
        try:
            return await self.perform(life, cast("Backend", link), Random(f"{self.stage.seed}:{life.name}"))
        except StoreUnavailable as error:
            self.stage.ledger.note(life.name, "gives up", str(error))
            return False
        except Exception as error:
            log.exception("%s ends by an error", life.name)
            self.stage.failures.append(f"{life.name} ended by {describe(error)}")
            return False
        finally:
            await link.close()

    @abstractmethod
    async def perform(self, life: Life, backend: Backend, rng: Random) -> bool:
        """Be the participant; return whether nothing is left to be done."""

    def crash(self) -> None:
        if self.life is not None and self.life.alive:
            self.life.kill()

    def leave(self) -> None:
        """Cancel it for good."""
        self.closing = True
        self.pause()

    def pause(self) -> None:
        """Cancel it; it comes back soon."""
        if self.life is not None:
            self.life.go_on()
            self.life.scope.cancel()

    def stop(self) -> None:
        if self.life is not None and self.life.alive:
            self.life.stop()

    def go_on(self) -> None:
        if self.life is not None:
            self.life.go_on()

    def jump(self, seconds: float) -> None:
        """Let its wall clock jump."""
        self.wall_offset += seconds
        if self.life is not None:
            self.life.wall_offset = self.wall_offset


class DispatcherPart(Part):
    """One of the dispatchers."""

    @property
    def policies(self) -> Mapping[str | TenantPath, NodePolicy]:
        """Return the settings that it starts with."""
        return self.stage.policies

    def clock(self, life: Life) -> Clock:
        """Return what it goes by."""
        return life

    async def perform(self, life: Life, backend: Backend, rng: Random) -> bool:
        async with Dispatcher(
            backend,
            name=self.name,
            clock=self.clock(life),
            rng=rng,
            lease=LEASE,
            leader_lease=LEADER_LEASE,
            pools={"default": PoolPolicy(quantum=QUANTUM, ceiling=1.0, default_estimate=0.2)},
            policies={"default": self.policies},
        ):
            await anyio.sleep_forever()
        raise AssertionError("nobody wakes it")


class WorkerPart(Part):
    """One of the workers."""

    def __init__(self, stage: Stage, name: str, slots: int) -> None:
        super().__init__(stage, name)
        self.slots = slots
        self.worker: Worker | None = None

    async def perform(self, life: Life, backend: Backend, rng: Random) -> bool:
        stage = self.stage
        worker = self.worker = Worker(
            backend,
            name=self.name,
            slots=self.slots,
            lease=LEASE,
            grace=1.0,
            patience=5.0,
            clock=life,
            rng=rng,
            heartbeat_in_thread=False,
        )

        @worker.task("work")
        async def work(context: Context, label: int, seconds: float, failures: int) -> str:
            return await stage.journal.handle(life, stage.now, context, label, seconds, failures)

        try:
            await worker.run()
        except WorkerNameInUse as error:
            # Right if a last sign of life of its predecessor was on its way for long: whoever starts it tries again.
            stage.ledger.note(life.name, "gives up", str(error))
        return False

    def drain(self) -> None:
        """Tell it to stop."""
        if self.life is not None and self.life.alive and self.worker is not None:
            self.worker.stop()

    @property
    def hands(self) -> Hands | None:
        """What the worker has in hand, while it is at work."""
        shift = self.worker._shift if self.worker is not None else None
        return shift._hands if shift is not None else None


class ClientPart(Part):
    """A client with a list of orders; what is acknowledged goes into the ledger."""

    def __init__(
        self, stage: Stage, name: str, orders: Iterable[tuple[float, Order]], outbox: Path | None = None
    ) -> None:
        """``orders``: each with the seconds to wait before it. ``outbox``: the file of its outbox, if it has one."""
        super().__init__(stage, name)
        self._orders = list(orders)
        self._next = 0
        self._outbox = outbox
        self._confirmed = outbox is None

    @property
    def busy(self) -> bool:
        """Whether there are orders that it has not been able to make yet, or that the store may not have for good."""
        return self._next < len(self._orders) or not self._confirmed

    async def perform(self, life: Life, backend: Backend, rng: Random) -> bool:
        outbox = Outbox(self._outbox, horizon=HORIZON, in_thread=False) if self._outbox is not None else None
        async with (
            Client(backend, clock=life, rng=rng, patience=4.0, outbox=outbox) as client,
            anyio.create_task_group() as following,
        ):
            while self._next < len(self._orders):
                pause, order = self._orders[self._next]
                self._next += 1  # whatever becomes of it: another life must not submit it once more
                await life.sleep(pause)
                handle = await self._submit(client, order, life)
                if handle is None:
                    continue
                if order.cancel_after is not None or order.waits:
                    following.start_soon(self._follow, handle, order, life)
            if outbox is not None:
                await client.confirmed()
                self._confirmed = True
        return True

    async def _submit(self, client: Client, order: Order, life: Life) -> Handle[Any] | None:
        """Submit, under an idempotency key a second time if it is not known what became of the first."""
        for _ in range(2 if "key" in order.options else 1):
            try:
                handle = await client.submit(
                    "work", [order.label, order.seconds, order.failures], tenant=order.tenant, **order.options
                )
            except BackendError as error:
                if isinstance(error, SubmitPending):
                    self.stage.ledger.promised.add(order.label)
                self.stage.ledger.note(life.name, "submit failed", order.label, type(error).__name__)
            else:
                self.stage.ledger.acknowledge(handle.id, order.label, life.name)
                if self._outbox is not None:
                    self.stage.ledger.promised.add(order.label)
                return handle
        return None

    async def _follow(self, handle: Handle[Any], order: Order, life: Life) -> None:
        try:
            if order.cancel_after is not None:
                await life.sleep(order.cancel_after)
                await handle.cancel()
            if order.waits:
                await self._wait(handle, order)
        except (StoreUnavailable, TimeoutError) as error:
            self.stage.ledger.note(life.name, "lost sight of", order.label, type(error).__name__)

    async def _wait(self, handle: Handle[Any], order: Order) -> None:
        ledger = self.stage.ledger
        try:
            value = await handle.result(timeout=8.0)
        except (JobCancelled, JobExpired, JobFailed):
            return
        except StoreUnavailable:
            raise
        except DrrError as error:
            ledger.expect(ledger.may_be_lost(handle.id), f"the client of {handle.id} was told: {error!r}")
            return
        told, asked = str(value).rpartition("#")[0], handle.id
        if self._outbox is not None:
            # A job that was lost and submitted again may have another number; its call is the same.
            told, asked = told.rpartition("~")[2], asked.rpartition("~")[2]
        ledger.expect(told == asked, f"the client of {handle.id} was given the result {value!r}")


class BulkPart(Part):
    """A client that submits everything at once, in its first life."""

    def __init__(self, stage: Stage, orders: Sequence[Order]) -> None:
        super().__init__(stage, "bulk")
        self._orders = orders

    async def perform(self, life: Life, backend: Backend, rng: Random) -> bool:
        orders = iter(self._orders)

        def accepted(ids: Sequence[str]) -> None:
            for job_id, order in zip(ids, orders, strict=False):
                self.stage.ledger.acknowledge(job_id, order.label, life.name)

        if self.lives == 1:
            async with Client(backend, clock=life, rng=rng, patience=4.0) as client:
                await client.submit_many((submission(order) for order in self._orders), accepted=accepted)
        return True


def submission(order: Order) -> Submission:
    """Return what a client hands over for an order."""
    return Submission(
        "work", [order.label, order.seconds, order.failures], tenant=order.tenant, **cast("Any", order.options)
    )
