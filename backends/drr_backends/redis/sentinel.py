"""The primary of a service that Sentinels watch: who it is, is asked whenever a connection is made.

redis-py's managed connections ask their pool for the primary's address. `Sentinels` stands in the pool's place, so
that every kind of connection (of the pool of commands, and each reader that blocks) finds the primary by itself. A
connection ends when the server is lost, and when it says that it has become a replica; what follows asks again.

The Sentinels are asked one after the other, each for `ASK_TIMEOUT` seconds at most, who answered last time first. No
connection to them is kept: handles are used from several event loops, and a primary seldom changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import anyio
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import (
    Sentinel,
    SentinelManagedConnection,
    SentinelManagedSSLConnection,
)
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError

from drr_backends.redis.connecting import anonymous

ASK_TIMEOUT: Final = 1.0
"""Seconds for connecting to a Sentinel, and for its answer."""


class Sentinels:
    """Some Sentinels and the service that they watch, in the place of a redis-py pool."""

    is_master = True
    check_connection = False

    def __init__(self, service: str, addresses: Sequence[tuple[str, int]], **options: Any) -> None:
        """``options``: of redis-py, for connections to the Sentinels."""
        self.service = service
        self.shown = f"service {service} of the Sentinels {', '.join(f'{host}:{port}' for host, port in addresses)}"
        self._addresses = list(addresses)
        self._options = {
            "socket_connect_timeout": ASK_TIMEOUT,
            "socket_timeout": ASK_TIMEOUT,
            "retry": Retry(NoBackoff(), 0),
            "protocol": 2,
            **anonymous(),
            **options,
        }

    async def get_master_address(self) -> tuple[str, int]:
        """Return where the primary is, by the first Sentinel that knows; redis-py's name for it."""
        reasons: list[str] = []
        for host, port in self._addresses:
            sentinel = Sentinel([(host, port)], sentinel_kwargs=self._options)  # type: ignore[no-untyped-call]
            try:
                found = await self._ask(sentinel)
            except (RedisError, OSError) as error:
                reasons.append(f"{host}:{port}: {error}")
                continue
            if found is not None:
                # Others may ask at the same time, and from other threads: a new list, put in place at once.
                self._addresses = [(host, port), *(each for each in self._addresses if each != (host, port))]
                return found
            reasons.append(f"{host}:{port}: the service is down, or not watched")
        raise RedisConnectionError(f"no Sentinel names a primary ({'; '.join(reasons)})")

    async def _ask(self, sentinel: Sentinel) -> tuple[str, int] | None:
        (client,) = sentinel.sentinels
        try:
            known: Any = await client.sentinel_masters()
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()
        state = known.get(self.service)
        if state is None or not sentinel.check_master_state(state, self.service):
            return None
        return state["ip"], int(state["port"])


class PrimaryConnection(SentinelManagedConnection):
    """A connection to whoever is the primary, and says so itself."""

    async def connect_to(self, address: tuple[str, int]) -> None:
        """Connect; refuse a replica, such as a former primary that a Sentinel still takes for one."""
        await super().connect_to(address)  # type: ignore[no-untyped-call]
        try:
            await self.send_command("ROLE")
            role = await self.read_response()
        except ResponseError:
            return  # not permitted to ask: then the first write will tell
        if role[0] != b"master":
            await self.disconnect()
            raise RedisConnectionError(f"{address[0]}:{address[1]} is not the primary any more, or not yet")


class EncryptedPrimaryConnection(PrimaryConnection, SentinelManagedSSLConnection):
    """The same, encrypted."""
