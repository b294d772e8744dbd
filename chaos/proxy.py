"""A TCP proxy in front of a server that loses, delays or withholds replies, never requests.

So whatever goes through it is carried out, and who asked may not learn of it. Three faults, each with a
probability per piece of a reply: *reset* (the connection is torn down in its place), *drop* (this and all that
follow are swallowed; the connection stays), *hold* (it comes late).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

_LINGER = struct.pack("ii", 1, 0)
"""Close with a reset, whatever has not been sent."""


@dataclass(slots=True)
class Mischief:
    """What happens to replies from now on. Probabilities; ``hold_for``: seconds. ``drops``: most connections."""

    reset: float = 0.0
    drop: float = 0.0
    drops: int = 0
    hold: float = 0.0
    hold_for: float = 0.0


class Proxy:
    """A running proxy; see `proxied`. ``faults`` counts what was done to replies."""

    def __init__(self, port: int, seed: int) -> None:
        self._server_port = port
        self._rng = random.Random(seed)
        self._links: set[asyncio.Task[None]] = set()
        self._ways: set[asyncio.Task[None]] = set()
        self.port = 0
        self.mischief = Mischief()
        self.faults = {"reset": 0, "drop": 0, "hold": 0}

    @property
    def url(self) -> str:
        """The address of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass a client's bytes to the server and back until either end is gone."""
        link = asyncio.current_task()
        assert link is not None
        self._links.add(link)
        link.add_done_callback(self._links.discard)
        ends = [writer]
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
            ends.append(server_writer)
            both = [
                asyncio.create_task(self._pass_requests(reader, server_writer)),
                asyncio.create_task(self._pass_replies(server_reader, writer)),
            ]
            self._ways.update(both)
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)
                self._ways.difference_update(both)
        except OSError:
            pass  # the server is away: the client finds its connection closed
        finally:
            for end in ends:
                end.close()
                with contextlib.suppress(OSError):
                    await end.wait_closed()

    async def _pass_requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def _pass_replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = False
        while data := await reader.read(65536):
            if silent:
                continue
            mischief, rng = self.mischief, self._rng
            if rng.random() < mischief.reset:
                self.faults["reset"] += 1
                link: socket.socket = writer.get_extra_info("socket")
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER)
                writer.transport.abort()
                return
            if mischief.drops and rng.random() < mischief.drop:
                mischief.drops -= 1
                self.faults["drop"] += 1
                silent = True
                continue
            if rng.random() < mischief.hold:
                self.faults["hold"] += 1
                await asyncio.sleep(rng.random() * mischief.hold_for)
            writer.write(data)
            await writer.drain()

    async def cut(self) -> None:
        """Let go of every connection. Their tasks are not cancelled themselves, which asyncio would complain of."""
        while self._links:
            for way in self._ways:
                way.cancel()
            await asyncio.wait(self._links, timeout=0.1)


@asynccontextmanager
async def proxied(port: int, seed: int) -> AsyncIterator[Proxy]:
    """Yield a running proxy for the server at a loopback port."""
    running = Proxy(port, seed)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        await running.cut()
        await server.wait_closed()
