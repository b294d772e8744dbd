"""From the text of a plans file to `Plans`."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from drr.errors import PlansError, Problem
from drr.plans.resolved import DEFAULT_POOL, Plans
from drr.plans.wording import dotted, unknown

SIZE_LIMIT: Final = 1024 * 1024
"""Most bytes of a plans file: it is stored whole, and read by every leader."""


def load_plans(path: str | Path) -> Plans:
    """Read the plans file at ``path``. Raises `PlansError`, which names everything that is wrong with it."""
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise PlansError(source, [Problem("the file", source, f"it cannot be read: {error.strerror}")]) from None
    except ValueError as error:  # a null character in the path
        raise PlansError(source, [Problem("the file", source, f"it cannot be read: {error}")]) from None
    return read_plans(decode(data, source), source=source)


def decode(data: bytes, source: str) -> str:
    """Return the text that a file's bytes are. Raises `PlansError` if they are none."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        found = data[error.start : error.start + 8]
        raise PlansError(source, [Problem(f"line {line}, column {column}", found, "TOML is text in UTF-8")]) from None


def read_plans(text: str, *, source: str = "plans") -> Plans:
    """Read the text of a plans file; ``source`` is what errors call it. Raises `PlansError`."""
    from drr.plans.tables import validate  # it brings pydantic, a tenth of a second that most processes do not need

    if len(text.encode(errors="replace")) > SIZE_LIMIT:
        raise PlansError(source, [Problem("the file", text[:40], f"a plans file has at most {SIZE_LIMIT} bytes")])
    document = _parse(text, source)
    checked, problems = validate(document)
    problems.extend(_unknown_names(document))
    if problems:
        raise PlansError(source, problems)
    return Plans(source, text, checked)


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
        if isinstance(plan, str) and plan not in plans and key[0] != "plans":
            yield Problem(dotted((*key, "plan")), plan, unknown("plan", plan, plans))
        for pool in _tables(table, "pools"):
            if pool not in pools:
                yield Problem(dotted((*key, "pools")), pool, unknown("pool", pool, pools))
        each = table.get("each_project")
        if isinstance(each, dict):
            yield from mentions((*key, "each_project"), {"pools": each.get("pools")})

    default = document.get("default_plan")
    if isinstance(default, str) and default not in plans:
        yield Problem("default_plan", default, unknown("plan", default, plans))
    for name, table in plans.items():
        yield from mentions(("plans", name), table)
    for name, table in _tables(document, "organisations").items():
        yield from mentions(("organisations", name), table)
        for below, project in _tables(table, "projects").items():
            yield from mentions(("organisations", name, "projects", below), project)


def _tables(table: Mapping[str, Any], key: str) -> dict[str, Mapping[str, Any]]:
    found = table.get(key)
    return (
        {name: value for name, value in found.items() if isinstance(value, dict)} if isinstance(found, dict) else {}
    )
