"""The plans file: what it resolves to, and every way in which it can be wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from drr.core.scheduler import Job, Scheduler
from drr.errors import DrrError, InvalidValue, PlansError
from drr.model import NodePolicy, PoolPolicy, Quota, Settings, Share
from drr.plans import Plans, load_plans, read_plans
from tests.docs.markdown import blocks

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLE = DOCS / "examples" / "plans.toml"


@pytest.fixture(scope="module")
def example() -> Plans:
    return load_plans(EXAMPLE)


def refused(text: str) -> PlansError:
    with pytest.raises(PlansError) as caught:
        read_plans(text, source="plans.toml")
    return caught.value


# --- the worked example --------------------------------------------------------------------------------------


def test_the_example_names_its_plans_organisations_and_pools(example: Plans) -> None:
    assert example.names == ("free", "pro", "enterprise")
    assert example.organisations == ("globex", "initech", "acme", "hooli")
    assert example.default_plan == "free"
    assert example.pools == {
        "default": PoolPolicy(quantum=1.0, ceiling=60.0, reserve=1, default_estimate=0.5),
        "renders": PoolPolicy(quantum=30.0, ceiling=600.0, default_estimate=45.0, lease=120.0),
    }
    assert example.source == str(EXAMPLE)


def test_an_organisation_has_what_its_plan_says(example: Plans) -> None:
    assert example.policy(("globex",)) == NodePolicy(weight=5.0, soft_cap=Share(0.5))
    assert example.plan_of("globex") == "pro"


def test_an_organisation_overrides_parts_of_its_plan(example: Plans) -> None:
    assert example.policy(("initech",)) == NodePolicy(weight=8.0, soft_cap=Share(0.5))
    assert example.policy(("hooli",)) == NodePolicy(soft_cap=Share(0.05), hard_cap=None, ceiling=30.0)


def test_an_organisation_that_is_not_listed_is_on_the_default_plan(example: Plans) -> None:
    free = NodePolicy(soft_cap=Share(0.05), hard_cap=Share(0.25), ceiling=30.0)
    assert example.policy(("never-heard-of",)) == free
    assert example.plan_of("never-heard-of") == "free"


def test_projects_have_their_own_and_no_plan_of_their_organisation(example: Plans) -> None:
    assert example.policy(("acme", "imports")) == NodePolicy(hard_cap=10)
    assert example.policy(("acme", "mail")) == NodePolicy(weight=3.0)
    assert example.policy(("acme", "other")) == NodePolicy()
    assert example.policy(("never-heard-of", "x")) == NodePolicy()


def test_a_pool_of_its_own_terms(example: Plans) -> None:
    assert example.policy(("acme",)).floor == 2
    assert example.policy(("acme",), "renders") == NodePolicy(weight=20.0, floor=1)
    assert example.policy(("never-heard-of",), "renders").hard_cap == 1


def test_a_pool_that_the_file_does_not_name_has_what_holds_in_all_pools(example: Plans) -> None:
    assert example.policy(("acme",), "batch").floor == 2
    assert example.policy(("never-heard-of",), "batch").hard_cap == Share(0.25)
    assert example.pool("batch") == PoolPolicy()
    assert example.pool("renders") is example.pools["renders"]


def test_settings_hold_the_pools_and_the_listed_tenants(example: Plans) -> None:
    """The text is kept, and beside it what those need who do not read plans; single nodes stay as they were set."""
    base = Settings(nodes={"default": {("x",): NodePolicy(9.0)}}, pools={"default": PoolPolicy(5.0)})
    settings = example.settings(base)
    assert (settings.nodes, settings.pools) == (base.nodes, base.pools)
    assert read_plans(settings.plans).settings() == example.settings()
    assert settings.limits == example.limits
    for path in ((name,) for name in example.organisations):
        assert settings.quotas.get(path, settings.quotas.get(("*",), Quota())) == example.quota(path)


def test_the_core_takes_the_settings(example: Plans) -> None:
    scheduler = Scheduler(example.pool("default"), policy_of=lambda path: example.policy(path, "default"))
    scheduler.set_slots(40)
    scheduler.offer(Job(1, ("acme", "imports"), 1.0))
    assert scheduler.tree.nodes["acme", "imports"].hard == 10


def test_every_file_that_the_documentation_shows_can_be_read() -> None:
    shown = [block for block in blocks(DOCS / "plans.md") if block.language == "toml"]
    assert len(shown) >= 2
    for block in shown:
        read_plans(block.text, source=block.place)


def test_the_errors_that_the_documentation_shows_are_those() -> None:
    (shown,) = [block.text for block in blocks(DOCS / "plans.md") if block.language == "text"]
    text = "[plans.free]\nhard_cap = '250%'\n[plans.pro]\n[organisations.acme]\nplan = 'por'\nhardcap = 10"
    assert sorted(str(refused(text)).splitlines()) == sorted(shown.splitlines())


# --- resolving -----------------------------------------------------------------------------------------------


def test_an_empty_file_is_everybody_equal() -> None:
    plans = read_plans("")
    assert plans.policy(("acme",)) == plans.policy(()) == NodePolicy()
    assert plans.plan_of("acme") is None
    assert plans.pools == {"default": PoolPolicy()}
    assert plans.settings() == Settings()


def test_an_organisation_without_a_plan_is_on_the_default_plan() -> None:
    plans = read_plans("default_plan='a'\nplans.a.weight=3\norganisations.x.hard_cap=2\n")
    assert plans.policy(("x",)) == NodePolicy(weight=3.0, hard_cap=2)
    assert plans.plan_of("x") == "a"


def test_a_project_may_be_on_a_plan_and_override_it() -> None:
    plans = read_plans("plans.a = {weight=3, hard_cap='10%'}\norganisations.x.projects.p = {plan='a', weight=4}\n")
    assert plans.policy(("x", "p")) == NodePolicy(weight=4.0, hard_cap=Share(0.1))
    assert plans.policy(("x",)) == NodePolicy()


def test_the_narrower_word_wins() -> None:
    """Plan, plan in a pool, organisation, organisation in a pool: each replaces what the ones before say."""
    plans = read_plans(
        """
        default_plan = "a"
        [plans.a]
        weight = 1
        pools.p.weight = 2
        pools.q.weight = 2
        [organisations.x]
        weight = 3
        pools.p.weight = 4
        [pools.p]
        [pools.q]
        """
    )
    assert [plans.policy(("y",), pool).weight for pool in ("default", "p", "q")] == [1, 2, 2]
    assert [plans.policy(("x",), pool).weight for pool in ("default", "p", "q")] == [3, 4, 3]


@pytest.mark.parametrize(
    ("written", "cap"), [("3", 3), ("'3'", 3), ("'20%'", Share(0.2)), ("'12.5%'", Share(0.125)), ("'none'", None)]
)
def test_a_cap_is_a_number_a_share_or_none(written: str, cap: object) -> None:
    assert read_plans(f"organisations.x.hard_cap = {written}").policy(("x",)).hard_cap == cap


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "key", "value", "rule"),
    [
        ("plans.a.weight = 0", "plans.a.weight", 0, "between 0.001 and"),
        ("plans.a.weight = '3'", "plans.a.weight", "3", "must be a number"),
        ("plans.a.weight = true", "plans.a.weight", True, "must be a number"),
        ("plans.a.weight = nan", "plans.a.weight", None, "finite number"),
        ("plans.a.weight = inf", "plans.a.weight", float("inf"), "finite number"),
        ("plans.a.hard_cap = 0", "plans.a.hard_cap", 0, "at least 1"),
        ("plans.a.hard_cap = 1.5", "plans.a.hard_cap", 1.5, "whole number of jobs or a share"),
        ("plans.a.hard_cap = true", "plans.a.hard_cap", True, "whole number of jobs or a share"),
        ("plans.a.soft_cap = '120%'", "plans.a.soft_cap", "120%", "between 0 and 100"),
        ("plans.a.soft_cap = 'lots'", "plans.a.soft_cap", "lots", "whole number of jobs or a share"),
        ("plans.a.floor = -1", "plans.a.floor", -1, "at least 0"),
        ("plans.a.floor = 'none'", "plans.a.floor", "none", "whole number of jobs or a share"),
        ("plans.a.ceiling = -1", "plans.a.ceiling", -1, "between 0 and"),
        ("plans.a.pools.default.hard_cap = 0", "plans.a.pools.default.hard_cap", 0, "at least 1"),
        ("plans.a = {soft_cap=5, hard_cap=3}", "plans.a.soft_cap", "5", "not be above the hard cap (3)"),
        ("plans.a = {floor='20%', soft_cap='5%'}", "plans.a.floor", "20%", "not be above the soft cap (5%)"),
        ("pools.p.quantum = 0", "pools.p.quantum", 0, "between 0.001 and"),
        ("pools.p.reserve = 1.5", "pools.p.reserve", 1.5, "whole number"),
        ("pools.p.reserve = '10%'", "pools.p.reserve", "10%", "whole number"),
        ("pools.p.reserve = -1", "pools.p.reserve", -1, "at least 0"),
        ("pools.p.default_estimate = 0", "pools.p.default_estimate", 0, "between"),
        ("organisations.x.projects.p.hard_cap = 0", "organisations.x.projects.p.hard_cap", 0, "at least 1"),
        ("organisations.'a:b'.weight = 1", 'organisations."a:b"', "a:b", "letters, digits and _ - . @"),
        ("organisations.x.projects.'' = {}", 'organisations.x.projects.""', "", "1 to 128 characters"),
        ("plans.'a b' = {}", 'plans."a b"', "a b", "letters, digits"),
        ("pools.'*' = {}", 'pools."*"', "*", "letters, digits"),
        ("organisations.'a.b'.weight = 0", 'organisations."a.b".weight', 0, "between"),
        ("default_plan = 3", "default_plan", 3, "name in quotes"),
        ("plans = 3", "plans", 3, "must be a table: [plans]"),
        ("plans.a = 3", "plans.a", 3, "must be a table: [plans.a]"),
        ("[[organisations]]", "organisations", [{}], "must be a table"),
        ("[organisations.x]\nplan = 'pr'\n[plans.pro]", "organisations.x.plan", "pr", "did you mean pro?"),
        ("[organisations.x]\nplan = 'zzz'\n[plans.pro]", "organisations.x.plan", "zzz", "known: pro"),
        ("organisations.x.plan = 'pro'", "organisations.x.plan", "pro", "known: none"),
        ("organisations.x.projects.p.plan = 'pro'", "organisations.x.projects.p.plan", "pro", "no such plan"),
        ("default_plan = 'pro'", "default_plan", "pro", "no such plan"),
        ("plans.a.pools.render = {}\npools.renders = {}", "plans.a.pools", "render", "did you mean renders?"),
        ("organisations.x.pools.q = {}", "organisations.x.pools", "q", "known: default"),
        ("plans.a.hardcap = 3", "plans.a.hardcap", 3, "did you mean hard_cap?"),
        ("plans.a.submit_rate = 5", "plans.a.submit_rate", 5, "no such key; known: weight"),
        ("plans.a.plan = 'b'", "plans.a.plan", "b", "no such key"),
        ("pools.p.weight = 5", "pools.p.weight", 5, "known: quantum"),
        ("organisation.x.weight = 5", "organisation", {"x": {"weight": 5}}, "did you mean organisations?"),
        ("organisations.x.project.p = {}", "organisations.x.project", {"p": {}}, "did you mean projects or"),
        (
            "organisations.x.projects.p.projects.q = {}",
            "organisations.x.projects.p.projects",
            {"q": {}},
            "no such key",
        ),
    ],
)
def test_a_wrong_value_is_named(text: str, key: str, value: object, rule: str) -> None:
    error = refused(text)
    (problem,) = error.problems
    assert problem.key == key
    assert value is None or problem.value == value
    assert rule in problem.rule
    assert str(error).startswith(f"plans.toml: {key} is ")


def test_all_problems_are_named_at_once_one_on_each_line() -> None:
    error = refused(
        "default_plan = 'b'\nplans.a.weight = 0\nplans.a.colour = 'red'\n"
        "organisations.x.hard_cap = 0\npools.p.reserve = 'x'"
    )
    assert [problem.key for problem in error.problems] == [
        "plans.a.weight",
        "plans.a.colour",
        "organisations.x.hard_cap",
        "pools.p.reserve",
        "default_plan",
    ]
    assert len(str(error).splitlines()) == 5
    assert (error.what, error.value) == ("plans.toml: plans.a.weight", 0)


def test_an_override_that_contradicts_the_plan_is_named_where_it_stands() -> None:
    error = refused("plans.a.hard_cap = 3\norganisations.x = {plan='a', soft_cap=5}\norganisations.y.plan='a'\n")
    assert [problem.key for problem in error.problems] == ["organisations.x.soft_cap"]


def test_a_contradiction_in_one_pool_names_the_pool() -> None:
    error = refused("plans.a = {hard_cap=3, pools.p.soft_cap=5}\npools.p = {}\n")
    (problem,) = error.problems
    assert (problem.key, problem.rule) == ("plans.a.soft_cap", "it must not be above the hard cap (3) (in pool p)")


def test_a_plan_that_contradicts_itself_is_named_once() -> None:
    error = refused(
        "default_plan='a'\nplans.a = {hard_cap=3, soft_cap=5}\n[organisations.x]\n[organisations.y]\n[pools.p]"
    )
    assert [problem.key for problem in error.problems] == ["plans.a.soft_cap"]


@pytest.mark.parametrize(
    ("text", "key", "shown"),
    [
        ("[plans.a]\nweight 3\n", "line 2, column 8", "'weight 3'"),
        ("a = [", "line 1, the last,", "'a = ['"),
        ("", None, ""),
        ("[plans.a]\n[plans.a]\n", "line 2, column 9", "'[plans.a]'"),
        ("x = " + "[" * 50_000, "the file", "nests deeper"),
        ("plans.a.weight = 1" + "0" * 5_000, "the file", "it is not TOML"),
    ],
)
def test_what_is_not_toml_is_named_by_line_and_column(text: str, key: str | None, shown: str) -> None:
    if key is None:
        assert read_plans(text).names == ()
        return
    error = refused(text)
    assert error.problems[0].key == key
    assert shown in str(error)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "plans.toml"
    with pytest.raises(PlansError, match="cannot be read: No such file") as caught:
        load_plans(missing)
    assert caught.value.file == str(missing)
    with pytest.raises(PlansError, match="cannot be read: Is a directory"):
        load_plans(tmp_path)


def test_bytes_that_are_no_text_are_named_by_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "plans.toml"
    path.write_bytes(b"[plans.a]\nweight = \xff3\n")
    with pytest.raises(PlansError, match=r"line 2, column 10 is b'.xff3.n', but TOML is text in UTF-8"):
        load_plans(path)


def test_the_error_is_one_of_ours() -> None:
    assert issubclass(PlansError, InvalidValue)
    assert issubclass(PlansError, DrrError)
    assert issubclass(PlansError, ValueError)
