"""Running rows of the table on a site, and judging each by the same verdict."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from chaos.audit import Baseline, audit, expire, measure
from chaos.load import Load, own_ends, successes
from chaos.result import Result
from chaos.row import Findings, Row
from chaos.scale import Scale
from chaos.site import Site, opened
from chaos.verdict import Verdict, judge
from drr.backend import ITEM_LIMIT

WARM_UP: Final = 0.5
"""Jobs of the warm-up, as a share of a row's."""
Tell = Callable[[str], None]


class Trial:
    """The rows of one site, one after the other."""

    def __init__(self, site: Site, server: str, seed: int, tell: Tell) -> None:
        self._site = site
        self._server = server
        self._seed = seed
        self._tell = tell
        self._baseline: Baseline | None = None

    async def warm_up(self) -> None:
        """Let every process do what it does, so that what it keeps for good is there; then measure."""
        site = self._site
        load = Load(site, self._seed)
        await load.go(round(site.scale.jobs * WARM_UP))
        await load.rest()
        await expire(site)
        self._baseline = await measure(site)

    async def run(self, row: Row) -> Result:
        """Inject a fault under load, as often as the scale says; return the verdict once everything has ended."""
        site, result = self._site, Result(row.name, self._server)
        result.skipped = row.unable(site)
        if result.skipped:
            self._tell(f"{self._server}: {row.name}: skipped: {result.skipped}")
            return result
        assert self._baseline is not None
        began = time.monotonic()
        findings = Findings()
        try:
            await self._strike_and_judge(row, findings, result, self._baseline)
        except Exception as error:  # whatever it is, the run ends with its verdict
            result.stuck = True
            findings.problems.append(f"{type(error).__name__}: {error}")
        result.faults, result.lost_allowed = findings.faults, findings.lost_allowed
        result.problems, result.notes, result.takeovers = findings.problems, findings.notes, findings.takeovers
        result.seconds = time.monotonic() - began
        self._tell(f"{self._server}: {row.name}: {'good' if result.good else 'BAD'} {result.shown()}")
        return result

    async def _strike_and_judge(self, row: Row, findings: Findings, result: Result, baseline: Baseline) -> None:
        site = self._site
        before = await self._accounted()
        load = Load(site, self._seed + site.orders)
        strikes = row.strikes(site)
        for _ in range(strikes):
            await load.go(-(-site.scale.jobs // strikes), seconds=row.seconds)
            await row.strike(site, load, findings)
        await load.rest()
        verdict = await self._judge(row, load, findings, before)
        result.jobs, result.lost = verdict.jobs, verdict.lost
        result.duplicated_completions, result.stale_writes = verdict.duplicated_completions, verdict.stale_writes
        await expire(site)
        result.leaks = await audit(site, baseline)
        site.journals.forget(load.number)

    async def _judge(self, row: Row, load: Load, findings: Findings, before: int) -> Verdict:
        facts = load.facts
        by_label = facts.jobs_by_label
        completions = await load.completions({job for jobs in by_label.values() for job in jobs})
        good = successes(completions)
        acknowledged = [told.about for told in facts.acknowledged]
        own = own_ends(completions, by_label)
        foreign = sum(len((jobs & completions.keys()) - own[label]) for label, jobs in by_label.items())
        if findings.replayed:
            # What was lost and submitted again is another job of the same label, and that is the one to end.
            findings.notes["submitted_again"] = sum(len(jobs) > 1 for jobs in by_label.values())
            acknowledged = [next(iter(own[told.label]), told.about) for told in facts.acknowledged]
            by_label = own
            ended = set().union(*own.values())
            completions = {job: end for job, end in completions.items() if job in ended}
            good = successes(completions)
        if foreign:
            findings.problems.append(f"{foreign} ends are those of other jobs")
        verdict = judge(
            acknowledged,
            [(run.job_id, run.attempt) for run in facts.runs],
            good,
            await self._accounted() - before,
            buried=completions.keys() - good.keys(),
            lost_allowed=findings.lost_allowed,
        )
        twice = sum(len(jobs) > 1 for jobs in by_label.values())
        if twice:
            findings.problems.append(f"{twice} submits were carried out twice")
        for told in facts.impossible[:3]:
            findings.problems.append(f"{told.label}: {told.about}")
        if facts.unknown:
            findings.notes["outcome_unknown"] = len(facts.unknown)
        if not findings.faults:
            findings.problems.append("no fault was injected")
        given_up = len(completions) - len(good)
        if given_up:
            findings.notes["given_up"] = given_up
            if not row.buries:
                findings.problems.append(f"{given_up} jobs did not succeed")
        await row.check(self._site, load, findings, completions)
        await self._purge()
        return verdict

    async def _accounted(self) -> int:
        """Return the successes in the accounts of all organisations. They are kept by the hour."""
        site = self._site
        hour = int(time.time() // 3600)
        total = 0
        for number in range(site.scale.organisations):
            account = await site.patiently(partial(site.backend.usage, f"org-{number}", hour - 3, hour + 4))
            total += sum(usage.succeeded for usage in account.values())
        return total

    async def _purge(self) -> None:
        """Clear the dead-letter list, as whoever has looked at it does."""
        site = self._site
        while letters := await site.patiently(lambda: site.backend.dead_letters(limit=ITEM_LIMIT)):
            await site.patiently(lambda: site.backend.purge_dead([letter.number for letter in letters]))


async def run_rows(server: str, rows: Sequence[Row], scale: Scale, seed: int, tell: Tell) -> list[Result]:
    """Run rows on a new site with this server; one that leaves the site stuck is the last."""
    results: list[Result] = []
    with TemporaryDirectory(prefix="drr-chaos-") as directory:
        async with opened(server, Path(directory), scale, seed=seed) as site:
            trial = Trial(site, await site.version(), seed, tell)
            await trial.warm_up()
            for row in rows:
                results.append(await trial.run(row))
                if results[-1].stuck:
                    break
    left = rows[len(results) :]
    return results + [Result(row.name, results[-1].server, problems=["not run: the site was stuck"]) for row in left]


async def soak(
    server: str, rows: Sequence[Row], scale: Scale, seed: int, tell: Tell, *, seconds: float
) -> list[Result]:
    """Run rows at random, one strike each, on one site, until the time is over."""
    results: list[Result] = []
    rng = random.Random(seed)
    ends = time.monotonic() + seconds
    with TemporaryDirectory(prefix="drr-chaos-") as directory:
        async with opened(server, Path(directory), replace(scale, strikes=1), seed=seed) as site:
            trial = Trial(site, await site.version(), seed, tell)
            await trial.warm_up()
            while time.monotonic() < ends and not (results and results[-1].stuck):
                results.append(await trial.run(rng.choice(rows)))
    return results
