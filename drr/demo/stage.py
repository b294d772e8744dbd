"""The set: a server, two dispatchers, four workers, and a hold on the store to look at them."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio

from drr.backend import Backend, LeaderRecord, Snapshot, open_backend
from drr.clock import Clock
from drr.demo.journal import DIRECTORY_VARIABLE, Reader
from drr.demo.plot import NAMESPACE, WORKERS, dispatcher_options
from drr.demo.processes import Process, stop
from drr.dispatcher import decode_status
from drr.embedded import EmbeddedServer
from drr.errors import DemoFailed, NotLeader

START_LIMIT: Final = 30.0
"""Seconds within which everything must be up: six interpreters start at once, maybe on a slow machine."""
STOP_LIMIT: Final = 15.0
SETTLE_LIMIT: Final = 10.0
LOOK: Final = 0.02
"""Seconds between two looks at the store for something that is about to happen."""


class Stage:
    """Starts all processes on entering and ends them on leaving, whatever happens in between."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._server = EmbeddedServer()
        self._directory = Path(tempfile.mkdtemp(prefix="drr-demo-"))
        self.journal = Reader(self._directory)
        self.dispatchers: dict[str, Process] = {}
        self.workers: dict[str, Process] = {}
        self._backend: Backend | None = None

    @property
    def url(self) -> str:
        """Where the store is."""
        return self._server.url

    @property
    def server_name(self) -> str:
        """The server's binary, for people."""
        return self._server.binary.name

    @property
    def backend(self) -> Backend:
        """The store."""
        assert self._backend is not None, "entered"
        return self._backend

    async def __aenter__(self) -> Self:
        try:
            await self._server.__aenter__()
            self._backend = open_backend(self.url, namespace=NAMESPACE, clock=self._clock)
            await self._backend.prepare()
            self._start_dispatcher("dispatcher-1")
            for number in range(1, WORKERS + 1):
                self._start_worker(f"worker-{number}")
            await self._until("a dispatcher leads", self._leads)
            self._start_dispatcher("dispatcher-2")
            await self._until("all workers have joined", self._joined)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything at once. What was to end in good order has done so before."""
        with anyio.CancelScope(shield=True):
            for process in (*self.workers.values(), *self.dispatchers.values()):
                process.close()
            if self._backend is not None:
                await self._backend.close()
            await self._server.__aexit__(None, None, None)
            shutil.rmtree(self._directory, ignore_errors=True)

    def _start_dispatcher(self, name: str) -> None:
        arguments = ["serve", self.url, f"--namespace={NAMESPACE}", f"--name={name}", *dispatcher_options()]
        self.dispatchers[name] = Process(name, arguments, self._directory, {})

    def _start_worker(self, name: str) -> None:
        arguments = ["worker", "drr.demo.tasks:tasks", f"--url={self.url}", f"--namespace={NAMESPACE}"]
        arguments += [f"--name={name}", "--slots=1"]
        self.workers[name] = Process(name, arguments, self._directory, {DIRECTORY_VARIABLE: str(self._directory)})

    # --- waiting for the set --------------------------------------------------------------------------

    def check(self) -> None:
        """Raise `DemoFailed` if a process has ended by itself."""
        for process in (*self.workers.values(), *self.dispatchers.values()):
            process.check()

    async def _until(self, what: str, reached: Callable[[], object], limit: float = START_LIMIT) -> None:
        began = self._clock.monotonic()
        while not await reached():  # type: ignore[misc]
            self.check()
            if self._clock.monotonic() - began > limit:
                raise DemoFailed(f"waited {limit:g} s in vain until {what}")
            await self._clock.sleep(LOOK)

    async def _leads(self) -> bool:
        return bool((await self.backend.leader()).token)

    async def _joined(self) -> bool:
        return len(await self.backend.workers()) == WORKERS

    # --- the incident ---------------------------------------------------------------------------------

    async def leader(self) -> tuple[LeaderRecord, str]:
        """Return the leader's record and the name it describes itself by (empty before its first description)."""
        stored = await self.backend.read_status()
        return stored.leader, decode_status(stored.blob).dispatcher if stored.blob else ""

    def kill(self, dispatcher: str) -> None:
        """Kill a dispatcher with SIGKILL."""
        process = self.dispatchers.pop(dispatcher)
        process.signal(signal.SIGKILL)
        process.close()

    async def another_leads(self, than: LeaderRecord) -> None:
        """Return as soon as another leader is on record."""

        async def changed() -> bool:
            return (await self.backend.leader()).token not in ("", than.token)

        await self._until("the standby leads", changed)

    # --- the end --------------------------------------------------------------------------------------

    async def stop(self) -> Snapshot:
        """End workers, then dispatchers, in good order; return what the store then holds."""
        workers, self.workers = self.workers, {}
        try:
            await stop(workers.values(), STOP_LIMIT)
        finally:
            for process in workers.values():
                process.close()
        await self._settled()
        dispatchers, self.dispatchers = self.dispatchers, {}
        try:
            await stop(dispatchers.values(), STOP_LIMIT)
        finally:
            for process in dispatchers.values():
                process.close()
        # Whoever wants a consistent picture has to lead. Nobody else is there any more.
        record = await self.backend.leader()
        token = "0:demo"
        if not await self.backend.elect(record.token, token):
            raise DemoFailed("a dispatcher still leads after all were stopped")
        return await self.backend.load(token)

    async def _settled(self) -> None:
        """Give the leader time to take in the workers' last reports. If it does not, the figures will tell."""
        began = self._clock.monotonic()
        while self._clock.monotonic() - began < SETTLE_LIMIT:
            self.check()
            try:
                snapshot = await self.backend.load((await self.backend.leader()).token)
            except NotLeader:
                continue  # it changed in between
            if not snapshot.leases:
                return
            await self._clock.sleep(LOOK)
