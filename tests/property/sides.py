"""One of two stores that should agree, and what of its answers is compared."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

from drr.backend import Attempt, Facts, Malformed, MalformedEvent, Position, Snapshot
from drr.model import Header, Lane, NodeState
from tests.contract.harness import Harness


def comparable(value: Any) -> Any:
    """Return ``value`` without what the port leaves to the adapter."""
    match value:
        case Header():
            # An adapter may return a subclass that remembers more.
            return Header(*(getattr(value, each.name) for each in fields(Header)))
        case Malformed() | MalformedEvent():
            return replace(value, reason="")
        case Attempt():
            return replace(value, delivery="", header=comparable(value.header))
        case Position():
            return "position"
        case Facts():
            lanes = sorted(value.lanes, key=lambda announced: str(announced[0]))
            facts = value.events, value.workers_changed, value.requests, value.due_at
            return [comparable(list(facts)), comparable(lanes)]
        case Snapshot():
            return {
                "passes": value.passes,
                "leases": {lease.token: comparable(lease) for lease in value.leases},
                "nodes": dict(value.nodes),
                "settings": value.settings,
                "workers": {record.name: record for record in value.workers},
                "lanes": sorted(value.lanes),
            }
        case list() | tuple() if not isinstance(value, Lane | NodeState):
            return [comparable(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return type(value), {each.name: comparable(getattr(value, each.name)) for each in fields(value)}
        case _:
            return value


@dataclass
class Side:
    """One of the two stores, and the opaque things that it has said."""

    harness: Harness
    positions: list[Position] = field(default_factory=lambda: [Position()])
    cursors: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.backend = self.harness.open()
