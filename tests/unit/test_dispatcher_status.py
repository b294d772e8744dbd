"""What the leader says of itself."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drr.dispatcher import decode_status
from drr.errors import (
    MalformedMessage,
)
from drr.model import Lane, NodePolicy, SharedLimit
from tests.helpers.desk import ACME, GLOBEX
from tests.helpers.site import Site, running

pytestmark = pytest.mark.anyio


async def test_the_status_tells_who_waits_and_why(site: Site) -> None:
    async with running(site, policies={"default": {"acme": NodePolicy(weight=2.0, hard_cap=1)}}) as dispatcher:
        await site.submit(ACME, 5)
        await site.submit(GLOBEX, 1)
        await site.join(slots=4)
        await site.take()
        await site.beat("w1")
        await site.clock.advance(3.0)
        stored = await site.status()
        status = decode_status(stored.blob)
        (pool,) = status.pools
        assert (status.dispatcher, status.counters["dispatched"]) == ("d1", 2)
        assert (pool.slots, pool.free, pool.idle_capped, pool.workers) == (4, 2, 2, 1)
        assert (pool.queued, pool.running, pool.active) == (4, 2, 1)
        nodes = {node.path: node for node in pool.nodes}
        assert set(nodes) == {(), ("acme",), ("acme", "web"), ("globex",), ("globex", "mail")}
        acme = nodes["acme",]
        assert (acme.queued, acme.running, acme.waits, acme.weight, acme.hard_cap) == (4, 1, "capped", 2.0, 1)
        assert acme.oldest_wait == pytest.approx(3.0, abs=1.1)
        assert nodes["globex",].waits == ""
        assert acme.share == pytest.approx(0.5, abs=0.1)
        assert sum(node.share for node in pool.nodes if len(node.path) == 1) == pytest.approx(1.0)
        assert dispatcher.counters.dispatched == 2


async def test_the_status_says_when_there_are_no_workers(site: Site) -> None:
    async with running(site):
        await site.submit(ACME, 5)
        await site.clock.advance(2.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert {node.waits for node in pool.nodes} == {"no workers"}
        await site.join(slots=1)
        await site.clock.advance(2.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert {node.waits for node in pool.nodes} == {"no free slot"}


async def test_the_status_is_bounded(site: Site) -> None:
    """With 1,500 projects at work it shows the thousand most relevant nodes and counts the others."""
    async with running(site):
        for number in range(1500):
            await site.submit(Lane("default", (f"org-{number:04}", "p")), 1 + (number == 1234))
        await site.join(slots=1)
        await site.clock.advance(3.0)
        (pool,) = decode_status((await site.status()).blob).pools
        assert pool.queued == 1500
        assert len(pool.nodes) <= 1000
        assert pool.omitted == 3001 - len(pool.nodes)
        assert ("org-1234",) in {node.path for node in pool.nodes}


@pytest.mark.parametrize("blob", [b"", b"\xc1", b"\x80", b"\x93\x01\x02\x03", b"\x81\xa5pools\x91\x01"])
async def test_a_status_that_is_none_is_malformed(blob: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_status(blob)


async def test_the_status_shows_limits_backlogs_and_deserted_pools(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """What holds and waits for limits, what is put off, and (once in the log) that nobody serves a pool."""
    limit = SharedLimit(concurrency=1)
    site.store.settings = replace(site.store.settings, plans="[limits.db]\nconcurrency = 1", limits={"db": limit})
    async with running(site):
        await site.join(slots=4)
        await site.submit(Lane("default", ("acme", "web"), 5, ("db",)), 3)
        await site.submit(ACME, 2, due_at=site.clock.wall() + 1000.0)
        await site.submit(Lane("renders", ("globex", "mail")), 2)
        for _ in range(5):
            await site.clock.advance(2.0)
            await site.beat("w1")
        status = decode_status((await site.status()).blob)
        (db,) = status.limits
        assert (db.name, db.concurrency, db.rate, db.running) == ("db", 1, None, 1)
        assert db.waiting >= 1
        backlogs = {backlog.organisation: backlog for backlog in status.backlogs}
        assert (backlogs["acme"].jobs, backlogs["acme"].delayed) == (4, 2)
        assert (backlogs["globex"].jobs, backlogs["globex"].worker_seconds) == (2, 2.0)
        pools = {pool.name: pool for pool in status.pools}
        assert (pools["renders"].workers, pools["renders"].queued) == (0, 2)
        assert [record.message for record in caplog.records if "no worker serves" in record.message] == [
            "2 jobs wait in pool renders, but no worker serves it"
        ]


async def test_a_job_starts_when_it_is_due_and_not_at_the_next_tick(site: Site) -> None:
    async with running(site) as dispatcher:
        await site.join(slots=2)
        due_at = site.clock.wall() + 12.345
        await site.submit(ACME, due_at=due_at)
        await site.clock.run_until(lambda: dispatcher.counters.dispatched)
        assert site.clock.wall() - due_at == pytest.approx(0.001, abs=0.002)


async def test_a_wall_clock_that_jumps_is_seen_within_a_second(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(site) as dispatcher:
        await site.join(slots=2)
        await site.submit(ACME, due_at=site.clock.wall() + 3600.0)
        await site.clock.advance(5.0)
        monkeypatch.setattr(site.clock, "wall", lambda: site.clock.monotonic() + 1.7e9 + 3600.0)
        await site.clock.advance(1.0)
        assert dispatcher.counters.dispatched == 1
