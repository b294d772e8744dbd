"""One order of jobs: given to the producers, followed in the journals, and ended when nothing of it is left to do."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final

from chaos.journal import Facts
from chaos.producer import Order
from chaos.site import Site
from drr.backend import ITEM_LIMIT
from drr.model import Completion, JobState
from drr.payload import unpack_result

UNDER_WAY: Final = 0.1
"""Share of what was ordered last whose start means that the load is under way."""


class Load:
    """The jobs of one row of the table on one site."""

    def __init__(self, site: Site, seed: int) -> None:
        site.orders += 1
        self.number = f"o{site.orders}"
        self._site = site
        self.seed = seed
        self._ordered = 0
        self._calls = 0

    @property
    def facts(self) -> Facts:
        """What the journals tell by now."""
        return self._site.journals.of(self.number)

    def order(self, jobs: int, *, seconds: float | None = None) -> None:
        """Tell the producers to submit so many jobs more. ``seconds``: mean length of a job."""
        site, scale = self._site, self._site.scale
        each = -(-jobs // scale.producers)
        order = Order(
            self.number,
            self._ordered,
            each,
            seconds=scale.seconds if seconds is None else seconds,
            over=scale.span / 4 * jobs / scale.jobs,
            seed=self.seed,
            organisations=scale.organisations,
            projects=scale.projects,
        )
        for name in site.producers:
            site.processes[name].tell(order.encode())
        self._ordered += each
        self._calls += scale.producers

    async def go(self, jobs: int, *, seconds: float | None = None) -> None:
        """Order more, and return when some of it runs."""
        begun = len(self.facts.runs)
        self.order(jobs, seconds=seconds)
        await self._site.until(lambda: len(self.facts.runs) - begun >= UNDER_WAY * jobs, "the load to begin")

    async def moves_on(self) -> None:
        """Return when, after now, a job was begun, or nothing is left to begin."""
        begun = len(self.facts.runs)

        async def look() -> bool:
            return len(self.facts.runs) > begun or await self._site.idle()

        await self._site.until(look, "the next start of a job")

    async def submitted(self) -> None:
        """Return when the producers have done all that was ordered."""
        await self._site.until(lambda: self.facts.done >= self._calls, "the producers to be done")

    async def rest(self) -> None:
        """Return when the producers are done and nothing waits or runs."""
        await self.submitted()
        await self._site.until(self._site.idle, "everything to have ended")

    async def completions(self, job_ids: Iterable[str]) -> dict[str, Completion]:
        """Return the recorded ends of jobs."""
        wanted, found = list(job_ids), {}
        for first in range(0, len(wanted), ITEM_LIMIT):
            part = wanted[first : first + ITEM_LIMIT]
            for status in await self._site.patiently(partial(self._site.backend.look_up, part)):
                if status is not None and status.completion is not None:
                    found[status.job_id] = status.completion
        return found


def successes(completions: dict[str, Completion]) -> dict[str, int]:
    """Return the attempt of each success."""
    return {job: end.attempt for job, end in completions.items() if end.state is JobState.SUCCEEDED}


def strangers(completions: dict[str, Completion], labels: dict[str, set[str]]) -> set[str]:
    """Return jobs whose recorded success is another job's: a handler returns its own label."""
    label_of = {job: label for label, jobs in labels.items() for job in jobs}
    return {
        job
        for job, end in completions.items()
        if end.state is JobState.SUCCEEDED and unpack_result(end.value) != label_of[job]
    }
