"""Learned estimates: how soon they are right, what cannot move them, and how much they remember."""

from __future__ import annotations

import random
from statistics import mean
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drr.core import estimates
from drr.core.estimates import FIRST, KEYS_KEPT, DefaultEstimate, Estimator, LearnedEstimate
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, TenantPath

ACME: TenantPath = ("acme", "imports")
MAIL: TenantPath = ("acme", "mail")
GLOBEX: TenantPath = ("globex", "main")


class Observes(Protocol):
    """What the checks drive: the real one and the control."""

    def estimate(self, path: TenantPath, task: str) -> float: ...
    def observe(self, path: TenantPath, task: str, actual: float) -> None: ...


class PlainMean:
    """Negative control: the mean of all that was seen."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def estimate(self, path: TenantPath, task: str) -> float:
        return mean(self.seen)

    def observe(self, path: TenantPath, task: str, actual: float) -> None:
        self.seen.append(actual)


def costs(seed: int, number: int, typical: float = 2.0, spread: float = 0.3) -> list[float]:
    rng = random.Random(seed)
    return [typical * rng.lognormvariate(0.0, spread) for _ in range(number)]


def feed(estimator: Observes, path: TenantPath, task: str, actuals: list[float]) -> None:
    for actual in actuals:
        estimator.observe(path, task, actual)


def test_falls_back_from_task_to_project_to_pool_to_default() -> None:
    learned: Estimator = LearnedEstimate(7.0)
    assert learned.estimate(ACME, "import") == 7.0
    learned.observe(ACME, "import", 3.0)
    assert learned.estimate(ACME, "import") == pytest.approx(3.0)
    assert learned.estimate(ACME, "other") == pytest.approx(3.0), "the project's"
    assert learned.estimate(GLOBEX, "import") == pytest.approx(3.0), "the pool's"
    default: Estimator = DefaultEstimate(5.0)
    default.observe(ACME, "import", 1.0)
    assert default.estimate(ACME, "import") == 5.0


@pytest.mark.parametrize("wrong", [0.001, 0.1, 10.0, 1000.0])
def test_a_wrong_start_is_right_after_a_few_observations(wrong: float) -> None:
    """However wrong the default: within a factor of 1.5 after `FIRST` observations, for jobs that vary by a third."""
    for seed in range(20):
        learned = LearnedEstimate(2.0 * wrong)
        feed(learned, ACME, "import", costs(seed, FIRST))
        assert 1 / 1.5 < learned.estimate(ACME, "import") / 2.0 < 1.5


@pytest.mark.parametrize("change", [0.1, 10.0])
def test_a_lasting_change_is_followed_within_a_hundred_and_fifty_observations(change: float) -> None:
    for seed in range(20):
        learned = LearnedEstimate(1.0)
        feed(learned, ACME, "import", costs(seed, 500))
        feed(learned, ACME, "import", costs(seed + 100, 150, 2.0 * change))
        assert 1 / 1.5 < learned.estimate(ACME, "import") / (2.0 * change) < 1.5


def shift_by_outliers(estimator: Observes) -> float:
    """Return by which factor five jobs of a thousand times the usual cost move an estimate."""
    actuals = costs(1, 200)
    feed(estimator, ACME, "import", actuals)
    before = estimator.estimate(ACME, "import")
    feed(estimator, ACME, "import", [2000.0] * 5)
    return estimator.estimate(ACME, "import") / before


def test_a_few_extreme_values_move_it_little() -> None:
    assert shift_by_outliers(LearnedEstimate(1.0)) < 1.5
    assert shift_by_outliers(PlainMean()) > 10.0, "the check would not find an estimate that is thrown about"


def test_one_tenant_s_outliers_do_not_move_the_fallback_of_others() -> None:
    """However many jobs it runs: in the pool's estimate each project counts once."""
    learned, plain = LearnedEstimate(1.0), PlainMean()
    for estimator in (learned, plain):
        for number in range(9):
            feed(estimator, (f"org{number}", "main"), "import", costs(number, 10))
    before = learned.estimate(GLOBEX, "import"), plain.estimate(GLOBEX, "import")
    for estimator in (learned, plain):
        feed(estimator, ("noisy", "main"), "import", [5000.0] * 500)
    assert learned.estimate(GLOBEX, "import") == pytest.approx(before[0], rel=0.2)
    assert learned.estimate(("org1", "main"), "import") == pytest.approx(2.0, rel=0.5)
    assert plain.estimate(GLOBEX, "import") > 10 * before[1], "the control is driven by one tenant"


@pytest.mark.source
def test_memory_is_bounded_and_the_least_recently_observed_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimates, "KEYS_KEPT", 100)
    learned = LearnedEstimate(1.0)
    for number in range(1000):
        learned.observe((f"org{number}", "main"), "import", 1.0 + number)
        learned.observe(ACME, "import", 5.0)
        assert len(learned) <= 100
    assert learned.estimate(ACME, "import") == pytest.approx(5.0), "whoever is active is remembered"
    changed = learned.changed()
    assert changed[("org0", "main"), "import"] is None, "what was forgotten is to be removed from the store"
    assert changed[("org999", "main"), "import"] is not None
    assert learned.changed() == {}
    assert KEYS_KEPT == 20_000


def test_restored_it_goes_on_as_before() -> None:
    learned = LearnedEstimate(1.0)
    feed(learned, ACME, "import", costs(1, 77))
    feed(learned, MAIL, "send", costs(2, 3, 0.1))
    stored = {key: figures for key, figures in learned.changed().items() if figures is not None}
    again = LearnedEstimate(1.0)
    again.restore(stored)
    for path, task in ((ACME, "import"), (MAIL, "send"), (MAIL, "other"), (GLOBEX, "import")):
        assert again.estimate(path, task) == learned.estimate(path, task)
    feed(learned, ACME, "import", costs(3, 50))
    feed(again, ACME, "import", costs(3, 50))
    assert again.estimate(ACME, "import") == learned.estimate(ACME, "import")


numbers = st.floats(allow_nan=True, allow_infinity=True)


@given(st.dictionaries(st.tuples(st.just(ACME), st.text(max_size=3)), st.lists(numbers, max_size=7).map(tuple)))
def test_nonsense_in_the_store_does_no_harm(stored: dict[tuple[TenantPath, str], tuple[float, ...]]) -> None:
    learned = LearnedEstimate(1.0)
    learned.restore(stored)
    for task in [task for _, task in stored] + ["", "new"]:
        assert ESTIMATE_MIN <= learned.estimate(ACME, task) <= ESTIMATE_MAX
        learned.observe(ACME, task, 1.0)


@given(st.lists(st.floats(min_value=0.0, max_value=1e12), min_size=1, max_size=120), st.floats(1e-3, 1e3))
def test_an_estimate_lies_among_what_was_seen_and_follows_the_unit(actuals: list[float], factor: float) -> None:
    learned, scaled = LearnedEstimate(1.0), LearnedEstimate(1.0)
    feed(learned, ACME, "import", actuals)
    found = learned.estimate(ACME, "import")
    low, high = (min(max(end, ESTIMATE_MIN), ESTIMATE_MAX) for end in (min(actuals), max(actuals)))
    assert low * (1 - 1e-9) <= found <= high * (1 + 1e-9)
    if all(1e-2 <= actual <= 1e4 for actual in actuals):
        feed(scaled, ACME, "import", [actual * factor for actual in actuals])
        assert scaled.estimate(ACME, "import") == pytest.approx(found * factor, rel=1e-6)
