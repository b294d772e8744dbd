"""The outbox's file: calls of submit that the store may not have for good, in SQLite.

Why SQLite, and why with these settings: docs/decisions/0024-outbox.md. One connection holds the file for as long as
it is open; another one, of this process or any other, is refused. What is read back is checked like anything from
outside: sums over each body, limits on every size, and each job as if a client had just described it.

Synchronous, and called from one thread at a time; `drr.client.outbox` sees to both.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final, TypeVar

from drr.backend import ITEM_LIMIT, check_job
from drr.errors import DrrError, MalformedMessage, OutboxCorrupt, OutboxFailed, OutboxInUse
from drr.model import JobSpec, Lane, RetryPolicy
from drr.wire import pack, unpack

T = TypeVar("T")

FORMAT: Final = 1
APPLICATION: Final = 0x64727221
"""Marks the file as an outbox in its header."""
BODY_LIMIT: Final = 8 * 1024 * 1024
"""Most bytes of one call's jobs."""
ENTRIES_LIMIT: Final = 10_000_000
"""Calls in one file, far more than any outbox holds: more are taken for damage."""
_NUMBER = (int, float)
_NUMBER_OR_NOT = (int, float, type(None))
_KINDS: Final[tuple[tuple[type, ...], ...]] = (
    *((str,), (list,), (int,), (list,), (str,), (bytes,), _NUMBER, _NUMBER_OR_NOT, _NUMBER_OR_NOT, _NUMBER),
    *((str,), (list, type(None)), _NUMBER_OR_NOT, _NUMBER, (str,), (str,), _NUMBER),
)
"""What the fields of a job are, in their order."""
SPOILT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})

_SCHEMA: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE calls (
    number INTEGER PRIMARY KEY,
    segment TEXT NOT NULL,
    call INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    recorded_at REAL NOT NULL,
    aside TEXT NOT NULL,
    sum BLOB NOT NULL,
    body BLOB NOT NULL
);
"""


@dataclass(frozen=True, slots=True)
class Record:
    """One call of submit as the file has it.

    ``number`` orders the calls of a file. ``segment`` and ``call``: client and number under which the store knows the
    call. ``size``: bytes of its jobs. ``recorded_at``: Unix seconds. ``aside``: why it is not replayed, or empty.
    """

    number: int
    segment: str
    call: int
    jobs: int
    size: int
    recorded_at: float
    aside: str = ""


class Journal:
    """The file. `open` before anything else; every method may raise `OutboxFailed` or `OutboxCorrupt`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._database: sqlite3.Connection | None = None

    def open(self, namespace: str) -> list[Record]:
        """Open or make the file, take hold of it and return the calls in it, oldest first.

        Raises `OutboxInUse` if somebody else holds it, and `OutboxCorrupt` if it is damaged, no outbox, or of another
        namespace.
        """
        try:
            # Made by hand, since SQLite would let the umask decide who may read the jobs.
            handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(handle, 0o600)
            finally:
                os.close(handle)
        except OSError as error:
            raise OutboxFailed(self.path, "be opened", error) from error
        return self._do("be opened", lambda: self._open(namespace))

    def _open(self, namespace: str) -> list[Record]:
        database = self._database = sqlite3.connect(
            self.path, timeout=0.0, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA trusted_schema = OFF")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(f"PRAGMA journal_size_limit = {BODY_LIMIT}")
        database.execute("BEGIN EXCLUSIVE")  # takes the lock, which is kept until the file is closed
        database.execute("COMMIT")
        (found,) = database.execute("PRAGMA application_id").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if not tables:
            self._make(database, namespace)
        elif found != APPLICATION:
            raise OutboxCorrupt(self.path, "it is a database, but no outbox")
        (verdict,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise OutboxCorrupt(self.path, f"SQLite finds: {verdict}")
        self._check_meta(database, namespace)
        rows = database.execute(
            "SELECT number, segment, call, jobs, length(body), recorded_at, aside FROM calls ORDER BY number LIMIT ?",
            (ENTRIES_LIMIT + 1,),
        ).fetchall()
        if len(rows) > ENTRIES_LIMIT:
            raise OutboxCorrupt(self.path, f"it has more than {ENTRIES_LIMIT} calls")
        return [self._record(*row) for row in rows]

    @staticmethod
    def _make(database: sqlite3.Connection, namespace: str) -> None:
        database.execute("BEGIN EXCLUSIVE")
        for statement in _SCHEMA.split(";\n"):
            database.execute(statement)
        database.execute(f"PRAGMA application_id = {APPLICATION}")
        database.execute(f"PRAGMA user_version = {FORMAT}")
        database.execute("INSERT INTO meta VALUES ('namespace', ?)", (namespace,))
        database.execute("COMMIT")

    def _check_meta(self, database: sqlite3.Connection, namespace: str) -> None:
        (version,) = database.execute("PRAGMA user_version").fetchone()
        if version != FORMAT:
            raise OutboxCorrupt(self.path, f"it has format {version}, and this version of drr knows {FORMAT}")
        found = database.execute("SELECT value FROM meta WHERE name = 'namespace'").fetchone()
        if found is None or found[0] != namespace:
            named = None if found is None else found[0]
            raise OutboxCorrupt(self.path, f"its jobs are of namespace {named!r}, and the client's is {namespace!r}")

    def _record(self, *row: Any) -> Record:
        kinds = (int, str, int, int, int, float, str)
        if any(type(value) is not kind for value, kind in zip(row, kinds, strict=True)):
            raise OutboxCorrupt(self.path, f"call {row[0]!r} is not what drr writes")
        return Record(*row)

    def write(self, added: Sequence[tuple[Record, bytes]], removed: Sequence[int]) -> None:
        """Add calls and remove others, by their numbers, in one transaction that is on disk when this returns."""
        rows = [
            (r.number, r.segment, r.call, r.jobs, r.recorded_at, r.aside, _sum_of(body), body) for r, body in added
        ]

        def write(database: sqlite3.Connection) -> None:
            database.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            database.executemany("DELETE FROM calls WHERE number = ?", [(number,) for number in removed])

        self._transaction(write)

    def set_aside(self, reasons: Sequence[tuple[int, str]], at: float | None = None) -> None:
        """Note why calls are not replayed; with ``at``, as if they had been recorded then (Unix seconds)."""

        def write(database: sqlite3.Connection) -> None:
            for number, reason in reasons:
                database.execute("UPDATE calls SET aside = ? WHERE number = ?", (reason, number))
                if at is not None:
                    database.execute("UPDATE calls SET recorded_at = ? WHERE number = ?", (at, number))

        self._transaction(write)

    def read(self, number: int) -> list[JobSpec]:
        """Return the jobs of a call. Raises `MalformedMessage` if they are not what was written."""

        def read() -> Any:
            assert self._database is not None, "the outbox is open"
            with closing(self._database.execute("SELECT sum, body FROM calls WHERE number = ?", (number,))) as rows:
                return rows.fetchone()

        found = self._do("be read", read)
        if found is None or type(found[1]) is not bytes or found[0] != _sum_of(found[1]):
            raise MalformedMessage("call in the outbox", f"the sum over the jobs of call {number} is wrong")
        return decode(found[1])

    def close(self) -> None:
        """Let go of the file; idempotent. What is in it stays."""
        database, self._database = self._database, None
        if database is not None:
            with suppress(sqlite3.Error):
                database.close()

    def _transaction(self, write: Callable[[sqlite3.Connection], None]) -> None:
        database = self._database
        assert database is not None, "the outbox is open"

        def run() -> None:
            database.execute("BEGIN IMMEDIATE")
            try:
                write(database)
                database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise

        self._do("be written", run)

    def _do(self, what: str, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if self._database is not None and what == "be opened":
                self.close()
            if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise OutboxInUse(self.path) from error
            if code in SPOILT:
                raise OutboxCorrupt(self.path, f"SQLite finds: {error}") from error
            raise OutboxFailed(self.path, what, error) from error
        except OutboxCorrupt:
            self.close()
            raise


def _sum_of(body: bytes) -> bytes:
    return blake2s(body, digest_size=16).digest()


# --- jobs in bytes ------------------------------------------------------------------------------------


def encode(specs: Sequence[JobSpec]) -> bytes:
    """Return the jobs of one call as bytes."""
    return pack([_fields(spec) for spec in specs])


def _fields(spec: JobSpec) -> tuple[Any, ...]:
    lane, retry = spec.lane, spec.retry
    return (
        lane.pool,
        lane.path,
        lane.priority,
        lane.limits,
        spec.task,
        spec.payload,
        spec.submitted_at,
        spec.estimate,
        spec.timeout,
        spec.result_ttl,
        spec.reply_to,
        retry and (retry.attempts, retry.delay, retry.factor, retry.max_delay, retry.jitter),
        spec.deadline,
        spec.due_at,
        spec.key,
        spec.name,
        spec.key_ttl,
    )


def decode(body: bytes) -> list[JobSpec]:
    """Return the jobs that `encode` made bytes of. Raises `MalformedMessage`, whatever is wrong."""
    jobs = unpack("call in the outbox", body, BODY_LIMIT)
    if not isinstance(jobs, list) or not 0 < len(jobs) <= ITEM_LIMIT:
        raise MalformedMessage("call in the outbox", f"it is no array of 1 to {ITEM_LIMIT} jobs")
    try:
        return [_spec(job) for job in jobs]
    except MalformedMessage:
        raise
    except (DrrError, TypeError, ValueError) as error:
        raise MalformedMessage("job in the outbox", str(error)) from error


def _spec(fields: Any) -> JobSpec:
    if not isinstance(fields, list) or len(fields) != len(_KINDS):
        raise MalformedMessage("job in the outbox", f"it is no array of {len(_KINDS)}")
    for number, (value, kinds) in enumerate(zip(fields, _KINDS, strict=True)):
        if type(value) not in kinds:
            raise MalformedMessage("job in the outbox", f"field {number} is a {type(value).__name__}")
    pool, path, priority, limits, task, payload, submitted_at, estimate, timeout, ttl, reply_to, retry, *rest = fields
    spec = JobSpec(
        Lane(pool, tuple(path), priority, tuple(limits)),
        task,
        payload,
        submitted_at,
        estimate,
        timeout,
        ttl,
        reply_to,
        None if retry is None else RetryPolicy(*retry),
        *rest,
    )
    check_job(spec)
    return spec
