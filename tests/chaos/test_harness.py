"""The fault matrix in its shortest form, and that its verdict can be bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.journal import Journal
from chaos.load import Load
from chaos.result import summary
from chaos.row import Findings, Row
from chaos.rows import leader, workers
from chaos.run import Trial
from chaos.scale import TINY
from chaos.site import Site, opened

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]


ROWS = (workers.ROWS[0], Row("leader SIGKILL", leader.kill))
"""Without the bound on the time of a takeover, which a busy machine may exceed: `test_rows` checks that."""


async def forge(site: Site, load: Load, findings: Findings) -> None:
    """Note a job that never was, and one submit as two; leave a key that will not expire."""
    journal = Journal(site.directory)
    real = load.facts.acknowledged[0]
    journal.note("A", real.label, real.about)  # noted twice, it still is one job
    journal.note("A", f"{load.number}.p9.1", "default:org-0:project-0:5~1~never")
    journal.note("A", load.facts.acknowledged[1].label, real.about)
    await site.raw("SET", site.backend.keys.prefix + "forgotten:1", "x")
    findings.faults += 1


async def test_a_killed_worker_and_leader_leave_nothing_behind_and_a_forged_run_is_found_out(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    async with opened("valkey-server", tmp_path, TINY, seed=1) as site:
        trial = Trial(site, "valkey-server", 1, told.append)
        await trial.warm_up()
        results = [await trial.run(row) for row in ROWS]
        assert all(result.good for result in results), told
        assert results[1].notes["credits_compared"] > 0
        assert sum(result.jobs for result in results) >= 2 * TINY.jobs
        forged = await trial.run(Row("forged", forge))
    assert not forged.good
    assert (forged.lost, forged.leaks) == (1, {"immortal": 1})
    assert forged.problems == ["1 ends are those of other jobs", "1 submits were carried out twice"]
    shown = summary([*results, forged])
    assert (shown["faults"], shown["lost"], shown["leaks"]) == (3, 1, 1)
    assert shown["takeover_p99_ms"] > 0
