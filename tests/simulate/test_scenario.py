"""Scenario files: the traffic that they draw, and what is refused."""

from __future__ import annotations

import itertools
import tracemalloc
from math import inf, log
from pathlib import Path
from statistics import fmean, median, stdev

import pytest

from drr.errors import TraceError
from drr.simulate.scenario import BYTES_MAX
from drr.simulate.trace import Arrival, Demand, Source, open_source
from tests.docs.markdown import ROOT, blocks
from tests.simulate.generate import write

ONE_BULK = '{ kind = "bulk", jobs = 1 }'
SECOND = '{ kind = "constant", seconds = 1 }'
POISSON = '{ kind = "poisson", rate = 2.0, end = 100 }'
LOGNORMAL = '{ kind = "lognormal", median = 0.5, sigma = 0.4 }'


def tenant(organisation: str = "acme", arrivals: str = ONE_BULK, durations: str = SECOND, *more: str) -> str:
    lines = [f'organisation = "{organisation}"', f"arrivals = {arrivals}", f"durations = {durations}", *more]
    return "\n".join(["[[tenants]]", *lines, ""])


def scenario(tmp_path: Path, text: str, *, speedup: float = 1.0, until: float = inf, seed: int = 0) -> Source:
    path = write(tmp_path / "s.toml", text)
    return open_source(str(path), speedup=speedup, until=until, seed=seed)


def refusal(tmp_path: Path, text: str) -> TraceError:
    with pytest.raises(TraceError) as caught:
        list(scenario(tmp_path, text))
    error = caught.value
    assert error.file == str(tmp_path / "s.toml")
    assert error.file in str(error)
    assert error.rule in str(error)
    assert len(str(error)) < 1000
    return error


# --- when jobs arrive --------------------------------------------------------------------------------------


def times(source: Source) -> list[float]:
    return [job.at for job in source]


def test_bulk(tmp_path: Path) -> None:
    source = scenario(tmp_path, tenant(arrivals='{ kind = "bulk", jobs = 3, at = 5 }'))
    assert list(source) == [Arrival(5.0, 1.0, 1.0, ("acme", "main"))] * 3
    assert source.demand() == Demand(jobs=3, worker_seconds=3.0, span=5.0, longest=1.0)


def test_periodic(tmp_path: Path) -> None:
    every = '{ kind = "periodic", every = 2.5, start = 1, end = 8.5 }'
    assert times(scenario(tmp_path, tenant(arrivals=every))) == [1.0, 3.5, 6.0], "the end is not part of it"


def test_periodic_batches_and_number_of_jobs(tmp_path: Path) -> None:
    every = '{ kind = "periodic", every = 2, batch = 2, jobs = 5 }'
    assert times(scenario(tmp_path, tenant(arrivals=every))) == [0.0, 0.0, 2.0, 2.0, 4.0]


def test_periodic_ticks_do_not_drift(tmp_path: Path) -> None:
    every = '{ kind = "periodic", every = 0.1, jobs = 10_001 }'
    assert times(scenario(tmp_path, tenant(arrivals=every)))[-1] == 1000.0


def test_poisson(tmp_path: Path) -> None:
    given = '{ kind = "poisson", rate = 5, start = 100, end = 2_100 }'
    found = times(scenario(tmp_path, tenant(arrivals=given)))
    gaps = [after - before for before, after in itertools.pairwise(found)]
    assert found[0] >= 100.0
    assert found[-1] < 2100.0
    assert len(found) == pytest.approx(10_000, rel=0.05)
    assert fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert stdev(gaps) == pytest.approx(0.2, rel=0.05), "of an exponential distribution it is the mean"


def test_poisson_number_of_jobs(tmp_path: Path) -> None:
    assert len(times(scenario(tmp_path, tenant(arrivals='{ kind = "poisson", rate = 5, jobs = 7 }')))) == 7


# --- how long they take, and the estimates -----------------------------------------------------------------


def durations(tmp_path: Path, given: str) -> list[float]:
    return [
        job.duration for job in scenario(tmp_path, tenant(arrivals='{ kind = "bulk", jobs = 5000 }', durations=given))
    ]


def test_constant(tmp_path: Path) -> None:
    assert set(durations(tmp_path, '{ kind = "constant", seconds = 0.25 }')) == {0.25}


def test_lognormal(tmp_path: Path) -> None:
    found = durations(tmp_path, LOGNORMAL)
    assert median(found) == pytest.approx(0.5, rel=0.05)
    assert stdev(map(log, found)) == pytest.approx(0.4, rel=0.05)


def test_lognormal_stays_in_range(tmp_path: Path) -> None:
    found = durations(tmp_path, '{ kind = "lognormal", median = 1, sigma = 10 }')
    assert min(found) == 1e-6, "and none is 0"
    assert max(found) <= 1e12


def test_uniform(tmp_path: Path) -> None:
    found = durations(tmp_path, '{ kind = "uniform", low = 2, high = 4 }')
    assert 2.0 <= min(found) < 2.05
    assert 3.95 < max(found) <= 4.0
    assert fmean(found) == pytest.approx(3.0, rel=0.05)


@pytest.mark.parametrize(
    ("estimates", "expected"),
    [
        ("", 8.0),
        ('estimates = { kind = "exact" }', 8.0),
        ('estimates = { kind = "factor", factor = 0.1 }', 0.8),
        ('estimates = { kind = "none" }', None),
    ],
)
def test_estimates(tmp_path: Path, estimates: str, expected: float | None) -> None:
    (job,) = scenario(tmp_path, tenant("acme", ONE_BULK, '{ kind = "constant", seconds = 8 }', estimates))
    assert job.estimate == (None if expected is None else pytest.approx(expected))


def test_estimates_stay_in_range(tmp_path: Path) -> None:
    """What a client could not submit does not come out of a scenario either."""
    given = tenant("acme", ONE_BULK, '{ kind = "constant", seconds = 1e9 }')
    (job,) = scenario(tmp_path, given)
    assert job.estimate == 1e8


# --- who -----------------------------------------------------------------------------------------------------


def test_copies(tmp_path: Path) -> None:
    given = tenant("shop", ONE_BULK, SECOND, "organisations = 2", 'project = "mail"', "projects = 2")
    assert [job.path for job in scenario(tmp_path, given)] == [
        ("shop-1", "mail-1"),
        ("shop-1", "mail-2"),
        ("shop-2", "mail-1"),
        ("shop-2", "mail-2"),
    ]


def test_tenants_are_merged_by_time(tmp_path: Path) -> None:
    """At one instant the order is that of the file."""
    given = tenant("a", '{ kind = "periodic", every = 2, jobs = 3 }') + tenant(
        "b", '{ kind = "periodic", every = 1, jobs = 3 }'
    )
    found = [(job.at, job.path[0]) for job in scenario(tmp_path, given)]
    assert found == [(0.0, "a"), (0.0, "b"), (1.0, "b"), (2.0, "a"), (2.0, "b"), (4.0, "a")]


# --- the seed ------------------------------------------------------------------------------------------------


def of(organisation: str, source: Source) -> list[Arrival]:
    return [job for job in source if job.path[0] == organisation]


def test_the_same_seed_draws_the_same(tmp_path: Path) -> None:
    text = tenant("a", POISSON, LOGNORMAL) + tenant("b", POISSON, LOGNORMAL)
    source = scenario(tmp_path, text, seed=1)
    first = list(source)
    assert list(source) == first, "each time it is read"
    assert list(scenario(tmp_path, text, seed=1)) == first
    assert list(scenario(tmp_path, text, seed=2)) != first


def test_tenants_draw_apart(tmp_path: Path) -> None:
    source = scenario(tmp_path, tenant("a", POISSON, LOGNORMAL, "organisations = 2"))
    assert times(source)
    one, two = ([job.at for job in of(name, source)] for name in ("a-1", "a-2"))
    assert not set(one) & set(two)


def test_other_tenants_do_not_change_anybodys_traffic(tmp_path: Path) -> None:
    alone = of("b", scenario(tmp_path, tenant("b", POISSON, LOGNORMAL)))
    more = tenant("a", POISSON, LOGNORMAL) + tenant("b", POISSON, LOGNORMAL) + tenant("c", POISSON, LOGNORMAL)
    assert of("b", scenario(tmp_path, more)) == alone


def test_one_tenant_in_two_tables_draws_twice(tmp_path: Path) -> None:
    once = scenario(tmp_path, tenant("a", POISSON, LOGNORMAL)).demand().jobs
    found = times(scenario(tmp_path, tenant("a", POISSON, LOGNORMAL) * 2))
    assert len(found) > 1.5 * once
    assert len(set(found)) == len(found)


# --- workers and faults --------------------------------------------------------------------------------------


def test_workers_as_a_number(tmp_path: Path) -> None:
    assert list(scenario(tmp_path, "workers = 20\n" + tenant()).slots) == [(0.0, 20)]


def test_workers_over_time(tmp_path: Path) -> None:
    given = "workers = [{ at = 0, slots = 10 }, { at = 60, slots = 0 }, { at = 90.5, slots = 40 }]\n"
    assert list(scenario(tmp_path, given + tenant()).slots) == [(0.0, 10), (60.0, 0), (90.5, 40)]


def test_workers_need_not_be_said(tmp_path: Path) -> None:
    source = scenario(tmp_path, tenant())
    assert list(source.slots) == list(source.faults) == []


def test_faults_come_in_order(tmp_path: Path) -> None:
    given = "faults = [{ at = 300, lose = 5 }, { at = 10, lose = 1 }]\n"
    assert list(scenario(tmp_path, given + tenant()).faults) == [(10.0, 1), (300.0, 5)]


def test_speedup_and_until(tmp_path: Path) -> None:
    text = "workers = [{ at = 0, slots = 1 }, { at = 60, slots = 2 }]\nfaults = [{ at = 30, lose = 1 }]\n"
    text += tenant(arrivals='{ kind = "periodic", every = 10 , end = 1_000 }')
    source = scenario(tmp_path, text, speedup=10.0, until=3.0)
    assert list(source.slots) == [(0.0, 1), (6.0, 2)]
    assert list(source.faults) == [(3.0, 1)]
    assert list(source) == [Arrival(float(at), 1.0, 1.0, ("acme", "main")) for at in range(4)]


# --- size ------------------------------------------------------------------------------------------------------


def test_a_bulk_is_not_held(tmp_path: Path) -> None:
    """Of two million jobs, as of any others, one at a time is in memory."""
    text = tenant("importer", '{ kind = "bulk", jobs = 2_000_000 }', LOGNORMAL) + tenant("shop", POISSON)
    source = scenario(tmp_path, text)
    tracemalloc.start()
    try:
        read = sum(1 for _ in itertools.islice(source, 20_000))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == 20_000
    assert peak < 500_000


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "rule"),
    [
        ("", "tenants", "1 to"),
        ("workers = 0\n" + tenant(), "workers", "1 to"),
        ("workers = true\n" + tenant(), "workers", "whole number"),
        ("workers = 2.5\n" + tenant(), "workers", "whole number"),
        ("workers = []\n" + tenant(), "workers", "begin at 0"),
        ("workers = [{ at = 1, slots = 2 }]\n" + tenant(), "workers", "begin at 0"),
        ("workers = [{ at = 0, slots = 2 }, { at = 0, slots = 3 }]\n" + tenant(), "workers", "rise"),
        ("workers = [{ at = 0, slots = 0 }]\n" + tenant(), "workers", "a slot"),
        ("workers = [{ at = 0 }]\n" + tenant(), "workers[0]", "slots"),
        ("workers = [5]\n" + tenant(), "workers[0]", "a table"),
        ("faults = 3\n" + tenant(), "faults", "a list"),
        ("faults = [{ at = -1, lose = 1 }]\n" + tenant(), "faults[0].at", "0 to"),
        ("faults = [{ at = 1, lose = 0 }]\n" + tenant(), "faults[0].lose", "1 to"),
        ("faults = [{ at = 1, lose = 1, slots = 1 }]\n" + tenant(), "faults[0].slots", "at, lose"),
        ("worker = 3\n" + tenant(), "worker", "workers"),
        ("tenants = 1", "tenants", "a list"),
        ("tenants = [1]", "tenants[0]", "a table"),
        ("[[tenants]]", "tenants[0].organisation", "letters"),
        (tenant("a b"), "tenants[0].organisation", "letters"),
        (tenant() + tenant("acme", ONE_BULK, SECOND, 'project = "a/b"'), "tenants[1].project", "letters"),
        (tenant("acme", ONE_BULK, SECOND, "organisations = 0"), "tenants[0].organisations", "1 to"),
        (tenant("acme", ONE_BULK, SECOND, "projects = 2_000_000"), "tenants[0].projects", "1 to"),
        (tenant("acme", ONE_BULK, SECOND, "organisations = 2_000", "projects = 2_000"), "tenants[0]", "at most"),
        (tenant("acme", ONE_BULK, SECOND, "rate = 3"), "tenants[0].rate", "arrivals"),
        (tenant(arrivals="3"), "tenants[0].arrivals", "bulk, poisson, periodic"),
        (tenant(arrivals='{ kind = "flood" }'), "tenants[0].arrivals", "bulk, poisson, periodic"),
        (tenant(arrivals='{ kind = "bulk" }'), "tenants[0].arrivals", "needs jobs"),
        (tenant(arrivals='{ kind = "bulk", jobs = 1.0 }'), "tenants[0].arrivals.jobs", "whole number"),
        (tenant(arrivals='{ kind = "bulk", jobs = 1, at = nan }'), "tenants[0].arrivals.at", "0 to"),
        (tenant(arrivals='{ kind = "bulk", jobs = 1, at = inf }'), "tenants[0].arrivals.at", "0 to"),
        (tenant(arrivals='{ kind = "bulk", jobs = 1, at = "now" }'), "tenants[0].arrivals.at", "a number"),
        (tenant(arrivals=f'{{ kind = "bulk", jobs = 1{"0" * 400} }}'), "tenants[0].arrivals.jobs", "1 to"),
        (tenant(arrivals='{ kind = "poisson", rate = 1 }'), "tenants[0].arrivals", "end or jobs"),
        (tenant(arrivals='{ kind = "poisson", rate = 0, end = 1 }'), "tenants[0].arrivals.rate", "1e-09"),
        (tenant(arrivals='{ kind = "periodic", every = 1 }'), "tenants[0].arrivals", "end or jobs"),
        (tenant(arrivals='{ kind = "periodic", every = 0, end = 1 }'), "tenants[0].arrivals.every", "1e-06"),
        (tenant(durations='{ kind = "constant", seconds = 0 }'), "tenants[0].durations.seconds", "1e-06"),
        (tenant(durations='{ kind = "uniform", low = 2, high = 1 }'), "tenants[0].durations.low", "at most high"),
        (tenant(durations='{ kind = "lognormal", median = 1 }'), "tenants[0].durations", "sigma"),
        (tenant("acme", ONE_BULK, SECOND, 'estimates = "exact"'), "tenants[0].estimates", "exact, factor, none"),
        (
            tenant("acme", ONE_BULK, SECOND, 'estimates = { kind = "factor", factor = -1 }'),
            "tenants[0].estimates.factor",
            "1e-06",
        ),
    ],
)
def test_a_value_that_is_refused(tmp_path: Path, text: str, key: str, rule: str) -> None:
    error = refusal(tmp_path, text)
    assert error.column == key
    assert rule in error.rule


def test_nothing_drawn_is_an_empty_trace(tmp_path: Path) -> None:
    text = tenant(arrivals='{ kind = "poisson", rate = 1, start = 5, end = 5 }')
    assert "at least one job" in refusal(tmp_path, text).rule


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("workers = 3\n[[tenants]\n", 2),
        ("workers = 3\nworkers = 4\n", 2),
        ("workers = 3\n\norganisation = [", 3),
        ("workers = " + "9" * 5000, 1),
    ],
)
def test_text_that_is_no_toml(tmp_path: Path, text: str, line: int) -> None:
    error = refusal(tmp_path, text)
    assert error.line == line
    assert "not TOML" in error.rule


def test_deep_nesting(tmp_path: Path) -> None:
    assert "nests" in refusal(tmp_path, "workers = " + "[" * 100_000).rule


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_bytes(b'workers = 3\n\nname = "\xff"\n')
    with pytest.raises(TraceError, match=r"line 3.*UTF-8"):
        open_source(str(path))


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    assert "at most" in refusal(tmp_path, "#" * (BYTES_MAX + 1)).rule


# --- the documentation ---------------------------------------------------------------------------------------


def test_the_documented_scenario_runs(tmp_path: Path) -> None:
    page = blocks(ROOT / "docs" / "traces.md")
    (text,) = [block.text for block in page if block.language == "toml" and "[[tenants]]" in block.text]
    source = scenario(tmp_path, text)
    assert source.slots
    assert source.faults
    assert source.demand().jobs > 1000
    assert len({job.path for job in source}) > 10
