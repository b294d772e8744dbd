"""What rows of the fault table check by themselves: each check fails when the promise is broken."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from chaos.journal import Facts, Run, Told
from chaos.load import Load
from chaos.report import BEGIN, END, table, written
from chaos.result import Result, summary
from chaos.row import Findings
from chaos.rows import leader, poison, server, workers
from chaos.scale import TINY
from chaos.site import Site
from drr.embedded import EmbeddedServer
from drr.model import Completion, JobState
from drr_backends.redis.library import library
from tests.redis.harness import RedisHarness

pytestmark = pytest.mark.anyio


@dataclass
class FakeLoad:
    facts: Facts


def load_of(*runs: tuple[str, int]) -> Load:
    return cast(Load, FakeLoad(Facts([Run(job, f"o1.p0.{job}", attempt, 1, 0.0) for job, attempt in runs])))


def ended(attempt: int, state: JobState = JobState.SUCCEEDED) -> Completion:
    return Completion(state, attempt, 0.0, 0.0)


NOBODY = cast(Site, None)


async def problems(check: Any, load: Load, findings: Findings, ends: dict[str, Completion]) -> list[str]:
    await check(NOBODY, load, findings, ends)
    return findings.problems


async def test_a_start_again_of_what_nobody_had_in_hand_is_a_problem() -> None:
    again = load_of(("a", 1), ("a", 2), ("b", 1))
    assert await problems(workers.check_starts, again, Findings(at_stake={("a", 1)}), {}) == []
    (problem,) = await problems(workers.check_starts, again, Findings(), {})
    assert problem.startswith("1 starts beyond one per job")


async def test_an_accepted_end_of_an_attempt_that_was_taken_back_is_a_problem() -> None:
    stopped = Findings(at_stake={("a", 1)})
    assert await problems(workers.check_refused, load_of(), stopped, {"a": ended(2)}) == []
    assert len(await problems(workers.check_refused, load_of(), stopped, {"a": ended(1)})) == 1


async def test_an_attempt_made_again_after_a_jump_of_the_clock_is_a_problem() -> None:
    assert await problems(server.check_no_losses, load_of(("a", 1)), Findings(), {}) == []
    assert len(await problems(server.check_no_losses, load_of(("a", 1), ("a", 2)), Findings(), {})) == 1


async def test_a_job_that_died_beside_the_poisonous_one_is_a_problem() -> None:
    ends = {"a": ended(3, JobState.DEAD), "b": ended(1)}
    assert await problems(poison.check_others, load_of(), Findings(faults=1), ends) == []
    ends["b"] = ended(3, JobState.DEAD)
    assert len(await problems(poison.check_others, load_of(), Findings(faults=1), ends)) == 1


async def test_a_slow_takeover_is_a_problem() -> None:
    @dataclass
    class Scaled:
        scale = TINY

    site, limit = cast(Site, Scaled()), 2 * TINY.leader_lease
    for slowest, expected in ((limit - 0.01, 0), (limit, 1)):
        findings = Findings(takeovers=[0.5, slowest])
        await leader.check_takeovers(site, load_of(), findings, {})
        assert len(findings.problems) == expected


@pytest.mark.redis
async def test_a_store_without_its_fence_is_found_out(valkey_server: EmbeddedServer) -> None:
    """On a server of its own: a library with a hole must not be left on a shared one."""
    fence = "if args[1] == '' or redis.call('HGET', keys[1], 'token') ~= args[1] then"
    assert library().source.count(fence) >= 2
    async with EmbeddedServer(binary=valkey_server.binary, appendfsync=None) as own:
        harness = RedisHarness(own.url, "fence")
        await harness.handle.prepare()
        assert await harness.handle.elect("", "2:new")
        site = cast(Site, PatientSite(harness))
        assert await leader.refused(site, "1:old")
        await harness.raw("FUNCTION", "LOAD", "REPLACE", library().source.replace(fence, "if false then"))
        assert not await leader.refused(site, "1:old")
        await harness.close()


class PatientSite:
    """As much of a site as a look at its fence needs."""

    def __init__(self, harness: RedisHarness) -> None:
        self.backend = harness.handle

    async def patiently(self, operation: Any) -> Any:
        return await operation()


def test_labels_tell_a_submit_that_was_carried_out_twice() -> None:
    facts = Facts([Run("j2", "o1.p0.1", 1, 1, 0.0)], [Told(0.0, "o1.p0.1", "j1"), Told(0.0, "o1.p0.2", "j3")])
    assert facts.jobs_by_label == {"o1.p0.1": {"j1", "j2"}, "o1.p0.2": {"j3"}}


def test_the_figures_of_several_runs_of_a_row_add_up_and_go_into_a_page() -> None:
    results = [
        Result("fault", "Valkey", faults=1, jobs=10, lost=1, lost_allowed=2, notes={"n": 1, "slowest_s": 2.0}),
        Result("fault", "Valkey", faults=2, jobs=20, leaks={"held": 3}, notes={"n": 4, "slowest_s": 1.0}),
        Result("other", "Redis", skipped="no compiler"),
    ]
    results[0].takeovers = [0.5, 1.5]
    found = summary(results)
    assert (found["faults"], found["jobs"], found["lost"], found["lost_allowed"], found["leaks"]) == (3, 30, 1, 2, 1)
    assert found["takeover_p99_ms"] == 1500
    merged = found["by_fault"]["fault"]["Valkey"]
    assert merged["notes"] == {"n": 5, "slowest_s": 2.0, "runs": 2}
    assert (merged["leaks"], merged["good"]) == ({"held": 3}, False)
    assert found["by_fault"]["other"]["Redis"] == {"skipped": "no compiler"}

    shown = table(found, datetime(2026, 1, 2, tzinfo=UTC))
    assert "| fault | Valkey | 3 | 30 | 1 (2) | 0 | 0 | 3 held | bad" in shown
    assert "skipped: no compiler" in shown
    page = written(f"before\n{BEGIN}\nold\n{END}\nafter", found)
    assert page.startswith("before\n")
    assert page.endswith("\nafter")
    assert "old" not in page
    with pytest.raises(ValueError, match="the page has no"):
        written("no marks", found)
