"""From what a caller writes to what the store takes: a job's description, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from drr.errors import InvalidValue
from drr.model import (
    DEFAULT_PRIORITY,
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    PRIORITIES,
    JobSpec,
    Lane,
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


@dataclass(frozen=True, slots=True)
class Submission:
    """One job to be submitted by `Client.submit_many`; the fields are the arguments of `Client.submit`."""

    task: str | Call[Any]
    arguments: Arguments = ()
    tenant: Tenant = field(kw_only=True)
    pool: str = field(default="default", kw_only=True)
    priority: int = field(default=DEFAULT_PRIORITY, kw_only=True)
    estimate: float | None = field(default=None, kw_only=True)
    timeout: float | None = field(default=None, kw_only=True)
    result_ttl: float = field(default=DEFAULT_RESULT_TTL, kw_only=True)


class SpecMaker:
    """Checks submissions and turns them into `JobSpec` values.

    Lanes and task names that were found good are remembered (a bounded number): checking names is most of the
    work, and one client uses few of them.
    """

    def __init__(self, client: str, payload_limit: int) -> None:
        self._client = client
        self._payload_limit = payload_limit
        self._lanes: dict[tuple[str, Tenant, int], Lane] = {}
        self._tasks: set[str] = set()

    def make(self, submission: Submission, now: float) -> JobSpec:
        """Return what the store takes; ``now`` in Unix seconds.

        Raises `InvalidName`, `InvalidValue` or `PayloadTooLarge`, naming what is wrong.
        """
        task, payload = self._call(submission.task, submission.arguments)
        if submission.estimate is not None:
            check_number("estimate", submission.estimate, ESTIMATE_MIN, ESTIMATE_MAX)
        if submission.timeout is not None:
            check_number("timeout", submission.timeout, TIMEOUT_MIN, TIMEOUT_MAX)
        result_ttl = check_number("result_ttl", submission.result_ttl, 0.0, RESULT_TTL_MAX)
        return JobSpec(
            lane=self._lane(submission.pool, submission.tenant, submission.priority),
            task=task,
            payload=payload,
            submitted_at=now,
            estimate=submission.estimate,
            timeout=submission.timeout,
            result_ttl=result_ttl,
            # Who keeps no result cannot wait for it: no reply then, which saves the store an entry per job.
            reply_to=self._client if result_ttl else "",
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

    def _lane(self, pool: str, tenant: Tenant, priority: int) -> Lane:
        if type(priority) is not int or priority not in PRIORITIES:  # a True would be found as the key of 1
            raise InvalidValue("priority", priority, "it must be a whole number from 0 (first) to 9 (last)")
        try:
            key = (pool, tenant, priority)
            known = self._lanes.get(key)
        except TypeError:  # a list cannot be a key
            return self._checked(pool, tenant, priority)
        if known is None:
            known = self._checked(pool, tenant, priority)
            if len(self._lanes) >= REMEMBERED_LANES:
                self._lanes.clear()
            self._lanes[key] = known
        return known

    @staticmethod
    def _checked(pool: str, tenant: Tenant, priority: int) -> Lane:
        return Lane(check_name("pool", pool), check_path(tenant, depth=TENANT_LEVELS), priority)
