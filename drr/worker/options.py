"""Settings of a worker, checked together before anything is opened."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Final

from drr.errors import InvalidConfiguration
from drr.model import NAME_LENGTH_LIMIT, PAYLOAD_LIMIT, check_name, check_number

DEFAULT_LEASE: Final = 30.0
DEFAULT_GRACE: Final = 20.0
"""Below the 30 s that most process managers wait between SIGTERM and SIGKILL."""
DEFAULT_PATIENCE: Final = 10.0
DEFAULT_BLOCKED_AFTER: Final = 5.0
BEATS_PER_LEASE: Final = 3
"""A heartbeat may be lost twice in a row before the lease is."""
SLOTS_LIMIT: Final = 10_000


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker runs by; made by `check_options`, which documents the fields."""

    name: str
    slots: Mapping[str, int]
    lease: float
    heartbeat: float
    grace: float
    patience: float
    payload_limit: int
    result_limit: int
    heartbeat_in_thread: bool
    blocked_after: float


def check_options(
    *,
    name: str | None,
    pools: Mapping[str, int] | None,
    slots: int | None,
    lease: float,
    heartbeat: float | None,
    grace: float,
    patience: float,
    payload_limit: int,
    result_limit: int,
    heartbeat_in_thread: bool,
    blocked_after: float,
    rng: Random,
) -> Options:
    """Return the settings if they make sense together, else raise `InvalidConfiguration` or `InvalidName`."""
    if pools is not None and slots is not None:
        raise InvalidConfiguration("slots", slots, f"pools are given too ({dict(pools)!r}); give one of the two")
    if pools is None:
        pools = {"default": 1 if slots is None else slots}
    if not pools:
        raise InvalidConfiguration("pools", pools, "a worker serves at least one pool")
    for pool, count in pools.items():
        check_name("pool", pool)
        if type(count) is not int or not 1 <= count <= SLOTS_LIMIT:
            raise InvalidConfiguration(
                f"slots of pool {pool}", count, f"it must be a whole number between 1 and {SLOTS_LIMIT}"
            )
    check_number("lease", lease, 0.1, 86_400.0, error=InvalidConfiguration)
    for what, limit in (("payload limit", payload_limit), ("result limit", result_limit)):
        check_number(what, limit, 1, 4 * PAYLOAD_LIMIT, error=InvalidConfiguration)
    return Options(
        name=default_name(rng) if name is None else check_name("worker", name),
        slots=dict(pools),
        lease=float(lease),
        heartbeat=check_heartbeat(lease, heartbeat),
        grace=check_number("grace", grace, 0.0, 86_400.0, error=InvalidConfiguration),
        patience=check_number("patience", patience, 0.0, 86_400.0, error=InvalidConfiguration),
        payload_limit=payload_limit,
        result_limit=result_limit,
        heartbeat_in_thread=heartbeat_in_thread,
        blocked_after=check_number("blocked_after", blocked_after, 0.1, 3600.0, error=InvalidConfiguration),
    )


def check_heartbeat(lease: float, heartbeat: float | None) -> float:
    """Return the seconds between two heartbeats: a third of the lease unless a shorter time is given.

    Raises `InvalidConfiguration` naming both values unless ``0 < heartbeat <= lease / 3``.
    """
    longest = lease / BEATS_PER_LEASE
    if heartbeat is None:
        return longest
    rule = (
        f"with a lease of {lease!r} s it must be above 0 and at most a third of it ({longest:g} s): "
        "shorten the heartbeat, or lengthen the lease here and at the dispatcher"
    )
    if isinstance(heartbeat, bool) or not isinstance(heartbeat, int | float):
        raise InvalidConfiguration("heartbeat", heartbeat, rule)
    if not 0.0 < heartbeat <= longest * (1 + 1e-9):  # also false for a NaN
        raise InvalidConfiguration("heartbeat", heartbeat, rule)
    return float(heartbeat)


def default_name(rng: Random) -> str:
    """Return a name that no other worker has: host, process id and eight random digits."""
    host = re.sub(r"[^A-Za-z0-9_.@-]", "-", socket.gethostname()) or "host"
    tail = f"-{os.getpid()}-{rng.getrandbits(32):08x}"
    return host[: NAME_LENGTH_LIMIT - len(tail)] + tail
