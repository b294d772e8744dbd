"""The page about stores names all that the port asks of one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from drr import backend

PAGE = Path(__file__).parents[1] / "docs" / "adapters.md"


def methods_of(protocol: type) -> set[str]:
    return {name for name, value in vars(protocol).items() if not name.startswith("_") and callable(value)}


def named_in(page: str, protocol: str) -> set[str]:
    """The names in the first column of a role's table."""
    _, _, rest = page.partition(f"| `{protocol}` | |\n")
    table = rest.partition("\n\n")[0]
    return {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}


@pytest.mark.parametrize("protocol", ["ClientPort", "WorkerPort", "DispatcherPort"])
def test_every_method_of_the_port_is_on_the_page(protocol: str) -> None:
    page = PAGE.read_text("utf-8")
    assert named_in(page, protocol) == methods_of(getattr(backend, protocol))


def test_a_method_that_is_missing_is_noticed() -> None:
    """Negative control."""
    page = PAGE.read_text("utf-8").replace("| `load` |", "| |")
    assert named_in(page, "DispatcherPort") == methods_of(backend.DispatcherPort) - {"load"}
