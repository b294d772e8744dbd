"""Hands that write into a store what no part of drr would: one kind of disagreement each."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque

from drr.backend import Backend
from drr.model import Header, Lane, Lease, TenantPath
from drr_backends.memory import MemoryBackend
from drr_backends.memory.records import Entry
from drr_backends.redis import RedisBackend
from drr_backends.redis.codec import head_of
from tests.helpers.rollback import store_of


class Vandal(ABC):
    """What can be broken in any store."""

    @abstractmethod
    async def lose_lease(self, lease: Lease) -> None:
        """Delete a lease; its entry stays in the pool's stream."""

    @abstractmethod
    async def lose_entry(self, lease: Lease) -> None:
        """Delete the entry of a lease."""

    @abstractmethod
    async def add_silently(self, header: Header) -> None:
        """Put a job into a lane, counted but not announced."""

    @abstractmethod
    async def lose_due_time(self, sequence: int) -> None:
        """Delete when a delayed job is due."""

    @abstractmethod
    async def lose_delayed(self, sequence: int) -> None:
        """Delete a delayed job; when it is due stays."""

    @abstractmethod
    async def miscount(self, path: TenantPath, jobs: int, seconds: int) -> None:
        """Add to what backlog limits count of a project and its organisation."""


class MemoryVandal(Vandal):
    def __init__(self, backend: Backend) -> None:
        self.store = store_of(backend)

    async def lose_lease(self, lease: Lease) -> None:
        del self.store.leases[lease.token]

    async def lose_entry(self, lease: Lease) -> None:
        store, pool = self.store, lease.header.lane.pool
        delivery = store.deliveries.pop(lease.token)
        if delivery.reader is None:
            del store.undelivered[pool][lease.token]
        else:
            del store.pending[delivery.reader, pool][lease.token]

    async def add_silently(self, header: Header) -> None:
        self.store.lanes.setdefault(header.lane, deque()).append(Entry(header, b""))
        self.store.queued += 1
        await self.miscount(header.lane.path, 1, round(header.work))

    async def lose_due_time(self, sequence: int) -> None:
        self.store.due = [item for item in self.store.due if item[1] != sequence]

    async def lose_delayed(self, sequence: int) -> None:
        del self.store.delayed[sequence]

    async def miscount(self, path: TenantPath, jobs: int, seconds: int) -> None:
        self.store.add_waiting(path, jobs, seconds * 1_000_000)


class RedisVandal(Vandal):
    def __init__(self, backend: RedisBackend) -> None:
        self.keys, self.call = backend.keys, backend.link.call

    async def lose_lease(self, lease: Lease) -> None:
        await self.call("HDEL", self.keys.leases, lease.token)

    async def lose_entry(self, lease: Lease) -> None:
        record = await self.call("HGET", self.keys.leases, lease.token)
        await self.call("XDEL", self.keys.pool(lease.header.lane.pool), record.partition(b" ")[0])

    async def add_silently(self, header: Header, *, active: bool = True) -> None:
        await self.call("RPUSH", self.keys.lane(header.lane), head_of(header))
        if active:
            await self.call("SADD", self.keys.active, str(header.lane))
        await self.miscount(header.lane.path, 1, round(header.work))

    async def lose_due_time(self, sequence: int) -> None:
        await self.call("ZREM", self.keys.due, sequence.to_bytes(8, "big"))

    async def lose_delayed(self, sequence: int) -> None:
        await self.call("HDEL", self.keys.delayed, sequence.to_bytes(8, "big"))

    async def miscount(self, path: TenantPath, jobs: int, seconds: int) -> None:
        for tenant in ("/".join(path), path[0]):
            await self.call("HINCRBY", self.keys.depth, tenant, jobs)
            await self.call("HINCRBY", self.keys.depth, f"{tenant}#", seconds * 1_000_000)


def vandal_of(backend: Backend) -> Vandal:
    """Return the vandal for a store."""
    if isinstance(backend, RedisBackend):
        return RedisVandal(backend)
    assert isinstance(backend, MemoryBackend)
    return MemoryVandal(backend)


def stray(lane: Lane, sequence: int) -> Header:
    """A job that no submit has made."""
    return Header(lane, sequence, "stray", "work", 1.0, 1.0)
