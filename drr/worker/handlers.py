"""Running one attempt: decode, call, encode; whatever happens becomes exactly one event.

Who ends a handler, and what its attempt then is:

    returns, result fits            succeeded
    raises RetryAfter               failed, with the pause that it asks for
    raises, whatever else           failed, with "Type: message"; also SystemExit, KeyboardInterrupt and a
                                    CancelledError of its own making: none takes the worker down
    unknown task, bad payload,      failed, with the reason
    result too large
    still running at its deadline   timed out; on the loop it is cancelled there and then. A thread cannot be
                                    stopped: it is logged at the deadline, keeps its slot until it returns, and is
                                    reported then with the seconds that it really took
    its job is cancelled            cancelled: on the loop it is cancelled there and then. A thread may look
                                    (`Context.check_cancelled`), and is reported by what it does when it ends
    cancelled by the worker         handed back (drain, end of the program, lapsed lease), or nothing if void
"""

from __future__ import annotations

import asyncio
import functools
import heapq
import itertools
import logging
import math
import sys
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import anyio
import anyio.to_thread

from drr.backend import EventKind
from drr.clock import Clock
from drr.errors import DrrError, JobCancelled, RetryAfter, UnknownTask
from drr.payload import pack_result, unpack_arguments
from drr.timing import Signal
from drr.worker.context import Context
from drr.worker.options import Options
from drr.worker.state import Hands, Holding
from drr.worker.tasks import AnyTask, Tasks

log = logging.getLogger("drr.worker")

ERROR_LENGTH_LIMIT: Final = 1000


_current: ContextVar[Holding] = ContextVar("drr attempt")
"""The attempt whose handler a task belongs to. Each handler runs in a task of its own, so nobody resets it."""


class Handlers:
    """Runs attempts and hands their events to `Hands`. ``on_end`` is called after each."""

    def __init__(
        self,
        hands: Hands,
        tasks: Tasks,
        options: Options,
        clock: Clock,
        on_end: Callable[[Holding], None],
        say: Callable[[Holding, bytes], None],
    ) -> None:
        """``on_end`` is called after each attempt, ``say`` with what handlers say of their progress."""
        self._hands = hands
        self._tasks = tasks
        self._options = options
        self._clock = clock
        self._on_end = on_end
        self._say = say
        self._limiter = anyio.CapacityLimiter(sum(options.slots.values()))
        self._on_loop: dict[asyncio.Task[object], Holding] = {}
        self.deadlines = Deadlines(clock)
        self.abandoned = 0
        """Threads that were still running when their attempts were handed back."""

    def prepare(self, holding: Holding) -> bool:
        """Look up the task and set the timeout; return whether the handler runs on the loop."""
        header = holding.attempt.header
        task = holding.task = self._tasks.get(header.task)
        if task is None:
            return True
        timeout = header.timeout
        if task.timeout is not None and (timeout is None or task.timeout < timeout):
            timeout = task.timeout
        if timeout is not None:
            holding.timeout = timeout
            self.deadlines.add(holding, holding.taken_at + timeout)
        return task.is_async

    async def run(self, holding: Holding) -> None:
        """Run an attempt to its end. Raises nothing but the cancellation of the worker's own scopes."""
        kind, value, error = EventKind.FAILED, b"", ""
        retry_after: float | None = None
        try:
            returned = await self._call(holding)
            if holding.expired:
                kind, error = EventKind.TIMED_OUT, self._late(holding)
            elif holding.cancelled and holding.scope is not None and holding.scope.cancelled_caught:
                kind = EventKind.CANCELLED
            else:
                value = pack_result(returned, self._options.result_limit)
                kind = EventKind.SUCCEEDED
        except asyncio.CancelledError as raised:
            if _is_cancelled():
                kind = EventKind.RETURNED
                raise
            error = self._failed(holding, raised)
        except RetryAfter as raised:
            error, retry_after = describe(raised), raised.seconds
        except BaseException as raised:
            if holding.expired:
                kind, error = EventKind.TIMED_OUT, self._late(holding)
            elif holding.cancelled and isinstance(raised, JobCancelled):
                kind = EventKind.CANCELLED
            else:
                error = self._failed(holding, raised)
        finally:
            # In a `finally`, so that an attempt ends once whichever way this coroutine is left.
            now = self._clock.monotonic()
            self._hands.finish(holding, self._hands.event(holding, kind, now, value, error, retry_after))
            self._on_end(holding)

    async def _call(self, holding: Holding) -> object:
        task = holding.task
        if task is None:
            raise UnknownTask(self._hands.name, holding.attempt.header.task, self._tasks.names())
        args, kwargs = unpack_arguments(holding.attempt.payload, self._options.payload_limit)
        if holding.cancelled:
            raise JobCancelled(holding.attempt.header.job_id)  # before it began
        if task.wants_context:
            args.insert(0, self._context(holding))
        if not task.is_async:
            return await self._call_in_thread(task, args, kwargs)
        me = asyncio.current_task()
        assert me is not None, "handlers run in tasks"
        self._on_loop[me] = holding
        _current.set(holding)
        try:
            with anyio.CancelScope() as holding.scope:
                if holding.expired:
                    holding.scope.cancel()  # its deadline passed before it got its first turn
                return await task.function(*args, **kwargs)
            return None  # the scope was cancelled; `run` looks why
        finally:
            del self._on_loop[me]

    def describe(self, task: asyncio.Task[object]) -> str:
        """Say in words what a task of the worker's loop is: which job, if a handler runs in it. From any thread."""
        holding = self._on_loop.get(task)
        if holding is None and sys.version_info >= (3, 12):
            holding = task.get_context().get(_current)  # a task that the handler itself has started
        if holding is None:
            return f"the asyncio task {task.get_name()!r}"
        header = holding.attempt.header
        return f"job {header.job_id} (task {header.task})"

    async def _call_in_thread(self, task: AnyTask, args: list[Any], kwargs: dict[str, Any]) -> object:
        call = ThreadCall(functools.partial(task.function, *args, **kwargs))
        try:
            # Cancelled only when the worker goes: then a thread that still runs is left behind.
            await anyio.to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)
        finally:
            if call.running:
                self.abandoned += 1
        if call.error is not None:
            raise call.error
        return call.value

    def _context(self, holding: Holding) -> Context:
        return Context(holding, self._clock, self._say)

    def stop(self, token: str) -> bool:
        """The job of this attempt was cancelled: stop its handler, or let it know; return whether it is in hand."""
        holding = self._hands.holding(token)
        if holding is None:
            return False
        if not (holding.cancelled or holding.expired):
            holding.cancelled = True
            if holding.scope is not None:
                holding.scope.cancel()
        return True

    def _late(self, holding: Holding) -> str:
        return f"TimedOut: still running after {holding.timeout:g} s"

    def _failed(self, holding: Holding, error: BaseException) -> str:
        description = describe(error)
        log.warning(
            "job %s (%s), attempt %d failed: %s",
            holding.attempt.header.job_id,
            holding.attempt.header.task,
            holding.attempt.number,
            description,
            # What the worker itself found wrong needs no traceback through the worker.
            exc_info=None if isinstance(error, DrrError) else error,
        )
        return description


class ThreadCall:
    """A call in a thread that shows whether it is under way, and how it ended.

    It keeps what was raised instead of raising it: a future that carries GeneratorExit or StopIteration does not
    fail who awaits it, but tears down the whole chain of coroutines.
    """

    __slots__ = ("_call", "error", "running", "value")

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.running = False
        self.value: object = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """Make the call; runs in the thread."""
        self.running = True
        try:
            self.value = self._call()
        except BaseException as raised:
            self.error = raised
        finally:
            self.running = False


class Deadlines:
    """The deadlines of running attempts: a heap, and one task that sleeps until the earliest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Holding]] = []
        self._numbers = itertools.count()
        self._earlier = Signal()
        self._tidy_at = 1024

    def add(self, holding: Holding, deadline: float) -> None:
        """Watch an attempt. One that ended is forgotten in passing, or when the heap has doubled."""
        if len(self._heap) >= self._tidy_at:
            self._heap = [entry for entry in self._heap if not entry[2].ended]
            heapq.heapify(self._heap)
            self._tidy_at = 2 * len(self._heap) + 1024
        heapq.heappush(self._heap, (deadline, next(self._numbers), holding))
        if self._heap[0][2] is holding:
            self._earlier.set()

    def __len__(self) -> int:
        return len(self._heap)

    async def watch(self) -> None:
        """Expire attempts as their deadlines pass, for ever."""
        while True:
            seconds = self.expire(self._clock.monotonic())
            if seconds is None:
                await self._earlier.wait()
            else:
                await self._earlier.wait_for(self._clock, seconds)

    def expire(self, now: float) -> float | None:
        """Expire what is over its deadline at ``now``; return the seconds until the next, or ``None``."""
        while self._heap:
            deadline, _, holding = self._heap[0]
            if not holding.ended and deadline > now:
                return deadline - now
            heapq.heappop(self._heap)
            if not holding.ended:
                self._expire(holding)
        return None

    def _expire(self, holding: Holding) -> None:
        if holding.cancelled:
            return
        holding.expired = True
        if holding.scope is not None:
            holding.scope.cancel()
        elif holding.task is not None and not holding.task.is_async:
            log.warning(
                "job %s (%s) is over its timeout of %g s; a thread cannot be stopped: its slot stays busy",
                holding.attempt.header.job_id,
                holding.attempt.header.task,
                holding.timeout,
            )


def describe(error: BaseException) -> str:
    """Return "Type: message" of bounded length that can be encoded, whatever the exception is like."""
    try:
        text = str(error)
    except Exception:
        text = "(its message cannot be shown)"
    text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= ERROR_LENGTH_LIMIT else text[: ERROR_LENGTH_LIMIT - 3] + "..."


def _is_cancelled() -> bool:
    """Whether the current task's own scopes are cancelled, as opposed to a CancelledError from elsewhere."""
    return anyio.current_effective_deadline() == -math.inf
