"""What may be a name, a tenant path or a number: the checks that all layers share."""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

from drr.errors import InvalidName, InvalidValue

TenantPath: TypeAlias = tuple[str, ...]
"""Names from the outermost tenant inwards: ``("acme", "billing")``. The empty path is the pool itself."""

NAME_LENGTH_LIMIT: Final = 128
ESTIMATE_MIN: Final = 1e-6
ESTIMATE_MAX: Final = 1e8
"""Range of an estimate in worker-seconds; the upper end is about three years."""

_NAME = re.compile(r"[A-Za-z0-9_.@-]{1,128}\Z", re.ASCII)


def check_name(what: str, value: object) -> str:
    """Return ``value`` if it is a valid name, else raise `InvalidName` saying which ``what`` is wrong.

    A name has 1 to 128 characters out of ASCII letters, digits and ``_ - . @``.
    """
    if not isinstance(value, str) or _NAME.match(value) is None:
        raise InvalidName(what, value, "a name has 1 to 128 characters out of letters, digits and _ - . @")
    return value


def check_path(value: object, *, depth: int | None = None) -> TenantPath:
    """Return ``value`` (``"acme/billing"`` or a sequence of names) as a validated `TenantPath`."""
    if isinstance(value, str):
        parts: tuple[object, ...] = tuple(value.split("/"))
    elif isinstance(value, tuple | list):
        parts = tuple(value)
    else:
        raise InvalidName("tenant path", value, "a tenant path is 'organisation/project' or a tuple of names")
    if not parts or (depth is not None and len(parts) != depth):
        raise InvalidName("tenant path", value, f"a tenant path here has {depth or 'at least 1'} names")
    levels = ("organisation", "project")
    return tuple(check_name(levels[i] if i < 2 else "tenant", part) for i, part in enumerate(parts))


def check_number(
    what: str, value: object, low: float, high: float, *, error: type[InvalidValue] = InvalidValue
) -> float:
    """Return ``value`` as a float if it is a finite number with ``low <= value <= high``, else raise ``error``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise error(what, value, "it must be a finite number")
    if not low <= value <= high:
        raise error(what, value, f"it must be between {low:g} and {high:g}")
    return float(value)
