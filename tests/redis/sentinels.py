"""A primary, a replica and three Sentinels on loopback, ended with the test."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from redis import Redis
from redis.exceptions import RedisError

from drr import _lifeline
from drr.embedded import EmbeddedServer
from tests.contract.harness import PATIENCE
from tests.redis.ports import free_ports

SERVICE = "jobs"
DOWN_AFTER = 400
"""Milliseconds of silence after which a Sentinel takes the primary for down."""

_QUICK = {"repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}


class Site:
    """The servers, by what they were at first; ``primary`` is the one that the Sentinels name now."""

    def __init__(self, servers: list[EmbeddedServer], ports: list[int]) -> None:
        self.servers = servers
        self.ports = ports

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        return f"redis+sentinel://{hosts}/{SERVICE}/0"

    def asked(self, port: int, *command: str) -> Any:
        """Return a server's answer, or None if it has none."""
        try:
            with Redis("127.0.0.1", port, socket_timeout=2, protocol=2) as connection:
                return connection.execute_command(*command)
        except RedisError:
            return None

    async def until_linked(self) -> None:
        """Return once the replica follows, and each Sentinel knows of the replica and of the two others."""
        with anyio.fail_after(PATIENCE):
            for port in self.ports:
                while not self._knows_all(port):
                    await anyio.lowlevel.checkpoint()
            for server in self.servers[1:]:
                assert server.port is not None
                while (self.asked(server.port, "ROLE") or [b"", 0, 0, b""])[3] != b"connected":
                    await anyio.lowlevel.checkpoint()

    def _knows_all(self, port: int) -> bool:
        flat = self.asked(port, "SENTINEL", "MASTER", SERVICE) or []
        state = dict(zip(flat[::2], flat[1::2], strict=True))
        wanted = {b"num-other-sentinels": b"2", b"num-slaves": b"1", b"flags": b"master"}
        return all(state.get(name) == value for name, value in wanted.items())


@asynccontextmanager
async def running_site(binary: str, place: Path, **options: Any) -> AsyncIterator[Site]:
    """Start all of it; skips with the reason where the server's binary is none of a Sentinel."""
    ports = free_ports(3)
    with ExitStack() as stack:
        primary = stack.enter_context(EmbeddedServer(binary=binary, port=0, directives=_QUICK, **options))
        follow = {**_QUICK, "replicaof": f"127.0.0.1 {primary.port}"}
        replica = stack.enter_context(EmbeddedServer(binary=binary, port=0, directives=follow, **options))
        site = Site([primary, replica], ports)
        for number, port in enumerate(ports):
            folder = place / f"sentinel-{number}"
            folder.mkdir()
            process = _start_sentinel(primary, folder, port)
            stack.callback(_end, process)
            while site.asked(port, "PING") is None:
                if process.poll() is not None:
                    pytest.skip(f"{primary.binary} does not run as a Sentinel: {(folder / 'log').read_text()[-300:]}")
                await anyio.lowlevel.checkpoint()
        await site.until_linked()
        yield site


def _start_sentinel(primary: EmbeddedServer, folder: Path, port: int) -> subprocess.Popen[bytes]:
    config = folder / "sentinel.conf"
    config.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
        f"sentinel monitor {SERVICE} 127.0.0.1 {primary.port} 2\n"
        f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER}\n"
        f"sentinel failover-timeout {SERVICE} 2000\n"
    )
    kind = "signal" if sys.platform == "linux" else "pipe"
    script = [sys.executable, "-I", "-S", str(_lifeline.__file__), kind, str(os.getpid())]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            [*script, str(primary.binary), str(config), "--sentinel"], stdin=subprocess.PIPE, stdout=log, stderr=log
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    with process:
        process.wait()
