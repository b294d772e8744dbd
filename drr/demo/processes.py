"""The demo's dispatchers and workers: real processes, which end when the demo does, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from drr import _lifeline
from drr.errors import DemoFailed

LOG_TAIL: Final = 10
"""Lines of a process's log that an error shows."""
_LIFELINE: Final = "signal" if sys.platform == "linux" else "pipe"  # see `drr._lifeline`


class Process:
    """One ``drr`` command in a process of its own, writing to a log file.

    The process is tied to the life of this one (`drr._lifeline`) and in a session of its own: Ctrl-C is for the demo,
    which decides when its parts end. Make it on the main thread: that is the one the tie is to.
    """

    def __init__(self, name: str, arguments: Iterable[str], directory: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._log = directory / f"{name}.log"
        tie = [sys.executable, "-I", "-S", str(_lifeline.__file__), _LIFELINE, str(os.getpid())]
        with self._log.open("wb") as output:
            self._popen = subprocess.Popen(
                [*tie, sys.executable, "-m", "drr.cli", *arguments],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._popen.poll() is None

    def check(self) -> None:
        """Raise `DemoFailed` with the end of its log if the process has ended."""
        if not self.running:
            raise self.failure(f"{self.name} ended with status {self._popen.returncode}")

    def failure(self, reason: str) -> DemoFailed:
        """Return an error that shows the end of this process's log."""
        return DemoFailed(reason, "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL:]))

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        self._popen.send_signal(number)

    async def ended(self, within: float) -> bool:
        """Wait for the end for ``within`` seconds at most; return whether it has come."""

        def wait() -> bool:
            try:
                self._popen.wait(within)
            except subprocess.TimeoutExpired:
                return False
            return True

        return await anyio.to_thread.run_sync(wait)

    def close(self) -> None:
        """End the process at once if it runs, and let go of what belongs to it."""
        self._popen.kill()
        with self._popen:
            pass


async def stop(processes: Iterable[Process], within: float) -> None:
    """End processes in good order. Raises `DemoFailed` if one does not end within that many seconds."""
    stopping = list(processes)
    for process in stopping:
        process.signal(signal.SIGTERM)
    for process in stopping:
        if not await process.ended(within):
            raise process.failure(f"{process.name} did not stop within {within:g} s")
