"""Recording: the leader writes a row for each job that ends, so that its own traffic can be replayed.

Theory of operation
    The loop hands over what an accepted commit ended: a few references in a queue, nothing else. A thread of the
    recorder's own makes rows of them, writes them to the spool and publishes (see
    `drr.dispatcher.recording_file`). It owns everything but the queue, so nothing is locked. If it falls
    behind, or the disk fails, the recording suffers and dispatching does not.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from drr.backend import Settlement
from drr.dispatcher.recording_file import RUN_BYTES, Opener, RecordFile
from drr.dispatcher.recording_rows import Batch, End, Scribe
from drr.errors import InvalidConfiguration
from drr.model import JobState, Lease

log = logging.getLogger("drr.recording")

MAX_BYTES: Final = 100 * 10**6
"""Default limit of one file: some 800,000 jobs."""
LEAST_BYTES: Final = 4096
MOST_BYTES: Final = 100 * 10**9
KEEP: Final = 7
PENDING_LIMIT: Final = 200_000
"""Jobs that may wait for the thread; it sorts a full file in the time that these take to come."""


class Recorder:
    """Writes the traffic of a `Dispatcher` to a trace that ``drr simulate`` reads.

    Give it to one dispatcher as ``record``, which opens and closes it. It records while that dispatcher leads.
    To make a trace of what a killed process left in ``FILE.part``, open and close one, with no dispatcher.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        *,
        max_bytes: int = MAX_BYTES,
        max_jobs: int | None = None,
        keep: int = KEEP,
        anonymous: bool = False,
        opener: Opener = io.FileIO,
        run_bytes: int = RUN_BYTES,
        pending_limit: int = PENDING_LIMIT,
    ) -> None:
        """Check the settings; nothing is opened yet.

        ``path`` ends in ``.csv`` or ``.csv.gz``. A file that has ``max_bytes`` (before compression, 4,096 to
        1e11) or ``max_jobs`` is published and the next one begun, with time from 0; ``keep`` older ones stay
        (0 to 1000), as ``NAME.1.csv.gz`` and so on. ``anonymous``: numbers in place of the names of tenants,
        pools and tasks. The rest is for tests: how files are opened, how many bytes are sorted in memory,
        how many jobs may wait to be written.

        Raises `InvalidConfiguration`.
        """
        for what, value, low, high in (
            ("bytes to record at most", max_bytes, LEAST_BYTES, MOST_BYTES),
            ("jobs to record at most", 1 if max_jobs is None else max_jobs, 1, 10**12),
            ("older records to keep", keep, 0, 1000),
        ):
            if type(value) is not int or not low <= value <= high:
                raise InvalidConfiguration(what, value, f"it must be a whole number from {low:,} to {high:,}")
        self._file = RecordFile(Path(path), keep, opener, run_bytes)
        self._max_bytes = max_bytes
        self._max_jobs = max_jobs
        self._anonymous = anonymous
        self._pending_limit = pending_limit
        self._queue: SimpleQueue[Batch | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._handed = 0
        self._left: Batch | None = None
        self._dropped = 0
        # Written by the thread only:
        self._taken = 0
        self._failed = False
        self._scribe: Scribe | None = None

    @property
    def path(self) -> Path:
        """Where the trace will be."""
        return self._file.path

    @property
    def failed(self) -> bool:
        """Whether an error of the disk has ended the recording."""
        return self._failed

    # --- the dispatcher's side ------------------------------------------------------------------------

    def open(self) -> None:
        """Open the file and start the thread. Raises `InvalidConfiguration` if the file cannot be used."""
        if self._thread is not None:
            raise RuntimeError("a Recorder can be opened once; make a new one to record again")
        self._file.open()
        self._thread = threading.Thread(target=self._run, name="drr-recorder", daemon=True)
        self._thread.start()

    def resume(self, now: float, wall: float) -> None:
        """Begin, or go on after a pause: the dispatcher leads."""
        self._left = None
        if not self._failed:
            self._queue.put(Batch(now, wall, {}, ()))

    def ended(self, settlements: Iterable[Settlement], slots: Callable[[str], int], now: float, wall: float) -> None:
        """Note the jobs that an accepted commit has ended; ``slots`` tells a pool's live slots."""
        if self._failed:
            return
        ends = [End(ended.lease, ended.completion.state, ended.completion.seconds) for ended in settlements]
        if self._handed - self._taken + len(ends) > self._pending_limit:
            if not self._dropped:
                log.warning("the disk is too slow for what ends: jobs are missing from %s", self.path)
            self._dropped += len(ends)
            return
        self._handed += len(ends)
        self._queue.put(_batch(now, wall, slots, ends))

    def pause(self, running: Iterable[Lease], slots: Callable[[str], int], now: float, wall: float) -> None:
        """Note what runs when the dispatcher ceases to lead: if it never leads again, that is all of it."""
        ends = [End(lease, JobState.RUNNING, max(0.0, wall - lease.dispatched_at)) for lease in running]
        self._left = _batch(now, wall, slots, ends)

    def close(self) -> None:
        """Write what is pending, publish, and stop. Blocks, for seconds if much was recorded; raises nothing."""
        if self._thread is None:
            return
        if self._left is not None:
            self._queue.put(self._left)
        self._queue.put(None)
        self._thread.join()
        if self._dropped:
            log.warning("%d jobs are missing from %s: the disk was too slow", self._dropped, self.path)

    # --- the thread -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._file.left_over:
                log.info("%s was left by a process that was killed", self._file.spool_path)
                self._publish()
            self._file.clear()
            while (batch := self._queue.get()) is not None:
                self._write(batch)
            self._publish()
            self._file.close(delete=True)
        except OSError as error:
            self._fail(error)
        except BaseException:
            self._failed = True
            raise

    def _write(self, batch: Batch) -> None:
        if self._scribe is None:
            self._scribe = Scribe(batch.now, batch.wall, anonymous=self._anonymous)
        rows = self._scribe.rows(batch)
        self._taken += sum(end.state is not JobState.RUNNING for end in batch.ends)
        if not rows:
            return
        self._file.append(rows, len(batch.ends))
        full = self._max_jobs is not None and self._file.jobs >= self._max_jobs
        if full or self._file.size >= self._max_bytes:
            log.info("%s is full: publishing it, and going on in a new one", self._file.spool_path)
            self._publish()
            self._file.clear()
            self._scribe.begin(batch.now)

    def _publish(self) -> None:
        jobs = self._file.publish()
        if jobs:
            log.info("%d jobs are recorded in %s", jobs, self.path)

    def _fail(self, error: OSError) -> None:
        self._failed = True
        log.error(
            "recording into %s has ended (%s); what was recorded before is in %s",
            self.path,
            error.strerror or error,
            self._file.spool_path,
        )
        try:
            self._file.close(delete=False)
        except OSError as again:
            log.debug("and it cannot be closed: %s", again)


def _batch(now: float, wall: float, slots: Callable[[str], int], ends: Sequence[End]) -> Batch:
    pools = {end.lease.header.lane.pool for end in ends}
    return Batch(now, wall, {pool: slots(pool) for pool in pools}, ends)
