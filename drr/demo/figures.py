"""From what was written down to the figures: pure functions, no clock, no I/O.

How each is measured
    newcomer_wait_ms        from the moment the email's submit is called to the first line of its handler
    fifo_wait_ms            what one queue, first in first out, would have made of the same arrivals on as many slots
    max_running_acme        most handlers of acme at once, from the handlers' own starts and ends
    share_error             largest difference between a weighted organisation's part of the seconds that handlers of
                            the three really held, and its part of their weights, while all three had jobs waiting
    takeover_ms             from SIGKILL to the first handler that starts after another leader is on record
    lost                    acknowledged jobs that have neither ended nor are stored any more
    duplicated_completions  ends that the store accepted beyond one for each job, and jobs it holds beyond those
                            acknowledged
    leases_left             attempts that the store still takes for running once everything has stopped
    dispatched              attempts that started in a handler
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from drr.demo.journal import Run


@dataclass(frozen=True, slots=True)
class Figures:
    """What the demo measured; see the top of this module."""

    newcomer_wait_ms: float
    fifo_wait_ms: float
    max_running_acme: int
    share_error: float
    takeover_ms: float
    lost: int
    duplicated_completions: int
    leases_left: int
    dispatched: int
    seconds: float

    def disappointments(self, expected: Mapping[str, Expectation]) -> list[str]:
        """Return what is not as it is expected to be, a line each."""
        figures = {name: getattr(self, name) for name in expected}
        return [
            f"{name} is {figure}, expected {expected[name]}"
            for name, figure in figures.items()
            if not expected[name].met_by(figure)
        ]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a figure should be: ``value`` exactly, or ``below`` it."""

    value: float
    below: bool = False

    def met_by(self, figure: float) -> bool:
        """Whether the figure is as expected."""
        return figure < self.value if self.below else figure == self.value

    def __str__(self) -> str:
        return f"{'below' if self.below else 'exactly'} {self.value:g}"


def expectations(share_error: float) -> dict[str, Expectation]:
    """Return what is expected of a run; ``share_error`` depends on its length."""
    return {
        "newcomer_wait_ms": Expectation(50, below=True),
        "max_running_acme": Expectation(3),
        "share_error": Expectation(share_error, below=True),
        "takeover_ms": Expectation(5000, below=True),
        "lost": Expectation(0),
        "duplicated_completions": Expectation(0),
        "leases_left": Expectation(0),
    }


@dataclass(frozen=True, slots=True)
class Count:
    """Where the acknowledged jobs of one organisation are at the end.

    ``unknown``: ids that the store knows nothing of. ``ended``: ids with a recorded outcome. ``queued`` and
    ``leased``: jobs that the store holds.
    """

    acknowledged: int
    ended: int
    queued: int
    leased: int
    unknown: int

    @property
    def stored(self) -> int:
        """All that the store accounts for."""
        return self.ended + self.queued + self.leased

    @property
    def lost(self) -> int:
        """Jobs that are gone, by id or by number, whichever tells of more."""
        return max(self.unknown, self.acknowledged - self.stored, 0)

    @property
    def surplus(self) -> int:
        """Jobs that are there though nobody submitted them, or are there twice."""
        return max(0, self.stored - self.acknowledged)


def most_at_once(runs: Iterable[Run]) -> int:
    """Return the most runs that overlapped; one that ends as another starts does not overlap it."""
    steps = sorted(
        chain.from_iterable(
            ((run.started, 1), (float("inf") if run.ended is None else run.ended, -1)) for run in runs
        )
    )
    running = most = 0
    for _, step in steps:
        running += step
        most = max(most, running)
    return most


def held_by(runs: Iterable[Run], since: float, until: float) -> dict[str, float]:
    """Return the worker-seconds that each organisation's runs held between two moments."""
    held: dict[str, float] = {}
    for run in runs:
        held[run.organisation] = held.get(run.organisation, 0.0) + run.held(since, until)
    return held


def shares_of(amounts: Mapping[str, float], names: Iterable[str]) -> dict[str, float]:
    """Return each name's part of what the names have together, 0 if that is nothing."""
    chosen = {name: amounts.get(name, 0.0) for name in names}
    whole = sum(chosen.values())
    return {name: amount / whole if whole > 0 else 0.0 for name, amount in chosen.items()}


def share_error(held: Mapping[str, float], weights: Mapping[str, float]) -> float:
    """Return the largest difference between a share of worker-seconds and the share of weight, 0 to 1."""
    shares, wanted = shares_of(held, weights), shares_of(weights, weights)
    return max(abs(shares[name] - wanted[name]) for name in weights)


def fifo_wait(arrivals: Sequence[tuple[float, float]], newcomer_at: float, slots: int) -> float:
    """Return how long a job that arrives at ``newcomer_at`` waits behind ``arrivals`` in one queue.

    ``arrivals``: time and seconds of each earlier job, in order.
    """
    free_at = [float("-inf")] * slots
    for arrived, seconds in arrivals:
        start = max(arrived, heapq.heappop(free_at))
        heapq.heappush(free_at, start + seconds)
    return max(0.0, free_at[0] - newcomer_at)


def first_start_after(runs: Iterable[Run], moment: float) -> float | None:
    """Return when the first run after ``moment`` started."""
    return min((run.started for run in runs if run.started >= moment), default=None)


def extra_ends(ends: Iterable[str]) -> int:
    """Return how many ends there are beyond one for each job."""
    return sum(times - 1 for times in Counter(ends).values())
