"""Options of ``drr serve`` for recording its traffic."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import typer

from drr.dispatcher import Recorder
from drr.dispatcher.recording import KEEP, MAX_BYTES
from drr.errors import InvalidValue

RecordFileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option("--record", metavar="FILE", help="Record the jobs that end as a trace: .csv or .csv.gz."),
]
Limit: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--record-limit", metavar="SIZE", help="Size at which a new file is begun, before compression (100MB)."
    ),
]
Keep: TypeAlias = Annotated[
    int | None, typer.Option("--record-keep", metavar="N", help=f"Older files that stay ({KEEP}).")
]
Anonymous: TypeAlias = Annotated[
    bool, typer.Option("--record-anonymous", help="Record numbers in place of the names of tenants, pools and tasks.")
]

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}
_SIZE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([kmg]?)b?", re.ASCII | re.IGNORECASE)


def read_size(what: str, text: str) -> int:
    """Return the bytes that ``100MB``, ``1.5 GB``, ``500k`` or a bare number mean. Raises `InvalidValue`."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(what, text, "it must be a size such as 100MB or 2GB")
    number, unit = match.groups()
    return round(float(number) * _UNITS[unit.lower()])


def make_recorder(file: Path | None, limit: str | None, keep: int | None, anonymous: bool) -> Recorder | None:
    """Return what the options ask for; ``None`` if nothing is to be recorded. Raises `InvalidValue`."""
    if file is None:
        for option, value in (("--record-limit", limit), ("--record-keep", keep), ("--record-anonymous", anonymous)):
            if value is not None and value is not False:
                raise InvalidValue(option, value, "it goes with --record FILE: give that too")
        return None
    return Recorder(
        file,
        max_bytes=MAX_BYTES if limit is None else read_size("--record-limit", limit),
        keep=KEEP if keep is None else keep,
        anonymous=anonymous,
    )
