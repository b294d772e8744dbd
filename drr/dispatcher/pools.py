"""One pool as the dispatcher sees it: its core scheduler, and the lanes that feed it.

Of each project the core knows no more than the next `AHEAD` jobs. Inside a project the order is fixed
(priority, then first in first out), so the core has no use for more: it decides between projects. After
every start the project's next job is offered, so a project that has work is never empty in the core's
eyes; what would be thrown away if a more urgent job arrives is at most `AHEAD` offers.

A project counts as having more (`Scheduler.expect`) from its first open lane until the store has said that
all its lanes are empty: a window that ran dry parks it, and costs it neither credit nor its turn. A lane is
not served while a more urgent one of the project has headers that were not read yet.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from drr.backend import Malformed
from drr.core.estimates import DefaultEstimate, Estimator
from drr.core.jobs import Job
from drr.core.scheduler import Scheduler
from drr.dispatcher.windows import LaneWindow
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, Header, Policies, PoolPolicy, TenantPath

AHEAD: Final = 2
"""Jobs of one project that the core is offered ahead of need: with one, a project would drain at each start."""


class Project:
    """A project with open lanes.

    ``windows`` by priority, most urgent first. ``expected``: the core knows that there may be more.
    """

    __slots__ = ("expected", "path", "windows")

    def __init__(self, path: TenantPath) -> None:
        self.path = path
        self.expected = False
        self.windows: list[LaneWindow] = []


def earlier_faults(header: Header) -> int:
    """Return how many attempts of the job the platform has already cost it.

    As long as a failed job is not tried again, every earlier attempt ended through the platform's fault.
    """
    return header.attempts


class Pool:
    """A pool's scheduler and its projects with open lanes."""

    def __init__(self, name: str, policy: PoolPolicy, policies: Policies, numbers: Callable[[], int]) -> None:
        self.name = name
        self.policy = policy
        self.scheduler = Scheduler(policy, policies)
        self.projects: dict[TenantPath, Project] = {}
        self.estimator: Estimator = DefaultEstimate(policy.default_estimate)
        self._numbers = numbers

    def set_policy(self, policy: PoolPolicy) -> None:
        """Change the pool's settings; binds at once."""
        self.policy = policy
        self.estimator = DefaultEstimate(policy.default_estimate)
        self.scheduler.set_pool(policy)

    @property
    def forgettable(self) -> bool:
        """Whether nothing waits or runs, nobody works here, and no tenant's account says anything any more."""
        scheduler = self.scheduler
        return not self.projects and not scheduler.slots and not scheduler.running and len(scheduler.tree.nodes) == 1

    def add(self, window: LaneWindow) -> None:
        """Take in a lane that was just opened."""
        path = window.lane.path
        project = self.projects.get(path)
        if project is None:
            project = self.projects[path] = Project(path)
        insort(project.windows, window, key=_priority)

    def drop(self, window: LaneWindow) -> None:
        """Let go of a lane that is empty; its project drains with the last of them."""
        path = window.lane.path
        project = self.projects[path]
        project.windows.remove(window)
        if not project.windows:
            del self.projects[path]
            if project.expected:
                self.scheduler.expect(path, False)
        else:
            self._refill(project)  # a less urgent lane may have waited for news of this one

    def refill(self, window: LaneWindow) -> None:
        """Offer the next jobs of the project that ``window`` belongs to, as far as their order is known."""
        self._refill(self.projects[window.lane.path])

    def _refill(self, project: Project) -> None:
        need = AHEAD
        for window in project.windows:
            jobs, entries = window.jobs, window.entries
            need -= len(jobs)
            while need > 0 and len(jobs) < len(entries):
                entry = entries[len(jobs)]
                if entry.__class__ is Malformed:
                    self._hold_back_after(project, window)
                    return
                jobs.append(self._offer(project, window, entry, front=False))  # type: ignore[arg-type]
                need -= 1
            if need <= 0:
                return
            if window.rest != 0:
                self._hold_back_after(project, window)
                return

    def give_back(self, window: LaneWindow, header: Header) -> None:
        """Offer a returned job that was just put at the head of its window."""
        project = self.projects[window.lane.path]
        if window.jobs:
            window.jobs.insert(0, self._offer(project, window, header, front=True))
        else:
            self._refill(project)

    def estimate(self, header: Header) -> float:
        """Return the worker-seconds that a start of this job is charged."""
        estimate = header.estimate
        if estimate is not None and ESTIMATE_MIN <= estimate <= ESTIMATE_MAX:
            return estimate
        return self.estimator.estimate(header.lane.path, header.task)

    def _offer(self, project: Project, window: LaneWindow, header: Header, *, front: bool) -> Job:
        lane = window.lane
        job = Job(self._numbers(), lane.path, self.estimate(header), lane.priority, earlier_faults(header), window)
        self.scheduler.offer(job, front=front)
        if not project.expected:
            # Only now: to expect more of a project before its first offer would say that it had waited.
            project.expected = True
            self.scheduler.expect(lane.path, True)
        return job

    def _hold_back_after(self, project: Project, window: LaneWindow) -> None:
        """Withdraw what was offered of less urgent lanes than ``window``."""
        for later in project.windows:
            if later.lane.priority > window.lane.priority:
                while later.jobs:
                    self.scheduler.withdraw(later.jobs.pop().id)


def _priority(window: LaneWindow) -> int:
    return window.lane.priority
