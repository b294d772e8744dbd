"""The plans file: which billing plan entitles whom to what, and the pools' own settings.

A file is TOML. ``[plans.NAME]`` says what an organisation on that plan gets; ``[organisations.NAME]`` puts one on a
plan and may override parts of it; ``[organisations.NAME.projects.NAME]`` does the same for a project inside its
organisation; ``[pools.NAME]`` sets up a pool. An organisation that is not listed is on ``default_plan``. What a
table says applies to every pool, unless a table ``pools.NAME`` within it says otherwise for that one.

Rules of this file: it reads and resolves, and knows nothing of stores or dispatchers. A file is used whole or not at
all, and everything that is wrong with it is said at once (`PlansError`). What a key may hold is decided by
`NodePolicy` and `PoolPolicy`, not here. A key that nothing reads is refused: it would be a limit that does not hold.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from drr.errors import InvalidValue, PlansError, Problem
from drr.model import Amount, NodePolicy, PoolPolicy, Settings, TenantPath, check_name, parse_amount

__all__ = ["DEFAULT_POOL", "Plans", "load_plans", "read_plans"]

DEFAULT_POOL: Final = "default"
_NO_CAP: Final = "none"

# --- what the file may hold --------------------------------------------------------------------------------


def _checked(kind: type[NodePolicy | PoolPolicy], field: str, value: Any) -> Any:
    kind(**{field: value})
    return value


def _read_cap(field: str, value: object) -> Amount | None:
    return None if value == _NO_CAP else _read_amount(field, value)


def _read_amount(field: str, value: object) -> Amount:
    amount = parse_amount(field, value)
    _checked(NodePolicy, field, amount)
    return amount


def _number(kind: type[NodePolicy | PoolPolicy], field: str) -> AfterValidator:
    return AfterValidator(partial(_checked, kind, field))


_Name: TypeAlias = Annotated[str, AfterValidator(partial(check_name, "name"))]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, arbitrary_types_allowed=True)


class _Entitlement(_Table):
    """Keys of a plan, an organisation or a project that make up a `NodePolicy`."""

    weight: Annotated[float, _number(NodePolicy, "weight")] = 1.0
    soft_cap: Annotated[Any, BeforeValidator(partial(_read_cap, "soft_cap"))] = None
    hard_cap: Annotated[Any, BeforeValidator(partial(_read_cap, "hard_cap"))] = None
    floor: Annotated[Any, BeforeValidator(partial(_read_amount, "floor"))] = 0
    ceiling: Annotated[float, _number(NodePolicy, "ceiling")] | None = None


class _Plan(_Entitlement):
    pools: dict[_Name, _Entitlement] = Field(default_factory=dict)


class _Project(_Plan):
    plan: str | None = None


class _Organisation(_Project):
    projects: dict[_Name, _Project] = Field(default_factory=dict)


class _Pool(_Table):
    quantum: Annotated[float, _number(PoolPolicy, "quantum")] = 1.0
    ceiling: Annotated[float, _number(PoolPolicy, "ceiling")] = 60.0
    reserve: Annotated[int, _number(PoolPolicy, "reserve")] = 0
    default_estimate: Annotated[float, _number(PoolPolicy, "default_estimate")] = 1.0


class _File(_Table):
    default_plan: str | None = None
    plans: dict[_Name, _Plan] = Field(default_factory=dict)
    organisations: dict[_Name, _Organisation] = Field(default_factory=dict)
    pools: dict[_Name, _Pool] = Field(default_factory=dict)


_BELOW: Final[Mapping[type[_Table], Mapping[str, type[_Table]]]] = {
    _File: {"plans": _Plan, "organisations": _Organisation, "pools": _Pool},
    _Organisation: {"projects": _Project, "pools": _Entitlement},
    _Project: {"pools": _Entitlement},
    _Plan: {"pools": _Entitlement},
}
"""The tables of named tables within each kind of table: to say which keys would be known at some place."""

# --- what comes out ----------------------------------------------------------------------------------------

_Nodes: TypeAlias = Mapping[TenantPath, NodePolicy]
_ANY_POOL: Final = ""
"""Stands for a pool that the file does not name; no pool is called so."""


class Plans:
    """A plans file, resolved: everybody's policy in every pool. It does not change.

    ``source`` names the file. ``default_plan`` is the plan of organisations that are not listed or name none;
    if it is ``None`` they have the defaults of `NodePolicy`. ``pools`` are the settings by pool, of which
    ``default`` is always there.
    """

    def __init__(self, source: str, file: _File, plans: Mapping[str, _Nodes], nodes: Mapping[str, _Nodes]) -> None:
        self.source = source
        self.default_plan = file.default_plan
        self.pools: Mapping[str, PoolPolicy] = {
            DEFAULT_POOL: PoolPolicy(),
            **{name: PoolPolicy(**table.model_dump()) for name, table in file.pools.items()},
        }
        self._plans = plans
        self._nodes = nodes
        self._assigned = {name: table.plan or file.default_plan for name, table in file.organisations.items()}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the plans, in the file's order."""
        return tuple(path[0] for path in self._plans[_ANY_POOL])

    @property
    def organisations(self) -> tuple[str, ...]:
        """Names of the organisations that the file lists, in its order."""
        return tuple(self._assigned)

    def plan_of(self, organisation: str) -> str | None:
        """Return the name of an organisation's plan; of one that is not listed, the default plan's."""
        return self._assigned.get(organisation, self.default_plan)

    def pool(self, name: str = DEFAULT_POOL) -> PoolPolicy:
        """Return a pool's settings; of one that the file does not name, the defaults of `PoolPolicy`."""
        return self.pools.get(name) or PoolPolicy()

    def policy(self, path: TenantPath, pool: str = DEFAULT_POOL) -> NodePolicy:
        """Return the policy of any organisation or project in a pool, whether the file lists it or not.

        An organisation that is not listed has the default plan's. A project that is not listed, and whatever
        is below projects, has the defaults of `NodePolicy`: plans entitle organisations.
        """
        pool = pool if pool in self.pools else _ANY_POOL
        found = self._nodes[pool].get(path)
        if found is None and len(path) == 1 and self.default_plan is not None:
            found = self._plans[pool][(self.default_plan,)]
        return found or _DEFAULTS

    def settings(self) -> Settings:
        """Return what the file says in the form that is stored: the pools, and the policies of the tenants it lists.

        Organisations that it does not list are not among them: `policy` has theirs.
        """
        return Settings(pools=dict(self.pools), nodes={pool: dict(self._nodes[pool]) for pool in self.pools})


_DEFAULTS: Final = NodePolicy()

# --- reading -----------------------------------------------------------------------------------------------


def load_plans(path: str | Path) -> Plans:
    """Read the plans file at ``path``. Raises `PlansError`, which names everything that is wrong with it."""
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlansError(source, [Problem("the file", source, f"it cannot be read: {error.strerror}")]) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        found = data[error.start : error.start + 8]
        raise PlansError(source, [Problem(f"line {line}, column {column}", found, "TOML is text in UTF-8")]) from None
    return read_plans(text, source=source)


def read_plans(text: str, *, source: str = "plans") -> Plans:
    """Read the text of a plans file; ``source`` is what errors call it. Raises `PlansError`."""
    document = _parse(text, source)
    problems = list(_unknown_names(document))
    try:
        file = _File.model_validate(document)
    except ValidationError as error:
        problems = [_problem(detail) for detail in error.errors(include_url=False)] + problems
        raise PlansError(source, problems) from None
    _refuse(source, problems)
    pools = (_ANY_POOL, *dict.fromkeys((DEFAULT_POOL, *file.pools)))
    plans: dict[str, _Nodes] = {
        pool: {(name,): _made(("plans", name), [plan], pool, problems) for name, plan in file.plans.items()}
        for pool in pools
    }
    _refuse(source, problems)  # before everybody who is on a plan that contradicts itself is named for it
    nodes = {
        pool: {path: _made(key, tables, pool, problems) for path, key, tables in _tenants(file)} for pool in pools
    }
    _refuse(source, problems)
    return Plans(source, file, plans, nodes)


def _refuse(source: str, problems: Iterable[Problem]) -> None:
    found = list(dict.fromkeys(problems))  # the same may be found in every pool
    if found:
        raise PlansError(source, found)


def _tenants(file: _File) -> Iterator[tuple[TenantPath, tuple[str, ...], Sequence[_Plan]]]:
    """Yield path, key and tables of every listed tenant; a later table replaces what an earlier one says."""
    for name, organisation in file.organisations.items():
        key = ("organisations", name)
        plan = organisation.plan or file.default_plan
        yield (name,), key, [organisation] if plan is None else [file.plans[plan], organisation]
        for below, project in organisation.projects.items():
            tables: Sequence[_Plan] = [project] if project.plan is None else [file.plans[project.plan], project]
            yield (name, below), (*key, "projects", below), tables


def _made(key: tuple[str, ...], tables: Iterable[_Plan], pool: str, problems: list[Problem]) -> NodePolicy:
    """Return the policy that ``tables`` make in ``pool``; note a problem at ``key`` if they contradict each other."""
    given: dict[str, Any] = {}
    for table in tables:
        for part in (table, table.pools.get(pool)):
            if part is not None:
                given.update((name, getattr(part, name)) for name in part.model_fields_set & _ENTITLEMENTS)
    try:
        return NodePolicy(**given)
    except InvalidValue as error:
        where = f" (in pool {pool})" if any(pool in table.pools for table in tables) else ""
        problems.append(Problem(_dotted((*key, error.what.replace(" ", "_"))), error.value, error.rule + where))
        return _DEFAULTS


_ENTITLEMENTS: Final = frozenset(_Entitlement.model_fields)

# --- what can be wrong -------------------------------------------------------------------------------------

_PLACE = re.compile(
    r"(?P<reason>.*) \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)\Z", re.DOTALL
)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except RecursionError:
        problem = Problem("the file", text[:40], "it nests deeper than a plans file can")
    except ValueError as error:  # tomllib.TOMLDecodeError, and what int() says of a number with too many digits
        place = _PLACE.match(str(error))
        lines = text.splitlines() or [""]
        if place is None:
            problem = Problem("the file", text[:40], f"it is not TOML: {str(error).partition(';')[0]}")
        elif place["line"] is None:
            problem = Problem(f"line {len(lines)}, the last,", lines[-1], f"it is not TOML: {place['reason']}")
        else:
            shown = text.split("\n")[int(place["line"]) - 1]
            where = f"line {place['line']}, column {place['column']}"
            problem = Problem(where, shown, f"it is not TOML: {place['reason']}")
    raise PlansError(source, [problem])


def _unknown_names(document: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield every mention of a plan or pool that the file does not have; pass over what is no table or no name."""
    plans, pools = _tables(document, "plans"), {DEFAULT_POOL: None, **_tables(document, "pools")}

    def mentions(key: tuple[str, ...], table: Mapping[str, Any]) -> Iterator[Problem]:
        plan = table.get("plan")
        if isinstance(plan, str) and plan not in plans:
            yield Problem(_dotted((*key, "plan")), plan, _known("plan", plan, plans))
        for pool in _tables(table, "pools"):
            if pool not in pools:
                yield Problem(_dotted((*key, "pools")), pool, _known("pool", pool, pools))

    default = document.get("default_plan")
    if isinstance(default, str) and default not in plans:
        yield Problem("default_plan", default, _known("plan", default, plans))
    for name, table in plans.items():
        yield from mentions(("plans", name), {"pools": table.get("pools")})
    for name, table in _tables(document, "organisations").items():
        yield from mentions(("organisations", name), table)
        for below, project in _tables(table, "projects").items():
            yield from mentions(("organisations", name, "projects", below), project)


def _tables(table: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    found = table.get(key)
    return (
        {name: value for name, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}
    )


def _problem(detail: Mapping[str, Any]) -> Problem:
    """Turn one finding of the validation into ours."""
    key = tuple(str(part) for part in detail["loc"] if part != "[key]")
    kind, value = detail["type"], detail["input"]
    cause = detail.get("ctx", {}).get("error")
    if isinstance(cause, InvalidValue):
        rule = cause.rule
    elif kind == "extra_forbidden":
        rule = _known("key", key[-1], _keys(key[:-1]))
    elif kind in ("float_type", "finite_number"):
        rule = "it must be a number"
    elif kind.startswith("int"):
        rule = "it must be a whole number"
    elif kind == "string_type":
        rule = "it must be a name in quotes"
    elif kind in ("model_type", "dict_type"):
        rule = f"it must be a table: [{_dotted(key)}]"
    else:
        rule = str(detail["msg"])
    return Problem(_dotted(key), value, rule)


def _keys(key: tuple[str, ...]) -> Iterable[str]:
    """Return the keys that a table may have."""
    kind: type[_Table] = _File
    for part in key[::2]:  # names of tables and names that the file gives take turns
        kind = _BELOW.get(kind, {})[part]
    return kind.model_fields


def _known(what: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such ``what``, and which there are, the likeliest first."""
    names = list(known)
    near = get_close_matches(name, names, n=3)
    if near:
        return f"there is no such {what}; did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"there is no such {what}; known: {shown or 'none'}"


_SHOWN: Final = 10
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)


def _dotted(key: Iterable[str]) -> str:
    """Return a key as TOML writes it."""
    return ".".join(part if _BARE.match(part) else '"' + part.replace('"', '\\"') + '"' for part in key)
