"""HTTP probes for orchestrators: ``/livez`` and ``/readyz`` of this process, answered from a thread of its own.

From a thread, because the question is whether the event loop turns: on that loop there would be no answer when there
is most to say. So the answer to a blocked loop is a 503 with its reason, and not a time-out.

One request per connection, `GET` or `HEAD`; the parsing is h11's. Everything is bounded: bytes of a request
(`REQUEST_LIMIT`), seconds of a connection (`TIME_LIMIT`), connections (`CONNECTION_LIMIT`: the oldest makes room, so
that nobody shuts the orchestrator out by connecting and keeping silent).
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable
from email.utils import formatdate
from typing import Any, Final, Self
from urllib.parse import urlsplit

import h11

from drr.clock import Clock, SystemClock
from drr.errors import InvalidConfiguration, ProbeUnavailable
from drr.health import Health

log = logging.getLogger("drr.probe")

REQUEST_LIMIT: Final = 8192
"""Most bytes of a request's line and headers, up to what one read brings. Bodies are not read."""
TIME_LIMIT: Final = 5.0
"""Seconds after which a connection is closed, whatever was received of its request."""
CONNECTION_LIMIT: Final = 32
JOIN_LIMIT: Final = 5.0
"""Seconds to wait at the end for the thread."""
_CHUNK: Final = 4096
_RULE: Final = "it must be HOST:PORT, such as 127.0.0.1:8080 or [::1]:8080; port 0 takes a free one"


class Probe:
    """Serves the probes of one process. Use it as a context manager; ``health`` is called in its thread.

    ::

        with Probe("127.0.0.1:8080", dispatcher.health):
            ...

    200 if the process is live (ready), else 503; the body is JSON, the fields of `drr.health.Health`. Raises
    `InvalidConfiguration` for an address that is none, and on entering `ProbeUnavailable` if nobody can listen there.
    """

    def __init__(self, address: str, health: Callable[[], Health], *, clock: Clock | None = None) -> None:
        """``address``: ``HOST:PORT``. ``clock``: for the date of answers."""
        self._host, self._wanted_port = parse_address(address)
        self._address = address
        self._health = health
        self._clock = clock or SystemClock()
        self._bound = threading.Event()
        self._port = 0
        self._error: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread: threading.Thread | None = None
        self._connections: dict[asyncio.Task[None], None] = {}

    @property
    def port(self) -> int:
        """The port that is listened at; 0 before the probe was entered."""
        return self._port

    def __enter__(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("a Probe can be entered once; make a new one to start again")
        self._thread = threading.Thread(target=asyncio.run, args=(self._serve(),), name="drr probe", daemon=True)
        self._thread.start()
        self._bound.wait()
        if self._error is not None:
            self._thread.join(JOIN_LIMIT)
            raise ProbeUnavailable(self._address, str(self._error)) from self._error
        return self

    def __exit__(self, *error: object) -> None:
        assert self._loop is not None, "entered before"
        assert self._stop is not None, "entered before"
        assert self._thread is not None, "entered before"
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(JOIN_LIMIT)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = await asyncio.start_server(self._accept, self._host, self._wanted_port, limit=_CHUNK)
            self._port = server.sockets[0].getsockname()[1]
        except (OSError, ValueError) as error:  # ValueError: a host that cannot even be looked up, such as "a..b"
            self._error = error
            return
        finally:
            self._bound.set()
        log.info("answering /livez and /readyz at %s (port %d)", self._address, self._port)
        await self._stop.wait()
        server.close()
        open_connections = list(self._connections)
        for connection in open_connections:
            connection.cancel()
        await asyncio.gather(*open_connections, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection; the oldest goes if there are too many."""
        me = asyncio.current_task()
        assert me is not None, "connections are served in tasks"
        if len(self._connections) >= CONNECTION_LIMIT:
            oldest = next(iter(self._connections))
            del self._connections[oldest]
            oldest.cancel()
        self._connections[me] = None
        try:
            async with asyncio.timeout(TIME_LIMIT):
                await self._converse(reader, writer)
        except (TimeoutError, OSError, asyncio.CancelledError):
            # Cancelled by a newer connection or at the end: either way this one is closed and nobody waits for it.
            writer.transport.abort()
        finally:
            self._connections.pop(me, None)
            writer.close()

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_LIMIT)
        try:
            request = await _receive(protocol, reader)
        except h11.RemoteProtocolError as error:
            status, method = error.error_status_hint, "GET"
            body: dict[str, Any] = {"error": "bad_request", "detail": str(error)[:200]}
        else:
            if request is None:
                return  # a bare connection, as port scanners and TCP checks make
            method = request.method.decode("ascii", "replace")
            status, body = self._answer(method, request.target.decode("ascii", "replace"))
        writer.write(self._encode(protocol, status, body, head=method == "HEAD"))
        await writer.drain()

    def _answer(self, method: str, target: str) -> tuple[int, dict[str, Any]]:
        """Return status and body of the answer to a request."""
        path = urlsplit(target).path
        if path not in ("/livez", "/readyz"):
            return 404, {"error": "not_found", "detail": "there are /livez and /readyz"}
        if method not in ("GET", "HEAD"):
            return 405, {"error": "method_not_allowed", "detail": "only GET and HEAD"}
        try:
            health = self._health()
        except Exception:
            log.exception("the health of this process cannot be told")
            return 500, {"error": "no_health", "detail": "the log says why"}
        good = health.live if path == "/livez" else health.ready
        return (200 if good else 503), health.as_dict()

    def _encode(self, protocol: h11.Connection, status: int, body: dict[str, Any], *, head: bool) -> bytes:
        data = json.dumps(body).encode() + b"\n"
        headers = [
            ("Date", formatdate(self._clock.wall(), usegmt=True)),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-store"),
            ("Connection", "close"),
        ]
        if status == 405:
            headers.append(("Allow", "GET, HEAD"))
        answer = protocol.send(h11.Response(status_code=status, headers=headers))
        return answer if head else answer + protocol.send(h11.Data(data=data))


async def _receive(protocol: h11.Connection, reader: asyncio.StreamReader) -> h11.Request | None:
    """Return the request of a connection, or ``None`` if it ends without one."""
    while (event := protocol.next_event()) is h11.NEED_DATA:
        protocol.receive_data(await reader.read(_CHUNK))
    return event if isinstance(event, h11.Request) else None


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPV6]:PORT``; raises `InvalidConfiguration`."""
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        host = ""  # an IPv6 address without brackets: which colon is meant?
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise InvalidConfiguration("address of the probe", address, _RULE)
    return host, int(port)
