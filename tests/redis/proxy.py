"""A TCP proxy in front of a server's unix socket that can lose a reply."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Proxy:
    """``lose`` replies from now on: the request reaches the server, and the connection drops instead of an answer."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.lose = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._path)

        async def requests() -> None:
            while data := await reader.read(65536):
                server_writer.write(data)

        async def replies() -> None:
            while data := await server_reader.read(65536):
                if self.lose > 0:
                    self.lose -= 1
                    return
                writer.write(data)

        both = [asyncio.create_task(requests()), asyncio.create_task(replies())]
        self._tasks.update(both)
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            self._tasks.difference_update(both)
            for end in (writer, server_writer):
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()

    def cut(self) -> None:
        """Let go of every connection."""
        for task in self._tasks:
            task.cancel()


@asynccontextmanager
async def proxy(path: str) -> AsyncIterator[Proxy]:
    """A running proxy for the server at a unix socket."""
    running = Proxy(path)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.port = server.sockets[0].getsockname()[1]
    try:
        yield running
    finally:
        server.close()
        running.cut()
        await server.wait_closed()
