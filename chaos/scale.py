"""How large a run is, and how it is spread."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Scale:
    """The size of a run.

    ``jobs``: of one row of the table on one server. ``strikes``: how often a quick fault is injected in a row; slow
    ones are injected less often. ``span``: seconds for which a row's jobs would keep all slots busy. ``hostile``:
    messages of nobody that are planted. ``cancelled``: operations that are cancelled. ``lease``, ``leader_lease``:
    seconds. ``settling``: seconds within which what looks like a leak has to go away by itself. The rest counts
    processes and tenants.
    """

    jobs: int
    strikes: int
    span: float
    hostile: int
    cancelled: int
    lease: float = 4.0
    leader_lease: float = 2.0
    settling: float = 15.0
    workers: int = 8
    slots: int = 2
    producers: int = 2
    dispatchers: int = 2
    organisations: int = 8
    projects: int = 40

    @property
    def seconds(self) -> float:
        """Mean seconds that a job holds its slot."""
        return min(max(self.span * self.workers * self.slots / self.jobs, 0.01), 0.5)


SHORT = Scale(jobs=150, strikes=2, span=4.0, hostile=1000, cancelled=20)
LONG = Scale(jobs=1900, strikes=8, span=30.0, hostile=100_000, cancelled=200, slots=4)
TINY = replace(SHORT, jobs=120, strikes=1, span=3.0, workers=2, slots=4, producers=1, leader_lease=1.5, settling=2.0)
"""For the tests of this project: the same harness, few processes."""
