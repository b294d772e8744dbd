"""What the contract suite needs of a store beyond the port, and a few words to write its tests in.

An adapter joins the suite by a `Harness` in `conftest.py`. Times are bounded, never waited for: a read that
should be woken blocks for `LONG` and the test fails after `PATIENCE`, however fast or slow the machine is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from itertools import count
from typing import Any, Generic, TypeVar

import anyio

from drr.backend import (
    Backend,
    Commit,
    Dispatch,
    Event,
    EventKind,
    Facts,
    Malformed,
    Peek,
    Position,
    Settlement,
    Struck,
    Window,
    WorkerRecord,
)
from drr.model import Completion, Header, JobSpec, JobState, Lane, Lease

LONG = 60.0
"""Seconds that a read blocks which the test expects to be woken."""
SHORT = 0.02
"""Seconds that a read blocks which the test expects to lapse."""
PATIENCE = 30.0
"""Seconds after which a test gives up."""

LANE = Lane("default", ("acme", "web"), 5)
OTHER = Lane("default", ("globex", "mail"), 5)
URGENT = Lane("default", ("acme", "web"), 0)
RENDERS = Lane("renders", ("acme", "web"), 5)

T = TypeVar("T")


class Harness(ABC):
    """One store of one adapter, empty at first."""

    def __init__(self) -> None:
        self._opened: list[Backend] = []

    def open(self) -> Backend:
        """Return a new handle on the store, which `close` closes."""
        handle = self.connect()
        self._opened.append(handle)
        return handle

    async def close(self) -> None:
        """Close every handle that was opened."""
        for handle in self._opened:
            await handle.close()

    @abstractmethod
    def connect(self) -> Backend:
        """Return a new handle on the store."""

    @abstractmethod
    async def plant_entry(self, lane: Lane, raw: bytes) -> None:
        """Append bytes to a lane as a hostile client could, the announcement included."""

    @abstractmethod
    async def plant_event(self, raw: bytes) -> None:
        """Append bytes to the event stream as a hostile worker could."""

    @abstractmethod
    async def blocked(self) -> int:
        """Return how many blocking reads wait at this moment."""

    async def until_blocked(self, readers: int) -> None:
        """Return once that many blocking reads wait."""
        while await self.blocked() < readers:
            await anyio.lowlevel.checkpoint()


@dataclass
class Result(Generic[T]):
    """What `reading` will have got at its end."""

    values: list[T] = field(default_factory=list)

    @property
    def value(self) -> T:
        """The one value."""
        assert len(self.values) == 1
        return self.values[0]


@asynccontextmanager
async def reading(harness: Harness, *reads: Callable[[], Awaitable[T]]) -> AsyncIterator[Result[T]]:
    """Run the body while the reads block; at its end they must return, in good time."""
    result: Result[T] = Result()

    async def run(read: Callable[[], Awaitable[T]]) -> None:
        result.values.append(await read())

    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            for number, read in enumerate(reads, 1):
                group.start_soon(run, read)
                await harness.until_blocked(number)
            yield result


def job(lane: Lane = LANE, payload: bytes = b"payload", **fields: Any) -> JobSpec:
    """A job as a client would submit it."""
    return JobSpec(lane, fields.pop("task", "work"), payload, fields.pop("submitted_at", 1_700_000_000.25), **fields)


def worker(name: str = "w1", incarnation: str = "i1", **fields: Any) -> WorkerRecord:
    """A worker's record."""
    return WorkerRecord(name, incarnation, fields.pop("slots", {"default": 4}), **fields)


def succeeded(token: str, **fields: Any) -> Event:
    """A report of success."""
    return Event(token, EventKind.SUCCEEDED, fields.pop("worker", "w1"), fields.pop("seconds", 0.5), **fields)


def completion(state: JobState = JobState.SUCCEEDED, **fields: Any) -> Completion:
    """An outcome."""
    return Completion(state, fields.pop("attempt", 1), 1_700_000_001.5, 0.25, **fields)


def header_of(entry: Header | Malformed | Struck) -> Header:
    """The entry, which must be a job."""
    assert isinstance(entry, Header)
    return entry


async def window(backend: Backend, lane: Lane = LANE, offset: int = 0, count: int = 100) -> Window:
    """One window on a lane."""
    (found,) = await backend.peek([Peek(lane, offset, count)])
    return found


async def heads(backend: Backend, lane: Lane = LANE) -> list[Header]:
    """The first headers of a lane, which must all be jobs."""
    return [header_of(entry) for entry in (await window(backend, lane)).entries]


def other(header: Header, **changes: Any) -> Header:
    """A header that differs, and that no adapter has seen: it brings nothing of an adapter's own along."""
    return Header(**{each.name: changes.get(each.name, getattr(header, each.name)) for each in fields(Header)})


_calls = count(1)


async def submit(backend: Backend, *jobs: JobSpec, client: str = "client") -> list[str]:
    """Submit under a call number of its own."""
    return await backend.submit(client, next(_calls), jobs)


class Leader:
    """The least that leads: it elects itself, numbers its passes and remembers how far it has read."""

    _tokens = count(1)

    def __init__(self, backend: Backend, token: str = "1:leader") -> None:
        self.backend = backend
        self.token = token
        self.passes = 0
        self.position = Position()

    async def take_over(self) -> Leader:
        """Lead, whoever led before."""
        assert await self.backend.elect((await self.backend.leader()).token, self.token)
        self.passes = 0
        return self

    def next(self, **fields: Any) -> Commit:
        """The next pass, not committed yet."""
        fields.setdefault("position", self.position)
        return Commit(self.token, self.passes + 1, **fields)

    async def commit(self, peeks: Sequence[Peek] = (), **fields: Any) -> list[Window]:
        """Commit the next pass."""
        commit = self.next(**fields)
        found = await self.backend.commit(commit, peeks)
        self.passes += 1
        self.position = commit.position
        return found

    async def receive(self, block: float = 0.0, **fields: Any) -> Facts:
        """Read the news and go on behind it."""
        facts = await self.backend.receive(self.position, block, **fields)
        self.position = facts.position
        return facts

    def lease(self, header: Header, **fields: Any) -> Lease:
        """A lease for the next attempt of a job, under a token of its own."""
        token = fields.pop("token", f"token-{next(self._tokens)}")
        return Lease(token, header, header.attempts + 1, 1_700_000_000.5, fields.pop("charged", 1.0), **fields)

    async def dispatch(self, *headers: Header) -> list[Lease]:
        """Dispatch these heads in one pass."""
        leases = [self.lease(header) for header in headers]
        await self.commit(dispatches=[Dispatch(lease.header, lease) for lease in leases])
        return leases

    async def start(self, *jobs: JobSpec) -> list[Lease]:
        """Submit jobs to empty lanes and dispatch them."""
        await submit(self.backend, *jobs)
        lanes = list(dict.fromkeys(job.lane for job in jobs))
        return await self.dispatch(*[header for lane in lanes for header in await heads(self.backend, lane)])

    async def settle(self, *leases: Lease, **fields: Any) -> None:
        """End these attempts as succeeded."""
        await self.commit(settlements=[Settlement(lease, completion(**fields)) for lease in leases])
