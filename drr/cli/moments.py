"""Times as they are typed: dates, Unix seconds, and spans."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from drr.errors import InvalidValue

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 7 * 86_400.0}
_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)([smhdw])", re.ASCII)


def read_time(what: str, text: str) -> float | datetime:
    """Read ``2026-12-24``, ``2026-12-24T18:00:00+01:00`` (UTC unless it says otherwise) or Unix seconds."""
    try:
        return float(text)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        rule = "it must be a time such as 2026-12-24T18:00:00+01:00, a date, or Unix seconds"
        raise InvalidValue(what, text, rule) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def read_span(what: str, text: str) -> timedelta | None:
    """Read ``90s``, ``15m``, ``24h``, ``7d`` or ``2w``; ``None`` if it is no span."""
    match = _SPAN.fullmatch(text)
    return None if match is None else timedelta(seconds=float(match[1]) * _UNITS[match[2]])


def read_since(what: str, text: str) -> float | datetime | timedelta:
    """Read a span before now, or a time."""
    span = read_span(what, text)
    return read_time(what, text) if span is None else span


def read_deadline(what: str, text: str) -> float | datetime | timedelta:
    """Read a time, or ``+SECONDS`` (also ``+15m``) from now."""
    if not text.startswith("+"):
        return read_time(what, text)
    span = read_span(what, text[1:])
    if span is not None:
        return span
    try:
        return timedelta(seconds=float(text[1:]))
    except (ValueError, OverflowError):
        raise InvalidValue(what, text, "after a + it must be seconds, or a span such as 15m") from None
