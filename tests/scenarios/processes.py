"""Scenarios with real processes on a real server: starting and ending them, and what they can be asked.

A `Site` is a namespace of a server with its dispatchers and workers, each started by the commands that users have
(``drr serve``, ``drr worker``). Nothing here waits for a length of time: `until` looks at the world until a condition
holds. What a handler did is known from its own journal (`tests.scenarios.crew`), not from the dispatcher's books.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

import chaos.process
from drr.backend import Backend, Peek, Snapshot, open_backend
from drr.client import Client
from drr.clock import SystemClock
from drr.dispatcher import decode_status
from drr.dispatcher.status import NodeStatus, PoolStatus, Status
from drr.errors import NotLeader
from drr.model import Header, Lane, parse_job_id
from tests.scenarios.crew import JOURNAL, Run, read_runs

PATIENCE = 90.0
"""Seconds that anything may take to happen: machines may be busy, but not for ever."""
LOOK = 0.02
LEADER_LEASE = 1.5


class Process(chaos.process.Process):
    """A Python module run in a process, whose handlers keep a journal; it fails the test if it ends badly."""

    def __init__(self, name: str, arguments: Iterable[str], directory: Path) -> None:
        super().__init__(name, arguments, directory, {JOURNAL: str(directory)})

    @property
    def ended(self) -> bool:
        """Whether it has ended well; fails if it has ended otherwise."""
        assert not self.status, f"{self.name} ended with {self.status}:\n{self.log[-3000:]}"
        return self.status is not None

    def check(self) -> None:
        """Fail if it has ended by itself."""
        assert self.status is None, f"{self.name} ended with {self.status}:\n{self.log[-3000:]}"

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.check()
        super().signal(number)

    def close(self) -> None:
        """End it with SIGKILL, if it runs, and wait for that."""
        self.kill()


class Site:
    """A namespace, and the processes that work on it."""

    def __init__(self, url: str, namespace: str, directory: Path, backend: Backend, client: Client) -> None:
        self.url = url
        self.namespace = namespace
        self.directory = directory
        self.backend = backend
        self.client = client
        self.gate = directory / "gate"
        """Jobs of the task ``hold`` that are given this path last until there is such a file."""
        self.processes: dict[str, Process] = {}
        self._errands: list[Process] = []
        self._cursor = ""

    # --- processes ------------------------------------------------------------------------------------

    def _start(self, name: str, *arguments: str) -> Process:
        assert name not in self.processes
        self.processes[name] = process = Process(name, arguments, self.directory)
        return process

    def serve(self, name: str, *options: str, lease: float, leader_lease: float = LEADER_LEASE) -> Process:
        """Start a dispatcher."""
        given = [f"--namespace={self.namespace}", f"--name={name}", f"--lease={lease}"]
        return self._start(
            name, "drr.cli", "serve", self.url, *given, f"--leader-lease={leader_lease}", "--log-level=info", *options
        )

    def work(self, name: str, *options: str, lease: float, slots: int = 1) -> Process:
        """Start a worker."""
        given = [f"--url={self.url}", f"--namespace={self.namespace}", f"--lease={lease}", f"--slots={slots}"]
        return self._start(
            name, "drr.cli", "worker", "tests.scenarios.crew:tasks", f"--name={name}", *given, *options
        )

    def work_many(self, name: str, number: int, *, lease: float) -> Process:
        """Start a process that hosts ``number`` workers of one slot each, named ``name``-1 and so on."""
        return self._start(
            name,
            "tests.scenarios.crew",
            self.url,
            self.namespace,
            str(lease),
            *(f"{name}-{i}" for i in range(number)),
        )

    def run(self, name: str, *arguments: str) -> Process:
        """Start a process that ends by itself."""
        self._errands.append(process := Process(name, arguments, self.directory))
        return process

    def kill(self, *names: str) -> None:
        """End processes with SIGKILL, all of them before any is waited for."""
        for name in names:
            self.processes[name].signal(signal.SIGKILL)
        for name in names:
            self.processes.pop(name).close()

    # --- what is there --------------------------------------------------------------------------------

    @property
    def runs(self) -> list[Run]:
        """All attempts that handlers have begun, in order of their starts."""
        return read_runs(self.directory)

    def runs_of(self, job_id: str) -> list[Run]:
        """All starts of one job."""
        return [run for run in self.runs if run.job_id == job_id]

    async def leader(self) -> str:
        """Return the token of who leads, or an empty one."""
        return (await self.backend.leader()).token

    async def snapshot(self) -> Snapshot:
        """Return the state at the end of some pass. Reading it under the leader's token changes nothing."""
        found: list[Snapshot] = []

        async def look() -> bool:
            try:
                found.append(await self.backend.load(await self.leader()))
            except NotLeader:
                return False  # it changed in between, or nobody leads
            return True

        await self.until(look)
        return found[0]

    async def status(self) -> Status:
        """Return the last leader's latest description of itself."""
        await self.until(self._is_described)
        return decode_status((await self.backend.read_status()).blob)

    async def _is_described(self) -> bool:
        return bool((await self.backend.read_status()).blob)

    async def status_when(self, holds: Callable[[Status, PoolStatus], object]) -> tuple[Status, PoolStatus]:
        """Return the first description, and its pool, that is as wanted: it is refreshed once a second."""
        found: list[tuple[Status, PoolStatus]] = []

        async def look() -> bool:
            status = await self.status()
            found[:] = [(status, pool) for pool in status.pools if pool.name == "default"]
            return bool(found) and bool(holds(*found[0]))

        await self.until(look)
        return found[0]

    async def waiting(self, tenant: str) -> list[Header]:
        """Return what is at the head of a tenant's lane (up to 1,000 jobs)."""
        [window] = await self.backend.peek([Peek(lane_of(tenant), 0, 1000)])
        assert all(isinstance(entry, Header) for entry in window.entries)
        return [entry for entry in window.entries if isinstance(entry, Header)]

    async def length(self, tenant: str) -> int:
        """Return how many jobs of a tenant wait."""
        [length] = await self.backend.lane_lengths([lane_of(tenant)])
        return length

    async def ends(self) -> list[str]:
        """Return the jobs whose ends the client was told of since the last call, as often as it was told."""
        found: list[str] = []
        while True:
            self._cursor, ended = await self.backend.replies(self.client.name, self._cursor, 0.0)
            if not ended:
                return found
            found += ended

    # --- waiting --------------------------------------------------------------------------------------

    async def until(self, done: Callable[[], object] | Callable[[], Awaitable[object]]) -> None:
        """Return when a condition holds; fail if it does not in time, or a process ends by itself meanwhile."""
        began = time.monotonic()
        while time.monotonic() - began < PATIENCE:
            for process in self.processes.values():
                process.check()
            found = done()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return
            await anyio.sleep(LOOK)
        logs = "".join(f"\n--- {process.name}\n{process.log[-1000:]}" for process in self.processes.values())
        raise AssertionError(f"waited {PATIENCE:g} s in vain{logs}")

    async def leads(self, *, other_than: str = "") -> str:
        """Return the token of a leader that has loaded, other than this one."""

        async def look() -> bool:
            record = await self.backend.leader()
            return record.token not in ("", other_than) and bool(record.renewals or record.passes)

        await self.until(look)
        return await self.leader()

    async def joined(self, number: int) -> None:
        """Return when so many workers are on record."""

        async def look() -> bool:
            return len(await self.backend.workers()) == number

        await self.until(look)

    async def no_leases(self) -> None:
        """Return when nothing is taken for running."""

        async def look() -> bool:
            return not (await self.snapshot()).leases

        await self.until(look)

    def close(self) -> None:
        """End all processes, stopped ones too."""
        for process in (*self._errands, *self.processes.values()):
            process.close()


def lane_of(tenant: str) -> Lane:
    """Return the lane of a tenant's jobs of the default priority."""
    return Lane("default", tuple(tenant.split("/")))


def node(pool: PoolStatus, *path: str) -> NodeStatus:
    """Return what a pool's status says of a node."""
    [found] = [status for status in pool.nodes if status.path == path]
    return found


def sequences(job_ids: Iterable[str]) -> list[int]:
    """Return the jobs' numbers in order."""
    return sorted(parse_job_id(job_id)[1] for job_id in job_ids)


@asynccontextmanager
async def opened(url: str, namespace: str, directory: Path) -> AsyncIterator[Site]:
    """Yield a prepared site; at the end, however it comes, all its processes are gone."""
    async with AsyncExitStack() as stack:
        backend = open_backend(url, namespace=namespace, clock=SystemClock())
        stack.push_async_callback(backend.close)
        await backend.prepare()
        client = await stack.enter_async_context(Client(url, namespace=namespace))
        site = Site(url, namespace, directory, backend, client)
        stack.callback(site.close)
        yield site
