"""Traces in comma-separated values: what docs/traces.md describes, and what a dispatcher records."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from drr.errors import InvalidName, TraceError
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, NAME_LENGTH_LIMIT, check_name
from drr.simulate.trace import SECONDS_MAX, Arrival, FileSource, Paths, check_seconds, read_text

COLUMNS: Final = ("submit_s", "duration_s", "org", "project")
"""Columns that a trace must have; ``estimate_s`` and ``pool`` may be there, and others, which are ignored."""
_RECORDED: Final = ("start_s", "duration_s", "workers")
_MINUTE: Final = 60.0
POOLS_SHOWN: Final = 20


class CsvTrace(FileSource):
    """Comma-separated values with a header line. Where there is a column ``pool``, one pool's jobs are read.

    ``pool``: which; by default the only one that there is.
    """

    def __init__(self, path: Path, speedup: float, until: float, pool: str | None = None) -> None:
        super().__init__(path, speedup, until)
        self._pool = pool

    @property
    def pool(self) -> str | None:
        """The pool whose jobs are read, as asked for or as the first job says; ``None`` if the file names none."""
        return self._pool or next((row[0] for row in self._table(("pool",))), None)

    @property
    def slots(self) -> Sequence[tuple[float, int]]:
        """The live slots that a dispatcher recorded in ``workers``, minute by minute; nothing without that column."""
        most: dict[int, int] = {}
        for row in self._table(_RECORDED):
            try:
                end, workers = float(row[0]) + float(row[1]), int(row[2])
                minute = int(end // _MINUTE)
            except (ValueError, OverflowError):
                continue
            most[minute] = max(workers, most.get(minute, 0))
        changes: list[tuple[float, int]] = []
        for minute, workers in sorted(most.items()):
            if workers > 0 and (not changes or changes[-1][1] != workers):
                changes.append((minute * _MINUTE / self._speedup if changes else 0.0, workers))
        return changes

    def _table(self, columns: Sequence[str]) -> Iterator[list[str]]:
        """Yield some columns of the rows of our pool, as far as they can be read; nothing if one is missing."""
        reader = csv.reader(self._lines())
        header = next(self._fields(reader), [])
        if not all(column in header for column in columns):
            return
        places = [header.index(column) for column in columns]
        pool = header.index("pool") if "pool" in header and self._pool is not None else None
        for row in self._fields(reader):
            if len(row) == len(header) and (pool is None or row[pool] == self._pool):
                yield [row[place] for place in places]

    def rows(self) -> Iterator[tuple[int, Arrival]]:
        """Yield line numbers and jobs as the file has them."""
        path, paths = self._path, Paths()
        known = paths.known
        reader = csv.reader(self._lines())
        header = next(self._fields(reader), None)
        if header is None:
            raise TraceError(path, 0, "", "an empty file", "a trace begins with a line of column names")
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise TraceError(path, 1, ", ".join(missing), ",".join(header)[:80], "these columns are needed")
        twice = [column for column in (*COLUMNS, "estimate_s", "pool") if header.count(column) > 1]
        if twice:
            raise TraceError(path, 1, ", ".join(twice), ",".join(header)[:80], "a column is named once")
        at_, duration_, org_, project_ = (header.index(column) for column in COLUMNS)
        estimate_ = header.index("estimate_s") if "estimate_s" in header else None
        width = len(header)
        pool_ = header.index("pool") if "pool" in header else None
        pools: set[str] = set()
        for row in self._fields(reader):
            if len(row) != width:
                if not row:
                    continue
                raise TraceError(path, reader.line_num, "", f"{len(row)} fields", f"the header names {width}")
            if pool_ is not None and not self._mine(row[pool_], pools, reader.line_num):
                continue
            try:
                at, duration = float(row[at_]), float(row[duration_])
                estimate = float(row[estimate_]) if estimate_ is not None and row[estimate_] else None
                if not (0.0 <= at <= SECONDS_MAX and 0.0 < duration <= SECONDS_MAX):
                    raise ValueError
                if estimate is not None and not ESTIMATE_MIN <= estimate <= ESTIMATE_MAX:
                    raise ValueError
                tenant = known.get((row[org_], row[project_])) or paths.path(row[org_], row[project_])
            except (ValueError, InvalidName):
                raise self._wrong(reader.line_num, row, header) from None
            yield reader.line_num, Arrival(at, duration, estimate, tenant)
        if pools and self._pool is not None and self._pool not in pools:
            raise TraceError(path, 0, "pool", self._pool, f"the trace has these: {_some(pools)}")

    def _mine(self, pool: str, seen: set[str], line: int) -> bool:
        """Whether a job of ``pool`` is to be read; ``seen`` are the pools up to here."""
        if pool not in seen and len(seen) < POOLS_SHOWN:
            if self._pool is None and seen:
                rule = f"there are jobs of {_some(seen)} as well: say which to simulate with --pool"
                raise TraceError(self._path, line, "pool", pool, rule)
            seen.add(pool)
        return self._pool is None or pool == self._pool

    def _lines(self) -> Iterator[str]:
        for number, line in read_text(self._path):
            # A quote left open would gather the rest of the file in one field, or in one row.
            if '"' in line and line.count('"') % 2:
                raise TraceError(
                    self._path, number, "", line[:80].rstrip(), "quotes must be closed within their line"
                )
            yield line

    def _fields(self, reader: Iterable[list[str]]) -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:
            line = getattr(reader, "line_num", 0)
            raise TraceError(self._path, line, "", str(error), "it must be comma-separated values") from None

    def _wrong(self, line: int, row: list[str], header: list[str]) -> TraceError:
        """Return the error that names what is wrong with a row."""
        for column, low in (("submit_s", 0.0), ("duration_s", 0.0), ("estimate_s", ESTIMATE_MIN)):
            text = row[header.index(column)] if column in header else ""
            if column == "estimate_s" and not text:
                continue
            rule = check_seconds(text, low, ESTIMATE_MAX if column == "estimate_s" else SECONDS_MAX, column)
            if rule:
                return TraceError(self._path, line, column, text, rule)
        organisation, project = row[header.index("org")], row[header.index("project")]
        column, text = "project", project
        try:
            check_name("organisation", organisation)
        except InvalidName:
            column, text = "org", organisation
        return TraceError(self._path, line, column, text, "a name has 1 to 128 of letters, digits and _ - . @")


def _some(pools: Iterable[str]) -> str:
    return ", ".join(f"{pool[:NAME_LENGTH_LIMIT]!r}" for pool in sorted(pools))
