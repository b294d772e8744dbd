"""The port over a `Store`: opening, blocking reads, and one method per operation.

Every method is a checkpoint before it does anything: a loop over a store that always has something to give
still lets other tasks run, and a method that is cancelled there has done nothing. After it nothing awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import TypeVar
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

import anyio

from drr.backend import (
    ITEM_LIMIT,
    Attempt,
    Backend,
    Commit,
    DeadLetter,
    Event,
    Facts,
    LeaderRecord,
    Malformed,
    MalformedEvent,
    Peek,
    Position,
    Snapshot,
    StoredStatus,
    Window,
    WorkerRecord,
    check_commit,
    check_count,
    check_job,
    check_lane,
    check_peeks,
    check_worker,
)
from drr.clock import Clock
from drr.errors import InvalidConfiguration, StoreUnavailable
from drr.model import JobSpec, JobStatus, Lane, check_name
from drr_backends.memory.passes import apply, check_fence, validate
from drr_backends.memory.records import NEWS, RESIGNATION, Entry, attempts_topic, replies_topic
from drr_backends.memory.store import Store

T = TypeVar("T")

_named: WeakValueDictionary[tuple[str, str], Store] = WeakValueDictionary()
_named_lock = threading.Lock()


def open_memory(url: str, namespace: str, clock: Clock) -> MemoryBackend:
    """Return a handle on a store in this process's memory.

    ``memory://name`` names a store that lives as long as somebody has it open: handles with one name and
    namespace share it, whatever thread or event loop they are used from. ``memory://`` is private to the
    handle and its siblings. ``?max_jobs=N`` bounds the waiting jobs: a submit beyond raises `StoreFull`.
    A named store's results expire by the clock of its first opener. Raises `InvalidConfiguration` or
    `InvalidName` for anything else in the URL.
    """
    check_name("namespace", namespace)
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.fragment:
        raise InvalidConfiguration("memory URL", url, "it looks like memory://name or memory://name?max_jobs=1000")
    max_jobs = _read_max_jobs(url, parts.query)
    if not parts.netloc:
        return MemoryBackend(Store(clock, max_jobs), clock)
    key = (check_name("name of a memory store", parts.netloc), namespace)
    with _named_lock:
        store = _named.get(key)
        if store is None:
            store = _named[key] = Store(clock, max_jobs)
    return MemoryBackend(store, clock)


def _read_max_jobs(url: str, query: str) -> int | None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    text = options.pop("max_jobs", None)
    if options or (text is not None and not text.isdecimal()):
        raise InvalidConfiguration("memory URL", url, "its only option is max_jobs, a whole number")
    return int(text) if text is not None else None


def check_reader(name: str, incarnation: str, pool: str) -> tuple[str, str]:
    """Return worker and incarnation as the store knows them, having checked all three names."""
    check_name("pool", pool)
    return check_name("worker", name), check_name("incarnation", incarnation)


def check_lanes_of(peeks: Sequence[Peek]) -> None:
    """Check what is asked for, the names of the lanes included."""
    check_peeks(peeks)
    for peek in peeks:
        check_lane(peek.lane)


class MemoryBackend(Backend):
    """A handle on a store in memory, for use from one event loop; `sibling` gives one for another loop.

    Only `close` may be called from any thread.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._open: Store | None = store
        self._clock = clock

    @property
    def _store(self) -> Store:
        if self._open is None:
            raise StoreUnavailable("this handle on the memory store was closed")
        return self._open

    async def _do(self, operation: Callable[[Store], T]) -> T:
        """Carry out an operation that does not block."""
        await asyncio.sleep(0)
        store = self._store
        with store.lock:
            return operation(store)

    async def _wait(self, topic: Hashable, block: float, look: Callable[[Store], T | None]) -> T | None:
        """Return what ``look`` finds, as soon as it finds something or ``block`` seconds have passed.

        Looking and returning are one step without an await between, so that nothing taken is ever lost.
        """
        await asyncio.sleep(0)
        deadline = self._clock.monotonic() + block
        while True:
            store = self._store
            with store.lock:
                # Asked again under the lock: a close from another thread notifies whoever waits by then.
                found = look(self._store)
                remaining = deadline - self._clock.monotonic()
                if found is not None or block <= 0 or remaining <= 0:
                    return found
                waiter = store.waiters.add(topic)
            try:
                await self._sleep_until(waiter, remaining)
            finally:
                with store.lock:
                    store.waiters.discard(topic, waiter)

    async def _sleep_until(self, waiter: asyncio.Future[None], seconds: float) -> None:
        async with anyio.create_task_group() as group:

            async def lapse() -> None:
                await self._clock.sleep(seconds)
                group.cancel_scope.cancel()

            group.start_soon(lapse)
            await waiter
            group.cancel_scope.cancel()

    # --- clients

    async def submit(self, client: str, call: int, jobs: Sequence[JobSpec]) -> list[str]:
        """See `ClientPort.submit`."""
        check_name("client", client)
        check_count("number of jobs in one submit", len(jobs))
        check_count("call number", call, high=2**53)
        for job in jobs:
            check_job(job)
        return await self._do(lambda store: store.submit(client, call, jobs))

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """See `ClientPort.look_up`."""
        check_count("number of jobs in one look-up", len(job_ids))
        return await self._do(lambda store: [store.look_up(job_id) for job_id in job_ids])

    async def replies(self, client: str, after: str, block: float) -> tuple[str, list[str]]:
        """See `ClientPort.replies`."""
        check_name("client", client)
        found = await self._wait(
            replies_topic(client), block, lambda store: store.read_replies(client, after, ITEM_LIMIT)
        )
        return found if found is not None else (after, [])

    async def lane_lengths(self, lanes: Sequence[Lane]) -> list[int]:
        """See `ClientPort.lane_lengths`."""
        for lane in lanes:
            check_lane(lane)
        return await self._do(lambda store: [store.lane_length(lane) for lane in lanes])

    async def read_status(self) -> StoredStatus:
        """See `ClientPort.read_status`."""
        return await self._do(lambda store: store.read_status())

    async def dead_letters(self, limit: int = 100, offset: int = 0) -> list[DeadLetter]:
        """See `ClientPort.dead_letters`."""
        check_count("limit of dead letters", limit)
        check_count("offset of dead letters", offset, high=2**53)
        return await self._do(lambda store: list(islice(store.dead, offset, offset + limit)))

    # --- workers

    async def join(self, record: WorkerRecord, replacing: str = "") -> None:
        """See `WorkerPort.join`."""
        check_worker(record)
        await self._do(lambda store: store.join(record, replacing))

    async def worker_record(self, name: str) -> WorkerRecord | None:
        """See `WorkerPort.worker_record`."""
        check_name("worker", name)
        return await self._do(lambda store: store.workers.get(name))

    async def heartbeat(self, record: WorkerRecord) -> bool:
        """See `WorkerPort.heartbeat`."""
        check_worker(record)
        return await self._do(lambda store: store.heartbeat(record))

    async def leave(self, name: str, incarnation: str) -> None:
        """See `WorkerPort.leave`."""
        check_name("worker", name)
        await self._do(lambda store: store.leave(name, incarnation))

    async def read_attempts(
        self, name: str, incarnation: str, pool: str, count: int, block: float
    ) -> list[Attempt | Malformed]:
        """See `WorkerPort.read_attempts`."""
        check_count("number of attempts in one read", count, low=1)
        reader = check_reader(name, incarnation, pool)
        found = await self._wait(
            attempts_topic(pool), block, lambda store: store.take_attempts(reader, pool, count) or None
        )
        return found or []

    async def pending_attempts(self, name: str, incarnation: str, pool: str) -> list[Attempt | Malformed]:
        """See `WorkerPort.pending_attempts`."""
        reader = check_reader(name, incarnation, pool)
        return await self._do(lambda store: store.pending_attempts(reader, pool))

    async def report(self, events: Sequence[Event]) -> None:
        """See `WorkerPort.report`."""
        check_count("number of events in one report", len(events))
        await self._do(lambda store: store.report(tuple(events)))

    # --- the dispatcher

    async def prepare(self) -> None:
        """See `DispatcherPort.prepare`; there is nothing to prepare in memory."""
        await self._do(lambda store: None)

    async def leader(self) -> LeaderRecord:
        """See `DispatcherPort.leader`."""
        return await self._do(lambda store: store.leader)

    async def elect(self, expected: str, token: str) -> bool:
        """See `DispatcherPort.elect`."""
        return await self._do(lambda store: store.elect(expected, token))

    async def renew(self, token: str) -> None:
        """See `DispatcherPort.renew`."""
        await self._do(lambda store: store.renew(token))

    async def resign(self, token: str) -> None:
        """See `DispatcherPort.resign`."""
        await self._do(lambda store: store.resign(token))

    async def await_resignation(self, block: float) -> bool:
        """See `DispatcherPort.await_resignation`."""
        seen = await self._do(lambda store: store.resignations)
        found = await self._wait(RESIGNATION, block, lambda store: store.resigned_since(seen) or None)
        return found is not None

    async def load(self, token: str) -> Snapshot:
        """See `DispatcherPort.load`."""
        return await self._do(lambda store: store.load(token))

    async def receive(self, position: Position, block: float, limit: int = ITEM_LIMIT) -> Facts:
        """See `DispatcherPort.receive`."""
        check_count("limit of events", limit, low=1)
        found = await self._wait(NEWS, block, lambda store: store.receive(position, limit))
        return found if found is not None else Facts(position)

    async def peek(self, requests: Sequence[Peek]) -> list[Window]:
        """See `DispatcherPort.peek`."""
        check_lanes_of(requests)
        return await self._do(lambda store: [store.window(peek) for peek in requests])

    async def commit(self, commit: Commit, peeks: Sequence[Peek] = ()) -> list[Window]:
        """See `DispatcherPort.commit`."""
        check_commit(commit, peeks)
        check_lanes_of(peeks)

        def carry_out(store: Store) -> list[Window]:
            check_fence(store, commit)
            validate(store, commit)
            apply(store, commit)
            return [store.window(peek) for peek in peeks]

        return await self._do(carry_out)

    async def workers(self) -> list[WorkerRecord]:
        """See `DispatcherPort.workers`."""
        return await self._do(lambda store: list(store.workers.values()))

    async def write_status(self, token: str, blob: bytes) -> None:
        """See `DispatcherPort.write_status`."""
        await self._do(lambda store: store.write_status(token, blob))

    # --- the handle

    async def close(self) -> None:
        """See `Backend.close`. Whoever waits on this handle is woken and told."""
        store = self._open
        if store is not None:
            with store.lock:
                self._open = None
                store.waiters.notify_all()

    def sibling(self) -> MemoryBackend:
        """See `Backend.sibling`."""
        return MemoryBackend(self._store, self._clock)

    # --- for tests: who waits, and what a hostile client or worker could write

    @property
    def blocked(self) -> int:
        """How many blocking reads wait on the store at this moment."""
        store = self._store
        with store.lock:
            return len(store.waiters)

    async def plant_entry(self, lane: Lane, raw: bytes) -> None:
        """Append bytes to a lane that are no job."""
        head = Malformed(lane, raw, "planted")
        await self._do(lambda store: store.append(lane, Entry(head, raw)))

    async def plant_event(self, raw: bytes) -> None:
        """Append bytes to the event stream that are no event."""
        await self._do(lambda store: store.report((MalformedEvent(raw, "planted"),)))
