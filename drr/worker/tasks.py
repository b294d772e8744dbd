"""Handlers by name: how a function becomes a task.

A `Tasks` belongs to whoever made it; there is no global registry. Everything about a function is looked at
when it is registered: a mistake shows at import, not at the first job.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, TypeVar, get_type_hints, overload

from drr.errors import InvalidConfiguration
from drr.model import RetryPolicy, check_name, check_number
from drr.payload import Call
from drr.worker.context import Context

P = ParamSpec("P")
J = ParamSpec("J")
D = TypeVar("D")
R = TypeVar("R")

TIMEOUT_MIN: Final = 1e-3
TIMEOUT_MAX: Final = 1e8


@dataclass(frozen=True, slots=True)
class Task(Generic[P, D, J, R]):
    """A registered handler. It can still be called like the function it was made of, for instance in tests.

    ``P`` and ``D`` are the function's parameters and what a direct call returns; ``J`` and ``R`` are the
    arguments of a job (without the `Context`) and its result.
    """

    name: str
    function: Callable[P, D]
    timeout: float | None
    is_async: bool
    wants_context: bool
    pool: str = ""
    retry: RetryPolicy | None = None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> D:
        """Call the function itself, here and now."""
        return self.function(*args, **kwargs)

    def bind(self, *args: J.args, **kwargs: J.kwargs) -> Call[R]:
        """Return a call for `Client.submit`, with the types of its arguments checked; leave out the `Context`.

        It carries the task's default pool and retry policy, which hold where the submit names none.
        """
        return Call(self.name, args, kwargs, self.pool, self.retry)


AnyTask = Task[Any, Any, Any, Any]


class TaskDecorator(Protocol):
    """What `Tasks.task` returns. A leading `Context` is left out of the job's arguments."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[Concatenate[Context, P], Coroutine[Any, Any, R], P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, Coroutine[Any, Any, R], P, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> Task[Concatenate[Context, P], R, P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R, P, R]: ...


class Tasks:
    """A set of tasks by name. A worker has one; several workers may share one."""

    def __init__(self) -> None:
        self._tasks: dict[str, AnyTask] = {}

    def task(
        self,
        name: str | None = None,
        *,
        timeout: float | None = None,
        pool: str = "",
        retry: RetryPolicy | None = None,
    ) -> TaskDecorator:
        """Register a function as the handler of ``name`` (by default the function's own name).

        An ``async def`` runs on the worker's event loop, a plain function in a thread. If the first parameter
        is annotated with `Context` it receives one. ``timeout`` bounds every attempt, in seconds; a job may ask
        for less. ``pool`` and ``retry`` are defaults of jobs submitted with `Task.bind`: they travel with the
        job, so they bind clients that use this registration, not the worker.

        Raises `InvalidName`, or `InvalidConfiguration` for a name that is taken and a function that cannot be
        a handler.
        """
        if timeout is not None:
            check_number("timeout of a task", timeout, TIMEOUT_MIN, TIMEOUT_MAX)
        if pool:
            check_name("pool", pool)
        if retry is not None and not isinstance(retry, RetryPolicy):
            raise InvalidConfiguration("retry of a task", retry, "it must be a RetryPolicy")

        def register(function: Callable[..., Any], /) -> AnyTask:
            return self._add(name, function, timeout, pool, retry)

        return register

    def _add(
        self,
        name: str | None,
        function: Callable[..., Any],
        timeout: float | None,
        pool: str,
        retry: RetryPolicy | None,
    ) -> AnyTask:
        known_as = check_name("task", getattr(function, "__name__", None) if name is None else name)
        if known_as in self._tasks:
            raise InvalidConfiguration("task", known_as, "a task of this name is registered already")
        _refuse_generators(known_as, function)
        task: AnyTask = Task(
            known_as, function, timeout, _is_async(function), _wants_context(known_as, function), pool, retry
        )
        self._tasks[known_as] = task
        return task

    def get(self, name: str) -> AnyTask | None:
        """Return the task of this name, if there is one."""
        return self._tasks.get(name)

    def names(self) -> list[str]:
        """Return all names in alphabetical order."""
        return sorted(self._tasks)

    def __iter__(self) -> Iterator[AnyTask]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _refuse_generators(name: str, function: Callable[..., Any]) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidConfiguration(
            f"handler of {name}", function, "a handler returns its result; a generator would never be run"
        )


def _wants_context(name: str, function: Callable[..., Any]) -> bool:
    """Return whether the first parameter is annotated with `Context`; refuse one that is anywhere else."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return False  # some callables written in C tell nothing; they cannot be annotated either
    marked = [parameter for parameter in parameters if _is_context(function, parameter)]
    if not marked:
        return False
    first = parameters[0]
    if marked != [first] or first.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise InvalidConfiguration(
            f"parameter {marked[-1].name!r} of the handler of {name}",
            "annotated with Context",
            "only the first positional parameter can receive the Context",
        )
    if first.kind is inspect.Parameter.VAR_POSITIONAL:
        raise InvalidConfiguration(
            f"parameter '*{first.name}' of the handler of {name}",
            "annotated with Context",
            "one Context is passed; give it a parameter of its own",
        )
    return True


def _is_context(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            annotation = get_type_hints(function)[parameter.name]
        except Exception:
            # A name that only the type checker imports cannot be resolved here; its spelling has to do.
            return str(annotation).rpartition(".")[2] == Context.__name__
    return annotation is Context
