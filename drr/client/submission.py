"""From what a caller writes to what the store takes: a job's description, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypedDict

from drr.client.times import read_times
from drr.errors import InvalidValue
from drr.model import (
    DEFAULT_PRIORITY,
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    PRIORITIES,
    JobSpec,
    Lane,
    RetryPolicy,
    check_limits,
    check_name,
    check_number,
    check_path,
)
from drr.payload import Call, pack_arguments

Arguments: TypeAlias = Mapping[str, Any] | Sequence[Any]
"""A job's arguments: a mapping by name, or a sequence by position."""

Tenant: TypeAlias = str | Sequence[str]
"""``"organisation/project"``, or the two names."""

TENANT_LEVELS: Final = 2
DEFAULT_RESULT_TTL: Final = 3600.0
RESULT_TTL_MAX: Final = 366 * 86_400.0
TIMEOUT_MIN: Final = 1e-3
TIMEOUT_MAX: Final = 1e8
REMEMBERED_LANES: Final = 4096
KEY_TTL: Final = 86_400.0
"""Seconds for which an idempotency key is remembered by default."""
ID_TTL: Final = 30 * 86_400.0
"""Seconds for which an id of the client's choice is taken by default."""


class JobOptions(TypedDict, total=False):
    """What may be said of a job beside its task, arguments and tenant.

    ``pool``: which workers; by default the task's own, or "default". ``priority``: 0 (first) to 9 (last) within the
    project. ``estimate``: expected worker-seconds; by default what was learned of the task. ``timeout``: bound on
    each attempt in seconds. ``result_ttl``: seconds for which the outcome is kept after the end; 0 keeps nothing, and
    nobody can wait for the job then. ``delay``: seconds (or a `timedelta`) before it is queued, or ``at``: when, an
    aware `datetime` or Unix seconds. ``deadline``: when at the latest it may be started, an aware `datetime`, Unix
    seconds, or a `timedelta` from now; later it is not run and counts as expired. ``retry``: a `RetryPolicy` or a
    number of attempts; by default the task's, then the plan's. ``limits``: names of shared limits that it needs.
    ``key``: an idempotency key: for ``key_ttl`` seconds (a day) a job of the project with the same key is not
    added, the first one is meant. ``id``: a name of your own for it, by which `Client.find` has it: unique in the
    project for ``key_ttl`` seconds (30 days), a second one is refused with `JobExists`.
    """

    pool: str | None
    priority: int
    estimate: float | None
    timeout: float | None
    result_ttl: float
    delay: float | timedelta | None
    at: float | datetime | None
    deadline: float | datetime | timedelta | None
    retry: RetryPolicy | int | None
    limits: Sequence[str]
    key: str | None
    id: str | None
    key_ttl: float | None


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to be submitted by `Client.submit_many`; the fields are those of `JobOptions`."""

    task: str | Call[Any]
    arguments: Arguments = ()
    tenant: Tenant = field(kw_only=True)
    pool: str | None = field(default=None, kw_only=True)
    priority: int = field(default=DEFAULT_PRIORITY, kw_only=True)
    estimate: float | None = field(default=None, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    result_ttl: float = field(default=DEFAULT_RESULT_TTL, kw_only=True)
    delay: float | timedelta | None = field(default=None, kw_only=True)
    at: float | datetime | None = field(default=None, kw_only=True)
    deadline: float | datetime | timedelta | None = field(default=None, kw_only=True)
    retry: RetryPolicy | int | None = field(default=None, kw_only=True)
    limits: Sequence[str] = field(default=(), kw_only=True)
    key: str | None = field(default=None, kw_only=True)
    id: str | None = field(default=None, kw_only=True)
    key_ttl: float | None = field(default=None, kw_only=True)


class SpecMaker:
    """Checks submissions and turns them into `JobSpec` values.

    Lanes and task names that were found good are remembered (a bounded number): checking names is most of the
    work, and one client uses few of them.
    """

    def __init__(self, client: str, payload_limit: int) -> None:
        self._client = client
        self._payload_limit = payload_limit
        self._lanes: dict[tuple[str, Tenant, int, tuple[str, ...]], Lane] = {}
        self._tasks: set[str] = set()

    def make(self, submission: Submission, now: float) -> JobSpec:
        """Return what the store takes; ``now`` in Unix seconds.

        Raises `InvalidName`, `InvalidValue` or `PayloadTooLarge`, naming what is wrong.
        """
        given = submission
        task, payload = self._call(given.task, given.arguments)
        if given.estimate is not None:
            check_number("estimate", given.estimate, ESTIMATE_MIN, ESTIMATE_MAX)
        if given.timeout is not None:
            check_number("timeout", given.timeout, TIMEOUT_MIN, TIMEOUT_MAX)
        result_ttl = check_number("result_ttl", given.result_ttl, 0.0, RESULT_TTL_MAX)
        bound = given.task if isinstance(given.task, Call) else None
        pool = given.pool or (bound.pool if bound is not None else "") or "default"
        due_at, deadline = read_times(given.delay, given.at, given.deadline, now)
        key, name, key_ttl = _key(given)
        return JobSpec(
            lane=self._lane(pool, given.tenant, given.priority, _limits(given.limits)),
            task=task,
            payload=payload,
            submitted_at=now,
            estimate=given.estimate,
            timeout=given.timeout,
            result_ttl=result_ttl,
            # Who keeps no result cannot wait for it: no reply then, which saves the store an entry per job.
            reply_to=self._client if result_ttl else "",
            retry=_retry(given.retry) or (bound.retry if bound is not None else None),
            deadline=deadline,
            due_at=due_at,
            key=key,
            name=name,
            key_ttl=key_ttl,
        )

    def _call(self, task: str | Call[Any], arguments: Arguments) -> tuple[str, bytes]:
        given: object = arguments  # whatever the annotation says: a caller may have no type checker
        args: Sequence[Any] = ()
        kwargs: Mapping[str, Any] = {}
        if isinstance(task, Call):
            if arguments:
                raise InvalidValue("arguments", arguments, "a bound call has its arguments already; leave these out")
            args, kwargs, task = task.args, task.kwargs, task.task
        elif isinstance(given, Mapping):
            kwargs = given
        elif isinstance(given, Sequence) and not isinstance(given, str | bytes | bytearray):
            args = given
        else:
            raise InvalidValue("arguments", arguments, "they are a mapping by name or a list by position")
        if task not in self._tasks:
            check_name("task", task)
            if len(self._tasks) >= REMEMBERED_LANES:
                self._tasks.clear()
            self._tasks.add(task)
        return task, pack_arguments(list(args), dict(kwargs), self._payload_limit)

    def _lane(self, pool: str, tenant: Tenant, priority: int, limits: tuple[str, ...]) -> Lane:
        if type(priority) is not int or priority not in PRIORITIES:  # a True would be found as the key of 1
            raise InvalidValue("priority", priority, "it must be a whole number from 0 (first) to 9 (last)")
        try:
            key = (pool, tenant, priority, limits)
            known = self._lanes.get(key)
        except TypeError:  # a list cannot be a key
            return self._checked(pool, tenant, priority, limits)
        if known is None:
            known = self._checked(pool, tenant, priority, limits)
            if len(self._lanes) >= REMEMBERED_LANES:
                self._lanes.clear()
            self._lanes[key] = known
        return known

    @staticmethod
    def _checked(pool: str, tenant: Tenant, priority: int, limits: tuple[str, ...]) -> Lane:
        path = check_path(tenant, depth=TENANT_LEVELS)
        return Lane(check_name("pool", pool), path, priority, check_limits(limits))


def _limits(given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, str):
        raise InvalidValue("limits", given, f"they are a list of names, such as [{given!r}]")
    return tuple(given)


def _retry(given: RetryPolicy | int | None) -> RetryPolicy | None:
    if given is None or isinstance(given, RetryPolicy):
        return given
    return RetryPolicy(attempts=given)


def _key(given: Submission) -> tuple[str, str, float]:
    """Return key, name and how long they are remembered."""
    if given.key is not None and given.id is not None:
        raise InvalidValue("key", given.key, f"a job has a key or an id of its own ({given.id!r}), not both")
    if given.key is None and given.id is None:
        if given.key_ttl is not None:
            raise InvalidValue("key_ttl", given.key_ttl, "it goes with a key or an id")
        return "", "", KEY_TTL
    if given.id is not None:
        check_name("id of a job", given.id)
    elif given.key is not None:
        check_name("idempotency key", given.key)
    default = KEY_TTL if given.id is None else ID_TTL
    key_ttl = default if given.key_ttl is None else check_number("key_ttl", given.key_ttl, 1e-3, RESULT_TTL_MAX)
    return given.key or "", given.id or "", key_ttl
