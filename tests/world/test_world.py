"""Worlds from many seeds, in virtual time: whatever goes wrong on the way, in the end everything is right."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from hashlib import blake2b
from multiprocessing import get_context

import pytest

from tests.world.world import Report, replay, run_world

SEEDS = 200
BOX = 18.0
"""Seconds of wall time after which no further seed is begun."""
LEAST_SEEDS = 20
"""Run whatever time they take."""
SOAK_SEEDS = int(os.environ.get("DRR_WORLD_SEEDS", "100000"))
SOAK_FIRST = int(os.environ.get("DRR_WORLD_FIRST", "1000"))


class Total:
    """What all seeds together came to."""

    def __init__(self) -> None:
        self.seeds = 0
        self.contests = 0
        """Worlds in which two siblings were compared for longer than a bound."""
        self.counts: Counter[str] = Counter()

    def add(self, report: Report) -> None:
        """Count a world, which has to be right."""
        if report.wrong:
            pytest.fail(str(report), pytrace=False)
        self.seeds += 1
        self.contests += report.horizon >= 1
        for name in ("calls", "acknowledged", "attempts", "lost_attempts", "takeovers", "crashes", "promised"):
            self.counts[name] += getattr(report, name)

    def check_work(self) -> None:
        """Too little work done proves nothing."""
        for name, least in {"acknowledged": 25, "attempts": 25, "takeovers": 2, "crashes": 2, "promised": 1}.items():
            assert self.counts[name] >= least * self.seeds, f"too little happened in {self.seeds} seeds: {self}"
        assert self.contests >= self.seeds / 16, f"too few siblings were compared: {self}"
        assert self.counts["lost_attempts"] >= self.seeds / 2, f"too few attempts were lost: {self}"

    def __str__(self) -> str:
        return f"{self.seeds} seeds, {self.contests} contests: " + ", ".join(
            f"{value} {name}" for name, value in self.counts.items()
        )


def test_many_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    """As many of 200 seeds as can be run in the time that a test may take; how many is printed."""
    total, began = Total(), time.monotonic()
    for seed in range(SEEDS):
        if total.seeds >= LEAST_SEEDS and time.monotonic() - began > BOX:
            break
        total.add(run_world(seed))
    with capsys.disabled():
        print(f"\n{total} in {time.monotonic() - began:.1f} s", end=" ")
    total.check_work()


@pytest.mark.soak
def test_very_many_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    """100,000 seeds, or as many as DRR_WORLD_SEEDS says, from DRR_WORLD_FIRST on."""
    total, began = Total(), time.monotonic()
    seeds = range(SOAK_FIRST, SOAK_FIRST + SOAK_SEEDS)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as processes:
        try:
            for report in processes.map(run_world_briefly, seeds, chunksize=20):
                total.add(report)
                if total.seeds % 1000 == 0:
                    with capsys.disabled():
                        print(f"\n{total} in {time.monotonic() - began:.0f} s", end=" ")
        finally:
            processes.shutdown(cancel_futures=True)  # or a failure would wait for all the others
    total.check_work()


def run_world_briefly(seed: int) -> Report:
    """Run a world in another process; its history is not worth sending."""
    return replace(run_world(seed), history=[])


def digest(report: Report) -> str:
    return blake2b(repr(report.history).encode()).hexdigest()


@pytest.mark.parametrize("seed", range(2))
def test_a_seed_repeats_itself(seed: int) -> None:
    """Call by call, and in another process, where sets of strings have another order."""
    first, second = run_world(seed), run_world(seed)
    assert len(first.history) > 300
    assert first.history == second.history
    program = f"from tests.world.test_world import *; print(digest(run_world({seed})))"
    environment = {**os.environ, "PYTHONHASHSEED": str(seed + 1)}
    found = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
    )
    assert found.stdout.strip() == digest(first)


def test_other_seeds_are_other_worlds() -> None:
    assert len({digest(run_world(seed)) for seed in range(10)}) == 10


def test_a_failure_says_how_to_see_it_again() -> None:
    report = Report("17", wrong=["at 1.0: something"])
    assert replay("17") in str(report)
    assert "something" in str(report)
    with pytest.raises(pytest.fail.Exception, match=r"tests\.world 17"):
        Total().add(report)


def test_too_little_work_is_a_failure() -> None:
    total = Total()
    total.add(Report("1"))
    with pytest.raises(AssertionError, match="too little happened"):
        total.check_work()
