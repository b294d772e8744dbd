"""A dispatcher inside its host: errors, cancellation, the way out."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from drr.backend import WorkerRecord
from drr.dispatcher import Dispatcher
from drr.errors import (
    StoreUnavailable,
)
from tests.helpers.backends import FaultyBackend, Plan
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio


async def test_an_error_of_drr_itself_surfaces_at_the_host(site: Site) -> None:
    """What is no error of the store is not swallowed: it comes out of the block, and the leadership is given up."""

    class Broken(FaultyBackend):
        async def workers(self) -> list[WorkerRecord]:
            raise ZeroDivisionError("a bug")

    async def host() -> None:
        async with site.dispatcher(Broken(site.backend, Plan())) as dispatcher:
            await dispatcher.wait_leading()
            await site.join()
            await anyio.sleep_forever()

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await host()
    assert site.store.leader.token == ""


async def test_the_hosts_own_error_comes_out_as_it_is(site: Site) -> None:
    with pytest.raises(LookupError, match="host"):
        async with running(site):
            raise LookupError("host")
    assert site.store.leader.token == ""


async def test_cancelling_the_host_hands_over(site: Site) -> None:
    with anyio.CancelScope() as scope:
        async with running(site) as dispatcher:
            assert dispatcher.is_leader
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert site.store.leader.token == ""


async def test_the_context_ends_after_the_commit_under_way(site: Site) -> None:
    """A commit is shielded: leaving in the middle of one neither tears it nor leaves a lease behind unsaid."""
    entered, release = anyio.Event(), anyio.Event()

    class Slow(FaultyBackend):
        async def commit(self, *args: Any) -> Any:
            entered.set()
            await release.wait()
            return await self.inner.commit(*args)

    async with site.dispatcher(Slow(site.backend, Plan())) as dispatcher, anyio.create_task_group() as group:
        await dispatcher.wait_leading()
        await site.join()
        await site.submit()

        async def let_go() -> None:
            await site.clock.settle()
            release.set()

        await entered.wait()
        group.start_soon(let_go)
        group.cancel_scope.shield = True
    assert len(site.store.leases) == 1
    assert site.store.leader.token == ""


async def test_a_dispatcher_is_entered_once(site: Site) -> None:
    async with running(site) as dispatcher:
        pass
    with pytest.raises(RuntimeError, match="entered once"):
        async with dispatcher:
            pass


async def test_a_given_backend_stays_open_and_an_owned_one_is_closed(site: Site) -> None:
    async with running(site):
        pass
    assert await site.backend.leader() == site.store.leader
    owned = Dispatcher("memory://", clock=site.clock)
    async with owned:
        pass
    with pytest.raises(StoreUnavailable):
        await owned._backend.leader()
