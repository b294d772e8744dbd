"""The files of a recording: a spool in order of finish, and the sorted trace that is made of it.

Theory of operation
    Jobs end out of order, and a trace is sorted by time of submission. So rows are first appended to a *spool*,
    ``FILE.part``: a header and whole lines, written through with every append, so that it can be read whatever
    kills the process. To *publish* is to sort the spool into ``FILE.new`` and to rename that to ``FILE``; a
    published trace is complete at any moment. Sorting takes bounded memory: runs of the spool are sorted one by
    one into temporary files, which are merged.

    An earlier ``FILE`` is not overwritten: ``traffic.csv.gz`` becomes ``traffic.1.csv.gz``, that one
    ``traffic.2.csv.gz`` and so on, and the oldest beyond ``keep`` is deleted. A spool that is there at the
    start was left by a process that was killed, and is published first.

    The spool is locked, since two processes that append to one would spoil it.
"""

from __future__ import annotations

import fcntl
import gzip
import heapq
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final, TypeAlias

from drr.dispatcher.recording_rows import HEADER, sort_key
from drr.errors import InvalidConfiguration

SUFFIXES: Final = (".csv", ".csv.gz")
RUN_BYTES: Final = 8 * 2**20
"""Bytes of the spool that are sorted in memory at a time; a large spool is cut into `MOST_RUNS` instead."""
MOST_RUNS: Final = 64
COMPRESSION: Final = 6

Opener: TypeAlias = Callable[[str, str], io.FileIO]
"""Opens a file unbuffered, given its name and mode; `io.FileIO` itself, unless a test wants a full disk."""


class RecordFile:
    """The spool of one recording, open and locked, and what is published from it."""

    def __init__(self, path: Path, keep: int, opener: Opener = io.FileIO, run_bytes: int = RUN_BYTES) -> None:
        """Raises `InvalidConfiguration` if the name does not end as a trace's does."""
        self.path = path
        self.jobs = 0
        """Rows in the spool."""
        self.size = 0
        """Bytes in the spool, the header included."""
        self._suffix = next((suffix for suffix in reversed(SUFFIXES) if path.name.endswith(suffix)), "")
        if not self._suffix or path.name == self._suffix:
            raise _unusable(path, f"a trace's name ends in {' or '.join(SUFFIXES)}")
        self._keep = keep
        self._opener = opener
        self._run_bytes = run_bytes
        self._spool: io.FileIO | None = None

    @property
    def spool_path(self) -> Path:
        """Where rows go at first."""
        return self.path.with_name(self.path.name + ".part")

    # --- the spool ------------------------------------------------------------------------------------

    def open(self) -> None:
        """Open and lock the spool. Raises `InvalidConfiguration` if that cannot be done."""
        if self.path.is_dir():
            raise _unusable(self.path, "it must not be a directory")
        try:
            while self._spool is None:
                spool = self._opener(str(self.spool_path), "ab+")
                try:
                    self._lock(spool)
                finally:
                    if self._spool is None:
                        spool.close()
            self.size = os.fstat(self._spool.fileno()).st_size
        except BlockingIOError:
            raise _unusable(self.path, "no other process must be recording into it: give each its own") from None
        except OSError as error:
            rule = f"{self.spool_path} must be writable ({error.strerror or error})"
            raise _unusable(self.path, rule) from None

    def _lock(self, spool: io.FileIO) -> None:
        fcntl.flock(spool.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Whoever held it before may have deleted it between our opening and our locking.
        if self.spool_path.exists() and os.path.samestat(os.fstat(spool.fileno()), self.spool_path.stat()):
            self._spool = spool

    @property
    def left_over(self) -> bool:
        """Whether the spool holds what an earlier process recorded; to be asked right after `open`."""
        return self.size > len(HEADER)

    def append(self, rows: bytes, jobs: int) -> None:
        """Write rows through. Raises `OSError`."""
        assert self._spool is not None, "opened"
        if not self.size:
            rows = HEADER + rows
        _write_all(self._spool, rows)
        self.size += len(rows)
        self.jobs += jobs

    def clear(self) -> None:
        """Empty the spool. Raises `OSError`."""
        assert self._spool is not None, "opened"
        self._spool.truncate(0)
        self.size = self.jobs = 0

    def close(self, *, delete: bool) -> None:
        """Let go of the spool, and delete it if nothing in it is needed. Raises `OSError`."""
        spool, self._spool = self._spool, None
        if spool is not None:
            with spool:
                if delete:
                    self.spool_path.unlink(missing_ok=True)

    # --- the trace ------------------------------------------------------------------------------------

    def publish(self) -> int:
        """Sort the spool into ``path`` and return how many jobs that has; of none, no file is made.

        Raises `OSError`; then the spool is as it was, and so is what was published before.
        """
        new = self.path.with_name(self.path.name + ".new")
        try:
            with ExitStack() as stack:
                output = stack.enter_context(self._opener(str(new), "wb"))
                jobs = _write_trace(output, self._sorted(stack), compress=self._suffix.endswith(".gz"))
                os.fsync(output.fileno())
            if jobs:
                self._make_room()
                new.replace(self.path)
        finally:
            new.unlink(missing_ok=True)
        return jobs

    def older(self, number: int) -> Path:
        """Return the name of the trace that was published ``number`` traces before the newest."""
        if not number:
            return self.path
        return self.path.with_name(f"{self.path.name.removesuffix(self._suffix)}.{number}{self._suffix}")

    def _make_room(self) -> None:
        for number in range(self._keep, 0, -1):
            if self.older(number - 1).exists():
                self.older(number - 1).replace(self.older(number))

    def _sorted(self, stack: ExitStack) -> Iterator[bytes]:
        """Yield the spool's rows in the order of a trace; what is none is left out."""
        limit = max(self._run_bytes, self.size // MOST_RUNS)
        runs: list[IO[bytes]] = []
        rows: list[bytes] = []
        held = 0
        for line in stack.enter_context(io.BufferedReader(self._opener(str(self.spool_path), "rb"))):
            if sort_key(line) is None:
                continue
            rows.append(line)
            held += len(line)
            if held >= limit:
                run = stack.enter_context(tempfile.TemporaryFile(dir=self.path.parent))  # noqa: SIM115
                rows.sort(key=_key)
                run.writelines(rows)
                run.seek(0)
                runs.append(run)
                rows, held = [], 0
        rows.sort(key=_key)
        return heapq.merge(*runs, rows, key=_key)


def _key(line: bytes) -> tuple[float, int]:
    key = sort_key(line)
    assert key is not None, "rows only"
    return key


def _write_trace(output: io.FileIO, rows: Iterable[bytes], *, compress: bool) -> int:
    jobs = 0
    with io.BufferedWriter(_Unclosed(output), 2**16) as plain, ExitStack() as stack:
        target: IO[bytes] = plain
        if compress:
            squeezed = stack.enter_context(gzip.GzipFile("", "wb", COMPRESSION, plain, mtime=0))
            target = stack.enter_context(io.BufferedWriter(squeezed, 2**16))
        target.write(HEADER)
        for row in rows:
            target.write(row)
            jobs += 1
    return jobs


class _Unclosed(io.RawIOBase):
    """A file that outlives the buffer in front of it, since it is to be synchronised after that."""

    def __init__(self, file: io.FileIO) -> None:
        self._file = file

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        return self._file.write(data)  # type: ignore[arg-type]


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def _unusable(path: Path, rule: str) -> InvalidConfiguration:
    return InvalidConfiguration("file to record into", str(path), rule)
