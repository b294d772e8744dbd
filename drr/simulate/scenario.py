"""Scenario files: traffic described in TOML and drawn from a seed, for questions that no trace has.

A file names its workers (a number, or several over time), its faults and its tenants:

    workers = 20                                      # or [{ at = 0, slots = 10 }, { at = 600, slots = 40 }]
    faults = [{ at = 300, lose = 5 }]                 # five slots go down with what they run

    [[tenants]]
    organisation = "importer"
    arrivals = { kind = "bulk", jobs = 50_000 }
    durations = { kind = "lognormal", median = 0.28, sigma = 0.3 }

    [[tenants]]
    organisation = "shop"
    organisations = 30                                # shop-1 to shop-30, each with these arrivals of its own
    arrivals = { kind = "poisson", rate = 0.5, end = 1_000 }
    durations = { kind = "uniform", low = 0.1, high = 0.4 }
    estimates = { kind = "factor", factor = 10 }

Nothing of the traffic is held: it is drawn anew, and equally, each time it is read. Every project draws from
random numbers of its own, so that adding or changing one tenant leaves the others' traffic as it was.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from heapq import merge
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final, TypeVar, get_args, get_type_hints

from drr.errors import InvalidName, TraceError
from drr.model import TenantPath, check_name
from drr.simulate.trace import Arrival, FileSource
from drr.simulate.traffic import (
    ARRIVALS,
    DURATIONS,
    ESTIMATES,
    SLOTS_MAX,
    Arrivals,
    Bulk,
    Durations,
    Estimates,
    Range,
    Seconds,
    Slots,
    Uniform,
)

BYTES_MAX: Final = 4_000_000
"""Largest scenario file."""
TENANTS_MAX: Final = 1_000_000
"""Most projects of one scenario."""

T = TypeVar("T")

# --- the whole -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _WorkersAt:
    at: Seconds
    slots: Slots


@dataclass(frozen=True, slots=True)
class _Fault:
    at: Seconds
    lose: Annotated[int, Range(1, SLOTS_MAX)]


@dataclass(frozen=True, slots=True)
class _Tenants:
    """``organisations`` alike, with ``projects`` alike each."""

    arrivals: Arrivals
    durations: Durations
    estimates: Estimates
    paths: Sequence[TenantPath]

    def jobs(self, path: TenantPath, seed: str) -> Iterator[Arrival]:
        """Yield the jobs of one project."""
        rng = Random(seed) if self.arrivals.random or self.durations.random else _NEVER_USED
        draw, estimate = self.durations.draw, self.estimates.of
        for at in self.arrivals.times(rng):
            duration = draw(rng)
            yield Arrival(at, duration, estimate(duration), path)


_NEVER_USED: Final = Random(0)
"""For traffic that draws nothing: twenty thousand generators of their own would take 50 MB."""


class Scenario(FileSource):
    """A scenario file. ``seed`` draws another instance of the same traffic."""

    def __init__(self, path: Path, speedup: float, until: float, seed: int) -> None:
        super().__init__(path, speedup, until)
        self._seed = seed
        reader = _Reader(path)
        document = reader.parse()
        reader.refuse_others(document, ("workers", "faults", "tenants"), "")
        self._slots: Sequence[tuple[float, int]] = [(at / speedup, slots) for at, slots in reader.workers(document)]
        self.faults = sorted((fault.at / speedup, fault.lose) for fault in reader.rows(document, "faults", _Fault))
        self._tenants = reader.tenants(document)

    @property
    def slots(self) -> Sequence[tuple[float, int]]:
        """What the file says of workers."""
        return self._slots

    def rows(self) -> Iterator[tuple[int, Arrival]]:
        """Yield the jobs in order of arrival; the line is always 0."""
        before: Counter[TenantPath] = Counter()
        streams = []
        for group in self._tenants:
            for path in group.paths:
                # Not the table's place in the file: a table put before others leaves their traffic as it was.
                streams.append(group.jobs(path, f"{self._seed}/{before[path]}/{'/'.join(path)}"))
                before[path] += 1
        arrivals = streams[0] if len(streams) == 1 else merge(*streams, key=attrgetter("at"))
        return ((0, arrival) for arrival in arrivals)


class _Reader:
    """Turns tables into values, and what is wrong with them into a `TraceError` that names the key."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrong(self, key: str, value: object, rule: str, line: int = 0) -> TraceError:
        return TraceError(self._path, line, key, value, rule)

    def parse(self) -> dict[str, Any]:
        try:
            with self._path.open("rb") as file:
                data = file.read(BYTES_MAX + 1)
        except OSError as error:
            raise self.wrong("", error.strerror, "it must be a readable file") from None
        if len(data) > BYTES_MAX:
            raise self.wrong("", f"over {BYTES_MAX} bytes", f"a scenario has at most {BYTES_MAX:,}")
        try:
            return tomllib.loads(data.decode())
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise self.wrong("", data[error.start : error.start + 8], "TOML is text in UTF-8", line) from None
        except RecursionError:
            raise self.wrong("", "deep nesting", "a scenario nests three levels") from None
        except ValueError as error:
            place = re.search(r"line (\d+), column (\d+)", str(error))
            line = int(place[1]) if place else data.rstrip().count(b"\n") + 1
            lines = data.decode().split("\n")
            shown = lines[line - 1] if line <= len(lines) else ""
            column = place[2] if place else ""
            raise self.wrong(column, shown, f"it is not TOML: {str(error).partition(' (at')[0]}", line) from None

    def refuse_others(self, table: Mapping[str, Any], known: Sequence[str], where: str) -> None:
        for key in table:
            if key not in known:
                raise self.wrong(f"{where}{key}", table[key], f"there is no such key; known: {', '.join(known)}")

    def workers(self, document: Mapping[str, Any]) -> list[tuple[float, int]]:
        given = document.get("workers")
        if given is None:
            return []
        if not isinstance(given, list):
            return [(0.0, int(self.number("workers", given, int, Range(1, SLOTS_MAX))))]
        found = [(row.at, row.slots) for row in self.rows(document, "workers", _WorkersAt)]
        times = [at for at, _ in found]
        if not times or times[0] != 0.0 or any(a >= b for a, b in pairwise(times)):
            raise self.wrong("workers", times, "their times must begin at 0 and rise")
        if not any(slots for _, slots in found):
            raise self.wrong("workers", [slots for _, slots in found], "there must be a slot at some time")
        return found

    def rows(self, document: Mapping[str, Any], key: str, kind: type[T]) -> list[T]:
        return [self.read(table, kind, f"{key}[{number}]") for number, table in self.tables(document, key)]

    def tables(self, document: Mapping[str, Any], key: str) -> list[tuple[int, Any]]:
        given = document.get(key, [])
        if not isinstance(given, list):
            raise self.wrong(key, given, f"it must be a list of tables: [[{key}]]")
        return list(enumerate(given))

    def tenants(self, document: Mapping[str, Any]) -> list[_Tenants]:
        found = [self._group(table, f"tenants[{number}]") for number, table in self.tables(document, "tenants")]
        total = sum(len(group.paths) for group in found)
        if not 1 <= total <= TENANTS_MAX:
            raise self.wrong("tenants", total, f"a scenario has 1 to {TENANTS_MAX:,} projects")
        return found

    def _group(self, table: object, where: str) -> _Tenants:
        known = ("organisation", "organisations", "project", "projects", "arrivals", "durations", "estimates")
        if not isinstance(table, dict):
            raise self.wrong(where, table, "it must be a table: [[tenants]]")
        self.refuse_others(table, known, f"{where}.")
        organisations = self._names(table, "organisation", None, where)
        projects = self._names(table, "project", "main", where)
        if len(organisations) * len(projects) > TENANTS_MAX:
            raise self.wrong(where, len(organisations) * len(projects), f"there are at most {TENANTS_MAX:,} projects")
        arrivals = self.kind(table, "arrivals", ARRIVALS, where)
        if not isinstance(arrivals, Bulk) and arrivals.end is None and arrivals.jobs is None:
            raise self.wrong(f"{where}.arrivals", table["arrivals"], "it must say when it ends: end or jobs")
        durations = self.kind(table, "durations", DURATIONS, where)
        if isinstance(durations, Uniform) and durations.low > durations.high:
            raise self.wrong(f"{where}.durations.low", durations.low, f"it must be at most high ({durations.high:g})")
        estimates = self.kind({"estimates": {"kind": "exact"}, **table}, "estimates", ESTIMATES, where)
        paths = [(organisation, project) for organisation in organisations for project in projects]
        return _Tenants(arrivals, durations, estimates, paths)

    def _names(self, table: Mapping[str, Any], key: str, default: str | None, where: str) -> list[str]:
        name = table.get(key, default)
        try:
            check_name(key, name)
        except InvalidName as error:
            raise self.wrong(f"{where}.{key}", name, error.rule) from None
        if f"{key}s" not in table:
            return [str(name)]
        copies = int(self.number(f"{where}.{key}s", table[f"{key}s"], int, Range(1, TENANTS_MAX)))
        return [f"{name}-{copy}" for copy in range(1, copies + 1)]

    def kind(self, table: Mapping[str, Any], key: str, kinds: Mapping[str, type[T]], where: str) -> T:
        """Read a table that says by ``kind`` what the others of its keys are."""
        here = f"{where}.{key}"
        given = table.get(key)
        if not isinstance(given, dict) or given.get("kind") not in kinds:
            raise self.wrong(here, given, f"it must be a table with a kind: {', '.join(kinds)}")
        rest = {name: value for name, value in given.items() if name != "kind"}
        return self.read(rest, kinds[given["kind"]], here)

    def read(self, table: object, kind: type[T], where: str) -> T:
        """Read a table as an object of ``kind``, whose annotations say what each key may be."""
        if not isinstance(table, dict):
            raise self.wrong(where, table, "it must be a table")
        hints = get_type_hints(kind, include_extras=True)
        parts = {part.name: hints[part.name] for part in fields(kind)}  # type: ignore[arg-type]
        self.refuse_others(table, list(parts), f"{where}.")
        values = {}
        for name, hint in parts.items():
            if name in table:
                base, limits = _number_of(hint)
                values[name] = self.number(f"{where}.{name}", table[name], base, limits)
        try:
            return kind(**values)
        except TypeError:
            missing = [name for name in parts if name not in table]
            raise self.wrong(where, table, f"it needs {' and '.join(missing)}") from None

    def number(self, key: str, value: object, base: type, limits: Range) -> float:
        """Return ``value`` if it is a number of type ``base`` (int or float) within the limits."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole and (base is int or not isinstance(value, float)):
            raise self.wrong(key, value, f"it must be a {'whole ' if base is int else ''}number")
        assert isinstance(value, int | float)
        if not limits.low <= value <= limits.high:  # nan is neither
            raise self.wrong(key, value, f"it must be {limits.low:,g} to {limits.high:,g}")
        return value if base is int else float(value)


def _number_of(hint: Any) -> tuple[type, Range]:
    """Return int or float, and the limits, that a field's annotation holds."""
    if not hasattr(hint, "__metadata__"):  # one of them, or None
        hint = next(part for part in get_args(hint) if hasattr(part, "__metadata__"))
    base, limits = get_args(hint)
    return base, limits
