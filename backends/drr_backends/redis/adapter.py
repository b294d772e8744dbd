"""The adapter as a whole: one handle with the three roles."""

from __future__ import annotations

from drr.clock import Clock
from drr_backends.redis.audit import AuditRole
from drr_backends.redis.client import ClientRole
from drr_backends.redis.keys import Keys
from drr_backends.redis.link import Address
from drr_backends.redis.worker import WorkerRole


class RedisBackend(ClientRole, WorkerRole, AuditRole):
    """`drr.backend.Backend` on Redis or Valkey."""

    def sibling(self) -> RedisBackend:
        """See `drr.backend.Backend.sibling`."""
        return RedisBackend(self.address, self.keys)


def open_redis(url: str, namespace: str, clock: Clock) -> RedisBackend:
    """Return the store at ``url`` ; connects when first used. urls.py has the forms of a URL.

    ``clock`` is part of every adapter's signature and not read by this one: the server measures how long a
    read blocks, and a connection that hangs is found out by its socket. Raises `drr.errors.InvalidValue`
    for a URL or namespace that cannot be.
    """
    return RedisBackend(Address(url), Keys(namespace))
