"""One pool as the dispatcher sees it: its core scheduler, and the lanes that feed it.

Of each project the core knows no more than the next `AHEAD` jobs. Inside a project the order is fixed
(priority, then first in first out), so the core has no use for more: it decides between projects. After
every start the project's next job is offered, so a project that has work is never empty in the core's
eyes; what would be thrown away if a more urgent job arrives is at most `AHEAD` offers.

A project counts as having more (`Scheduler.expect`) from its first open lane until the store has said that
all its lanes are empty: a window that ran dry parks it, and costs it neither credit nor its turn. A lane is
not served while a more urgent one of the project has headers that were not read yet.

Jobs that name limits may have to wait for them, and then must not stand in the way of others. So of a project
the next `AHEAD` jobs are offered for every set of limits that its lanes name.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from typing import Final

from drr.core.estimates import LearnedEstimate
from drr.core.jobs import Job
from drr.core.scheduler import Scheduler
from drr.core.shared import LimitBook
from drr.dispatcher.entitlement import Entitlement
from drr.dispatcher.windows import LaneWindow
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, Header, Policies, TenantPath

AHEAD: Final = 2
"""Jobs of one project that the core is offered ahead of need: with one, a project would drain at each start."""

CAME_BACK: Final = 1 << 60
"""What puts a job that came back before all others of its priority."""


class Project:
    """A project with open lanes.

    ``windows`` by priority, most urgent first. ``expected``: the core knows that there may be more. ``mixed``: its
    lanes do not all name the same limits.
    """

    __slots__ = ("expected", "mixed", "path", "windows")

    def __init__(self, path: TenantPath) -> None:
        self.path = path
        self.expected = False
        self.mixed = False
        self.windows: list[LaneWindow] = []


def earlier_faults(header: Header) -> int:
    """Return how many attempts of the job the platform ended: all but those that failed or timed out."""
    return max(0, header.attempts - header.failures)


class Pool:
    """A pool's scheduler and its projects with open lanes."""

    def __init__(
        self,
        name: str,
        entitlement: Entitlement,
        numbers: Callable[[], int],
        book: LimitBook,
        estimator: LearnedEstimate,
    ) -> None:
        self.name = name
        self.policy = entitlement.pool(name)
        self._policies: Policies = entitlement.settings.nodes.get(name, {})
        self.scheduler = Scheduler(self.policy, self._policies, limits=book, policy_of=entitlement.policy_of(name))
        self.projects: dict[TenantPath, Project] = {}
        self.estimator = estimator
        self._numbers = numbers

    def entitle(self, entitlement: Entitlement) -> None:
        """Bind what tenants are entitled to from now on."""
        policy = entitlement.pool(self.name)
        if policy != self.policy:
            self.policy = policy
            self.scheduler.set_pool(policy)
        before, self._policies = self._policies, entitlement.settings.nodes.get(self.name, {})
        self.scheduler.rebind(entitlement.policy_of(self.name))
        for path in {**before, **self._policies}:
            if before.get(path) != self._policies.get(path):
                self.scheduler.set_policy(path, self._policies.get(path))

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
        insort(project.windows, window, key=_order)
        project.mixed = any(other.lane.limits != window.lane.limits for other in project.windows)

    def drop(self, window: LaneWindow) -> None:
        """Let go of a lane that is empty; its project drains with the last of them."""
        path = window.lane.path
        project = self.projects[path]
        project.windows.remove(window)
        project.mixed = project.mixed and len({other.lane.limits for other in project.windows}) > 1
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
        if project.mixed:
            self._refill_mixed(project)
            return
        need = AHEAD
        for window in project.windows:
            jobs, entries = window.jobs, window.entries
            need -= len(jobs)
            while need > 0 and len(jobs) < len(entries):
                entry = entries[len(jobs)]
                if not isinstance(entry, Header):
                    self._hold_back_after(project, window)
                    return
                jobs.append(self._offer(project, window, entry, front=False))
                need -= 1
            if need <= 0:
                return
            if window.rest != 0:
                self._hold_back_after(project, window)
                return

    def _refill_mixed(self, project: Project) -> None:
        """Like `_refill`, for each set of limits; but what is not read yet holds back all less urgent lanes."""
        needs: dict[tuple[str, ...], int] = {}
        blocker: LaneWindow | None = None
        for window in project.windows:
            if blocker is not None and window.lane.priority > blocker.lane.priority:
                break
            jobs, entries, limits = window.jobs, window.entries, window.lane.limits
            need = needs.get(limits, AHEAD) - len(jobs)
            while need > 0 and len(jobs) < len(entries):
                entry = entries[len(jobs)]
                if not isinstance(entry, Header):
                    break
                # One that came back goes before others of its priority, whatever limits they name.
                jobs.append(self._offer(project, window, entry, front=entry.returned and not jobs))
                need -= 1
            needs[limits] = need
            if need > 0 and (len(jobs) < len(entries) or window.rest != 0):
                blocker = blocker or window
        if blocker is not None:
            self._hold_back_after(project, blocker)

    def retract(self, window: LaneWindow, place: int) -> None:
        """Withdraw the offers from the ``place``-th entry of a window on."""
        while len(window.jobs) > place:
            self.scheduler.withdraw(window.jobs.pop().id)

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
        faults = earlier_faults(header)
        arrival = header.sequence - (CAME_BACK if header.returned else 0)
        job = Job(
            self._numbers(),
            lane.path,
            self.estimate(header),
            lane.priority,
            faults,
            window,
            limits=lane.limits,
            arrival=arrival,
        )
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


def _order(window: LaneWindow) -> tuple[int, tuple[str, ...]]:
    return window.lane.priority, window.lane.limits
