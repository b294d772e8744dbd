"""The values of one pass: the rules it goes by, the commit in the making, and what comes of it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from drr.backend import (
    ITEM_LIMIT,
    STRIKE_LIMIT,
    Burial,
    ChangeRecord,
    Commit,
    Dispatch,
    Drop,
    DropDelayed,
    MalformedEvent,
    Mature,
    Peek,
    Postpone,
    Requeue,
    Revival,
    Settlement,
    Strike,
    Struck,
)
from drr.model import Header, Lease, TenantPath

log = logging.getLogger("drr.dispatcher")


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


class Back(NamedTuple):
    """An attempt whose job goes back to its lane, or is put off until ``due_at`` (Unix seconds), with new counts.

    ``held``: worker-seconds that it held its slot.
    """

    lease: Lease
    losses: int
    failures: int
    held: float
    due_at: float | None = None

    @property
    def header(self) -> Header:
        """The job as it will wait."""
        return replace(
            self.lease.header,
            attempts=self.lease.attempt,
            losses=self.losses,
            failures=self.failures,
            returned=True,
        )


@dataclass(slots=True)
class Batch:
    """A commit in the making. ``backs``: attempts whose jobs go back.

    ``accounts``: by path and pool, the fields of `Usage` in whole numbers (see `drr.dispatcher.ledger`).
    ``marked``: tokens of attempts whose jobs were cancelled. ``skipped``: events and requests that are none. ``due``:
    something other than what is listed here is to be stored.
    """

    settlements: list[Settlement] = field(default_factory=list)
    backs: list[Back] = field(default_factory=list)
    requeues: list[Requeue] = field(default_factory=list)
    postpones: list[Postpone] = field(default_factory=list)
    matures: list[Mature] = field(default_factory=list)
    revivals: list[Revival] = field(default_factory=list)
    drops_delayed: list[DropDelayed] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    removals: list[Burial | Drop | Struck] = field(default_factory=list)
    dispatches: list[Dispatch] = field(default_factory=list)
    charges: dict[str, Lease] = field(default_factory=dict)
    marked: list[str] = field(default_factory=list)
    stops: list[str] = field(default_factory=list)
    accounts: dict[tuple[TenantPath, str], list[int]] = field(default_factory=dict)
    changes: list[ChangeRecord] = field(default_factory=list)
    skipped: list[MalformedEvent] = field(default_factory=list)
    due: bool = False

    @property
    def full(self) -> bool:
        """Whether no more attempts can end in this pass."""
        return len(self.settlements) >= ITEM_LIMIT or len(self.backs) >= ITEM_LIMIT

    @property
    def room_for_removal(self) -> bool:
        """Whether one more head of a lane can go in this pass."""
        return len(self.removals) < ITEM_LIMIT

    @property
    def room_for_strike(self) -> bool:
        """Whether one more job can be struck in this pass."""
        return len(self.strikes) < STRIKE_LIMIT

    def warn_of_skipped(self) -> None:
        """Say in the log what could not be decoded."""
        if self.skipped:
            first = self.skipped[0]
            log.warning("%d events cannot be decoded (%s: %.80r ...)", len(self.skipped), first.reason, first.raw)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (
            self.due
            or self.settlements
            or self.requeues
            or self.postpones
            or self.matures
            or self.revivals
            or self.drops_delayed
            or self.strikes
            or self.removals
            or self.dispatches
            or self.charges
            or self.changes
        )
