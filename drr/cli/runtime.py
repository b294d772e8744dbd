"""The process around a command: its event loop, its signals, its log lines."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit, urlunsplit

import anyio
import typer

from drr.model import NAME_LENGTH_LIMIT

T = TypeVar("T")

LINE: Final = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(name)s: %(message)s"
TIME: Final = "%Y-%m-%dT%H:%M:%S"


class LogLevel(StrEnum):
    """How much the log says."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


LogOption: TypeAlias = Annotated[LogLevel, typer.Option("--log-level", help="How much the log on stderr says.")]


def run(function: Callable[[], Awaitable[T]]) -> T:
    """Run ``function`` on an event loop: uvloop's where it is installed."""
    use_uvloop = sys.platform != "win32" and importlib.util.find_spec("uvloop") is not None
    return anyio.run(function, backend_options={"use_uvloop": use_uvloop})


def start_log(level: LogLevel) -> None:
    """Log to stderr: time in UTC, level, part and message, one line each (a traceback adds its own)."""
    handler = logging.StreamHandler(sys.stderr)
    formatter = logging.Formatter(LINE, TIME)
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.value.upper(), handlers=[handler], force=True)


async def unless_stopped(function: Callable[[], Awaitable[T]]) -> T:
    """Return what ``function`` returns. SIGTERM or SIGINT cancels it, and then `KeyboardInterrupt` is raised.

    What it raises is raised here as it is, not in a group.
    """
    done: list[T] = []
    error: Exception | None = None

    async def watch() -> None:
        await until_stopped(logging.getLogger("drr"))
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        try:
            done.append(await function())
        except Exception as raised:
            error = raised
        group.cancel_scope.cancel()
    if error is not None:
        raise error
    if not done:
        raise KeyboardInterrupt
    return done[0]


async def until_stopped(log: logging.Logger) -> None:
    """Return at SIGTERM or SIGINT."""
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for number in signals:
            log.info("%s: stopping", signal.Signals(number).name)
            return


def process_name() -> str:
    """Return host and process id, in the alphabet of names."""
    host = re.sub(r"[^A-Za-z0-9_.@-]", "-", socket.gethostname()) or "host"
    tail = f"-{os.getpid()}"
    return host[: NAME_LENGTH_LIMIT - len(tail)] + tail


def shown_url(url: str) -> str:
    """Return a URL without its password, and without those among its options."""
    parts = urlsplit(url)
    query = re.sub(r"(password=)[^&]*", r"\1***", parts.query)
    netloc = parts.netloc
    if parts.password is not None:
        netloc = f"{parts.username or ''}:***@{netloc.rpartition('@')[2]}"
    if (netloc, query) == (parts.netloc, parts.query):
        return url
    return urlunsplit(parts._replace(netloc=netloc, query=query))
