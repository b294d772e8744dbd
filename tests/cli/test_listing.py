"""``drr jobs``, page by page, on a store in memory that this process holds open."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import pytest

from drr.backend import open_backend
from drr.cli.exits import Exit
from drr.clock import SystemClock
from tests.cli.command import drr
from tests.contract.harness import job

URL = "memory://listing"


@pytest.fixture
def ids(fresh_namespace: str) -> Iterator[list[str]]:
    backend = open_backend(URL, namespace=fresh_namespace, clock=SystemClock())
    tasks = ["a", "b"]
    yield asyncio.run(backend.submit("client", 1, [job(task=tasks[n % 2]) for n in range(25)]))
    asyncio.run(backend.close())


def listed(namespace: str, *options: str) -> tuple[list[str], str]:
    """Return the jobs that are shown, and the cursor to go on with."""
    done = drr("jobs", "--tenant", "acme", "--json", "--url", URL, "--namespace", namespace, *options)
    assert done.exit_code == Exit.OK, done.stderr
    more = re.search(r"--cursor '([^']+)'", done.stderr)
    return [json.loads(line)["job"] for line in done.stdout.splitlines()], more.group(1) if more else ""


@pytest.mark.parametrize("task", ["", "a"])
def test_a_terminal_goes_on_with_the_cursor(ids: list[str], fresh_namespace: str, task: str) -> None:
    options = ("--task", task) if task else ()
    wanted = ids[::2] if task else ids
    found, cursor = listed(fresh_namespace, "--limit", "10", *options)
    assert found == wanted[:10]
    more, cursor = listed(fresh_namespace, "--limit", "100", "--cursor", cursor, *options)
    assert found + more == wanted
    assert cursor == ""


def test_a_cursor_of_no_listing_is_wrong_usage(ids: list[str], fresh_namespace: str) -> None:
    assert ids
    done = drr("jobs", "--tenant", "acme", "--cursor", "x", "--url", URL, "--namespace", fresh_namespace)
    assert done.exit_code == Exit.USAGE
    assert "cursor of a listing is 'x'" in done.stderr
