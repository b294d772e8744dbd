"""Numbers as people read them, alike in tables, pages and comparisons."""

from __future__ import annotations

import math
from typing import Final

NOTHING: Final = "-"
"""Stands where there is no number: nothing was measured, or nothing can be."""


def duration(seconds: float | None) -> str:
    """Return a duration in two units at most: ``0``, ``350 ms``, ``4.2 s``, ``3 min 05 s``, ``5 d 02 h``."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.0005:
        return "0"
    if seconds < 0.9995:
        return f"{max(1, round(seconds * 1000))} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 24:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} d {hours:02d} h"


def change(seconds: float | None) -> str:
    """Return a difference of durations with its sign, ``0`` if there is none worth a word."""
    if seconds is None or math.isnan(seconds):
        return NOTHING
    shown = duration(abs(seconds))
    return shown if shown == "0" else f"{'+' if seconds > 0 else '-'}{shown}"


def percent(fraction: float | None) -> str:
    """Return a share as a percentage with one decimal."""
    return NOTHING if fraction is None or math.isnan(fraction) else f"{fraction:.1%}"


def points(fraction: float | None) -> str:
    """Return a difference of shares in percentage points, with its sign."""
    if fraction is None or math.isnan(fraction):
        return NOTHING
    shown = f"{abs(fraction) * 100:.1f}"
    return "0" if shown == "0.0" else f"{'+' if fraction > 0 else '-'}{shown} pp"


def count(number: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if number is None or math.isnan(number) else f"{number:,.0f}"


def ratio(number: float | None) -> str:
    """Return a plain number, with three decimals if it is not large."""
    if number is None or math.isnan(number):
        return NOTHING
    return f"{number:.3f}" if abs(number) < 100 else f"{number:,.0f}"


def printable(text: str) -> str:
    """Return ``text`` with a mark in place of each control character, by which a name could command a terminal."""
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shorten(name: str, length: int = 28) -> str:
    """Return a name that is printable and not longer than ``length``, cut in the middle."""
    name = printable(name)
    if len(name) <= length:
        return name
    tail = (length - 1) // 3
    return f"{name[: length - 1 - tail]}…{name[-tail:]}"
