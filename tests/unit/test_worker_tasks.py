"""How a function becomes a task: everything that can be wrong with it shows when it is registered."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from drr.backend import Attempt
from drr.clock import SystemClock
from drr.errors import InvalidConfiguration, InvalidName, InvalidValue
from drr.model import Header, Lane
from drr.payload import Call
from drr.worker import Context, Task, Tasks
from drr.worker.state import Holding


def register(function: Callable[..., Any], name: str = "task") -> Task[Any, Any, Any, Any]:
    tasks = Tasks()
    tasks.task(name)(function)
    task = tasks.get(name)
    assert task is not None
    return task


def test_a_task_is_called_like_the_function_it_was_made_of() -> None:
    tasks = Tasks()

    @tasks.task("add")
    def add(a: int, b: int = 2) -> int:
        return a + b

    assert add(1) == 3
    assert add(1, b=5) == 6


def test_a_bound_call_carries_name_and_arguments() -> None:
    tasks = Tasks()

    @tasks.task("add")
    def add(context: Context, a: int, b: int = 2) -> int:
        return a + b

    assert add.bind(1, b=5) == Call("add", (1,), {"b": 5})


def test_the_name_is_the_function_s_own_unless_given() -> None:
    tasks = Tasks()

    @tasks.task()
    def clean_up() -> None: ...

    assert tasks.names() == ["clean_up"]


def test_coroutine_functions_run_on_the_loop_and_plain_ones_in_threads() -> None:
    async def on_loop() -> None: ...

    def in_thread() -> None: ...

    class Sender:
        async def __call__(self) -> None: ...

    assert register(on_loop).is_async
    assert register(functools.partial(on_loop)).is_async
    assert register(Sender()).is_async
    assert not register(in_thread).is_async


def test_a_context_is_found_by_its_annotation_even_as_a_string() -> None:
    def annotated(context: Context) -> None: ...

    def other(context: int) -> None: ...

    def bare(context) -> None: ...  # type: ignore[no-untyped-def]

    def unresolvable(context: Context, thing: OnlyTheTypeCheckerKnows) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    class Method:
        def handler(self, context: Context) -> None: ...

    assert register(annotated).wants_context
    assert register(unresolvable).wants_context
    assert register(Method().handler).wants_context
    assert not register(other).wants_context
    assert not register(bare).wants_context


def test_a_context_that_could_not_be_passed_is_refused() -> None:
    def second(a: int, context: Context) -> None: ...

    def twice(context: Context, again: Context) -> None: ...

    def keyword(*, context: Context) -> None: ...

    def variadic(*contexts: Context) -> None: ...

    for function, parameter in ((second, "context"), (twice, "again"), (keyword, "context"), (variadic, "contexts")):
        with pytest.raises(InvalidConfiguration, match=parameter):
            register(function)


def test_generators_are_refused() -> None:
    def generator() -> Iterator[int]:
        yield 1

    async def async_generator() -> AsyncIterator[int]:
        yield 1

    for function in (generator, async_generator):
        with pytest.raises(InvalidConfiguration, match="never be run"):
            register(function)


def test_a_name_is_taken_once() -> None:
    tasks = Tasks()
    tasks.task("a")(print)
    with pytest.raises(InvalidConfiguration, match="registered already"):
        tasks.task("a")(print)
    assert len(tasks) == 1


@pytest.mark.parametrize("name", ["", "a b", "a:b", "x" * 129])
def test_names_outside_the_alphabet_are_refused(name: str) -> None:
    with pytest.raises(InvalidName):
        register(print, name)


def test_the_decorator_without_its_parentheses_is_explained() -> None:
    def function() -> None: ...

    with pytest.raises(InvalidName, match="task"):
        Tasks().task(function)(function)  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5"])
def test_a_timeout_is_a_positive_number(timeout: Any) -> None:
    with pytest.raises(InvalidValue, match="timeout"):
        Tasks().task("a", timeout=timeout)


def test_registries_share_nothing() -> None:
    first, second = Tasks(), Tasks()
    first.task("a")(print)
    assert [task.name for task in first] == ["a"]
    assert second.get("a") is None


def test_a_context_tells_who_and_what() -> None:
    class Frozen(SystemClock):
        def monotonic(self) -> float:
            return 100.0

    header = Header(Lane("renders", ("acme", "web"), 2, ("db",)), 7, "n", "render", 1.5, losses=1, failures=2)

    def context_of(number: int, timeout: float | None, taken_at: float) -> Context:
        holding = Holding(Attempt("d", "t", number, header, b""), "renders", taken_at)
        holding.timeout = timeout
        return Context(holding, Frozen(), lambda holding, blob: None)

    context = context_of(3, 10.0, 94.0)
    assert (context.organisation, context.project, context.tenant) == ("acme", "web", ("acme", "web"))
    assert (context.pool, context.priority, context.task) == ("renders", 2, "render")
    assert (context.attempt, context.losses, context.submitted_at) == (3, 1, 1.5)
    assert context.job_id == header.job_id
    assert context.idempotency_key == f"{header.job_id}#3"
    assert context.remaining() == 4.0
    assert context_of(1, 1.0, 98.0).remaining() == 0.0
    assert context_of(1, None, 98.0).remaining() is None
    assert (context.failures, context.limits, context.cancelled) == (2, ("db",), False)
    assert context.idempotency_key in repr(context)
