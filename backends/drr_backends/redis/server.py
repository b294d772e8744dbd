"""What a server is and how it keeps its data: reading its ``INFO`` and ``CONFIG GET``.

Both may be forbidden, by an ACL or by who runs the server; then less is known, and that is all. Either alone tells
most of it: ``INFO`` lacks when the log is synced and whether snapshots are taken, ``CONFIG`` which version it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from drr.durability import Survey
from drr.errors import StoreUnsupported

OLDEST: Final = {"Redis": (7, 0), "Valkey": (8, 0)}
"""The oldest servers that have every command drr uses."""

SETTINGS: Final = ("appendonly", "appendfsync", "save", "maxmemory", "maxmemory-policy", "min-replicas-to-write")
"""What `survey_of` wants to know of ``CONFIG GET``."""


def read_info(info: bytes) -> dict[str, str]:
    """Return the facts in a reply of ``INFO`` by name."""
    lines = info.decode("utf-8", "replace").splitlines()
    return {name: value for name, colon, value in (line.partition(":") for line in lines) if colon}


def check_server(info: bytes) -> None:
    """Raise `StoreUnsupported` if ``info`` (of ``INFO server``) tells of a server that is too old."""
    shown, supported = _version(read_info(info))
    if not supported:
        raise StoreUnsupported(
            f"the server is {shown}; drr needs Redis >= 7.0 or Valkey >= 8.0 (functions and their flags)"
        )


def survey_of(info: bytes | None, settings: Mapping[str, str]) -> Survey:
    """Return what is known from ``INFO`` (``None``: refused) and from the settings that ``CONFIG GET`` told."""
    facts = read_info(info or b"")
    shown, supported = _version(facts) if facts else ("", None)
    save, fsync = settings.get("save"), settings.get("appendfsync")
    states = [facts.get(name) for name in ("aof_last_write_status", "rdb_last_bgsave_status")]
    return Survey(
        server=shown,
        supported=supported,
        append_only=_switch(settings.get("appendonly"), facts.get("aof_enabled")),
        fsync=fsync if fsync in ("always", "everysec", "no") else None,
        snapshots=None if save is None else bool(save.strip()),
        disk_fails=None if states == [None, None] else "err" in states,
        memory_limit=_number(settings.get("maxmemory") or facts.get("maxmemory")),
        eviction=settings.get("maxmemory-policy") or facts.get("maxmemory_policy"),
        replicas=_number(facts.get("connected_slaves")),
        replicas_needed=_number(settings.get("min-replicas-to-write")),
    )


def _version(facts: Mapping[str, str]) -> tuple[str, bool]:
    """Return the kind and version of a server, and whether it is new enough."""
    name = "Valkey" if "valkey_version" in facts else "Redis"
    version = facts.get(f"{name.lower()}_version", "unknown")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return f"{name} {version}", numbers >= OLDEST[name]


def _switch(setting: str | None, fact: str | None) -> bool | None:
    if setting is not None:
        return setting == "yes"
    return None if fact is None else fact == "1"


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
