"""A store in memory that loses its last moments, as a server does that is killed before its log was flushed."""

from __future__ import annotations

import copy
from typing import Any, TypeAlias

from drr.backend import Backend
from drr_backends.memory.store import Store

Image: TypeAlias = dict[str, Any]

KEPT = frozenset({"clock", "lock", "waiters", "attendance", "delivery_names", "letter_numbers"})
"""What is no data; numbers that go on harm nobody."""


def store_of(backend: Backend) -> Store:
    """Return what a handle on a memory store stands on."""
    store = getattr(backend, "_store")  # noqa: B009
    assert isinstance(store, Store)
    return store


def saved(backend: Backend) -> Image:
    """Return all that the store holds now."""
    return {name: copy.deepcopy(value) for name, value in vars(store_of(backend)).items() if name not in KEPT}


def rolled_back(backend: Backend, image: Image) -> None:
    """Make the store what it was when it was saved."""
    vars(store_of(backend)).update(copy.deepcopy(image))
