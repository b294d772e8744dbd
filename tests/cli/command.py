"""Running ``drr`` in the tests: inside the test's process, or as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

from drr.cli import app

DRR = [sys.executable, "-m", "drr.cli"]
PATIENCE = 60
"""Seconds that a process may take on the slowest machine; nothing waits for so long unless it is broken."""


def drr(*arguments: str) -> Result:
    """Run a command here."""
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


def run(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, to its end."""
    return subprocess.run(
        [*DRR, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, **environment},
        timeout=PATIENCE,
        check=False,
    )


def start(*arguments: str, cwd: Path, log: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a command that runs until it is told to stop; both its outputs go to a file."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [*DRR, *arguments], stdout=output, stderr=output, cwd=cwd, env={**os.environ, **environment}
        )
