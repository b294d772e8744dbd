"""A Python module run in a process of its own, which does not outlive this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from drr import _lifeline

ROOT = Path(__file__).parents[1]
"""Where modules are found: processes start here."""
_LIFELINE = "signal" if sys.platform == "linux" else "pipe"  # see `drr._lifeline`


class Process:
    """One process and its log. ``environment`` adds to this process's own."""

    def __init__(self, name: str, arguments: Iterable[str], directory: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        tie = [sys.executable, "-I", "-S", str(_lifeline.__file__), _LIFELINE, str(os.getpid())]
        with self._log.open("ab") as output:
            self._popen = subprocess.Popen(
                [*tie, sys.executable, "-m", *arguments],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """The process id, from the start on: tying and starting are execs."""
        return self._popen.pid

    @property
    def status(self) -> int | None:
        """How it ended: ``None`` while it runs, below 0 by a signal."""
        return self._popen.poll()

    @property
    def log(self) -> str:
        """What it has written so far, in all its lives in this directory."""
        return self._log.read_text(errors="replace")

    @property
    def resident(self) -> int:
        """Bytes of memory it holds now; 0 if it has ended."""
        shown = subprocess.run(["ps", "-o", "rss=", "-p", str(self.pid)], check=False, capture_output=True, text=True)
        return int(shown.stdout or 0) * 1024

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if it has ended."""
        self._popen.send_signal(number)

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._popen.stdin is not None
        self._popen.stdin.write(line.encode() + b"\n")
        self._popen.stdin.flush()

    def kill(self) -> None:
        """End it with SIGKILL, if it runs, and wait for that."""
        self._popen.kill()
        with self._popen:
            pass
