"""A row of the table of faults: how it is injected, and what has to hold afterwards beside the common verdict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from chaos.load import Load
from chaos.site import Site
from drr.model import Completion


@dataclass(slots=True)
class Findings:
    """What a row does and sees. ``problems``: what must not be, in words; ``notes``: figures to be shown.

    ``at_stake``: attempts that a fault may make run again: job and attempt. ``takeovers``: seconds. ``replayed``:
    what the store loses is submitted again, as another job of the same label.
    """

    faults: int = 0
    lost_allowed: int = 0
    problems: list[str] = field(default_factory=list)
    notes: dict[str, float] = field(default_factory=dict)
    at_stake: set[tuple[str, int]] = field(default_factory=set)
    takeovers: list[float] = field(default_factory=list)
    replayed: bool = False

    def count(self, note: str, number: float = 1) -> None:
        """Add to a figure."""
        self.notes[note] = self.notes.get(note, 0) + number


Strike = Callable[[Site, Load, Findings], Awaitable[None]]
Check = Callable[[Site, Load, Findings, dict[str, Completion]], Awaitable[None]]


async def _nothing(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    pass


def _able(site: Site) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Row:
    """One kind of fault.

    ``strike`` injects it once, under load. ``check`` is asked when everything has ended, with the recorded ends of
    all jobs. ``slow``: it takes long, and is struck seldom. ``unable``: why it cannot be done on a site, or empty.
    ``seconds``: mean length of the jobs, if it matters. ``buries``: jobs may be given up, since their workers die.
    """

    name: str
    strike: Strike
    check: Check = _nothing
    slow: bool = False
    unable: Callable[[Site], str] = _able
    seconds: float | None = None
    buries: bool = False

    def strikes(self, site: Site) -> int:
        """Return how often it is injected."""
        return max(1, site.scale.strikes // 4) if self.slow else site.scale.strikes
