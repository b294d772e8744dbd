"""The client's public face: submit jobs, follow them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from random import Random, SystemRandom
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack, overload

import anyio
from anyio.abc import TaskGroup

from drr.backend import Backend, open_backend
from drr.client.bulk import Bulk, Source
from drr.client.handle import Handle
from drr.client.lookout import Lookout
from drr.client.operations import Operations
from drr.client.outbox import Outbox
from drr.client.replay import Replay
from drr.client.submission import Arguments, JobOptions, SpecMaker, Submission, Tenant
from drr.client.times import read_seconds
from drr.client.window import CallWindow
from drr.clock import Clock, SystemClock
from drr.errors import InvalidConfiguration, StoreUnavailable
from drr.model import PAYLOAD_LIMIT, JobSpec, JobStatus, call_nonce, check_name, check_number, parse_job_id
from drr.payload import Call
from drr.timing import Backoff, run_within

R = TypeVar("R")
T = TypeVar("T")

DEFAULT_PATIENCE: Final = 10.0


class Client(Operations):
    """Submits jobs and follows them. Any number may exist, anywhere; none needs a dispatcher to be up.

    ::

        async with Client("redis://localhost") as client:
            job = await client.submit("send_email", {"to": "ada@example.com"}, tenant="globex/mail")
            print(await job.result(timeout=60))

    ``store``: a URL, or an opened `Backend`, which stays the caller's to close. ``namespace``: must be that of
    the workers. ``patience``: seconds for which a submit is repeated while the store is not reachable.
    ``payload_limit``: bytes of a job's encoded arguments. ``outbox``: a file on local disk from which submits are
    repeated that the store has lost or never got; one outbox serves one client. ``clock`` and ``rng`` are for
    simulations.

    A client is used by the tasks of one event loop, inside its ``async with`` block.

    Raises `InvalidName` or `InvalidConfiguration` for settings that make no sense; entering the block raises
    `UnknownBackend` for a URL that no adapter serves, and `OutboxInUse`, `OutboxCorrupt` or `OutboxFailed`.
    """

    def __init__(
        self,
        store: str | Backend,
        *,
        namespace: str = "drr",
        patience: float = DEFAULT_PATIENCE,
        payload_limit: int = PAYLOAD_LIMIT,
        outbox: Outbox | None = None,
        clock: Clock | None = None,
        rng: Random | None = None,
    ) -> None:
        self._store = store
        self._namespace = check_name("namespace", namespace)
        self._patience = check_number("patience", patience, 0.0, 86_400.0, error=InvalidConfiguration)
        check_number("payload limit", payload_limit, 1, 4 * PAYLOAD_LIMIT, error=InvalidConfiguration)
        self._clock = SystemClock() if clock is None else clock
        self._rng = SystemRandom() if rng is None else rng
        self._name = f"{self._rng.getrandbits(96):024x}"
        self._specs = SpecMaker(self._name, payload_limit)
        self._window = CallWindow()
        self._backend: Backend | None = None
        self._tasks: TaskGroup | None = None
        self._lookout: Lookout | None = None
        self._moved: anyio.Event | None = None
        self._outbox = outbox
        self._replay: Replay | None = None

    @property
    def name(self) -> str:
        """What the store calls this client: unique, and the ``reply_to`` of its jobs."""
        return self._name

    # --- life ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self._backend is not None:
            raise InvalidConfiguration("client", self, "it is open already; make another one")
        store = self._store
        if isinstance(store, str):
            self._backend = open_backend(store, namespace=self._namespace, clock=self._clock)
        else:
            self._backend = store
        self._lookout = Lookout(self._backend, self._name, self._clock, self._rng)
        if self._outbox is not None:
            replay = Replay(self._outbox, self._backend, self._clock, self._rng, self._lookout.moved)
            try:
                await replay.start(self._namespace)
            except BaseException:
                await self._close_backend(self._backend)
                self._backend = self._lookout = None
                raise
            self._replay = replay
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._lookout.listen)
        self._tasks.start_soon(self._lookout.look)
        if self._replay is not None:
            self._tasks.start_soon(self._replay.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        tasks, backend, lookout = self._tasks, self._backend, self._lookout
        assert tasks is not None
        assert backend is not None
        assert lookout is not None
        self._tasks = self._backend = self._lookout = None
        tasks.cancel_scope.cancel()
        try:
            # The body's exception is not shown to the task group, which would wrap it in an exception group.
            await tasks.__aexit__(None, None, None)
        finally:
            lookout.close()
            replay, self._replay = self._replay, None
            if replay is not None:
                await replay.stop()
            await self._close_backend(backend)

    async def _close_backend(self, backend: Backend) -> None:
        if isinstance(self._store, str):
            with anyio.CancelScope(shield=True):
                await backend.close()

    def _opened(self) -> tuple[Backend, Lookout]:
        if self._backend is None or self._lookout is None:
            raise InvalidConfiguration(
                "client", self, "it is not open: use it inside `async with Client(...) as client:`"
            )
        return self._backend, self._lookout

    # --- submitting ---------------------------------------------------------------------------------

    @overload
    async def submit(
        self, task: Call[R], arguments: tuple[()] = (), *, tenant: Tenant, **options: Unpack[JobOptions]
    ) -> Handle[R]: ...

    @overload
    async def submit(
        self, task: str, arguments: Arguments = (), *, tenant: Tenant, **options: Unpack[JobOptions]
    ) -> Handle[Any]: ...

    async def submit(
        self, task: str | Call[Any], arguments: Arguments = (), *, tenant: Tenant, **options: Unpack[JobOptions]
    ) -> Handle[Any]:
        """Submit one job; it is durable, as far as the store is, when this returns.

        ``task`` and ``arguments``: a task's name with its arguments, a mapping by name or a list by position; or
        a call bound with `Task.bind`, which also types the result. Arguments are plain data: None, bool, int,
        float, str, bytes, list, dict (tuples arrive as lists).
        ``tenant``: ``"organisation/project"``. The options are those of `JobOptions`.

        Raises `InvalidName`, `InvalidValue`, `PayloadTooLarge`, `StoreFull`, `StoreNotPrepared`, `BacklogFull` or
        `RateLimited` if the tenant's quota is used up, `JobExists` for an id that is taken, `UnknownLimit`, and
        `StoreUnavailable` if the store does not answer within the client's patience: it is then unknown whether
        the job was added. Until then the call is repeated in such a way that it is added once. With an outbox
        the last is `SubmitPending`, and the job will be added; and `OutboxFull` or `OutboxFailed` may come before
        anything is sent. `NotReplicated` if the store's URL asks for replicas and too few have acknowledged: the
        job is stored all the same.
        """
        submission = Submission(task, arguments, tenant=tenant, **options)
        spec = self._specs.make(submission, self._clock.wall())
        [job_id], nonce = await self._submit([spec])
        duplicate = not job_id.endswith(f"~{nonce}")
        return Handle(job_id, self, own=not duplicate, kept=duplicate or spec.result_ttl > 0, duplicate=duplicate)

    async def submit_many(
        self,
        jobs: Source,
        *,
        accepted: Callable[[Sequence[str]], None] | None = None,
        wait: float | timedelta = 0.0,
    ) -> int:
        """Submit any number of jobs, from an iterable or an async iterable; return how many.

        Memory is bounded whatever the number, order within a lane is kept, and the event loop is never held for
        long. ``accepted`` is called with the ids of each batch once the store has it. ``wait``: seconds to wait for
        room where a tenant's quota is used up, counted anew whenever some of its jobs were taken; what other
        tenants submit goes on meanwhile, so ids may come in another order than the jobs. With 0 nothing waits.

        Raises what `submit` raises, and what ``jobs`` raises; a note on the exception says how many jobs were
        submitted, and so does ``accepted`` of a `BacklogFull` or `RateLimited`. Without ``wait`` these are
        the jobs before the offending batch; each batch (up to 1,000 jobs) is added as a whole or not at all.
        """
        self._opened()
        patience = read_seconds("wait", wait)
        bulk = Bulk(
            self._clock, lambda job: self._specs.make(job, self._clock.wall()), self._submit_ids, accepted, patience
        )
        await bulk.run(jobs)
        return bulk.count

    async def _submit_ids(self, specs: Sequence[JobSpec]) -> list[str]:
        ids, _ = await self._submit(specs)
        return ids

    async def _submit(self, specs: Sequence[JobSpec]) -> tuple[list[str], str]:
        """Submit a batch under a call number of its own, again and again until the store has answered.

        Returns the ids, and the nonce of those that were added by this call.
        """
        backend, _ = self._opened()
        if self._replay is not None:
            return await self._replay.submit(specs, self._patience, self._patiently)
        while not self._window.has_room:
            self._moved = self._moved or anyio.Event()
            await self._moved.wait()
        call = self._window.begin()
        try:
            ids = await self._patiently(lambda: backend.submit(self._name, call, specs))
            return ids, call_nonce(self._name, call)
        finally:
            self._window.end(call)
            if self._moved is not None:
                self._moved.set()
                self._moved = None

    async def _patiently(self, operation: Callable[[], Awaitable[T]]) -> T:
        """Repeat an operation that may be repeated while the store is not reachable, for the client's patience."""
        began = self._clock.monotonic()
        backoff = Backoff(self._rng)
        while True:
            try:
                return await operation()
            except StoreUnavailable:
                if self._replay is not None:
                    self._replay.doubt()
                pause = backoff.next()
                if self._clock.monotonic() + pause - began > self._patience:
                    raise
            await self._clock.sleep(pause)

    # --- following ----------------------------------------------------------------------------------

    def handle(self, job_id: str) -> Handle[Any]:
        """Return a handle on any job of the namespace by its id. Raises `InvalidValue` if it is no job id.

        Waiting for a job of another client asks the store now and then; waiting for one's own is told at once.
        """
        parse_job_id(job_id)
        return Handle(job_id, self, own=False)

    async def look_up(self, job_id: str) -> JobStatus | None:
        """Return where a job stands, or ``None`` if the store knows nothing of it.

        Repeated for the client's patience while the store cannot be reached; then raises `StoreUnavailable`.
        """
        backend, _ = self._opened()
        [status] = await self._patiently(lambda: backend.look_up([self._current(job_id)]))
        if status is None and self._replay is not None and await self._replay.settle(self._current(job_id)):
            [status] = await self._patiently(lambda: backend.look_up([self._current(job_id)]))
        return status

    async def wait_for(self, job_id: str, *, own: bool, timeout: float | None) -> JobStatus | None:
        """Return where a job stands once it has ended, or ``None`` if the store knows nothing of it.

        Handles use this. ``own``: it was submitted by this client. Raises `TimeoutError` after ``timeout`` seconds.
        """
        _, lookout = self._opened()
        began = self._clock.monotonic()
        settled = False
        while True:
            left = None if timeout is None else max(0.0, began + timeout - self._clock.monotonic())
            asked = self._current(job_id)
            waiter = await lookout.wait(asked, own, left)
            if waiter.error is not None:
                raise waiter.error
            if waiter.status is not None or self._replay is None:
                return waiter.status
            if self._current(job_id) == asked:
                if settled or not await self._replay.settle(asked):
                    return None
                settled = True

    def _current(self, job_id: str) -> str:
        return job_id if self._replay is None else self._replay.current(job_id)

    async def confirmed(self, timeout: float | None = None) -> None:
        """Return once the outbox has nothing to confirm or repeat: whatever was submitted is kept by the store.

        Takes a horizon after the last submit. Without an outbox there is nothing to wait for. Raises `TimeoutError`
        after ``timeout`` seconds.
        """
        self._opened()
        if self._replay is None:
            return
        if timeout is None:
            await self._replay.confirmed()
        elif not await run_within(self._clock, timeout, self._replay.confirmed):
            raise TimeoutError(f"the outbox still holds submits that are not confirmed after {timeout:g} s")
