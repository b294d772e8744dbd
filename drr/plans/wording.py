"""How keys and unknown names are shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

_SHOWN: Final = 10
_BARE = re.compile(r"[A-Za-z0-9_-]+\Z", re.ASCII)


def dotted(key: Iterable[str]) -> str:
    """Return a key as TOML writes it."""
    return ".".join(part if _BARE.match(part) else '"' + part.replace('"', '\\"') + '"' for part in key)


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """Say that there is no such ``what``, and which there are, the likeliest first."""
    names = list(known)
    near = get_close_matches(name, names, n=3)
    if near:
        return f"there is no such {what}; did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    return f"there is no such {what}; known: {shown or 'none'}"
