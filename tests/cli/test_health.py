"""``drr health``: each fault has its name and its exit code, and a deployment that works has none."""

from __future__ import annotations

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import pytest

from drr.backend import Backend, WorkerRecord, open_backend
from drr.cli.exits import Exit
from drr.cli.health import Asked, Fault, Findings, _plain, _print, examine
from drr.dispatcher import Dispatcher
from drr.durability import Level
from drr.embedded import EmbeddedServer
from drr.model import JobSpec, Lane
from tests.cli.command import drr
from tests.helpers.manual_clock import ManualClock

URL = "memory://health"


class Deployment:
    """A named store in memory, in virtual time."""

    def __init__(self, namespace: str) -> None:
        self.clock = ManualClock()
        self.namespace = namespace
        self.store: Backend = open_backend(URL, namespace=namespace, clock=self.clock)

    def dispatcher(self, name: str) -> Dispatcher:
        return Dispatcher(self.store, name=name, clock=self.clock)

    async def examine(self, *, seconds: float = 5.0, **asked: Any) -> Findings:
        """Let the command look while time passes."""
        found: list[Findings] = []
        wanted = replace(Asked(URL, self.namespace, (), (), False, 3.0, 30.0), **asked)

        async def look() -> None:
            found.append(await examine(wanted, self.clock))

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await self.clock.advance(seconds)
        return found[0]


def faults(findings: Findings) -> dict[str, str]:
    return {check.name: check.fault.value for check in findings.checks if check.fault}


@pytest.fixture
async def deployment(fresh_namespace: str) -> AsyncIterator[Deployment]:
    made = Deployment(fresh_namespace)
    await made.store.prepare()
    yield made
    await made.store.close()


@asynccontextmanager
async def led(deployment: Deployment) -> AsyncIterator[None]:
    async with deployment.dispatcher("chief") as dispatcher:
        await dispatcher.wait_leading()
        yield


pytestmark = pytest.mark.anyio


async def test_a_deployment_that_works_has_no_fault(deployment: Deployment) -> None:
    await deployment.store.join(WorkerRecord("w1", "i1", {"default": 4}, draining=True, blocks=2))
    async with led(deployment):
        await deployment.store.submit("c", 1, [JobSpec(Lane("default", ("acme", "web")), "t", b"", 0.0)])
        await deployment.clock.advance(2.0)
        found = await deployment.examine(dispatchers=("chief",), workers=("w1",))
    assert faults(found) == {}
    assert found.exit is Exit.OK
    assert (found.level, found.cautions) == (Level.NOTHING, ("keeps_nothing",))
    details = {check.name: check.detail for check in found.checks}
    assert details["dispatcher chief"] == "leads"
    assert details["worker w1"] == "draining; 0 jobs in hand, slots: 4 default; event loop blocked 2x"
    assert details["leader"].startswith("1:")


async def test_the_age_of_the_last_commit_is_told(deployment: Deployment) -> None:
    async with led(deployment):
        assert (await deployment.examine()).committed is None
        await deployment.store.join(WorkerRecord("w1", "i1", {"default": 1}))
        lane = Lane("default", ("acme", "web"))
        await deployment.store.submit("c", 1, [JobSpec(lane, "t", b"", 0.0, estimate=1000.0)])
        await deployment.clock.advance(20.0)
        found = await deployment.examine()
    assert found.committed is not None
    assert found.committed == pytest.approx(20.0, abs=3.0)


async def test_nobody_leads(deployment: Deployment) -> None:
    found = await deployment.examine(dispatchers=("chief",))
    assert faults(found) == {"leader": "no_leader", "dispatcher chief": "dispatcher_unknown"}
    assert found.exit is Exit.FAILED


async def test_a_leader_that_is_gone_without_a_word_is_silent_whatever_the_clocks_say(deployment: Deployment) -> None:
    assert await deployment.store.elect("", "1:gone")
    found = await deployment.examine()
    assert faults(found) == {"leader": "leader_silent"}
    assert "1:gone gave no sign of life in 3 s" in found.checks[2].detail


async def test_a_leader_that_resigns_meanwhile_does_not_lead(deployment: Deployment) -> None:
    assert await deployment.store.elect("", "1:gone")
    async with anyio.create_task_group() as group:

        async def resign() -> None:
            await deployment.clock.sleep(1.0)
            await deployment.store.resign("1:gone")

        group.start_soon(resign)
        assert faults(await deployment.examine()) == {"leader": "no_leader"}


async def test_a_standby_lives_as_well_until_it_stops(deployment: Deployment) -> None:
    async with led(deployment):
        async with deployment.dispatcher("second"):
            found = await deployment.examine(dispatchers=("second", "chief"))
            assert faults(found) == {}
            assert [check.detail for check in found.checks[-2:]] == ["stands by", "leads"]
        assert faults(await deployment.examine(dispatchers=("second",))) == {"dispatcher second": "dispatcher_silent"}
        await deployment.clock.advance(90.0)
        assert faults(await deployment.examine(dispatchers=("second",))) == {
            "dispatcher second": "dispatcher_unknown"
        }


async def test_a_worker_that_is_not_on_record(deployment: Deployment) -> None:
    async with led(deployment):
        found = await deployment.examine(workers=("w1",))
    assert faults(found) == {"worker w1": "worker_unknown"}


async def test_a_dead_worker_is_taken_off_the_record_by_a_live_leader(deployment: Deployment) -> None:
    await deployment.store.join(WorkerRecord("w1", "i1", {"default": 1}))
    async with led(deployment):
        assert faults(await deployment.examine(workers=("w1",))) == {}
        await deployment.clock.advance(90.0)
        assert faults(await deployment.examine(workers=("w1",))) == {"worker w1": "worker_unknown"}


@pytest.mark.parametrize(("beats", "fault"), [(True, ""), (False, "worker_silent")])
async def test_without_a_leader_a_worker_has_to_move_itself(deployment: Deployment, beats: bool, fault: str) -> None:
    record = WorkerRecord("w1", "i1", {"default": 1})
    await deployment.store.join(record)

    async def beat() -> None:
        while True:
            await deployment.clock.sleep(1.0)
            await deployment.store.heartbeat(record)

    async with anyio.create_task_group() as group:
        if beats:
            group.start_soon(beat)
        found = await deployment.examine(workers=("w1",))
        group.cancel_scope.cancel()
    assert faults(found).get("worker w1", "") == fault


async def test_settings_that_are_warned_of_are_a_fault_if_one_is_strict(deployment: Deployment) -> None:
    async with led(deployment):
        assert (await deployment.examine()).exit is Exit.OK
        found = await deployment.examine(strict=True)
    assert faults(found) == {"durability": "store_unsafe"}
    assert found.exit is Exit.FAILED


async def test_all_of_it_is_printed_and_is_json(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> None:
    found = await deployment.examine(workers=("w1",))
    plain = json.loads(json.dumps(_plain(found)))
    assert (plain["ok"], plain["last_commit_age"]) == (False, None)
    assert [(check["name"], check["ok"], check["reason"]) for check in plain["checks"]] == [
        ("store", True, ""),
        ("durability", True, ""),
        ("leader", False, "no_leader"),
        ("worker w1", False, "worker_unknown"),
    ]
    _print(replace(found, committed=2.5))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("store       ok: memory of this process at memory://health answered in ")
    assert lines[1].startswith("durability  warning: nothing; memory of this process keeps nothing on disk")
    assert lines[2].startswith("leader      FAILED (no_leader): ")
    assert lines[4] == "last commit  2.5 s ago by the leader's clock"


# --- the store itself, as a command


def command(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = drr("health", *arguments, "--json")
    return done.exit_code, json.loads(done.stdout)


def store_fault(*arguments: str) -> str:
    code, told = command(*arguments)
    assert code == Exit.NO_STORE
    [check] = told["checks"]
    assert (check["name"], check["ok"], told["ok"]) == ("store", False, False)
    return str(check["reason"])


def test_a_store_that_is_not_there_is_unreachable() -> None:
    assert store_fault("redis://127.0.0.1:1") == Fault.STORE_UNREACHABLE


def test_a_store_that_does_not_answer_is_silent_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"redis://127.0.0.1:{listener.getsockname()[1]}"
        assert store_fault(url, "--timeout", "0.3") == Fault.STORE_SILENT


@pytest.mark.redis
def test_a_store_that_wants_a_password_refuses() -> None:
    with EmbeddedServer(port=0, directives={"requirepass": "sesame"}) as server:
        assert store_fault(server.url) == Fault.STORE_REFUSES
        code, told = command(server.url.replace("redis://", "redis://:sesame@"))
        assert (code, [check["reason"] for check in told["checks"]]) == (Exit.FAILED, ["", "", "no_leader"])
        assert told["durability"] == {"level": "second", "cautions": [], "unknown": []}
