"""Compiling the shim (`shim.c`), and telling it what to do while the server runs."""

from __future__ import annotations

import mmap
import shutil
import struct
import subprocess
import sys
from pathlib import Path

from chaos.process import ROOT

_CONTROL = struct.Struct("=qq")
COMPILERS = ("cc", "gcc", "clang")


class Shim:
    """The compiled shim and its control file, in a directory of a run. ``missing``: why there is none, or empty."""

    def __init__(self, directory: Path) -> None:
        self.control = directory / "shim.control"
        self.control.write_bytes(_CONTROL.pack(0, 0))
        self.library = directory / "shim.so"
        self.missing = self._compile()
        with self.control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _CONTROL.size)

    def _compile(self) -> str:
        if sys.platform != "linux":
            return f"the shim is written for Linux, and this is {sys.platform}"
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        if compiler is None:
            return f"the shim needs a C compiler, and none of {', '.join(COMPILERS)} is on PATH"
        source = ROOT / "chaos" / "shim.c"
        done = subprocess.run(
            [compiler, "-shared", "-fPIC", "-O2", "-o", str(self.library), str(source)],
            check=False,
            capture_output=True,
            text=True,
        )
        return f"the shim does not compile: {done.stderr[:300]}" if done.returncode else ""

    def set(self, *, ahead: int = 0, flush: float = 0.0) -> None:
        """Let the server's wall clock be ``ahead`` seconds ahead, and each flush last ``flush`` seconds longer."""
        self._map[:] = _CONTROL.pack(ahead, round(flush * 1e6))

    def wrap(self, binary: Path, directory: Path) -> Path:
        """Return a program that is ``binary`` with the shim in it, or ``binary`` itself if there is no shim."""
        if self.missing:
            return binary
        script = directory / f"{binary.name}-with-shim"
        script.write_text(
            f'#!/bin/sh\nDRR_CHAOS_CONTROL="{self.control}" LD_PRELOAD="{self.library}" exec "{binary}" "$@"\n'
        )
        script.chmod(0o700)
        return script
