"""Options that several commands share, and how values with a name in front are written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from drr.errors import InvalidValue

V = TypeVar("V")

DEFAULT_URL: Final = "redis://localhost:6379/0"
URL_VARIABLE: Final = "DRR_URL"

_URL_HELP: Final = "Store: redis://, rediss://, unix:// or redis+sentinel://."

StoreArgument: TypeAlias = Annotated[str, typer.Argument(metavar="URL", envvar=URL_VARIABLE, help=_URL_HELP)]
StoreOption: TypeAlias = Annotated[str, typer.Option("--url", metavar="URL", envvar=URL_VARIABLE, help=_URL_HELP)]
Namespace: TypeAlias = Annotated[
    str, typer.Option(metavar="NAME", envvar="DRR_NAMESPACE", help="Namespace in the store; the same for all parts.")
]
AsJson: TypeAlias = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def examples(*lines: str) -> str:
    """Return an epilogue that shows command lines as they are written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def read_number(what: str, text: str) -> float:
    """Return the number that ``text`` is; "nan" and "inf" are for the policies to refuse. Raises `InvalidValue`."""
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(what, text, "it must be a number") from None


def read_count(what: str, text: str) -> int:
    """Return the whole number that ``text`` is. Raises `InvalidValue`."""
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(what, text, "it must be a whole number") from None


def read_named(what: str, entries: Iterable[str], default: str, read: Callable[[str, str], V]) -> dict[str, V]:
    """Read ``NAME=VALUE`` entries, of which ``VALUE`` alone stands for ``default=VALUE``.

    Raises `InvalidValue` for a name that is given twice and what ``read`` does.
    """
    found: dict[str, V] = {}
    for entry in entries:
        before, equals, after = entry.partition("=")
        name, text = (before, after) if equals else (default, before)
        if name in found:
            raise InvalidValue(f"{what} of {name}", entry, "it is given twice; give it once")
        found[name] = read(f"{what} of {name}", text)
    return found


def read_json(option: str, text: str | None, kind: type[V], example: str) -> V | None:
    """Return the JSON value of an option, which has to be of ``kind``. Raises `typer.BadParameter`."""
    if text is None:
        return None
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is no JSON ({error}); write for instance {option} '{example}'") from None
    if not isinstance(value, kind):
        raise typer.BadParameter(
            f"{option} is a JSON {type(value).__name__}; write for instance {option} '{example}'"
        )
    return value
