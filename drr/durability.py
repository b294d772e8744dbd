"""What a store keeps of what it acknowledged: what an adapter finds out, the level it amounts to, and warnings.

An adapter answers `drr.backend.ClientPort.survey` with a `Survey`: facts, each ``None`` where the server does not
tell (managed services forbid the questions). What follows from them is judged here, the same for each adapter.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    """What an acknowledged submit, and the credits of an accepted commit, survive; see docs/operations.md."""

    SYNCED = "synced"
    """On disk before the acknowledgement: the loss of the process and of power."""
    SECOND = "second"
    """On disk once a second: all but about the last second."""
    SYSTEM = "system"
    """Handed to the operating system: the loss of the process, and of power all but about the last half minute."""
    SNAPSHOTS = "snapshots"
    """In a snapshot now and then: all since the last one is lost, which may be minutes."""
    NOTHING = "nothing"
    """In memory only: a restart loses everything."""
    UNKNOWN = "unknown"
    """The server does not tell."""


class Caution(StrEnum):
    """What is wrong with a store's settings. Stable names, for alerts and scripts."""

    KEEPS_NOTHING = "keeps_nothing"
    SNAPSHOTS_ONLY = "snapshots_only"
    MAY_EVICT = "may_evict"
    DISK_FAILING = "disk_failing"
    TOO_OLD = "too_old"


class Remark(NamedTuple):
    """A caution, and what to do about it in words."""

    caution: Caution
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What is known of a store. ``None`` and "" mean that it did not say.

    ``server``: kind and version, such as "Valkey 9.1.2"; ``supported``: whether that is new enough. ``append_only``:
    whether it keeps a log of all writes; ``fsync``: when that is synced, "always", "everysec" or "no". ``snapshots``:
    whether it saves all data now and then. ``disk_fails``: its last write to the log or of a snapshot failed.
    ``memory_limit``: bytes, 0 for none; ``eviction``: what it does at the limit, "noeviction" if it refuses writes.
    ``replicas``: attached now; ``replicas_needed``: without as many it refuses writes.
    """

    server: str = ""
    supported: bool | None = None
    append_only: bool | None = None
    fsync: str | None = None
    snapshots: bool | None = None
    disk_fails: bool | None = None
    memory_limit: int | None = None
    eviction: str | None = None
    replicas: int | None = None
    replicas_needed: int | None = None

    @property
    def level(self) -> Level:
        """What an acknowledged write survives."""
        if self.append_only:
            synced = {"always": Level.SYNCED, "everysec": Level.SECOND, "no": Level.SYSTEM}
            return synced.get(self.fsync or "", Level.UNKNOWN)
        if self.append_only is None or self.snapshots is None:
            return Level.UNKNOWN
        return Level.SNAPSHOTS if self.snapshots else Level.NOTHING

    @property
    def unknown(self) -> tuple[str, ...]:
        """Names of the facts that bear on level and warnings and that the server did not tell."""
        asked = ["supported", "append_only"]
        asked += ["fsync"] if self.append_only else ["snapshots"]
        asked += ["memory_limit"] if self.memory_limit is None else ["eviction"] if self.memory_limit else []
        return tuple(name for name in asked if getattr(self, name) is None)

    @property
    def warnings(self) -> tuple[Remark, ...]:
        """Return what is wrong with the store's settings; what is unknown is not held against it."""
        who = self.server or "the server"
        found = []
        if self.supported is False:
            text = f"{who} is older than supported; drr needs Redis >= 7.0 or Valkey >= 8.0"
            found.append(Remark(Caution.TOO_OLD, text))
        if self.level is Level.NOTHING:
            text = f"{who} keeps nothing on disk: a restart of it loses every job and credit; set appendonly yes"
            found.append(Remark(Caution.KEEPS_NOTHING, text))
        if self.level is Level.SNAPSHOTS:
            text = f"{who} keeps snapshots only: a crash of it loses all since the last one; set appendonly yes"
            found.append(Remark(Caution.SNAPSHOTS_ONLY, text))
        if self.memory_limit and self.eviction not in (None, "noeviction"):
            text = (
                f"{who} may evict keys at its limit of {self.memory_limit} bytes (maxmemory-policy {self.eviction}), "
                "and with them jobs; set maxmemory-policy noeviction"
            )
            found.append(Remark(Caution.MAY_EVICT, text))
        if self.disk_fails:
            text = f"{who} could not write its log or snapshot: what it acknowledges may not last; look at its disk"
            found.append(Remark(Caution.DISK_FAILING, text))
        return tuple(found)
