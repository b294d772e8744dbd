"""The port over a `Store`: opening, blocking reads, and one method per operation.

Every method is a checkpoint before it does anything: a loop over a store that always has something to give
still lets other tasks run, and a method that is cancelled there has done nothing. After it nothing awaits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

import anyio

from drr.backend import (
    ATTENDANCE_MAX,
    AUDIT_LIMIT,
    ITEM_LIMIT,
    PROGRESS_LIMIT,
    STRIKE_LIMIT,
    Attempt,
    Audit,
    Backend,
    ChangeRecord,
    Commit,
    DeadLetter,
    DueJobs,
    Event,
    Facts,
    LeaderRecord,
    Located,
    Malformed,
    MalformedEvent,
    MalformedRequest,
    Page,
    Peek,
    Position,
    Request,
    Snapshot,
    StoredStatus,
    Usage,
    UsageKey,
    Window,
    Work,
    WorkerRecord,
    check_commit,
    check_count,
    check_job,
    check_lane,
    check_peeks,
    check_request,
    check_worker,
)
from drr.clock import Clock
from drr.durability import Survey
from drr.errors import StoreUnavailable
from drr.model import JobSpec, JobState, JobStatus, Lane, Settings, TenantPath, check_name, check_number, check_path
from drr_backends.memory.admission import calls_of, release_calls, submit
from drr_backends.memory.audit import audit, correct_waiting
from drr_backends.memory.checks import check_fence, validate
from drr_backends.memory.listing import letters_of, list_jobs, locate, look_up, purge, usage_of
from drr_backends.memory.passes import apply
from drr_backends.memory.records import NEWS, RESIGNATION, STOPS, Entry, attempts_topic, replies_topic
from drr_backends.memory.store import Store

T = TypeVar("T")

MOST_HOURS: Final = 10**9


def check_reader(name: str, incarnation: str, pool: str) -> tuple[str, str]:
    """Return worker and incarnation as the store knows them, having checked all three names."""
    check_name("pool", pool)
    return check_name("worker", name), check_name("incarnation", incarnation)


def check_lanes_of(peeks: Sequence[Peek]) -> None:
    """Check what is asked for, the names of the lanes included."""
    check_peeks(peeks)
    for peek in peeks:
        check_lane(peek.lane)


SURVEY: Final = Survey(
    server="memory of this process",
    supported=True,
    append_only=False,
    snapshots=False,
    disk_fails=False,
    memory_limit=0,
    eviction="noeviction",
    replicas=0,
    replicas_needed=0,
)


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
        return await self._do(lambda store: submit(store, client, call, jobs))

    async def calls(self, client: str) -> list[int]:
        """See `ClientPort.calls`."""
        check_name("client", client)
        return await self._do(lambda store: calls_of(store, client))

    async def release_calls(self, client: str) -> None:
        """See `ClientPort.release_calls`."""
        check_name("client", client)
        await self._do(lambda store: release_calls(store, client))

    async def look_up(self, job_ids: Sequence[str]) -> list[JobStatus | None]:
        """See `ClientPort.look_up`."""
        check_count("number of jobs in one look-up", len(job_ids))
        return await self._do(lambda store: [look_up(store, job_id) for job_id in job_ids])

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

    async def survey(self) -> Survey:
        """See `ClientPort.survey`: it lives and ends with this process."""
        return await self._do(lambda _: SURVEY)

    async def attendance(self, dispatcher: str) -> int | None:
        """See `ClientPort.attendance`."""
        check_name("dispatcher", dispatcher)
        return await self._do(lambda store: store.attendance.of(dispatcher))

    async def attend(self, dispatcher: str, seconds: float) -> None:
        """See `DispatcherPort.attend`."""
        check_name("dispatcher", dispatcher)
        check_number("seconds of attendance", seconds, 0.001, ATTENDANCE_MAX)
        await self._do(lambda store: store.attendance.attend(dispatcher, seconds))

    async def find(self, path: TenantPath, name: str) -> str | None:
        """See `ClientPort.find`."""
        tenant = check_path(path)
        check_name("name of a job", name)
        return await self._do(lambda store: store.find(tenant, name))

    async def request(self, requests: Sequence[Request]) -> None:
        """See `ClientPort.request`."""
        check_count("number of requests", len(requests), high=1 if any(r.body for r in requests) else ITEM_LIMIT)
        for request in requests:
            check_request(request)
        await self._do(lambda store: store.request(requests))

    async def progress(self, job_ids: Sequence[str]) -> list[bytes | None]:
        """See `ClientPort.progress`."""
        check_count("number of jobs", len(job_ids))
        return await self._do(lambda store: [store.progress(job_id) for job_id in job_ids])

    async def list_jobs(self, path: TenantPath, state: JobState, limit: int = 100, cursor: str = "") -> Page:
        """See `ClientPort.list_jobs`."""
        tenant = check_path(path)
        check_count("limit of a listing", limit, low=1)
        return await self._do(lambda store: list_jobs(store, tenant, state, limit, cursor))

    async def waiting(self, paths: Sequence[TenantPath]) -> list[Work]:
        """See `ClientPort.waiting`."""
        tenants = [check_path(path) for path in paths]
        return await self._do(lambda store: [store.work(path) for path in tenants])

    async def usage(self, organisation: str, since: int, until: int) -> dict[UsageKey, Usage]:
        """See `ClientPort.usage`."""
        check_name("organisation", organisation)
        check_count("hour that usage begins with", since, high=MOST_HOURS)
        check_count("hour that usage ends before", until, high=MOST_HOURS)
        return await self._do(lambda store: usage_of(store, organisation, since, until))

    async def changes(self, limit: int = 100) -> list[ChangeRecord]:
        """See `ClientPort.changes`."""
        check_count("number of changes", limit)
        return await self._do(lambda store: list(islice(store.changes, limit)))

    async def settings(self) -> Settings:
        """See `ClientPort.settings`."""
        return await self._do(lambda store: store.settings)

    async def dead_letters(self, organisation: str = "", limit: int = 100, after: int = 0) -> list[DeadLetter]:
        """See `ClientPort.dead_letters`."""
        if organisation:
            check_name("organisation", organisation)
        check_count("limit of dead letters", limit)
        check_count("number of a dead letter", after, high=2**53)
        return await self._do(lambda store: letters_of(store, organisation, limit, after))

    async def purge_dead(self, numbers: Sequence[int]) -> int:
        """See `ClientPort.purge_dead`."""
        check_count("number of dead letters", len(numbers))
        return await self._do(lambda store: purge(store, numbers))

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

    async def stops(self, after: str, block: float) -> tuple[str, list[str]]:
        """See `WorkerPort.stops`."""
        found = await self._wait(STOPS, block, lambda store: store.read_stops(after))
        return found if found is not None else (after, [])

    async def report_progress(self, token: str, job_id: str, blob: bytes) -> bool:
        """See `WorkerPort.report_progress`."""
        check_count("bytes of progress", len(blob), high=PROGRESS_LIMIT)
        return await self._do(lambda store: store.report_progress(token, job_id, blob))

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

    async def due(self, until: float, limit: int = ITEM_LIMIT) -> DueJobs:
        """See `DispatcherPort.due`."""
        check_count("number of due jobs", limit, low=1)
        return await self._do(lambda store: store.due_jobs(until, limit))

    async def locate(self, job_ids: Sequence[str]) -> list[Located | None]:
        """See `DispatcherPort.locate`."""
        check_count("number of jobs to locate", len(job_ids), high=STRIKE_LIMIT)
        return await self._do(lambda store: [locate(store, job_id) for job_id in job_ids])

    async def letters(self, numbers: Sequence[int]) -> list[DeadLetter | None]:
        """See `DispatcherPort.letters`."""
        check_count("number of dead letters", len(numbers))

        def read(store: Store) -> list[DeadLetter | None]:
            found = [store.dead.get(number) for number in numbers]
            return [letter and replace(letter, payload=b"") for letter in found]

        return await self._do(read)

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

    async def audit(self, token: str, pools: Sequence[str], cursor: str = "", limit: int = AUDIT_LIMIT) -> Audit:
        """See `DispatcherPort.audit`."""
        check_count("limit of an audit", limit, low=1, high=AUDIT_LIMIT)
        for pool in pools:
            check_name("pool", pool)

        def look(store: Store) -> Audit:
            store.check_leads(token)
            return audit(store, cursor, limit)

        return await self._do(look)

    async def correct_waiting(self, token: str, path: TenantPath, found: Work, change: Work) -> bool:
        """See `DispatcherPort.correct_waiting`."""
        tenant = check_path(path)

        def correct(store: Store) -> bool:
            store.check_leads(token)
            return correct_waiting(store, tenant, found, change)

        return await self._do(correct)

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

        def plant(store: Store) -> None:
            store.append(lane, Entry(head, raw))
            store.queued += 1

        await self._do(plant)

    async def plant_event(self, raw: bytes) -> None:
        """Append bytes to the event stream that are no event."""
        await self._do(lambda store: store.report((MalformedEvent(raw, "planted"),)))

    async def plant_request(self, raw: bytes) -> None:
        """Append bytes to the stream of requests that are none."""

        def plant(store: Store) -> None:
            store.requests.append(MalformedRequest(raw, "planted"))
            store.waiters.notify(NEWS)

        await self._do(plant)
