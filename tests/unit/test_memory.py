"""What the memory adapter promises beyond the port: names, bounds, time by the injected clock, threads."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from drr.backend import (
    Attempt,
    Backend,
    Commit,
    Dispatch,
    Malformed,
    Peek,
    Position,
    Settlement,
    open_backend,
)
from drr.errors import InvalidConfiguration, InvalidName, InvalidValue, StoreFull, StoreUnavailable
from drr.model import Completion, Header, JobSpec, JobState, Lane, Lease
from drr_backends.memory import MemoryBackend, open_memory
from drr_backends.memory.records import CLIENT_TTL, REPLIES_KEPT, REPLIES_TTL
from tests.helpers.manual_clock import ManualClock

LANE = Lane("default", ("acme", "web"))
OTHER = Lane("default", ("globex", "mail"))
PATIENCE = 30.0


class CountingClock(ManualClock):
    """Tells how long it was asked to sleep, and how many sleep now."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.sleepers = 0

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.sleepers += 1
        try:
            await super().sleep(seconds)
        finally:
            self.sleepers -= 1


@pytest.fixture
def clock() -> CountingClock:
    return CountingClock()


@pytest.fixture
def backend(clock: CountingClock) -> MemoryBackend:
    return open_memory("memory://", "test", clock)


def job(lane: Lane = LANE, **fields: object) -> JobSpec:
    return JobSpec(lane, "work", b"payload", 1.0, **fields)  # type: ignore[arg-type]


async def start(backend: Backend, *jobs: JobSpec, client: str = "client", call: int = 1) -> list[Lease]:
    """Submit jobs and dispatch all that wait; lead first, if nobody does."""
    await backend.elect("", "1:leader")
    await backend.submit(client, call, jobs)
    facts = await backend.receive(Position(), 0)
    snapshot = await backend.load("1:leader")
    windows = await backend.peek([Peek(lane, 0, 100) for lane in snapshot.lanes])
    headers = [entry for window in windows for entry in window.entries if isinstance(entry, Header)]
    leases = [Lease(f"t{header.sequence}", header, 1, 0.0, 1.0) for header in headers]
    passes = (await backend.leader()).passes
    await backend.commit(
        Commit("1:leader", passes + 1, facts.position, dispatches=[Dispatch(lease.header, lease) for lease in leases])
    )
    return leases


async def settle(backend: Backend, *leases: Lease) -> None:
    passes = (await backend.leader()).passes
    completion = Completion(JobState.SUCCEEDED, 1, 0.0, 1.0)
    await backend.commit(
        Commit("1:leader", passes + 1, Position(), settlements=[Settlement(lease, completion) for lease in leases])
    )


# --- opening


@pytest.mark.anyio
async def test_handles_of_one_name_and_namespace_share_a_store(clock: CountingClock) -> None:
    one, two = open_memory("memory://shared", "a", clock), open_memory("memory://shared", "a", clock)
    other_namespace, other_name = open_memory("memory://shared", "b", clock), open_memory("memory://else", "a", clock)
    await one.submit("c", 1, [job()])
    lengths = [await handle.lane_lengths([LANE]) for handle in (one, two, other_namespace, other_name)]
    assert lengths == [[1], [1], [0], [0]]


@pytest.mark.anyio
async def test_a_store_without_a_name_is_shared_with_siblings_only(clock: CountingClock) -> None:
    one, two = open_memory("memory://", "a", clock), open_memory("memory://", "a", clock)
    await one.submit("c", 1, [job()])
    assert await one.sibling().lane_lengths([LANE]) == [1]
    assert await two.lane_lengths([LANE]) == [0]


@pytest.mark.anyio
async def test_a_named_store_lives_as_long_as_somebody_has_it_open(clock: CountingClock) -> None:
    one = open_memory("memory://mortal", "a", clock)
    two = one.sibling()
    await one.submit("c", 1, [job()])
    await one.close()
    gc.collect()
    assert await open_memory("memory://mortal", "a", clock).lane_lengths([LANE]) == [1]
    await two.close()
    gc.collect()
    assert await open_memory("memory://mortal", "a", clock).lane_lengths([LANE]) == [0]


@pytest.mark.parametrize(
    "url",
    [
        "memory://a/b",
        "memory://a?max_jobs=x",
        "memory://a?max_jobs=-1",
        "memory://a?max_jobs=",
        "memory://a?x=1",
        "memory://#f",
    ],
)
def test_a_url_that_says_something_else_is_refused(clock: CountingClock, url: str) -> None:
    with pytest.raises(InvalidConfiguration) as caught:
        open_memory(url, "a", clock)
    assert caught.value.value == url


def test_names_of_stores_and_namespaces_are_names(clock: CountingClock) -> None:
    with pytest.raises(InvalidName):
        open_memory("memory://a:b", "a", clock)
    with pytest.raises(InvalidName):
        open_memory("memory://a", "a{b}", clock)


def test_the_scheme_memory_is_registered(clock: CountingClock) -> None:
    assert isinstance(open_backend("memory://", namespace="a", clock=clock), MemoryBackend)


# --- bounds


@pytest.mark.anyio
async def test_a_full_store_refuses_a_batch_that_does_not_fit_and_drains(clock: CountingClock) -> None:
    backend = open_memory("memory://?max_jobs=3", "a", clock)
    first = await backend.submit("c", 1, [job(), job()])
    with pytest.raises(StoreFull, match="2 of at most 3"):
        await backend.submit("c", 2, [job(), job()])
    assert await backend.lane_lengths([LANE]) == [2]
    await backend.submit("c", 3, [job()])
    assert await backend.submit("c", 1, [job(), job()]) == first
    leases = await start(backend)
    assert len(leases) == 3
    await backend.submit("c", 2, [job(), job(), job()])


@pytest.mark.anyio
async def test_a_client_that_never_reads_its_replies_costs_a_bounded_amount(backend: MemoryBackend) -> None:
    rounds = REPLIES_KEPT // 100 + 2
    for call in range(rounds):
        await settle(backend, *await start(backend, *[job(reply_to="me")] * 100, call=call))
    cursor, kept = await backend.replies("me", "", 0)
    while True:
        cursor, more = await backend.replies("me", cursor, 0)
        if not more:
            break
        kept += more
    assert len(kept) == REPLIES_KEPT
    assert kept[-1].split(":")[-1].startswith(f"{rounds * 100}~")


# --- time


@pytest.mark.anyio
async def test_results_expire_by_the_injected_clock(backend: MemoryBackend, clock: CountingClock) -> None:
    leases = await start(backend, job(result_ttl=10.0), job(result_ttl=20.0))
    await settle(backend, *leases)
    ids = [lease.header.job_id for lease in leases]
    await clock.advance(9.5)
    assert all(await backend.look_up(ids))
    await clock.advance(0.5)
    assert [status is not None for status in await backend.look_up(ids)] == [False, True]
    await clock.advance(10.0)
    assert await backend.look_up(ids) == [None, None]


@pytest.mark.anyio
async def test_expired_results_are_forgotten_by_the_next_pass(backend: MemoryBackend, clock: CountingClock) -> None:
    await settle(backend, *await start(backend, *[job(result_ttl=10.0)] * 5))
    assert len(backend._store.results) == 5
    await clock.advance(11.0)
    await settle(backend)
    assert (len(backend._store.results), len(backend._store.expiries)) == (0, 0)


@pytest.mark.anyio
async def test_clients_that_went_away_are_forgotten(backend: MemoryBackend, clock: CountingClock) -> None:
    ids = await backend.submit("old", 1, [job()])
    await clock.advance(CLIENT_TTL / 2)
    await backend.submit("new", 1, [job()])
    assert await backend.submit("old", 1, [job()]) == ids
    await clock.advance(CLIENT_TTL / 2)
    await backend.submit("newer", 1, [job()])
    assert list(backend._store.calls) == ["new", "newer"]


@pytest.mark.anyio
async def test_replies_that_nobody_reads_are_forgotten_and_cursors_stay_good(
    backend: MemoryBackend, clock: CountingClock
) -> None:
    await settle(backend, *await start(backend, job(reply_to="me"), job(reply_to="me")))
    cursor, _ = await backend.replies("me", "", 0)
    await clock.advance(REPLIES_TTL)
    (lease,) = await start(backend, job(reply_to="you"), call=2)
    await settle(backend, lease)
    assert list(backend._store.replies) == ["you"]
    (lease,) = await start(backend, job(reply_to="me"), call=3)
    await settle(backend, lease)
    assert (await backend.replies("me", cursor, 0))[1] == [lease.header.job_id]


BLOCKING: dict[str, tuple[Callable[[Backend], Awaitable[object]], object]] = {
    "read_attempts": (lambda backend: backend.read_attempts("w", "i", "default", 1, 5.0), []),
    "replies": (lambda backend: backend.replies("me", "", 5.0), ("", [])),
    "await_resignation": (lambda backend: backend.await_resignation(5.0), False),
    "receive": (lambda backend: _news(backend), ()),
}


async def _news(backend: Backend) -> object:
    return (await backend.receive(Position(), 5.0)).events


@pytest.mark.anyio
@pytest.mark.parametrize("name", BLOCKING)
async def test_a_wait_lapses_by_the_injected_clock_and_polls_nothing(
    backend: MemoryBackend, clock: CountingClock, name: str
) -> None:
    await backend.elect("", "1:leader")
    call, nothing = BLOCKING[name]
    found: list[object] = []

    async def wait() -> None:
        found.append(await call(backend))

    async with anyio.create_task_group() as group:
        group.start_soon(wait)
        await clock.settle()
        await clock.advance(4.999)
        await clock.settle()
        assert (found, clock.slept, backend.blocked) == ([], [5.0], 1)
        await clock.advance(0.001)
        await clock.settle()
        assert (found, clock.slept, backend.blocked) == ([nothing], [5.0], 0)
    assert clock.sleepers == 0


@pytest.mark.anyio
async def test_a_wait_that_was_woken_for_nothing_keeps_its_deadline(
    backend: MemoryBackend, clock: CountingClock
) -> None:
    """Two workers wait and one attempt comes: the other goes on waiting for what is left of its time."""
    found: dict[str, list[Attempt | Malformed]] = {}

    async def wait(name: str) -> None:
        found[name] = await backend.read_attempts(name, "i", "default", 1, 10.0)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "first")
        await clock.settle()
        group.start_soon(wait, "second")
        await clock.settle()
        await clock.advance(6.0)
        await start(backend, job())
        await clock.settle()
        assert (list(found), len(found["first"])) == (["first"], 1)
        await clock.advance(3.0)
        await clock.settle()
        assert "second" not in found
        await clock.advance(1.0)
    assert found["second"] == []


@pytest.mark.anyio
async def test_waiting_readers_are_served_first_come_first_served(
    backend: MemoryBackend, clock: CountingClock
) -> None:
    found: list[tuple[str, int]] = []

    async def wait(name: str) -> None:
        found.append((name, len(await backend.read_attempts(name, "i", "default", 2, 10.0))))

    async with anyio.create_task_group() as group:
        for name in ("first", "second", "third"):
            group.start_soon(wait, name)
            await clock.settle()
        await start(backend, *[job()] * 3)
        await clock.settle()
        assert found == [("first", 2), ("second", 1)]
        await clock.advance(10.0)


# --- other loops, cancellation, closing


@pytest.mark.anyio
async def test_a_loop_that_always_finds_something_lets_others_run(backend: MemoryBackend) -> None:
    """Every method is a checkpoint, or a busy worker would starve its own heartbeat."""
    turns = 0

    async def other() -> None:
        nonlocal turns
        while turns < 10:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(other)
        for _ in range(20):
            await backend.leader()
        assert turns == 10


@pytest.mark.anyio
async def test_a_method_that_is_cancelled_before_it_begins_does_nothing(backend: MemoryBackend) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await backend.submit("c", 1, [job()])
    assert scope.cancelled_caught
    assert await backend.lane_lengths([LANE]) == [0]


@pytest.mark.anyio
async def test_a_reader_cancelled_as_it_is_woken_takes_nothing_with_it(
    backend: MemoryBackend, clock: CountingClock
) -> None:
    task = asyncio.ensure_future(backend.read_attempts("w1", "i", "default", 1, 5.0))
    await clock.settle()
    assert backend.blocked == 1
    (lease,) = await start(backend, job())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert backend.blocked == 0
    (attempt,) = [
        *await backend.pending_attempts("w1", "i", "default"),
        *await backend.read_attempts("w2", "i", "default", 1, 0),
    ]
    assert isinstance(attempt, Attempt)
    assert attempt.token == lease.token


@pytest.mark.anyio
async def test_who_waits_on_a_handle_that_is_closed_is_told(backend: MemoryBackend, clock: CountingClock) -> None:
    sibling = backend.sibling()
    waiting = asyncio.ensure_future(sibling.read_attempts("w", "i", "default", 1, 5.0))
    unaffected = asyncio.ensure_future(backend.read_attempts("w", "i", "default", 1, 5.0))
    await clock.settle()
    await sibling.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await waiting
    await clock.settle()
    assert not unaffected.done()
    await start(backend, job())
    assert len(await unaffected) == 1
    with pytest.raises(StoreUnavailable):
        sibling.sibling()


def test_a_waiter_whose_loop_was_closed_does_no_harm(clock: CountingClock) -> None:
    backend = open_memory("memory://", "a", clock)

    async def abandon() -> None:
        backend._store.waiters.add(("attempts", "default"))

    asyncio.run(abandon())
    assert backend.blocked == 1
    asyncio.run(_dispatch_one(backend))
    assert backend.blocked == 0


async def _dispatch_one(backend: Backend) -> None:
    await start(backend, job())


def test_threads_with_loops_of_their_own_work_on_one_store(clock: CountingClock) -> None:
    """A dispatcher, a client and three workers, each in a thread: every job is run once. No wait ever lapses."""
    jobs = 300
    main = open_memory("memory://threads", "a", clock)
    done: list[str] = []
    all_done = threading.Event()
    failures: list[BaseException] = []

    async def client(backend: Backend) -> None:
        for call in range(jobs // 10):
            await backend.submit("client", call, [job(LANE if call % 2 else OTHER)] * 10)

    async def work(backend: Backend, name: str) -> None:
        with suppress(StoreUnavailable):  # closing the handle ends the wait
            while True:
                for attempt in await backend.read_attempts(name, "i", "default", 4, 3600.0):
                    assert isinstance(attempt, Attempt)
                    done.append(attempt.header.job_id)
                if len(done) == jobs:
                    all_done.set()

    async def dispatch(backend: Backend) -> None:
        assert await backend.elect("", "1:leader")
        started: list[Lease] = []
        seen = Position()
        while len(started) < jobs:
            if not (await backend.load("1:leader")).lanes:
                seen = (await backend.receive(seen, 3600.0)).position
            started += await start(backend)

    def run(function: Callable[..., Awaitable[None]], *args: Backend | str) -> None:
        async def body() -> None:
            with anyio.fail_after(PATIENCE):
                await function(*args)

        try:
            anyio.run(body)
        except BaseException as error:
            failures.append(error)

    handles = [main.sibling() for _ in range(3)]
    threads = [
        *(
            threading.Thread(target=run, args=(work, handle, f"w{n}"), daemon=True)
            for n, handle in enumerate(handles)
        ),
        *(threading.Thread(target=run, args=(role, main.sibling()), daemon=True) for role in (client, dispatch)),
    ]
    for thread in threads:
        thread.start()
    assert all_done.wait(PATIENCE)
    for handle in handles:
        asyncio.run(handle.close())
    for thread in threads:
        thread.join(PATIENCE)
    assert failures == []
    assert (len(done), len(set(done))) == (jobs, jobs)


# --- determinism


def test_the_same_calls_give_the_same_answers() -> None:
    async def play() -> list[object]:
        backend = open_memory("memory://", "a", CountingClock())
        said: list[object] = [await start(backend, job(), job(OTHER), job())]
        said.append(await backend.read_attempts("w", "i", "default", 2, 0))
        said.append(await backend.receive(Position(), 0))
        said.append(await backend.load("1:leader"))
        return said

    assert asyncio.run(play()) == asyncio.run(play())


def test_a_cursor_of_another_store_is_refused() -> None:
    async def play() -> None:
        await open_memory("memory://", "a", CountingClock()).replies("me", "1700000000000-0", 0)

    with pytest.raises(InvalidValue, match="reply cursor"):
        asyncio.run(play())
