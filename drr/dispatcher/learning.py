"""What was learned of costs, in and out of the store: each figure a msgpack list of numbers, opaque to stores."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Final

from drr.backend import EstimateKey
from drr.dispatcher.backlog import Backlog
from drr.errors import MalformedMessage
from drr.model import TenantPath
from drr.wire import pack, unpack

log = logging.getLogger("drr.dispatcher")

FORM: Final = 1


def learned(backlog: Backlog) -> dict[EstimateKey, bytes | None]:
    """Return what changed since the last call; ``None`` for what is forgotten."""
    changed: dict[EstimateKey, bytes | None] = {}
    for pool, estimator in backlog.estimators.items():
        for (path, task), numbers in estimator.changed().items():
            packed = None if numbers is None else pack({"form": FORM, "numbers": list(numbers)})
            changed[EstimateKey(pool, path, task)] = packed
    return changed


def restore(backlog: Backlog, stored: Mapping[EstimateKey, bytes]) -> dict[EstimateKey, bytes | None]:
    """Go on learning from what is stored; return what is of no use and is to be forgotten."""
    useless: dict[EstimateKey, bytes | None] = {}
    by_pool: dict[str, dict[tuple[TenantPath, str], tuple[float, ...]]] = {}
    for key, blob in stored.items():
        numbers = _read(blob)
        if numbers is None:
            useless[key] = None
        else:
            by_pool.setdefault(key.pool, {})[key.path, key.task] = numbers
    if useless:
        log.warning(
            "%d learned estimates cannot be read (%s ...) and are forgotten", len(useless), next(iter(useless))
        )
    for pool, figures in by_pool.items():
        backlog.estimator(pool).restore(figures)
    return useless


def _read(blob: bytes) -> tuple[float, ...] | None:
    try:
        raw = unpack("estimate", blob)
    except MalformedMessage:
        return None
    if not isinstance(raw, dict) or raw.get("form") != FORM or not isinstance(raw.get("numbers"), list):
        return None
    numbers = raw["numbers"]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        return None
    return tuple(float(number) for number in numbers)
