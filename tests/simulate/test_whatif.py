"""Who gains and who loses, and what comes first."""

from __future__ import annotations

import json

import pytest

from drr.simulate.whatif import Change, Pair, Verdict, compare, counted, side_by_side, to_json
from tests.simulate.samples import policy, run, tenant


def one(before: dict[str, float], after: dict[str, float]) -> Change:
    old, new = tenant(("acme",), **before), tenant(("acme",), **after)  # type: ignore[arg-type]
    (change,) = compare(policy("a", [old]), policy("b", [new]))
    return change


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ({"p99": 10.0}, {"p99": 5.0}, Verdict.GAINS),
        ({"p99": 10.0}, {"p99": 15.0}, Verdict.LOSES),
        ({"p99": 10.0}, {"p99": 10.0}, Verdict.SAME),
        ({"p99": 10.0, "p50": 1.0}, {"p99": 15.0, "p50": 0.1}, Verdict.LOSES),
        ({"p50": 1.0}, {"p50": 0.5}, Verdict.GAINS),
        ({"p50": 1.0}, {"p50": 2.0}, Verdict.LOSES),
        ({"p50": 1.0, "share": 0.9}, {"p50": 0.5, "share": 0.1}, Verdict.GAINS),
        ({"share": 0.2}, {"share": 0.3}, Verdict.GAINS),
        ({"share": 0.3}, {"share": 0.2}, Verdict.LOSES),
        ({"p99": 1000.0}, {"p99": 1005.0}, Verdict.SAME),
        ({"p99": 0.0002}, {"p99": 0.0009}, Verdict.SAME),
        ({"p99": 0.0}, {"p99": 0.002}, Verdict.LOSES),
        ({"share": 0.0}, {"share": 0.0005}, Verdict.SAME),
        ({"share": 0.0, "backlogged": 0.0}, {"share": 0.5}, Verdict.SAME),
    ],
)
def test_less_wait_is_a_gain_and_noise_is_none(
    before: dict[str, float], after: dict[str, float], verdict: Verdict
) -> None:
    assert one(before, after).verdict is verdict


def test_the_largest_change_comes_first_whether_gain_or_loss() -> None:
    names = ("a", "b", "c", "d", "e")
    before = [tenant((name,), p99=100.0) for name in names]
    after = [tenant((name,), p99=wait) for name, wait in zip(names, (100.0, 130.0, 20.0, 110.0, 100.0), strict=True)]
    changes = compare(policy("x", before), policy("y", after))
    assert [change.path[0] for change in changes] == ["c", "b", "d", "a", "e"]
    assert counted(changes) == {Verdict.GAINS: 1, Verdict.LOSES: 2, Verdict.SAME: 2}


def test_equal_waits_are_ordered_by_median_and_share() -> None:
    before = [tenant((name,)) for name in "abc"]
    after = [tenant(("a",)), tenant(("b",), share=0.9), tenant(("c",), p50=3.0)]
    assert [change.path for change in compare(policy("x", before), policy("y", after))] == [("c",), ("b",), ("a",)]


def test_projects_are_compared_when_asked_for() -> None:
    rows = [tenant(("a",)), tenant(("a", "p"))]
    both = policy("x", rows), policy("y", rows)
    assert [change.path for change in compare(*both)] == [("a",)]
    assert [change.path for change in compare(*both, depth=2)] == [("a",), ("a", "p")]


def test_a_tenant_of_one_run_only_is_listed_with_nothing_to_compare() -> None:
    changes = compare(policy("x", [tenant(("old",))]), policy("y", [tenant(("new",), jobs=3)]))
    assert {change.path: (change.jobs, change.wait_p99) for change in changes} == {
        ("old",): (20, Pair(10.0, None)),
        ("new",): (3, Pair(None, 10.0)),
    }
    assert {change.verdict for change in changes} == {Verdict.SAME}
    assert all(change.wait_p99.change is None for change in changes)


def test_the_json_has_the_order_and_both_sides() -> None:
    changes = compare(policy("x", [tenant(("a",), p99=5.0)]), policy("y", [tenant(("a",), p99=9.0, backlogged=0.0)]))
    assert json.loads(json.dumps(to_json(changes), allow_nan=False)) == [
        {
            "tenant": "a",
            "verdict": "loses",
            "jobs": 20,
            "wait_p50_s": {"before": 1.0, "after": 1.0},
            "wait_p99_s": {"before": 5.0, "after": 9.0},
            "share": {"before": 0.5, "after": None},
        }
    ]


def test_two_runs_become_one_under_two_names() -> None:
    made = side_by_side(run("drr"), run("drr"), ("today.toml", "proposed.toml"))
    assert list(made.policies) == ["today.toml", "proposed.toml"]
    assert [result.name for result in made.policies.values()] == ["today.toml", "proposed.toml"]
    assert (made.trace, made.workers) == ("tuesday.csv.gz", 42)
    assert made.seconds == 1.0


def test_two_files_of_one_name_are_told_apart() -> None:
    made = side_by_side(run("drr"), run("drr"), ("plans.toml", "plans.toml"))
    assert list(made.policies) == ["plans.toml (before)", "plans.toml (after)"]
