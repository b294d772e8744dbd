"""The function library: put together from the ``.lua`` files, named by the hash of its content.

Two versions of drr can be in use at once, each with its library: no name of one is a name of the other.
"""

from __future__ import annotations

from functools import cache
from hashlib import blake2s
from importlib.resources import files
from typing import Final, NamedTuple

SCHEMA: Final = 1
"""Number of the data model. A store with another number is refused."""

OPERATIONS: Final = (
    "submit",
    "peek",
    "look_up",
    "report",
    "join",
    "heartbeat",
    "leave",
    "attend",
    "elect",
    "renew",
    "resign",
    "write_status",
    "discard_lease",
    "discard_delayed",
    "discard_entry",
    "mend",
    "correct",
    "locate",
    "due",
    "purge",
    "progress",
    "commit",
)
SOURCES: Final = ("pass_read", "pass_write", *OPERATIONS)


class Library(NamedTuple):
    """Source and name of the library; ``hash`` ends every function's name."""

    hash: str
    source: str

    @property
    def name(self) -> str:
        """The name under which the server keeps it."""
        return f"drr_{self.hash}"


@cache
def library() -> Library:
    """Return the library of this version."""
    folder = files("drr_backends.redis") / "lua"
    parts = [(folder / "prelude.lua").read_text("utf-8")]
    # A block each: what is local to one file stays there.
    parts += [f"do\n{(folder / f'{name}.lua').read_text('utf-8')}end\n" for name in SOURCES]
    body = f"local SCHEMA = {SCHEMA}\n" + "\n".join(parts)
    digest = blake2s(body.encode(), digest_size=6).hexdigest()
    return Library(digest, f"#!lua name=drr_{digest}\nlocal LIBRARY = '{digest}'\n{body}")


@cache
def function(operation: str) -> str:
    """Return the name of the function for one of `OPERATIONS`."""
    assert operation in OPERATIONS, operation
    return f"drr_{operation}_{library().hash}"
