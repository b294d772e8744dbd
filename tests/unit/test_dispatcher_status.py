"""What the leader says of itself."""

from __future__ import annotations

import pytest

from drr.dispatcher import decode_status
from drr.errors import (
    MalformedMessage,
)
from drr.model import Lane, NodePolicy
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
