"""The verdict on a run under faults: each kind of damage is caught."""

from __future__ import annotations

from chaos.verdict import judge

STARTS = [("a", 1), ("b", 1), ("b", 2)]
ENDS = {"a": 1, "b": 2}


def test_a_job_that_was_lost_once_and_ran_again_is_well() -> None:
    verdict = judge(["a", "b"], STARTS, ENDS, 2)
    assert verdict.good
    assert verdict.jobs == 2


def test_an_acknowledged_job_without_an_end_is_lost() -> None:
    assert judge(["a", "b", "c"], STARTS, ENDS, 2).lost == 1
    assert not judge(["a", "b", "c"], STARTS, ENDS, 2).good
    assert judge(["a", "b", "c"], STARTS, ENDS, 2, lost_allowed=1).good


def test_a_success_counted_twice_is_a_duplicate() -> None:
    verdict = judge(["a", "b"], STARTS, ENDS, 3)
    assert verdict.duplicated_completions == 1
    assert not verdict.good


def test_an_end_by_an_attempt_that_was_replaced_is_a_stale_write() -> None:
    verdict = judge(["a", "b"], STARTS, {"a": 1, "b": 1}, 2)
    assert verdict.stale_writes == 1
    assert not verdict.good
