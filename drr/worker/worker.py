"""The worker's public face: settings, registered tasks, and the ways to run it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from random import Random, SystemRandom
from typing import Any

import anyio

from drr.backend import Backend, open_backend
from drr.clock import Clock, SystemClock
from drr.errors import InvalidConfiguration
from drr.health import WorkerHealth
from drr.model import PAYLOAD_LIMIT, RetryPolicy, check_name
from drr.worker.examiner import Examiner
from drr.worker.options import (
    DEFAULT_BLOCKED_AFTER,
    DEFAULT_GRACE,
    DEFAULT_LEASE,
    DEFAULT_PATIENCE,
    check_options,
)
from drr.worker.shift import Shift
from drr.worker.state import Hands
from drr.worker.tasks import TaskDecorator, Tasks


def _version() -> str:
    try:
        return version("drr-dispatcher")
    except PackageNotFoundError:
        return ""  # running from a source tree that was never installed


class Worker:
    """Runs jobs: registers handlers by name, takes attempts from its pools, reports how they end.

    ::

        worker = Worker("redis://localhost", slots=8)

        @worker.task("send_email", timeout=30)
        async def send_email(context: Context, to: str, subject: str = "") -> str: ...

        await worker.run()

    ``store``: a URL, or an opened `Backend`, which stays the caller's to close. ``namespace``: must be that of
    the clients. ``name``: unique among live workers; by default made of host and process id.
    ``slots``: jobs at a time of the pool "default"; or ``pools``: slots by pool.
    ``lease``: seconds, as the dispatcher has it. ``heartbeat``: seconds between two signs of life, at most a
    third of the lease, which is the default. ``grace``: seconds that running jobs get when the worker is told to
    stop. ``patience``: seconds to wait at the start for a store that is not reachable or not prepared.
    ``payload_limit``, ``result_limit``: bytes. ``tasks``: handlers that several workers share.
    ``clock``, ``rng``, ``heartbeat_in_thread=False``: for simulations.

    Raises `InvalidConfiguration` or `InvalidName` for settings that make no sense, `UnknownBackend` for a
    URL that no adapter serves.
    """

    def __init__(
        self,
        store: str | Backend,
        *,
        namespace: str = "drr",
        name: str | None = None,
        slots: int | None = None,
        pools: Mapping[str, int] | None = None,
        lease: float = DEFAULT_LEASE,
        heartbeat: float | None = None,
        grace: float = DEFAULT_GRACE,
        patience: float = DEFAULT_PATIENCE,
        blocked_after: float = DEFAULT_BLOCKED_AFTER,
        payload_limit: int = PAYLOAD_LIMIT,
        result_limit: int = PAYLOAD_LIMIT,
        tasks: Tasks | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
        heartbeat_in_thread: bool = True,
    ) -> None:
        self._given: dict[str, Any] = {
            "store": store,
            "namespace": namespace,
            "name": name,
            "slots": slots,
            "pools": pools,
            "lease": lease,
            "heartbeat": heartbeat,
            "grace": grace,
            "patience": patience,
            "blocked_after": blocked_after,
            "payload_limit": payload_limit,
            "result_limit": result_limit,
            "clock": clock,
            "rng": rng,
            "heartbeat_in_thread": heartbeat_in_thread,
        }
        self._rng = SystemRandom() if rng is None else rng
        self._clock = SystemClock() if clock is None else clock
        self._options = check_options(
            name=name,
            pools=pools,
            slots=slots,
            lease=lease,
            heartbeat=heartbeat,
            grace=grace,
            patience=patience,
            blocked_after=blocked_after,
            payload_limit=payload_limit,
            result_limit=result_limit,
            heartbeat_in_thread=heartbeat_in_thread,
            rng=self._rng,
        )
        self._namespace = check_name("namespace", namespace)
        self._store = store
        self._tasks = Tasks() if tasks is None else tasks
        self._shift: Shift | None = None
        self._examiner = Examiner(self._options, self._clock)
        self._abandoned = 0

    def with_options(
        self,
        *,
        store: str | Backend | None = None,
        namespace: str | None = None,
        name: str | None = None,
        pools: Mapping[str, int] | None = None,
        lease: float | None = None,
        heartbeat: float | None = None,
        grace: float | None = None,
        patience: float | None = None,
        blocked_after: float | None = None,
    ) -> Worker:
        """Return a worker with the same tasks and settings, except those given here. It shares the tasks.

        ``pools`` replaces the slots of all pools. Raises what the constructor raises.
        """
        changed = {
            "store": store,
            "namespace": namespace,
            "name": name,
            "pools": pools,
            "lease": lease,
            "heartbeat": heartbeat,
            "grace": grace,
            "patience": patience,
            "blocked_after": blocked_after,
        }
        given = self._given | {what: value for what, value in changed.items() if value is not None}
        if pools is not None:
            given["slots"] = None
        return Worker(**given, tasks=self._tasks)

    @property
    def name(self) -> str:
        """The name that the dispatcher knows this worker by."""
        return self._options.name

    @property
    def slots(self) -> Mapping[str, int]:
        """Jobs at a time, by pool."""
        return self._options.slots

    @property
    def tasks(self) -> Tasks:
        """The registered handlers."""
        return self._tasks

    def health(self, *, patience: float = 600.0) -> WorkerHealth:
        """Return whether this worker is live and ready, and why not. From any thread; asks nobody, costs nothing.

        Ready: it takes jobs, and its event loop turns. Live: it works or is about to, its heartbeat has not died,
        and its event loop has turned within ``patience`` seconds. That is long on purpose: a handler that blocks the
        loop keeps its lease, and to restart the process would lose its work.
        """
        return self._examiner.health(patience)

    def task(
        self,
        name: str | None = None,
        *,
        timeout: float | None = None,
        pool: str = "",
        retry: RetryPolicy | None = None,
    ) -> TaskDecorator:
        """Register a function as the handler of ``name``; see `Tasks.task`."""
        return self._tasks.task(name, timeout=timeout, pool=pool, retry=retry)

    async def run(self, *, handle_signals: bool = False) -> None:
        """Work until `stop` is called, or, with ``handle_signals``, until SIGTERM or SIGINT.

        Then nothing new is taken, running jobs get ``grace`` seconds, and what is left goes back unpenalised; a
        second signal hands back at once. Cancelling this call hands back at once too.

        Raises `StoreUnavailable` or `StoreNotPrepared` if the store is not usable within ``patience`` at the
        start (later outages are waited out), and `WorkerNameInUse` if another live worker has this name.
        """
        if self._shift is not None:
            raise InvalidConfiguration("worker", self.name, "it is running already; make another one")
        store = self._store
        own = isinstance(store, str)
        backend = (
            open_backend(store, namespace=self._namespace, clock=self._clock) if isinstance(store, str) else store
        )
        hands = Hands(self.name, self._options.slots, _version())
        self._shift = Shift(hands, self._tasks, self._options, backend, self._clock, self._rng)
        self._examiner.began(hands, self._shift.heart)
        try:
            await self._shift.work(handle_signals=handle_signals)
        finally:
            self._examiner.ended()
            self._abandoned = self._shift.handlers.abandoned
            self._shift = None
            if own:
                with anyio.CancelScope(shield=True):
                    await backend.close()

    def stop(self) -> None:
        """Begin to drain a running worker; a second call hands back at once. Call it on the worker's loop."""
        if self._shift is not None:
            self._shift.stop()

    def main(self) -> None:
        """Run in a process of its own until SIGTERM or SIGINT, on uvloop where there is one.

        Does not return while handlers in threads finish within the grace period. If some still run after it, their
        attempts have been handed back, and the process ends hard (exit code 0), because Python would wait for them.
        """
        anyio.run(self._main, backend_options={"use_uvloop": sys.platform != "win32"})
        if self._abandoned:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)

    async def _main(self) -> None:
        await self.run(handle_signals=True)
