"""Connections: commands in, raw replies out, every failure as a `drr.errors.BackendError`.

redis-py's connections and pool are used below its clients: those rewrite replies, retry by themselves and
differ in their defaults by constructor. Here every option is explicit and nothing is retried, except
commands that the caller declares to be repeatable, once, on a connection that turned out to be dead.

Blocking reads have connections of their own (`BlockingLink`), with a socket timeout above the block, and
are not torn by cancellation: the server is asked to end the read, and its reply is received.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import anyio
import hiredis
from redis.asyncio.connection import AbstractConnection, BlockingConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from drr.errors import (
    BackendError,
    CommitRefused,
    NotLeader,
    StoreCorrupt,
    StoreFull,
    StoreNotPrepared,
    StoreUnavailable,
    StoreUnsupported,
)
from drr_backends.redis.connecting import anonymous
from drr_backends.redis.refusals import REFUSALS, refusal
from drr_backends.redis.tls import handshake_fault
from drr_backends.redis.urls import read_url

Command: TypeAlias = Sequence[str | bytes | int | float]

POOL_SIZE: Final = 16
"""Connections per handle; a call beyond them waits for one."""
POOL_WAIT: Final = 10.0
CONNECT_TIMEOUT: Final = 5.0
REPLY_TIMEOUT: Final = 10.0
"""Seconds to wait for a reply to a command that does not block."""
BLOCK_LIMIT: Final = 2.0
"""Seconds that one blocking command may last; longer waits are made of several."""
BLOCK_GRACE: Final = 2.0
"""Seconds above its block after which a blocking read counts as lost."""
UNBLOCK_AGAIN: Final = 0.05
"""Seconds after which a cancelled blocking read that goes on is unblocked once more."""


class Address:
    """Where the store is: what to connect with, and what to call it in messages (never with a password)."""

    def __init__(self, url: str) -> None:
        place = read_url(url)
        self.shown = place.shown
        self.connection_class = place.connection_class
        self.replication = place.replication
        self.reply_timeout = REPLY_TIMEOUT
        self._options = {
            **place.options,
            "socket_connect_timeout": CONNECT_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
            "decode_responses": False,
            "encoding": "utf-8",
            "protocol": 2,
            "health_check_interval": 0,
            **anonymous(),
        }

    def make_pool(self) -> BlockingConnectionPool:
        """Return a pool of connections for commands that do not block."""
        return BlockingConnectionPool(
            max_connections=POOL_SIZE,
            timeout=POOL_WAIT,
            connection_class=self.connection_class,
            socket_timeout=self.reply_timeout,
            **self._options,
        )

    def make_connection(self) -> AbstractConnection:
        """Return a single connection, not yet connected, for reads that block."""
        return self.connection_class(socket_timeout=BLOCK_LIMIT + BLOCK_GRACE, **self._options)

    def translate(self, error: Exception) -> Exception:
        """Return the `BackendError` that says what ``error`` means to a caller of the port."""
        if isinstance(error, AuthenticationError) or isinstance(error.__cause__, AuthenticationError):
            return BackendError(f"the store at {self.shown} refuses these credentials: {error}")
        if isinstance(error, ResponseError):
            return self._translate_reply(error)
        if (fault := handshake_fault(error)) is not None:
            return BackendError(f"no encrypted connection to the store at {self.shown}: {fault}")
        if isinstance(error, BusyLoadingError):
            return StoreUnavailable(f"the store at {self.shown} is still loading its data")
        if isinstance(error, RedisTimeoutError | TimeoutError):
            return StoreUnavailable(f"the store at {self.shown} did not answer in time")
        if isinstance(error, RedisConnectionError | RedisError | OSError):
            return StoreUnavailable(f"the store at {self.shown} cannot be reached: {error}")
        return error

    def _translate_reply(self, error: ResponseError) -> Exception:
        text = str(error)
        word = text.partition(" ")[0]
        if word == "NOTLEADER":
            return NotLeader(f"refused: {text.removeprefix('NOTLEADER ')}")
        if word == "REFUSED":
            return CommitRefused(f"refused: {text.removeprefix('REFUSED ')}")
        if word in REFUSALS:
            return refusal(text)
        if "OOM" in text[:60] or "command not allowed when used memory" in text:
            return StoreFull(
                f"the store at {self.shown} is out of memory (maxmemory); nothing was written. "
                "Let the backlog drain, or give the server more"
            )
        if text.startswith(("Function not found", "ERR Function not found")):
            return StoreNotPrepared(
                f"the store at {self.shown} lacks this version's function library; "
                "run `drr init`, or start a dispatcher of this version first"
            )
        if type(error).__name__ in ("MovedError", "AskError", "ClusterDownError") or word == "CROSSSLOT":
            return StoreUnavailable(
                f"the cluster node at {self.shown} does not serve this namespace ({text}); "
                "connect to the node that does"
            )
        unavailable = ("READONLY", "NOREPLICAS", "MISCONF", "UNBLOCKED", "LOADING", "MASTERDOWN", "BUSY", "TRYAGAIN")
        if word in unavailable or demoted(error):
            return StoreUnavailable(f"the store at {self.shown} takes no writes now: {text}")
        if "unknown command" in text:
            return StoreUnsupported(f"the server at {self.shown} lacks a command: {text}")
        if "wrong type" in text or "WRONGTYPE" in text:
            return StoreCorrupt(f"a key of the store at {self.shown} has a type that drr did not give it: {text}")
        return BackendError(f"the store at {self.shown} refused: {text}")


def demoted(error: Exception) -> bool:
    """Whether an error tells that the server is a replica now: what is connected to it is of no use any more."""
    text = str(error)
    return (
        isinstance(error, ReadOnlyError)
        or text.startswith(("READONLY", "MASTERDOWN"))
        or "read only replica" in text
        or "previous master is now a slave" in text  # what redis-py makes of it under Sentinel
    )


class Link:
    """Commands over a bounded pool of connections. A call that finds all of them busy waits."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._pool: BlockingConnectionPool | None = None
        self.closed = False

    async def call(self, *command: str | bytes | int | float, repeatable: bool = False) -> Any:
        """Send one command and return its raw reply. ``repeatable``: doing it twice does no harm."""
        (reply,) = await self.calls([command], repeatable=repeatable)
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def calls(self, commands: Sequence[Command], *, repeatable: bool = False) -> list[Any]:
        """Send commands in one round trip; return their replies, a refused one's as a `BackendError` object."""
        packed = b"".join(map(pack, commands))
        try:
            return await self._exchange(packed, len(commands))
        except StoreUnavailable:
            if not repeatable or self.closed:
                raise
        return await self._exchange(packed, len(commands))

    async def close(self) -> None:
        """Close every connection."""
        self.closed = True
        pool, self._pool = self._pool, None
        if pool is not None:
            await pool.disconnect()

    async def _exchange(self, packed: bytes, count: int) -> list[Any]:
        if self.closed:
            raise StoreUnavailable(f"this handle on the store at {self.address.shown} was closed")
        if self._pool is None:
            self._pool = self.address.make_pool()
        pool = self._pool
        try:
            connection: AbstractConnection = await pool.get_connection()  # type: ignore[no-untyped-call]
            try:
                replies = await exchange(connection, packed, count, self.address)
            finally:
                with anyio.CancelScope(shield=True):
                    await pool.release(connection)
        except (RedisError, OSError) as error:
            if demoted(error):
                await pool.disconnect(inuse_connections=False)
            raise self.address.translate(error) from error
        if not connection.is_connected:
            # The server has become a replica. The idle connections would only learn it one by one.
            await pool.disconnect(inuse_connections=False)
        return replies


def pack(command: Command) -> bytes:
    """Return a command as it goes over the wire."""
    packed: bytes = hiredis.pack_command(tuple(command))  # type: ignore[arg-type]  # its stub means one item
    return packed


async def exchange(connection: AbstractConnection, packed: bytes, count: int, address: Address) -> list[Any]:
    """Send ``packed`` and read ``count`` replies; refusals become `BackendError` objects in their places.

    A connection on which this fails half-way, or is cancelled, is closed: a later user must not get what
    was meant for this one. So is one to a server that has become a replica: the next may lead to the primary.
    """
    replies: list[Any] = []
    useless = False
    try:
        await connection.send_packed_command(packed)
        for _ in range(count):
            try:
                replies.append(await connection.read_response())
            except ResponseError as error:
                replies.append(address.translate(error))
                useless = useless or demoted(error)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
        raise
    if useless:
        with anyio.CancelScope(shield=True):
            await connection.disconnect(nowait=True)
    return replies


class BlockingLink:
    """One connection for one reader that blocks. Calls of several tasks take turns."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._connection: AbstractConnection | None = None
        self._client_id: int | None = None
        self._turn = asyncio.Lock()

    async def call(self, *command: str | bytes | int | float) -> Any:
        """Send a command that blocks for `BLOCK_LIMIT` seconds at most and return its reply.

        When the caller is cancelled, the server is told to end the read, and its reply is received before
        the cancellation goes on: what an ``XREADGROUP`` delivered meanwhile stays pending.
        """
        if self._link.closed:
            raise StoreUnavailable(f"this handle on the store at {self._link.address.shown} was closed")
        async with self._turn:
            work = asyncio.ensure_future(self._exchange(pack(command)))
            try:
                reply = await asyncio.shield(work)
            except asyncio.CancelledError:
                with anyio.CancelScope(shield=True):
                    # Repeated, since an unblock may arrive before the read that it is meant for.
                    while not work.done():
                        await self._unblock()
                        await asyncio.wait([work], timeout=UNBLOCK_AGAIN)
                with contextlib.suppress(BackendError, asyncio.CancelledError):
                    work.result()
                raise
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.disconnect()

    async def _exchange(self, packed: bytes) -> Any:
        address = self._link.address
        if self._connection is None:
            self._connection = address.make_connection()
        connection = self._connection
        try:
            if not connection.is_connected:
                self._client_id = None
                await connection.connect()  # type: ignore[no-untyped-call]
                (self._client_id,) = await exchange(connection, pack(("CLIENT", "ID")), 1, address)
            (reply,) = await exchange(connection, packed, 1, address)
        except (RedisError, OSError) as error:
            raise address.translate(error) from error
        return reply

    async def _unblock(self) -> None:
        if isinstance(self._client_id, int) and not self._link.closed:
            with contextlib.suppress(BackendError):
                await self._link.call("CLIENT", "UNBLOCK", self._client_id)
