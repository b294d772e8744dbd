"""What a dispatcher has done since it started, in whole numbers that only rise."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields

from drr.backend import Mismatch


@dataclass(slots=True)
class Counters:
    """Kept over reloads and changes of leadership; part of the status and of `Dispatcher.counters`.

    What a commit would have done counts once it is known to have succeeded.

    ``lost``: attempts whose worker died or let go of them. ``returned``: attempts handed back, or never
    claimed. ``retried``: failed and timed-out attempts after which the job is tried again. ``cancelled``,
    ``expired``: jobs that ended so. ``ignored``: requests for what is not there (any more), or that were refused.
    ``late``: jobs that waited longer than their tenant's plan aims at. ``poisoned``: jobs given up after too many
    losses. ``zombies``: reports of attempts whose lease was gone. ``malformed``: lane entries, events and requests
    that could not be decoded. ``refused``: lanes that do not fit the tree. ``takeovers``: elections won;
    ``reloads``: those of them after an error of one's own. ``mismatched_*``: disagreements that reconciliation found
    and set right, by kind (`drr.backend.Mismatch`); they should stay at 0.
    """

    dispatched: int = 0
    succeeded: int = 0
    failed: int = 0
    timed_out: int = 0
    lost: int = 0
    returned: int = 0
    retried: int = 0
    cancelled: int = 0
    expired: int = 0
    ignored: int = 0
    late: int = 0
    poisoned: int = 0
    zombies: int = 0
    malformed: int = 0
    refused: int = 0
    commits: int = 0
    takeovers: int = 0
    reloads: int = 0
    mismatched_entry: int = 0
    mismatched_lease: int = 0
    mismatched_place: int = 0
    mismatched_lane: int = 0
    mismatched_count: int = 0
    mismatched_hold: int = 0

    @property
    def settled(self) -> int:
        """Attempts whose worker reported an outcome."""
        return self.succeeded + self.failed + self.timed_out

    @property
    def mismatched(self) -> int:
        """Disagreements of all kinds that reconciliation found."""
        return sum(getattr(self, f"mismatched_{kind.value}") for kind in Mismatch)

    def count_mismatch(self, kind: Mismatch) -> None:
        """Count a disagreement."""
        name = f"mismatched_{kind.value}"
        setattr(self, name, getattr(self, name) + 1)

    def take_over(self, tally: Counters) -> None:
        """Add what ``tally`` holds, and set it to zero."""
        for name in _NAMES:
            number = getattr(tally, name)
            if number:
                setattr(self, name, getattr(self, name) + number)
                setattr(tally, name, 0)

    def as_dict(self) -> dict[str, int]:
        """Return all counters by name."""
        return asdict(self)


_NAMES = tuple(field.name for field in fields(Counters))
