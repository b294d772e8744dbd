"""What a plans file may hold: the tables, checked key by key by the value classes of `drr.policy`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from drr.errors import InvalidPolicy, InvalidValue, Problem
from drr.model import (
    Amount,
    NodePolicy,
    PoolPolicy,
    Quota,
    RetryPolicy,
    SharedLimit,
    check_name,
    check_number,
    parse_amount,
)
from drr.plans.wording import dotted, unknown

NONE: Final = "none"
"""Takes away what a wider table says."""
WAIT_TARGETS: Final = 0.001, 90 * 86_400.0
"""Range of a wait target in seconds."""


def _read_cap(field: str, value: object) -> Amount | None:
    return None if value == NONE else _read_amount(field, value)


def _read_amount(field: str, value: object) -> Amount:
    amount = parse_amount(field, value)
    NodePolicy(**{field: amount})  # type: ignore[arg-type]
    return amount


def _read_quota(field: str, value: object) -> object:
    if value == NONE:
        return None
    given: dict[str, Any] = {field: value}
    Quota(**given if field != "burst" else {"rate": 1.0, **given})
    return value


def _read_wait_target(value: object) -> object:
    return None if value == NONE else check_number("wait target", value, *WAIT_TARGETS, error=InvalidPolicy)


def _read(kind: Callable[..., object], field: str, value: Any) -> Any:
    kind(**{field: value})
    return value


def _checked(kind: Callable[..., object], field: str) -> AfterValidator:
    return AfterValidator(partial(_read, kind, field))


def _read_by(function: Callable[..., object], *first: object) -> Any:
    return Annotated[Any, BeforeValidator(partial(function, *first))]


_Name: TypeAlias = Annotated[str, AfterValidator(partial(check_name, "name"))]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Node(_Table):
    """Keys of a plan, an organisation or a project that make up a `NodePolicy`, and may differ by pool."""

    weight: Annotated[float, _checked(NodePolicy, "weight")] = 1.0
    soft_cap: _read_by(_read_cap, "soft_cap") = None  # type: ignore[valid-type]
    hard_cap: _read_by(_read_cap, "hard_cap") = None  # type: ignore[valid-type]
    floor: _read_by(_read_amount, "floor") = 0  # type: ignore[valid-type]
    ceiling: Annotated[float, _checked(NodePolicy, "ceiling")] | None = None


class _Retry(_Table):
    attempts: Annotated[int, _checked(RetryPolicy, "attempts")] = 1
    delay: Annotated[float, _checked(RetryPolicy, "delay")] = 1.0
    factor: Annotated[float, _checked(RetryPolicy, "factor")] = 2.0
    max_delay: Annotated[float, _checked(RetryPolicy, "max_delay")] = 3600.0
    jitter: Annotated[float, _checked(RetryPolicy, "jitter")] = 0.5


class _Tenant(_Node):
    backlog: _read_by(_read_quota, "jobs") = None  # type: ignore[valid-type]
    backlog_worker_seconds: _read_by(_read_quota, "worker_seconds") = None  # type: ignore[valid-type]
    rate: _read_by(_read_quota, "rate") = None  # type: ignore[valid-type]
    burst: _read_by(_read_quota, "burst") = None  # type: ignore[valid-type]
    wait_target: _read_by(_read_wait_target) = None  # type: ignore[valid-type]
    retry: _Retry = Field(default_factory=_Retry)
    pools: dict[_Name, _Node] = Field(default_factory=dict)


class _Plan(_Tenant):
    each_project: _Tenant = Field(default_factory=_Tenant)


class _Project(_Tenant):
    plan: str | None = None


class _Organisation(_Plan):
    plan: str | None = None
    projects: dict[_Name, _Project] = Field(default_factory=dict)


class _Pool(_Table):
    quantum: Annotated[float, _checked(PoolPolicy, "quantum")] = 1.0
    ceiling: Annotated[float, _checked(PoolPolicy, "ceiling")] = 60.0
    reserve: Annotated[int, _checked(PoolPolicy, "reserve")] = 0
    default_estimate: Annotated[float, _checked(PoolPolicy, "default_estimate")] = 1.0
    lease: Annotated[float, _checked(PoolPolicy, "lease")] | None = None


class _Limit(_Table):
    concurrency: Annotated[int, _checked(SharedLimit, "concurrency")] | None = None
    rate: Annotated[float, _checked(SharedLimit, "rate")] | None = None
    burst: Annotated[int, _checked(SharedLimit, "burst")] = 1
    per_organisation: Annotated[int, _checked(SharedLimit, "per_organisation")] | None = None
    per_project: Annotated[int, _checked(SharedLimit, "per_project")] | None = None


class _File(_Table):
    default_plan: str | None = None
    plans: dict[_Name, _Plan] = Field(default_factory=dict)
    organisations: dict[_Name, _Organisation] = Field(default_factory=dict)
    pools: dict[_Name, _Pool] = Field(default_factory=dict)
    limits: dict[_Name, _Limit] = Field(default_factory=dict)


_NAMED: Final[Mapping[type[_Table], Mapping[str, type[_Table]]]] = {
    _File: {"plans": _Plan, "organisations": _Organisation, "pools": _Pool, "limits": _Limit},
    _Organisation: {"projects": _Project, "pools": _Node},
    _Project: {"pools": _Node},
    _Plan: {"pools": _Node},
    _Tenant: {"pools": _Node},
}
"""The tables of named tables within each kind of table: to say which keys would be known at some place."""
_SINGLE: Final[Mapping[str, type[_Table]]] = {"retry": _Retry, "each_project": _Tenant}
"""Tables within tables whose names are fixed."""


def validate(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return what the file says as plain data, caps and floors read; or an empty table and all that is wrong."""
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        return {}, [_problem(detail) for detail in error.errors(include_url=False)]
    return _plain(file), []


def _plain(table: _Table) -> dict[str, Any]:
    """Return the keys that a table sets. (`model_dump` would take the values apart as well.)"""
    return {name: _plain_value(value) for name, value in table if name in table.model_fields_set}


def _plain_value(value: Any) -> Any:
    if isinstance(value, _Table):
        return _plain(value)
    return {name: _plain(below) for name, below in value.items()} if isinstance(value, dict) else value


def _problem(detail: Mapping[str, Any]) -> Problem:
    """Turn one finding of the validation into ours."""
    key = tuple(str(part) for part in detail["loc"] if part != "[key]")
    kind, value = detail["type"], detail["input"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        rule = cause.rule
    elif kind == "extra_forbidden":
        rule = unknown("key", key[-1], _keys(key[:-1]))
    elif kind in ("float_type", "finite_number"):
        rule = "it must be a number"
    elif kind.startswith("int"):
        rule = "it must be a whole number"
    elif kind == "string_type":
        rule = "it must be a name in quotes"
    elif kind in ("model_type", "dict_type"):
        rule = f"it must be a table: [{dotted(key)}]"
    else:
        rule = str(detail["msg"])
    return Problem(dotted(key), value, rule)


def _keys(key: tuple[str, ...]) -> Iterable[str]:
    """Return the keys that a table may have."""
    kind: type[_Table] = _File
    parts = iter(key)
    for part in parts:
        if part in _SINGLE:
            kind = _SINGLE[part]
        else:
            kind = _NAMED[kind][part]
            next(parts)  # the name that the file gives
    return kind.model_fields
