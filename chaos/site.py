"""What a run works on: a server, a namespace on it, and all the processes, over loopback.

Dispatchers and workers are started by the commands that users have (``drr serve``, ``drr worker``), producers are
`chaos.producer`. Every other process reaches the server through a proxy, so that each fault of the network hits
half of them. What is asked of the store here goes directly, and is repeated while the server is away.
"""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread

from chaos.journal import DIRECTORY, Journals
from chaos.process import Process
from chaos.proxy import Proxy, proxied
from chaos.scale import Scale
from chaos.shim import Shim
from drr.clock import SystemClock
from drr.dispatcher import decode_status
from drr.dispatcher.status import Status
from drr.embedded import EmbeddedServer, Fsync, find_server
from drr.errors import NotLeader, StoreUnavailable
from drr_backends.redis import RedisBackend, open_redis

NAMESPACE: Final = "chaos"
PATIENCE: Final = 90.0
"""Seconds that anything may take to happen: machines may be busy, but not for ever."""
LOOK: Final = 0.01
AWAY: Final = (StoreUnavailable, NotLeader)


class Stuck(Exception):
    """Raised when what has to happen does not, or a process has ended that nobody killed."""


class Site:
    """A running site; see `opened`."""

    def __init__(
        self, server: EmbeddedServer, proxy: Proxy, shim: Shim, backend: RedisBackend, directory: Path, scale: Scale
    ) -> None:
        self.server = server
        self.proxy = proxy
        self.shim = shim
        self.backend = backend
        self.directory = directory
        self.scale = scale
        self.journals = Journals(directory)
        self.processes: dict[str, Process] = {}
        self.orders = 0
        self.mortal: set[str] = set()
        """Processes that may end by themselves: whoever lets them has to start them again."""
        self.upgraded: set[str] = set()
        """Processes that run `chaos.upgraded` when they are started."""
        self.outboxes: set[str] = set()
        """Producers that use an outbox when they are started."""
        self._started: dict[str, float] = {}

    # --- processes ------------------------------------------------------------------------------------

    @property
    def dispatchers(self) -> list[str]:
        """Names of the dispatchers."""
        return [f"d{number}" for number in range(self.scale.dispatchers)]

    @property
    def workers(self) -> list[str]:
        """Names of the workers."""
        return [f"w{number}" for number in range(self.scale.workers)]

    @property
    def producers(self) -> list[str]:
        """Names of the producers."""
        return [f"p{number}" for number in range(self.scale.producers)]

    @staticmethod
    def is_direct(name: str) -> bool:
        """Whether a process reaches the server without the proxy."""
        return bool(name) and int(name[1:]) % 2 == 1

    def start(self, name: str) -> Process:
        """Start a process of the site (again)."""
        url = self.server.url if self.is_direct(name) else self.proxy.url
        where = f"--namespace={NAMESPACE}"
        lease = f"--lease={self.scale.lease}"
        program = "chaos.upgraded" if name in self.upgraded else "drr.cli"
        match name[0]:
            case "d":
                leader = f"--leader-lease={self.scale.leader_lease}"
                arguments = [program, "serve", url, where, lease, leader, f"--name={name}", "--log-level=info"]
            case "w":
                slots = f"--slots={self.scale.slots}"
                arguments = [program, "worker", "chaos.handlers:tasks", f"--url={url}", where, lease]
                # A name is free again one lease after the worker who had it was killed: it waits for that.
                arguments += [f"--name={name}", slots, f"--patience={PATIENCE}"]
            case _:
                arguments = ["chaos.producer", url, NAMESPACE, name]
                if name in self.outboxes:
                    arguments.append(str(self.directory / f"{name}.outbox"))
        self._started[name] = time.monotonic()
        process = self.processes[name] = Process(name, arguments, self.directory, {DIRECTORY: str(self.directory)})
        return process

    def run(self, name: str, *arguments: str) -> Process:
        """Start a process that ends by itself."""
        self.mortal.add(name)
        process = self.processes[name] = Process(name, arguments, self.directory, {DIRECTORY: str(self.directory)})
        return process

    def kill(self, name: str) -> None:
        """End a process with SIGKILL."""
        self.processes.pop(name).kill()

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[name].signal(number)

    def ended(self, name: str) -> bool:
        """Whether a process has ended."""
        return self.processes[name].status is not None

    def check(self) -> None:
        """Raise `Stuck` if a process has ended by itself."""
        for name, process in self.processes.items():
            if name not in self.mortal and process.status is not None:
                raise Stuck(f"{name} ended by itself with {process.status}: {process.log[-1500:]}")

    async def ripe(self, name: str) -> None:
        """Return when a process has run for two leader leases, so that it stands by."""
        await anyio.sleep(max(0.0, self._started[name] + 2 * self.scale.leader_lease - time.monotonic()))

    # --- the server -----------------------------------------------------------------------------------

    async def kill_server(self) -> float:
        """End the server with SIGKILL; return when."""
        at = time.monotonic()
        await anyio.to_thread.run_sync(self.server.kill)
        return at

    async def start_server(self) -> None:
        """Start the server on its data, and wait until it answers."""
        await anyio.to_thread.run_sync(self.server.start)

    async def raw(self, *command: str | bytes | int | float) -> Any:
        """Send a command that may be repeated, and return its raw reply."""
        return await self.patiently(lambda: self.backend.link.call(*command))

    async def patiently(self, operation: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat an operation while the server is away."""
        began = time.monotonic()
        while True:
            try:
                return await operation()
            except StoreUnavailable as error:
                if time.monotonic() - began > PATIENCE:
                    raise Stuck(f"the server stays away: {error}") from error
            await anyio.sleep(5 * LOOK)

    async def info(self, section: str, field: str) -> int:
        """Return a number that the server tells of itself."""
        text = (await self.raw("INFO", section)).decode()
        return int(text.partition(f"\n{field}:")[2].split()[0])

    async def version(self) -> str:
        """Return what the server calls itself, and its version."""
        lines = (await self.raw("INFO", "server")).decode().splitlines()
        facts = dict(line.split(":", 1) for line in lines if ":" in line)
        if "valkey_version" in facts:
            return f"Valkey {facts['valkey_version']}"
        return f"Redis {facts['redis_version']}"

    # --- what is there --------------------------------------------------------------------------------

    async def leader(self) -> str:
        """Return the token of a leader that has begun to work, or an empty one."""
        record = await self.patiently(self.backend.leader)
        return str(record.token) if record.renewals or record.passes else ""

    def name_of(self, token: str) -> str:
        """Return which dispatcher has that token, by its log."""
        for name in self.dispatchers:
            if name in self.processes and f"leads as {token}" in self.processes[name].log:
                return name
        return ""

    async def status(self) -> Status:
        """Return the leader's latest description of itself."""
        blob = b""

        async def look() -> bool:
            nonlocal blob
            blob = (await self.patiently(self.backend.read_status)).blob
            return bool(blob)

        await self.until(look, "a status")
        return decode_status(blob)

    # --- waiting --------------------------------------------------------------------------------------

    async def until(
        self,
        done: Callable[[], object] | Callable[[], Awaitable[object]],
        what: str,
        patience: float = PATIENCE,
    ) -> float:
        """Return when a condition holds, and the monotonic time of that; raise `Stuck` if it does not in time."""
        began = time.monotonic()
        while time.monotonic() - began < patience:
            self.check()
            found = done()
            if isinstance(found, Awaitable):
                found = await found
            if found:
                return time.monotonic()
            await anyio.sleep(LOOK)
        raise Stuck(f"waited {patience:g} s in vain for {what}")

    async def new_leader(self, old: str) -> float:
        """Return when another leader than this has begun to work."""

        async def look() -> bool:
            return await self.leader() not in ("", old)

        return await self.until(look, f"a leader after {old or 'nobody'}")

    async def idle(self) -> bool:
        """Whether nothing waits, runs or is to be told."""
        keys = self.backend.keys
        counts = [
            await self.raw("SCARD", keys.active),
            await self.raw("HLEN", keys.leases),
            await self.raw("ZCARD", keys.due),
            await self.raw("XLEN", keys.events),
        ]
        return not any(counts)

    def close(self) -> None:
        """End all processes, stopped ones too."""
        for process in self.processes.values():
            process.kill()


def _binary(name: str, shim: Shim, directory: Path) -> Path:
    return shim.wrap(find_server(name), directory)


@asynccontextmanager
async def opened(
    server_name: str, directory: Path, scale: Scale, *, seed: int, appendfsync: Fsync = "always"
) -> AsyncIterator[Site]:
    """Yield a site with all its processes at work; at the end, however it comes, all of them are gone.

    Raises `drr.errors.ServerNotFound` if there is no such server.
    """
    shim = Shim(directory)
    make = partial(EmbeddedServer, directory / "data", port=0, start_timeout=30.0)
    async with AsyncExitStack() as stack:
        server = make(binary=_binary(server_name, shim, directory), appendfsync=appendfsync)
        await stack.enter_async_context(server)
        assert server.port is not None
        proxy = await stack.enter_async_context(proxied(server.port, seed))
        backend = open_redis(server.url, NAMESPACE, SystemClock())
        stack.push_async_callback(backend.close)
        await backend.prepare()
        site = Site(server, proxy, shim, backend, directory, scale)
        stack.callback(site.close)
        for name in (*site.dispatchers, *site.workers, *site.producers):
            site.start(name)
        await site.new_leader("")

        async def all_joined() -> bool:
            return len(await site.patiently(site.backend.workers)) == scale.workers

        await site.until(all_joined, "all workers")
        yield site
