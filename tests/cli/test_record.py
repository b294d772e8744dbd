"""``drr serve --record``: what can be wrong with it costs one line and exit code 2, before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from drr.cli.exits import Exit
from drr.cli.recording import read_size
from drr.errors import InvalidValue
from tests.cli.command import drr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--record", "day.txt"], "ends in .csv or .csv.gz"),
        (["--record", "day.csv", "--record-limit", "much"], "a size such as 100MB"),
        (["--record", "day.csv", "--record-limit", "1k"], "4,096 to 100,000,000,000"),
        (["--record", "day.csv", "--record-keep", "1001"], "0 to 1,000"),
        (["--record-limit", "1GB"], "it goes with --record FILE"),
        (["--record-keep", "3"], "it goes with --record FILE"),
        (["--record-anonymous"], "it goes with --record FILE"),
        (["--record", f"nowhere{os.sep}day.csv"], "must be writable (No such file or directory)"),
    ],
)
def test_mistakes(arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = drr("serve", "memory://", *arguments)
    assert result.exit_code == Exit.USAGE
    last = result.stderr.strip().splitlines()[-1]
    assert last.startswith("drr: ")
    assert words in last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("text", "size"), [("100MB", 10**8), ("1.5 GB", 15 * 10**8), ("500k", 500_000), ("7", 7), ("2gb", 2 * 10**9)]
)
def test_sizes(text: str, size: int) -> None:
    assert read_size("limit", text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e6", "1 TB", "1.", "100 MBB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(InvalidValue, match="size such as"):
        read_size("limit", text)
