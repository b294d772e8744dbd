"""The values of one pass: the rules it goes by, the commit in the making, and what comes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from drr.backend import ITEM_LIMIT, Burial, Commit, Dispatch, MalformedEvent, Peek, Requeue, Settlement
from drr.model import Lease


@dataclass(frozen=True, slots=True)
class Rules:
    """Settings of the state machine.

    ``lease``, and the longest ``heartbeat`` interval of any worker: seconds. ``poison_after``: lost attempts
    after which a job is given up. ``depth``: names in a tenant path; lanes of another depth are not served,
    since a tenant cannot be both project and organisation.
    """

    lease: float = 30.0
    heartbeat: float = 10.0
    poison_after: int = 3
    depth: int = 2


class Plan(NamedTuple):
    """What is to be done next: a commit with reads riding on it, or reads only."""

    commit: Commit | None
    peeks: list[Peek]


@dataclass(slots=True)
class Batch:
    """A commit in the making. ``returned``: leases whose jobs go back, with their new number of losses.

    ``skipped``: events that are none. ``due``: something other than what is listed here is to be stored.
    """

    settlements: list[Settlement] = field(default_factory=list)
    returned: list[tuple[Lease, int]] = field(default_factory=list)
    requeues: list[Requeue] = field(default_factory=list)
    burials: list[Burial] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    charges: dict[str, Lease] = field(default_factory=dict)
    skipped: list[MalformedEvent] = field(default_factory=list)
    due: bool = False

    @property
    def full(self) -> bool:
        """Whether no more attempts can end in this pass."""
        return len(self.settlements) >= ITEM_LIMIT or len(self.returned) >= ITEM_LIMIT

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.due or self.settlements or self.requeues or self.burials or self.dispatches or self.charges)
