"""The layers of pyproject.toml hold, and each contract catches the violation it is there for."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

LINT = "import sys; from importlinter.cli import lint_imports_command as run; sys.argv[0] = 'lint-imports'; run()"


def lint(root: Path) -> tuple[int, str]:
    """Run import-linter on the packages below ``root``; return its exit code and what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", LINT, "--no-cache"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root / "backends"), "COLUMNS": "200", "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, re.sub(r"\s+", " ", done.stdout)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the packages, to be spoilt."""
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "drr", tmp_path / "drr", ignore=ignore)
    shutil.copytree(ROOT / "backends", tmp_path / "backends", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_hold() -> None:
    code, printed = lint(ROOT)
    assert code == 0, printed
    assert ", 0 broken" in printed


@pytest.mark.parametrize(
    ("module", "text", "broken"),
    [
        ("drr/core/spoilt.py", "import drr.backend", "Layers point one way"),
        ("drr/wire.py", "import drr.backend", "Layers point one way"),
        ("drr/unplaced.py", "", "Layers point one way"),
        (
            "drr/core/spoilt.py",
            "def now() -> float:\n    import time\n    return time.time()",
            "The core does no I/O",
        ),
        ("drr/model.py", "import asyncio", "The core does no I/O"),
        ("drr/embedded.py", "import drr_backends.redis", "drr never imports the adapters"),
        ("backends/drr_backends/redis/spoilt.py", "import drr.core", "Adapters know the port"),
        ("backends/drr_backends/redis/spoilt.py", "import drr.embedded", "Adapters know the port"),
        ("drr/embedded.py", "import redis", "drr knows no client library"),
    ],
)
def test_a_violation_is_caught(copy: Path, module: str, text: str, broken: str) -> None:
    with (copy / module).open("a") as file:
        file.write(f"\n\n{text}\n")
    code, printed = lint(copy)
    assert code != 0
    assert re.search(re.escape(broken) + r"[^.]*? BROKEN", printed), printed
