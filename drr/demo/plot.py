"""Who plays, and when: the numbers of the demo."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Final

from drr.client import Submission
from drr.errors import InvalidConfiguration
from drr.model import Lane

NAMESPACE: Final = "demo"
POOL: Final = "default"
WORKERS: Final = 4
"""Worker processes, of one slot each."""
QUANTUM: Final = 0.25
"""Worker-seconds per round to weight 1: a fraction of the longest job, so that rounds are short against the demo."""
LEADER_LEASE: Final = 1.0

CROWD: Final = "acme"
CROWD_JOBS: Final = 50_000
CROWD_SECONDS: Final = 0.2
CROWD_CAP: Final = 3
NEWCOMER: Final = "globex"
NEWCOMER_SECONDS: Final = 0.05
WEIGHTS: Final = {"initech": 1, "umbrella": 2, "hooli": 4}
"""The organisations whose shares are measured."""
SHORTEST: Final = 0.05
LONGEST: Final = 1.0
BACKLOG: Final = 60
"""Jobs that each of these keeps waiting."""

PROJECTS: Final = {CROWD: "imports", NEWCOMER: "mail", **dict.fromkeys(WEIGHTS, "reports")}
LANES: Final = {organisation: Lane(POOL, (organisation, project)) for organisation, project in PROJECTS.items()}

NEWCOMER_AT: Final = 2.0
WEIGHTED_AT: Final = 3.0
SHARE_ERROR: Final = 0.05
"""How far a share may be from its weight, if the run is long enough."""
SHARE_LAG: Final = 2.5
"""Worker-seconds that an organisation may be ahead or behind at any moment: about a longest job on each side."""
SECONDS_MIN: Final = 8.0
SECONDS_MAX: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Timeline:
    """When what happens, in seconds after the start."""

    seconds: float

    def __post_init__(self) -> None:
        if not SECONDS_MIN <= self.seconds <= SECONDS_MAX:
            raise InvalidConfiguration(
                "seconds of the demo", self.seconds, f"it must be between {SECONDS_MIN:g} and {SECONDS_MAX:g}"
            )

    @property
    def kill_at(self) -> float:
        """When the leading dispatcher is killed."""
        return self.seconds / 2

    @property
    def share_error(self) -> float:
        """How far a share may be from its weight: in a short run, what jobs of that length leave undecided."""
        of_all = sum(WEIGHTS.values()) / (sum(WEIGHTS.values()) + 1)  # the crowd goes on, with weight 1
        held = WORKERS * of_all * (self.seconds - WEIGHTED_AT - 2 * LEADER_LEASE)
        return max(SHARE_ERROR, round(SHARE_LAG / held, 3))


def dispatcher_options() -> list[str]:
    """Return the options of ``drr serve`` that say who is entitled to what."""
    weights = [f"--weight={organisation}={weight}" for organisation, weight in WEIGHTS.items()]
    return [f"--hard-cap={CROWD}={CROWD_CAP}", *weights, f"--quantum={QUANTUM}", f"--leader-lease={LEADER_LEASE}"]


def crowd() -> Iterator[Submission]:
    """Yield the jobs of the organisation that floods the queue."""
    job = _job(CROWD, "import_rows", CROWD_SECONDS)
    for _ in range(CROWD_JOBS):
        yield job


def newcomer() -> Submission:
    """Return the one job of the organisation that comes second."""
    return _job(NEWCOMER, "send_email", NEWCOMER_SECONDS)


def weighted(organisation: str) -> Iterator[Submission]:
    """Yield jobs of mixed length for ever; the same ones in every run."""
    random = Random(organisation)
    while True:
        yield _job(organisation, "make_report", round(random.uniform(SHORTEST, LONGEST), 3))


def _job(organisation: str, task: str, seconds: float) -> Submission:
    """Return a job that says how long it takes, as a client would that knows its work."""
    return Submission(task, [seconds], tenant=LANES[organisation].path, estimate=seconds)
