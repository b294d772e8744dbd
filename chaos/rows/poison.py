"""A job that kills whatever worker it runs on: given up at its third worker, and nobody else suffers."""

from __future__ import annotations

from typing import Final

import anyio

from chaos.journal import Journal
from chaos.load import Load
from chaos.producer import RESULT_TTL
from chaos.row import Findings, Row
from chaos.site import NAMESPACE, PATIENCE, Site
from drr.backend import DeathCause
from drr.client import Client
from drr.model import Completion, JobState

DEATHS: Final = 3
"""Workers that a job may take along before it is given up: the default of ``--poison-after``."""
FUSE: Final = 0.5
"""Seconds before it kills: its neighbours of the same moment have ended by then."""


async def poison(site: Site, load: Load, findings: Findings) -> None:
    """Submit one such job, and start workers again as they die."""
    label = f"{load.number}.poison.{findings.faults}"
    async with Client(site.server.url, namespace=NAMESPACE) as client:
        job = await client.submit("die", [label, FUSE], tenant="org-0/project-0", estimate=1, result_ttl=RESULT_TTL)
        Journal(site.directory).note("A", label, job.id)
    deaths = 0
    site.mortal |= set(site.workers)
    try:
        with anyio.fail_after(PATIENCE):
            while not await load.completions([job.id]):
                site.check()
                for name in site.workers:
                    if site.ended(name):
                        deaths += 1
                        site.kill(name)
                        site.start(name)
                await anyio.sleep(0.05)
    finally:
        site.mortal -= set(site.workers)
    findings.faults += 1
    findings.count("workers_killed", deaths)
    await _check_death(site, load, findings, job.id, deaths)


async def _check_death(site: Site, load: Load, findings: Findings, job_id: str, deaths: int) -> None:
    end = (await load.completions([job_id]))[job_id]
    letters = [letter for letter in await site.patiently(site.backend.dead_letters) if letter.header is not None]
    causes = [letter.cause for letter in letters if letter.header.job_id == job_id]
    if end.state is not JobState.DEAD or deaths != DEATHS or causes != [DeathCause.POISON]:
        findings.problems.append(f"a poison job killed {deaths} workers and ended {end.state}, cause {causes}")


async def check_others(site: Site, load: Load, findings: Findings, completions: dict[str, Completion]) -> None:
    """Nobody else was given up."""
    dead = sum(end.state is not JobState.SUCCEEDED for end in completions.values())
    if dead != findings.faults:
        findings.problems.append(f"{dead} jobs did not succeed, and {findings.faults} were poison")


ROWS = (Row("poison job that kills its worker", poison, check_others, slow=True, seconds=0.03, buries=True),)
