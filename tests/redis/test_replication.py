"""Submits that wait for replicas: acknowledged means there, not acknowledged means stored all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from drr.client import Client, Outbox, Submission
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import BacklogFull, InvalidValue, NotReplicated, StoreUnavailable
from drr.model import JobState, Quota, Settings
from drr_backends.redis import open_redis
from drr_backends.redis.link import Address
from drr_backends.redis.replication import Replication
from tests.contract.harness import LANE, OTHER, PATIENCE, Leader, job
from tests.redis.harness import RedisHarness

pytestmark = [pytest.mark.anyio, pytest.mark.redis]

WAITING = "?replicas=1&replica_timeout=5"
IMPATIENT = "?replicas=1&replica_timeout=0.05"


class Pair:
    """A namespace on a primary and a replica that follows it."""

    def __init__(self, primary: EmbeddedServer, replica: EmbeddedServer, namespace: str) -> None:
        self.primary = primary
        self.replica = replica
        self.namespace = namespace
        self._opened: list[RedisHarness] = []

    def store(self, options: str = "", *, of: EmbeddedServer | None = None) -> RedisHarness:
        self._opened.append(RedisHarness((of or self.primary).url + options, self.namespace))
        return self._opened[-1]

    @contextmanager
    def stopped_replica(self) -> Iterator[None]:
        """The replica stands still: connected, and acknowledging nothing."""
        os.kill(self.replica.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.replica.pid, signal.SIGCONT)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture(scope="module", params=["valkey", "redis"])
def servers(request: pytest.FixtureRequest) -> Iterator[tuple[EmbeddedServer, EmbeddedServer]]:
    request.getfixturevalue(f"{request.param}_server")  # skips where there is no such server
    binary = f"{request.param}-server"
    with EmbeddedServer(binary=binary, port=0, directives={"repl-diskless-sync-delay": "0"}) as primary:
        follow = {"replicaof": f"127.0.0.1 {primary.port}"}
        with EmbeddedServer(binary=binary, port=0, directives=follow) as replica:
            yield primary, replica


@pytest.fixture
async def pair(servers: tuple[EmbeddedServer, EmbeddedServer], fresh_namespace: str) -> AsyncIterator[Pair]:
    pair = Pair(*servers, fresh_namespace)
    store = pair.store()
    await store.handle.prepare()
    with anyio.fail_after(PATIENCE):
        while await store.raw("WAIT", 1, 1000) < 1:
            await anyio.lowlevel.checkpoint()
    yield pair
    await pair.close()


async def test_an_acknowledged_submit_is_on_the_replica(pair: Pair) -> None:
    client, replica = pair.store(WAITING), pair.store(of=pair.replica)
    for call in range(200):
        await client.handle.submit("me", call, [job()])
        assert await replica.handle.lane_lengths([LANE]) == [call + 1]


async def test_without_the_option_a_submit_waits_for_nobody(pair: Pair) -> None:
    """The control: what no replica has received is acknowledged all the same."""
    with pair.stopped_replica():
        assert len(await pair.store().handle.submit("me", 0, [job()])) == 1


async def test_a_submit_that_is_not_replicated_is_stored_and_says_so(pair: Pair) -> None:
    client = pair.store(IMPATIENT)
    with pair.stopped_replica():
        with pytest.raises(NotReplicated, match=r"2 jobs are stored.*only 0 of 1 replicas.*0\.05 s") as raised:
            await client.handle.submit("me", 0, [job(), job()])
        assert (raised.value.wanted, raised.value.acknowledged, raised.value.timeout) == (1, 0, 0.05)
        assert not isinstance(raised.value, StoreUnavailable)
        found = await client.handle.look_up(raised.value.job_ids)
        assert [status.state for status in found if status] == [JobState.QUEUED] * 2
        # The same call again adds nothing, and waits again: on any connection, for what the first one wrote.
        for handle in (client.handle, pair.store(IMPATIENT).handle):
            with pytest.raises(NotReplicated):
                await handle.submit("me", 0, [job(), job()])
    assert await pair.store(WAITING).handle.submit("me", 0, [job(), job()]) == raised.value.job_ids
    assert await pair.store(of=pair.replica).handle.lane_lengths([LANE]) == [2]


async def test_the_same_key_waits_again_for_the_first_job(pair: Pair) -> None:
    given: list[list[str]] = []
    with pair.stopped_replica():
        for client in ("one", "two"):
            with pytest.raises(NotReplicated) as raised:
                await pair.store(IMPATIENT).handle.submit(client, 0, [job(key="order-17")])
            given.append(raised.value.job_ids)
    given.append(await pair.store(WAITING).handle.submit("three", 0, [job(key="order-17")]))
    assert given == [given[0]] * 3
    assert await pair.store(of=pair.replica).handle.lane_lengths([LANE]) == [1]


async def test_without_a_replica_there_is_nobody_to_acknowledge(pair: Pair) -> None:
    async with EmbeddedServer(binary=pair.primary.binary, port=0) as alone:
        client = pair.store(IMPATIENT, of=alone)
        await client.handle.prepare()
        with pytest.raises(NotReplicated, match="0 of 1"):
            await client.handle.submit("me", 0, [job()])
        assert await client.handle.lane_lengths([LANE]) == [1]


async def test_more_replicas_than_there_are_are_not_enough(pair: Pair) -> None:
    with pytest.raises(NotReplicated, match="1 of 2") as raised:
        await pair.store("?replicas=2&replica_timeout=0.2").handle.submit("me", 0, [job()])
    assert raised.value.acknowledged == 1


async def test_who_may_not_wait_learns_that_the_job_is_stored(pair: Pair) -> None:
    admin = pair.store()
    await admin.raw("ACL", "SETUSER", "drr", "on", ">secret", "~*", "+@all", "-wait")
    client = RedisHarness(pair.primary.url.replace("redis://", "redis://drr:secret@") + WAITING, pair.namespace)
    with pytest.raises(NotReplicated) as raised:
        await client.handle.submit("me", 0, [job()])
    assert "permission" in str(raised.value.__cause__)
    assert await admin.handle.lane_lengths([LANE]) == [1]
    await client.close()


async def test_a_refused_submit_is_a_refusal(pair: Pair) -> None:
    leader = await Leader(pair.store().handle).take_over()
    await leader.commit(settings=Settings(quotas={OTHER.path: Quota(jobs=1, rate=1e6)}))
    with pytest.raises(BacklogFull):
        await pair.store(WAITING).handle.submit("me", 0, [job(OTHER), job(OTHER)])


async def test_a_client_passes_it_on_and_goes_on(pair: Pair) -> None:
    async with Client(pair.primary.url + IMPATIENT, namespace=pair.namespace) as client:
        with pair.stopped_replica():
            with pytest.raises(NotReplicated) as raised:
                await client.submit("double", [1], tenant="acme/web")
            (job_id,) = raised.value.job_ids
            assert (await client.handle(job_id).status()).state is JobState.QUEUED
            with pytest.raises(NotReplicated) as bulk:
                await client.submit_many([Submission("double", [n], tenant="acme/web") for n in range(3)])
            assert len(bulk.value.job_ids) == 3
    async with Client(pair.primary.url + WAITING, namespace=pair.namespace) as client:
        assert await client.submit_many([Submission("double", [n], tenant="acme/web") for n in range(3)]) == 3
    assert await pair.store(of=pair.replica).handle.lane_lengths([LANE]) == [7]


async def test_an_outbox_keeps_what_is_not_replicated_and_repeats_it_if_it_is_lost(
    pair: Pair, tmp_path: Path
) -> None:
    store = pair.store()
    path = tmp_path / "outbox"
    async with Client(
        pair.primary.url + IMPATIENT, namespace=pair.namespace, outbox=Outbox(path, horizon=3600.0)
    ) as client:
        with pair.stopped_replica(), pytest.raises(NotReplicated):
            await client.submit("double", [1], tenant="acme/web")
    for name in await store.raw("KEYS", store.keys.prefix + "*"):
        await store.raw("DEL", name)  # as a failover to a replica that had nothing of it
    await store.handle.prepare()
    async with Client(pair.primary.url, namespace=pair.namespace, outbox=Outbox(path, horizon=0.0)) as client:
        await client.confirmed(PATIENCE)
        assert await store.handle.lane_lengths([LANE]) == [1]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("replicas=0", "replicas is '0'"),
        ("replicas=17", "replicas is '17'"),
        ("replicas=one", "replicas is 'one'"),
        ("replicas=-1", "replicas is '-1'"),
        ("replicas=1&replica_timeout=0", "replica_timeout is '0'"),
        ("replicas=1&replica_timeout=6", "replica_timeout is '6'"),
        ("replicas=1&replica_timeout=nan", "replica_timeout is 'nan'"),
        ("replicas=1&replica_timeout=soon", "replica_timeout is 'soon'"),
        ("replica_timeout=1", "it needs replicas="),
    ],
)
def test_options_that_cannot_be_are_named(options: str, named: str) -> None:
    with pytest.raises(InvalidValue, match=named):
        open_redis(f"redis://host?{options}", "n", SystemClock())


def test_every_kind_of_url_takes_them() -> None:
    for url in ("redis://host/1", "rediss://host", "unix:///socket", "redis+sentinel://host/jobs/1"):
        address = Address(f"{url}?replicas=2&replica_timeout=0.25&client_name=billing")
        assert address.replication == Replication(2, 0.25)
        assert address.replication.command == ("WAIT", 2, 250)
        assert Address(url).replication == Replication(0)
