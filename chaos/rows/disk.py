"""A disk that is full: a small file system of its own, on which the server's data lie for the time of the row."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import Site
from drr.embedded import EmbeddedServer

SIZE: Final = 512 * 1024 * 1024
"""Bytes of the file system, which the server's data have to fit in."""
FULL_FOR: Final = 2.0
"""Seconds that the disk stays full: less than a lease."""


def _mount(where: Path) -> str:
    """Mount a file system in memory; return why that cannot be done, or an empty string."""
    if os.name != "posix" or shutil.which("mount") is None:
        return "a small file system needs `mount`, and there is none"
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(where)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return f"a small file system cannot be mounted: {done.stderr.strip()}" if done.returncode else ""


def unmountable(site: Site) -> str:
    """Why no small file system can be mounted here, or empty."""
    with tempfile.TemporaryDirectory(dir=site.directory) as directory:
        reason = _mount(Path(directory))
        if not reason:
            subprocess.run(["umount", directory], check=True)
        return reason


@asynccontextmanager
async def _moved(site: Site) -> AsyncIterator[Path]:
    """Let the server go on with its data in a small file system; afterwards with them back where they were.

    It flushes every second there: with ``always`` a server whose disk is full does not refuse writes but ends.
    """
    small = site.directory / "small"
    small.mkdir()
    reason = _mount(small)
    assert not reason, reason
    usual = site.server
    try:
        await anyio.to_thread.run_sync(usual.stop)
        shutil.copytree(usual.data_dir, small / "data", ignore=shutil.ignore_patterns("server.*"))
        moved = EmbeddedServer(
            small / "data", binary=usual.binary, port=usual.port, appendfsync="everysec", start_timeout=30.0
        )
        async with moved:
            site.server = moved
            yield small
            await anyio.to_thread.run_sync(moved.stop)
            shutil.copytree(
                small / "data", usual.data_dir, ignore=shutil.ignore_patterns("server.*"), dirs_exist_ok=True
            )
    finally:
        site.server = usual
        await site.start_server()
        await anyio.run_process(["umount", str(small)])
        small.rmdir()


async def fill(site: Site, load: Load, findings: Findings) -> None:
    """Fill the disk under load, make room after a while, and see that everything goes on by itself."""
    async with _moved(site) as small:
        await load.go(site.scale.jobs // 4)
        ballast = small / "ballast"
        await anyio.to_thread.run_sync(_fill, ballast)
        load.order(site.scale.jobs // 4)
        await site.until(lambda: _refuses(site), "the server to notice that its disk is full")
        await anyio.sleep(FULL_FOR)
        findings.faults += 1
        ballast.unlink()
        began = time.monotonic()
        await site.until(lambda: _accepts(site), "the server to write again")
        await load.moves_on()
        findings.notes["resumed_after_s"] = round(time.monotonic() - began, 2)
        await load.rest()


def _fill(ballast: Path) -> None:
    block = b"\0" * 65536
    with ballast.open("wb", buffering=0) as file:
        for size in (len(block), 512):
            try:
                while True:
                    file.write(block[:size])
            except OSError:
                pass


async def _refuses(site: Site) -> bool:
    return b"aof_last_write_status:err" in await site.raw("INFO", "persistence")


async def _accepts(site: Site) -> bool:
    return not await _refuses(site)


ROWS = (Row("AOF disk full", fill, slow=True, unable=unmountable),)
