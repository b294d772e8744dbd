"""What a dispatcher is given, and what is changed while it runs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from drr.dispatcher import Dispatcher
from drr.errors import (
    InvalidConfiguration,
    InvalidName,
    InvalidPolicy,
    NotLeading,
    StoreUnavailable,
    UnknownBackend,
)
from drr.model import NodePolicy, PoolPolicy
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio


async def test_settings_bind_at_once_and_survive_a_takeover(site: Site) -> None:
    await site.join(slots=5)
    async with running(site) as dispatcher:
        await site.submit(number=9)
        await site.clock.settle()
        await dispatcher.set_policy("acme", NodePolicy(hard_cap=2))
        await dispatcher.set_pool("default", PoolPolicy(quantum=3.0))
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(hard_cap=2)
        assert site.store.settings.pools["default"] == PoolPolicy(quantum=3.0)
        running_now = len(site.store.leases)
    assert running_now == 5, "what runs is not preempted"
    async with running(site) as dispatcher:
        for attempt in await site.take():
            await site.finish(attempt)
        await site.clock.settle()
        assert len(site.store.leases) == 2
        await dispatcher.set_policy("acme", None)
        await site.clock.settle()
        assert len(site.store.leases) == 4


async def test_entitlements_given_at_the_start_are_stored(site: Site) -> None:
    """They replace what is stored for the nodes they name, once; later changes by the API outlive a reload."""
    async with running(site) as dispatcher:
        await dispatcher.set_policy("globex", NodePolicy(weight=7.0))
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    options: dict[str, Any] = {
        "pools": {"default": PoolPolicy(reserve=1)},
        "policies": {"default": {"acme": NodePolicy(weight=2.0), ("acme", "web"): NodePolicy(hard_cap=1)}},
    }
    async with running(site, backend=faulty, **options) as dispatcher:
        await site.clock.settle()
        nodes = site.store.settings.nodes["default"]
        assert nodes["acme",] == NodePolicy(weight=2.0)
        assert nodes["acme", "web"] == NodePolicy(hard_cap=1)
        assert nodes["globex",] == NodePolicy(weight=7.0)
        assert site.store.settings.pools["default"].reserve == 1
        await dispatcher.set_policy("acme", NodePolicy(weight=9.0))
        plan.fail_at = plan.calls + 1
        await site.join()
        await site.clock.advance(1.0)
        assert dispatcher.counters.reloads == 1
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(weight=9.0)


async def test_a_setting_whose_commit_failed_is_stored_by_the_next_leadership(site: Site) -> None:
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    async with running(site, backend=faulty) as dispatcher, anyio.create_task_group() as group:
        plan.fail_at = plan.calls + 1
        group.start_soon(dispatcher.set_policy, "acme", NodePolicy(weight=2.0))
        await site.clock.advance(1.0)
        assert plan.failed == ["commit"]
        assert site.store.settings.nodes["default"]["acme",] == NodePolicy(weight=2.0)


async def test_a_standby_refuses_changes(site: Site) -> None:
    async with running(site, name="d1"), running(site, name="d2") as two:
        with pytest.raises(NotLeading) as caught:
            await two.set_policy("acme", NodePolicy())
        assert caught.value.leader == site.store.leader.token


async def test_a_change_that_waits_when_another_takes_over_is_refused(site: Site) -> None:
    faulty = FaultyBackend(site.backend, plan := Plan())
    async with running(site, backend=faulty) as dispatcher:
        refused = []

        async def change() -> None:
            with pytest.raises(NotLeading):
                await dispatcher.set_policy("acme", NodePolicy(weight=2.0))
            refused.append(True)

        await site.backend.elect(site.store.leader.token, "99:usurper")
        async with anyio.create_task_group() as group:
            group.start_soon(change)
            await site.clock.advance(2.0)
        assert refused == [True]
        assert plan.failed == []


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"lease": 10.0, "heartbeat": 10.0}, InvalidConfiguration, ("10.0", "heartbeat")),
        ({"lease": 10.0, "heartbeat": 15.0}, InvalidConfiguration, ("15.0", "10.0")),
        ({"lease": 10.0, "heartbeat": 0.0}, InvalidConfiguration, ("0.0", "10.0")),
        ({"lease": 10.0, "heartbeat": float("nan")}, InvalidConfiguration, ("nan", "10.0")),
        ({"lease": 0.0}, InvalidConfiguration, ("lease",)),
        ({"lease": float("inf")}, InvalidConfiguration, ("lease",)),
        ({"leader_lease": 0.0}, InvalidConfiguration, ("leader lease",)),
        ({"leader_lease": -1.0}, InvalidConfiguration, ("leader lease", "-1")),
        ({"poison_after": 0}, InvalidConfiguration, ("poison_after",)),
        ({"depth": 0}, InvalidConfiguration, ("depth",)),
        ({"name": "no spaces"}, InvalidName, ("no spaces",)),
        ({"pools": {"a b": PoolPolicy()}}, InvalidName, ("a b",)),
        ({"pools": {"default": NodePolicy()}}, InvalidPolicy, ("PoolPolicy",)),
        ({"policies": {"default": {"a:b": NodePolicy()}}}, InvalidName, ("a:b",)),
        ({"policies": {"default": {"a/b/c": NodePolicy()}}}, InvalidPolicy, ("a/b/c", "2")),
        ({"policies": {"default": {"a": PoolPolicy()}}}, InvalidPolicy, ("NodePolicy",)),
    ],
)
async def test_settings_that_make_no_sense_are_refused(
    options: dict[str, Any], error: type[Exception], named: tuple[str, ...]
) -> None:
    """At construction, with the offending values in the message."""
    with pytest.raises(error) as caught:
        Dispatcher("memory://", **options)
    for text in named:
        assert text in str(caught.value)


async def test_an_unknown_scheme_is_refused() -> None:
    with pytest.raises(UnknownBackend):
        Dispatcher("postgres://localhost")


async def test_a_store_that_cannot_be_reached_is_an_error_at_the_start(site: Site) -> None:
    """Later it would be waited out; at the start the host should know."""
    faulty = FaultyBackend(site.backend, Plan(fail_at=1, only=frozenset({"prepare"})))
    with pytest.raises(StoreUnavailable):
        async with site.dispatcher(faulty):
            raise AssertionError("not entered")


async def test_settings_that_the_store_forgets_are_stored_again(site: Site) -> None:
    """It restarts from its log without the last second, in which the settings came: given ones and changed ones."""
    kept = site.store.settings
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    policies = {"default": {"acme": NodePolicy(hard_cap=1)}}
    async with running(site, backend=faulty, policies=policies) as dispatcher:
        await dispatcher.set_policy("globex", NodePolicy(weight=7.0))
        stored = site.store.settings
        assert set(stored.nodes["default"]) == {("acme",), ("globex",)}
        site.store.settings = kept
        plan.fail_at = plan.calls + 1
        await site.join()
        await site.clock.advance(1.0)
        assert dispatcher.counters.reloads == 1
        assert site.store.settings == stored


async def test_settings_that_were_changed_since_are_left_alone(site: Site) -> None:
    """After a minute the store has them for good: who sets them back to what they were has meant it."""
    kept = site.store.settings
    faulty = FaultyBackend(site.backend, plan := Plan(only=frozenset({"commit"})))
    async with running(site, backend=faulty, policies={"default": {"acme": NodePolicy(hard_cap=1)}}) as dispatcher:
        await site.clock.advance(61.0)
        site.store.settings = kept
        plan.fail_at = plan.calls + 1
        await site.join()
        await site.clock.advance(1.0)
        assert dispatcher.counters.reloads == 1
        assert site.store.settings == kept
