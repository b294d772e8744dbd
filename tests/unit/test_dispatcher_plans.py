"""Plans through a running dispatcher: live, by file, by API, by request, and over a takeover."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from drr.backend import Request, RequestKind
from drr.errors import BacklogFull, InvalidValue, NotLeading, PlansError, UnknownPlan
from drr.model import Lane, NodePolicy
from drr.plans import read_plans
from tests.helpers.site import Site

pytestmark = pytest.mark.anyio

FREE = 'default_plan = "free"\n[plans.free]\nhard_cap = 1\n[plans.pro]\nhard_cap = 3\n'
NEWCO = Lane("default", ("newco", "web"), 5)


async def running(site: Site) -> int:
    return len(site.held["w1"]) + len(await site.take())


async def test_an_unknown_organisation_is_on_the_default_plan_from_its_first_job_on() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        await site.join(slots=4)
        await site.submit(NEWCO, 4)
        assert len(await site.take()) == 1


async def test_a_change_acts_on_the_backlog_at_once() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        await site.join(slots=4)
        await site.submit(NEWCO, 4)
        assert len(await site.take()) == 1
        await dispatcher.assign("newco", plan="pro", by="billing")
        assert len(await site.take()) == 2
        await dispatcher.apply_plans(read_plans(FREE.replace("hard_cap = 3", "hard_cap = 4")), by="ada")
        assert len(await site.take()) == 1
        assert await site.take() == []
        log = await site.backend.changes()
        assert [(line.by, line.refused) for line in log] == [("ada", ""), ("billing", ""), ("", "")]
        assert "plans.pro.hard_cap 3 -> 4" in log[0].what
        assert log[1].what == "newco on plan pro"


async def test_it_is_set_like_an_attribute_too_and_a_mistake_changes_nothing() -> None:
    site = Site()
    async with site.dispatcher() as dispatcher:
        await dispatcher.wait_leading()
        dispatcher.plans = read_plans(FREE)
        await site.clock.advance(0.1)
        before = await site.backend.settings()
        assert before.plans == FREE
        with pytest.raises(PlansError):
            dispatcher.plans = "no/such/file.toml"
        with pytest.raises(UnknownPlan, match="did you mean pro"):
            await dispatcher.assign("newco", plan="por")
        with pytest.raises(InvalidValue):
            await dispatcher.assign("new co", plan="pro")
        with pytest.raises(InvalidValue):
            await dispatcher.assign("newco", plan="pro", by="x" * 201)
        await site.clock.advance(0.1)
        assert await site.backend.settings() == before
        assert dispatcher.plans is not None
        assert dispatcher.plans.text == FREE


@pytest.mark.parametrize("terms", [{"plan": 5}, {"plan": ["pro"]}, {"plan": "a b"}, {"plan": "pro", "by": 5}])
async def test_what_is_no_plan_or_name_never_reaches_the_loop(terms: dict[str, Any]) -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        with pytest.raises(InvalidValue):
            await dispatcher.assign("newco", **terms)
        await dispatcher.assign("newco", plan="pro")
        assert dispatcher.is_leader


async def test_a_refused_assignment_is_in_the_log() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        with pytest.raises(UnknownPlan):
            await dispatcher.assign("newco", plan="por", by="billing")
        await site.clock.advance(0.1)
        [refused, applied] = await site.backend.changes()
        assert (refused.by, refused.what) == ("billing", "newco on plan por")
        assert "did you mean pro" in refused.refused
        assert applied.refused == ""


async def test_plans_that_lack_a_plan_somebody_was_assigned_to_are_refused() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        await dispatcher.assign("acme", plan="pro")
        with pytest.raises(UnknownPlan):
            await dispatcher.apply_plans(read_plans("[plans.other]\n"), by="ada")
        await site.clock.advance(0.1)
        [refused, *_] = await site.backend.changes()
        assert "pro" in refused.refused
        assert (await site.backend.settings()).plans == FREE
        await dispatcher.assign("acme", plan=None)
        await dispatcher.apply_plans(read_plans("[plans.other]\n"))


async def test_plans_and_assignments_survive_a_takeover() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        await dispatcher.assign("newco", plan="pro")
    async with site.dispatcher(name="d2") as second:
        await second.wait_leading()
        await site.join(slots=4)
        await site.submit(NEWCO, 4)
        assert len(await site.take()) == 3


async def test_a_leadership_that_comes_back_undoes_nothing() -> None:
    """Plans are put into force once: what was applied since is not overruled by what the dispatcher began with."""
    site, later = Site(), FREE.replace("hard_cap = 3", "hard_cap = 4")
    async with site.dispatcher(plans=read_plans(FREE), leader_lease=1.0) as dispatcher:
        await dispatcher.wait_leading()
        await site.backend.request([Request(RequestKind.PLANS, "later.toml", later.encode(), "r1")])
        await site.clock.advance(1.0)
        assert (await site.backend.settings()).plans == later
        assert await site.backend.elect((await site.backend.leader()).token, "9:somebody")
        await site.clock.advance(1.0)
        assert (await site.backend.leader()).token == "9:somebody"
        await site.clock.advance(12.0)
        assert (await site.backend.leader()).token != "9:somebody", "it leads again"
        assert (await site.backend.settings()).plans == later
        assert len(await site.backend.changes()) == 2


async def test_what_was_set_for_one_tenant_comes_first() -> None:
    site = Site()
    async with site.dispatcher(plans=read_plans(FREE)) as dispatcher:
        await dispatcher.wait_leading()
        await site.join(slots=4)
        await dispatcher.set_policy("newco", NodePolicy(hard_cap=2))
        await site.submit(NEWCO, 4)
        assert len(await site.take()) == 2
        await dispatcher.set_policy("newco", None)
        assert len(await site.take()) == 0
        for attempt in list(site.held["w1"]):
            await site.finish(attempt)
        assert len(await site.take()) == 1


async def test_quotas_hold_in_the_store() -> None:
    site = Site()
    plans = read_plans('default_plan = "free"\n[plans.free]\nbacklog = 3\n[limits.db]\nconcurrency = 1\n')
    async with site.dispatcher(plans=plans) as dispatcher:
        await dispatcher.wait_leading()
        await site.clock.advance(0.1)
    await site.submit(NEWCO, 3)
    with pytest.raises(BacklogFull):
        await site.submit(NEWCO, 1)
    await site.submit(Lane("default", ("other", "web"), 5, ("db",)), 1)


async def test_requests_put_plans_into_force_or_are_refused_in_the_log() -> None:
    site = Site()
    async with site.dispatcher() as dispatcher:
        await dispatcher.wait_leading()
        await site.backend.request([Request(RequestKind.PLANS, "p.toml", FREE.encode(), "r1", "ada")])
        await site.backend.request(
            [Request(RequestKind.ASSIGN, "newco pro", id="r2"), Request(RequestKind.ASSIGN, "newco por", id="r3")]
        )
        await site.backend.request([Request(RequestKind.PLANS, "p.toml", b"[plans.free]\nweight = -1\n", "r4")])
        await site.clock.advance(1.0)
        log = {line.id: line for line in await site.backend.changes()}
        assert [bool(log[name].refused) for name in ("r1", "r2", "r3", "r4")] == [False, False, True, True]
        assert log["r1"].by == "ada"
        settings = await site.backend.settings()
        assert (settings.plans, settings.assigned) == (FREE, {"newco": "pro"})


async def test_a_standby_changes_nothing_and_applies_its_plans_when_it_leads() -> None:
    site = Site()
    async with site.dispatcher() as leader:
        await leader.wait_leading()
        async with site.dispatcher(name="d2", plans=read_plans(FREE)) as standby:
            await site.clock.advance(1.0)
            assert (await site.backend.settings()).plans == ""
            for change in (standby.apply_plans(read_plans(FREE)), standby.assign("newco", plan="pro")):
                with pytest.raises(NotLeading):
                    await change
            await site.backend.resign((await site.backend.leader()).token)
            await site.clock.advance(30.0)
            assert standby.is_leader
            assert (await site.backend.settings()).plans == FREE


async def test_a_watched_file_changes_everything_live_and_a_bad_one_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "plans.toml"
    file.write_text(FREE)
    site = Site()
    async with site.dispatcher(plans=file) as dispatcher:
        await dispatcher.wait_leading()

        async def until(holds: Callable[[], Awaitable[bool]]) -> None:
            with anyio.fail_after(60.0):  # the file is read by a thread, which takes what time it takes
                while not await holds():
                    await site.clock.advance(1.0)
                    await _let_threads_run()

        async def in_force(text: str) -> None:
            async def is_so() -> bool:
                return (await site.backend.settings()).plans == text

            await until(is_so)

        async def is_refused() -> bool:
            return "the plans stay as they are" in caplog.text

        await in_force(FREE)
        better = FREE.replace("hard_cap = 1", "hard_cap = 2")
        other = tmp_path / "new.toml"
        other.write_text(better)
        other.replace(file)  # as editors and orchestrators do
        await in_force(better)
        other.write_text("[plans.free]\nweight = 'x'\nhardcap = 1\n")
        other.replace(file)
        await until(is_refused)
        await site.clock.advance(10.0)
        assert (await site.backend.settings()).plans == better
        assert caplog.text.count("the plans stay as they are") == 1
        [refused, *_] = await site.backend.changes()
        assert "plans.free.weight" in refused.refused
        assert "hardcap" in refused.refused
        other.write_text(FREE)
        other.replace(file)
        await in_force(FREE)


async def _let_threads_run() -> None:
    import anyio.to_thread

    await anyio.to_thread.run_sync(lambda: None)


@pytest.mark.parametrize("wrong", ["missing.toml", "bad.toml"])
async def test_a_dispatcher_does_not_start_on_a_bad_file(tmp_path: Path, wrong: str) -> None:
    (tmp_path / "bad.toml").write_text("[plans.free]\nweight = -1\n")
    site: Any = Site()
    with pytest.raises(PlansError):
        site.dispatcher(plans=tmp_path / wrong)
