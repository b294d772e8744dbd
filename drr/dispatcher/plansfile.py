"""A plans file on disk, and whether it has changed since it was last read."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Final

from drr.errors import InvalidValue
from drr.plans import Plans, load_plans

WATCH_INTERVAL: Final = 1.0
"""Seconds between two looks at a watched file."""
AUTHOR_LIMIT: Final = 200


class PlansFile:
    """The file at ``path``, by what its name leads to: editors replace files, orchestrators swap links."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self._path = Path(path)
        self.source = str(path)
        self._seen: tuple[int, ...] | None = None

    def changed(self) -> bool:
        """Return whether another file is there than was last seen, or none; once for each change. May block."""
        found = self._stamp()
        if found == self._seen:
            return False
        self._seen = found
        return True

    def read(self) -> Plans:
        """Read the file. Raises `PlansError`. May block."""
        self._seen = self._stamp()
        return load_plans(self._path)

    def _stamp(self) -> tuple[int, ...] | None:
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def as_plans(plans: Plans | str | PathLike[str]) -> Plans:
    """Return plans, read from a file if its path is given. Raises `PlansError`."""
    return plans if isinstance(plans, Plans) else load_plans(Path(plans))


def check_author(by: object) -> str:
    """Return who makes a change; raises `InvalidValue` if that is no text, or longer than the log keeps."""
    if not isinstance(by, str) or len(by) > AUTHOR_LIMIT:
        raise InvalidValue("by", by, f"it must be a string of at most {AUTHOR_LIMIT} characters")
    return by
