"""What differs between two plans files, in the words of the file: for the log of changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from drr.plans.resolved import Plans
from drr.plans.wording import dotted

NAMED: Final = 20
"""Differences that are named; the others are counted."""


def differences(before: Plans, after: Plans, named: int = NAMED) -> str:
    """Return what changes from one file to the other: ``plans.pro.weight 5 -> 8; ...``, or that nothing does."""
    old, new = dict(_flat(before.document)), dict(_flat(after.document))
    found = [
        f"{dotted(key)} {_shown(old, key)} -> {_shown(new, key)}"
        for key in dict.fromkeys((*new, *old))
        if old.get(key) != new.get(key) or (key in old) != (key in new)
    ]
    if not found:
        return "nothing changes"
    more = len(found) - named
    return "; ".join(found[:named]) + (f"; and {more} more" if more > 0 else "")


def _flat(table: Mapping[str, Any], key: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            if not value:
                yield (*key, name), _EMPTY
            yield from _flat(value, (*key, name))
        else:
            yield (*key, name), value


def _shown(values: Mapping[tuple[str, ...], Any], key: tuple[str, ...]) -> str:
    if key not in values:
        return "unset"
    value = values[key]
    return "none" if value is None else str(value)


_EMPTY: Final = "as the default"
