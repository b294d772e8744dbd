"""Numbers as people read them."""

from __future__ import annotations

import math

import pytest

from drr.simulate.text import change, count, duration, percent, points, printable, ratio, shorten


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0"),
        (0.0004, "0"),
        (0.0005, "1 ms"),
        (0.35, "350 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (4.21, "4.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (185.0, "3 min 05 s"),
        (3599.6, "1 h 00 min"),
        (7260.0, "2 h 01 min"),
        (86399.0, "1 d 00 h"),
        (86400.0 * 5 + 7200, "5 d 02 h"),
        (86400.0 * 5000, "5,000 d 00 h"),
        (-4.21, "-4.2 s"),
        (None, "-"),
        (math.nan, "-"),
    ],
)
def test_a_duration_has_the_units_of_its_size(seconds: float | None, shown: str) -> None:
    assert duration(seconds) == shown


def test_a_change_has_a_sign_unless_there_is_none() -> None:
    assert [change(value) for value in (5.0, -5.0, 0.0, -0.0001, None)] == ["+5.0 s", "-5.0 s", "0", "0", "-"]
    assert [points(value) for value in (0.05, -0.05, 0.0004, None)] == ["+5.0 pp", "-5.0 pp", "0", "-"]


def test_numbers() -> None:
    assert (percent(0.1234), percent(None)) == ("12.3%", "-")
    assert (count(1234567), count(None)) == ("1,234,567", "-")
    assert (ratio(0.98765), ratio(7951.303), ratio(math.nan)) == ("0.988", "7,951", "-")


def test_a_long_name_keeps_its_ends() -> None:
    name = "organisation-with-a-name-that-has-no-end-0042"
    assert shorten(name) == "organisation-with-…-end-0042"
    assert len(shorten(name)) == 28
    assert shorten("short") == "short"


def test_control_characters_are_not_printed() -> None:
    assert printable("a\x1b[2Jb\nc\u2028\u202ed") == "a\ufffd[2Jb\ufffdc\ufffd\ufffdd"
    assert printable("Zürich-東京 1") == "Zürich-東京 1"
