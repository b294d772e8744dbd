"""Scenarios through the simulator, in virtual time: S2, S3, S7. `make bench-scenarios` runs them at full size."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from bench.scenarios import Case, Figures, check, play, s2_cases, s3_cases, s7
from drr.simulate.engine import Simulation
from drr.simulate.policies import make_policy
from drr.simulate.run import Setup, no_policies, simulate, slots_of
from drr.simulate.trace import open_source
from tests.sim.work import count_bytecodes

S2 = {case.name: case for case in s2_cases(jobs=10_000, end=400)}
S3 = {case.name: case for case in s3_cases(jobs=20_000, end=6_600)}
REAL = {"under 5 minutes", "under 500 MB"}
"""What is expected of the full size on a machine of one's own."""


def played(case: Case) -> Figures:
    figures = play(case)
    assert not [sentence for sentence in check(case, figures) if sentence not in REAL], figures
    return figures


@pytest.mark.parametrize("case", S2.values(), ids=S2)
def test_S2_a_capped_import_leaves_the_others_alone(case: Case) -> None:
    """A fifth of it: FIFO makes the others wait for the import; a hard cap slows it down, a soft one hardly."""
    assert played(case).jobs > 10_000


def test_S2_fails_where_the_import_goes_first() -> None:
    """Negative control: what is expected of the caps does not hold under FIFO."""
    fifo = play(S2["S2 fifo"])
    for name in ("S2 hard cap 4", "S2 soft cap 4"):
        assert check(S2[name], fifo)


@pytest.mark.parametrize("case", S3.values(), ids=S3)
def test_S3_a_long_backlog_makes_nobody_else_wait(case: Case) -> None:
    """A hundredth of it: one job length behind a soft cap, next to nothing behind a hard cap or with a reserve."""
    assert played(case).jobs > 20_000


def test_S3_a_deep_backlog_changes_no_wait() -> None:
    """The others wait as long behind 40,000 as behind 20,000 jobs."""
    shallow, deep = (play(s3_cases(jobs, 3_000, until=3_000.0)[0]) for jobs in (20_000, 40_000))
    assert shallow.others_max_s == deep.others_max_s
    assert shallow.others_p99_s == deep.others_p99_s


def test_S3_a_waiting_job_takes_up_little(tmp_path: Path) -> None:
    """Under 40 bytes for each job that waits, however many: 24, and what the arrays have in reserve."""
    sizes = []
    for jobs in (20_000, 220_000):
        path = tmp_path / f"{jobs}.toml"
        path.write_text(
            'workers = 1\n[[tenants]]\norganisation = "o"\n'
            f"arrivals = {{ kind = 'bulk', jobs = {jobs} }}\ndurations = {{ kind = 'constant', seconds = 30 }}\n"
        )
        source = open_source(str(path))
        # Without `demand`, which keeps a trace of this size for the next policy.
        tracemalloc.start()
        try:
            pool = Setup([]).pool
            policy = make_policy("drr", pool, no_policies)
            simulation = Simulation(source, policy, pool, no_policies, source.slots, accrues=True, window=60.0)
            result = simulation.run("drr", until=60.0)
            assert result.unfinished >= jobs - 3
            sizes.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (sizes[1] - sizes[0]) / 200_000 < 40


def bytecodes(tmp_path: Path, organisations: int, jobs: int) -> int:
    """Return what it takes to simulate ``jobs`` of each of so many organisations."""
    path = tmp_path / f"{organisations}-{jobs}.toml"
    path.write_text(s7(organisations, jobs))
    source = open_source(str(path))
    setup = Setup(slots_of(source))
    source.demand()
    return count_bytecodes(lambda: simulate(source, setup))


def test_S7_active_organisations_cost_a_simulation_no_more_each_decision(tmp_path: Path) -> None:
    """Further decisions among a thousand organisations cost at most 1.5 times what they cost among twenty."""
    few = bytecodes(tmp_path, 20, 100) - bytecodes(tmp_path, 20, 50)
    many = bytecodes(tmp_path, 1_000, 3) - bytecodes(tmp_path, 1_000, 2)
    assert many <= 1.5 * few
