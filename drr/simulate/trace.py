"""Traces: what arrived when, how long it took, whose it was. Streamed, checked line by line, never held.

Two kinds of file are read here, both plain or gzip'd: ``.csv`` with a header (docs/traces.md says which
columns), and ``.swf``, the Standard Workload Format of the Parallel Workloads Archive
(`drr.simulate.swf`). Whatever is wrong is a `TraceError` that names file, line, column and value.
"""

from __future__ import annotations

import gzip
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from math import inf, isfinite, nan
from operator import attrgetter
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Protocol, TextIO

from drr.errors import TraceError
from drr.model import TenantPath, check_name

LINE_LIMIT: Final = 65_536
"""Longest line, in characters."""
KEPT_MOST: Final = 500_000
"""Jobs of the longest trace that is kept in memory (16 MB), so that it is read from its file once."""
SECONDS_MAX: Final = 1e12


class Arrival(NamedTuple):
    """A job of the trace: when it arrives, what it really takes, what it is charged at the start, whose it is.

    ``at`` in seconds from the start; ``duration`` above 0; ``estimate`` in worker-seconds, ``None`` for the
    pool's default; ``path`` is (organisation, project).
    """

    at: float
    duration: float
    estimate: float | None
    path: TenantPath


class Demand(NamedTuple):
    """A trace as a whole; ``span``: when the last job arrives; ``longest``: the longest duration."""

    jobs: int
    worker_seconds: float
    span: float
    longest: float


class Source(Protocol):
    """Arrivals that can be read again from the start, once for each policy."""

    name: str

    @property
    def slots(self) -> Sequence[tuple[float, int]]:
        """Live slots from each time on, if the source knows; else empty."""
        ...

    @property
    def pool(self) -> str | None:
        """The pool whose jobs these are, if the source knows."""
        ...

    faults: Sequence[tuple[float, int]]
    """At each time, how many slots go down with what they run."""

    def __iter__(self) -> Iterator[Arrival]:
        """Yield the jobs in order of arrival."""
        ...

    def demand(self) -> Demand:
        """Return the totals; read once and remembered."""
        ...


class Paths:
    """Tenant paths by the two names of a row, checked once: a trace has few tenants and many rows."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, str], TenantPath] = {}

    def path(self, organisation: str, project: str) -> TenantPath:
        """Return the path; the project may repeat its organisation, as ``o012/p03``. Raises `InvalidName`."""
        key = organisation, project
        path = self.known.get(key)
        if path is None:
            short = project.removeprefix(f"{organisation}/")
            path = self.known[key] = check_name("organisation", organisation), check_name("project", short)
        return path


def read_text(path: Path) -> Iterator[tuple[int, str]]:
    """Yield a file's lines with their numbers, from 1; gzip'd if the name ends in ``.gz``."""
    number = 0
    try:
        with _open(path) as lines:
            for line in iter(partial(lines.readline, LINE_LIMIT + 1), ""):
                number += 1
                if len(line) > LINE_LIMIT:
                    raise TraceError(path, number, "", line[:40], f"a line has at most {LINE_LIMIT} characters")
                yield number, line
    except UnicodeDecodeError as error:
        # Bytes are decoded many lines ahead: what could not be is all that follows the last line read.
        bad = error.object[error.start : error.start + 8]
        number += 1 + error.object.count(b"\n", 0, error.start)
        raise TraceError(path, number, "", bad, "the file must be UTF-8 text") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TraceError(path, number + 1, "", str(error), "the gzip file is broken or cut off") from None
    except OSError as error:
        raise TraceError(path, 0, "", error.strerror or str(error), "it must be a readable file") from None


def _open(path: Path) -> TextIO:
    if path.name.endswith(".gz"):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


class Kept:
    """Jobs of a short trace, 32 bytes each: reading them from the file takes four times as long."""

    def __init__(self) -> None:
        self._at = array("d")
        self._durations = array("d")
        self._estimates = array("d")
        self._paths: list[TenantPath] = []

    def append(self, arrival: Arrival) -> None:
        """Keep one more."""
        self._at.append(arrival.at)
        self._durations.append(arrival.duration)
        self._estimates.append(nan if arrival.estimate is None else arrival.estimate)
        self._paths.append(arrival.path)

    def __iter__(self) -> Iterator[Arrival]:
        """Yield them in their order."""
        estimates = (None if estimate != estimate else estimate for estimate in self._estimates)
        return map(Arrival, self._at, self._durations, estimates, self._paths)


class FileSource:
    """What the kinds of files share: order, time limits and totals."""

    clock: ClassVar[str] = "submit_s"
    """What the kind of file calls the time of arrival."""

    def __init__(self, path: Path, speedup: float, until: float) -> None:
        self.name = path.name
        self.faults: Sequence[tuple[float, int]] = ()
        self._path = path
        self._speedup = speedup
        self._until = until
        self._demand: Demand | None = None
        self._kept: Kept | None = None

    @property
    def slots(self) -> Sequence[tuple[float, int]]:
        """Nothing: most files do not say."""
        return ()

    @property
    def pool(self) -> str | None:
        """None: most files do not say."""
        return None

    def __iter__(self) -> Iterator[Arrival]:
        """Yield the jobs that arrive by the time limit, with times divided by the speed-up."""
        return self._read() if self._kept is None else iter(self._kept)

    def _read(self) -> Iterator[Arrival]:
        speedup, until = self._speedup, self._until
        before, empty, at = 0.0, True, -1.0
        for number, arrival in self.rows():
            at = arrival.at
            if at < before:
                raise TraceError(self._path, number, self.clock, at, f"times must not go back from {before:.15g}")
            before = at
            at /= speedup
            if at > until:
                break
            empty = False
            yield arrival if speedup == 1.0 else arrival._replace(at=at)
        if empty and at >= 0.0:
            raise TraceError(self._path, 0, "--until", until, f"the first job arrives only at {at:.15g}")
        if empty:
            raise TraceError(self._path, 0, "", "no jobs", "a trace needs at least one job")

    def rows(self) -> Iterator[tuple[int, Arrival]]:
        """Yield line numbers and jobs as the file has them."""
        raise NotImplementedError

    def demand(self) -> Demand:
        """Return the totals; read once and remembered."""
        if self._demand is None:
            jobs, seconds, span, longest = 0, 0.0, 0.0, 0.0
            kept = Kept()
            for arrival in self._read():
                jobs += 1
                seconds += arrival.duration
                span = arrival.at
                longest = max(longest, arrival.duration)
                if jobs <= KEPT_MOST:
                    kept.append(arrival)
            self._demand = Demand(jobs, seconds, span, longest)
            if jobs <= KEPT_MOST:
                self._kept = kept
        return self._demand


def check_seconds(text: str, low: float, high: float, column: str) -> str:
    """Return the rule that a text breaks as a number of seconds, or "" if it breaks none."""
    try:
        value = float(text)
    except ValueError:
        return "it must be a number of seconds"
    if not isfinite(value):
        return "it must be finite"
    if value < low or value > high or (column == "duration_s" and value == 0.0):
        above = "above 0" if column == "duration_s" else f"at least {low:g}"
        return f"it must be {above} and at most {high:g}"
    return ""


class Together:
    """Several sources at once, merged by time of arrival: the same tenant in two of them is one tenant."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.name = " + ".join(source.name for source in sources)
        self.faults: Sequence[tuple[float, int]] = sorted(fault for source in sources for fault in source.faults)

    @property
    def slots(self) -> Sequence[tuple[float, int]]:
        """Those of the only source that knows; of several that do, nothing."""
        known = [slots for source in self._sources if (slots := source.slots)]
        return known[0] if len(known) == 1 else ()

    @property
    def pool(self) -> str | None:
        """That of the sources that know, if they agree."""
        known = {pool for source in self._sources if (pool := source.pool)}
        return known.pop() if len(known) == 1 else None

    def __iter__(self) -> Iterator[Arrival]:
        """Yield the jobs in order of arrival; at one instant, in the order of the sources."""
        return merge(*self._sources, key=attrgetter("at"))

    def demand(self) -> Demand:
        """Return the totals of all."""
        jobs, seconds, spans, longest = zip(*(source.demand() for source in self._sources), strict=True)
        return Demand(sum(jobs), sum(seconds), max(spans), max(longest))


def open_sources(
    paths: Sequence[str], *, speedup: float = 1.0, until: float = inf, seed: int = 0, pool: str | None = None
) -> Source:
    """Return the trace in a file, or those in several together. Raises what `open_source` does."""
    sources = [open_source(path, speedup=speedup, until=until, seed=seed, pool=pool) for path in paths]
    return sources[0] if len(sources) == 1 else Together(sources)


def open_source(
    path: str, *, speedup: float = 1.0, until: float = inf, seed: int = 0, pool: str | None = None
) -> Source:
    """Return the trace (``.csv`` or ``.swf``, or that and ``.gz``) or scenario (``.toml``) in a file, by its name.

    ``speedup`` divides the times of arrival (and those of a scenario's workers and faults), not the durations;
    what arrives after ``until`` is left out. ``seed`` draws another instance of a scenario. ``pool``: of a file that
    names them, whose jobs; by default those of the only one. Raises `TraceError`.
    """
    from drr.simulate.csv_trace import CsvTrace  # these build on this module
    from drr.simulate.scenario import Scenario
    from drr.simulate.swf import SwfTrace

    file = Path(path)
    if not (isfinite(speedup) and 0.0 < speedup <= 1e9):
        raise TraceError(file, 0, "--speedup", speedup, "it must be a number above 0, at most 1e9")
    if not until >= 0.0:
        raise TraceError(file, 0, "--until", until, "it must be a number of seconds, at least 0")
    kinds: Mapping[str, Callable[[Path, float, float], Source]] = {
        ".csv": partial(CsvTrace, pool=pool),
        ".swf": SwfTrace,
        ".toml": partial(Scenario, seed=seed),
    }
    kind = kinds.get(Path(file.name.removesuffix(".gz")).suffix)
    if kind is None or file.name.endswith(".toml.gz"):
        rule = "a trace's name ends in .csv or .swf, or that and .gz, a scenario's in .toml"
        raise TraceError(file, 0, "", file.name, rule)
    if not file.is_file():
        rule = "it must be a regular file: it is read more than once" if file.exists() else "there is no such file"
        raise TraceError(file, 0, "", file.name, rule)
    return kind(file, speedup, until)
