"""Memory stores by URL: private ones, and named ones that handles share."""

from __future__ import annotations

import threading
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

from drr.clock import Clock
from drr.errors import InvalidConfiguration
from drr.model import check_name
from drr_backends.memory.adapter import MemoryBackend
from drr_backends.memory.store import Store

_named: WeakValueDictionary[tuple[str, str], Store] = WeakValueDictionary()
_named_lock = threading.Lock()


def open_memory(url: str, namespace: str, clock: Clock) -> MemoryBackend:
    """Return a handle on a store in this process's memory.

    ``memory://name`` names a store that lives as long as somebody has it open: handles with one name and
    namespace share it, whatever thread or event loop they are used from. ``memory://`` is private to the
    handle and its siblings. ``?max_jobs=N`` bounds the waiting jobs: a submit beyond raises `StoreFull`.
    A named store's results expire by the clock of its first opener. Raises `InvalidConfiguration` or
    `InvalidName` for anything else in the URL.
    """
    check_name("namespace", namespace)
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.fragment:
        raise InvalidConfiguration("memory URL", url, "it looks like memory://name or memory://name?max_jobs=1000")
    max_jobs = _read_max_jobs(url, parts.query)
    if not parts.netloc:
        return MemoryBackend(Store(clock, max_jobs), clock)
    key = (check_name("name of a memory store", parts.netloc), namespace)
    with _named_lock:
        store = _named.get(key)
        if store is None:
            store = _named[key] = Store(clock, max_jobs)
    return MemoryBackend(store, clock)


def _read_max_jobs(url: str, query: str) -> int | None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    text = options.pop("max_jobs", None)
    if options or (text is not None and not text.isdecimal()):
        raise InvalidConfiguration("memory URL", url, "its only option is max_jobs, a whole number")
    return int(text) if text is not None else None
