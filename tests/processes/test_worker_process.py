"""Workers as processes against a real server: blocked loops, signals, a server that dies and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from drr.backend import Backend, EventKind, WorkerRecord, open_backend
from drr.clock import SystemClock
from drr.embedded import EmbeddedServer
from drr.errors import StoreUnavailable
from drr.model import JobSpec, Lane
from drr.payload import pack_arguments, unpack_result
from drr.worker import Worker
from drr.worker.takeover import Sight, Takeover
from tests.helpers.hand import HandDispatcher

pytestmark = [pytest.mark.anyio, pytest.mark.redis, pytest.mark.processes]

LANE = Lane("default", ("acme", "web"), 5)
LEASE = 1.5
PATIENCE = 60.0
LOOK = 0.02
ROOT = Path(__file__).parents[2]


@contextmanager
def worker_process(server: EmbeddedServer, namespace: str, **settings: Any) -> Iterator[subprocess.Popen[str]]:
    settings = {"namespace": namespace, "name": "w1", "slots": 2, "lease": LEASE, **settings}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.processes.worker_app", server.url, json.dumps(settings)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def opened(server: EmbeddedServer, namespace: str) -> AsyncIterator[Backend]:
    backend = open_backend(server.url, namespace=namespace, clock=SystemClock())
    try:
        yield backend
    finally:
        await backend.close()


@asynccontextmanager
async def dispatching(server: EmbeddedServer, namespace: str) -> AsyncIterator[HandDispatcher]:
    """A hand-driven dispatcher on connections of its own, which is gone at the end."""
    async with opened(server, namespace) as backend:
        hand = HandDispatcher(backend, SystemClock())
        await hand.start()
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(hand.serve)
                yield hand
                group.cancel_scope.cancel()


async def submit(backend: Backend, call: int, task: str, *paths: Path) -> list[str]:
    specs = [JobSpec(LANE, task, pack_arguments([str(path)], {}), 0.0, result_ttl=60.0) for path in paths]
    return await backend.submit("tests", call, specs)


async def until(done: Callable[[], object]) -> None:
    """Return when a condition on the world outside of this process holds."""
    while not done():  # noqa: ASYNC110  # no event crosses processes
        await anyio.sleep(LOOK)


async def begun(path: Path) -> None:
    """Return when the handler that waits for ``path`` runs."""
    await until(Path(f"{path}.begun").exists)


def starts(path: Path) -> str:
    """One letter for each start of the handler that waits for ``path``."""
    return Path(f"{path}.begun").read_text()


async def record_of(backend: Backend, done: Callable[[WorkerRecord | None], object]) -> WorkerRecord | None:
    """Return the worker's record as soon as it is as wanted."""
    while not done(record := await backend.worker_record("w1")):  # noqa: ASYNC110
        await anyio.sleep(LOOK)
    return record


async def watch(backend: Backend) -> Sight:
    """Look at the worker's renewals until it is clear whether it lives."""
    takeover, clock = Takeover(LEASE), SystemClock()
    while True:
        record = await backend.worker_record("w1")
        assert record is not None
        sight = takeover.look(record, clock.monotonic())
        if sight is not Sight.UNKNOWN:
            return sight
        await anyio.sleep(LOOK)


@pytest.mark.parametrize(
    ("in_thread", "expected"),
    [
        pytest.param(True, Sight.ALIVE, id="thread"),
        pytest.param(False, Sight.DEAD, id="negative control: a task on the loop"),
    ],
)
async def test_a_blocked_event_loop_keeps_its_lease(
    server: EmbeddedServer, fresh_namespace: str, tmp_path: Path, in_thread: bool, expected: Sight
) -> None:
    release = tmp_path / "release"
    with worker_process(server, fresh_namespace, heartbeat_in_thread=in_thread):
        async with dispatching(server, fresh_namespace) as hand, opened(server, fresh_namespace) as backend:
            await submit(backend, 1, "block", release)
            await begun(release)
            assert await watch(backend) is expected
            release.touch()
            await hand.until(lambda: hand.events)


async def test_sigterm_finishes_what_it_can_and_hands_the_rest_back(
    server: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    finishes, never, stuck = tmp_path / "finishes", tmp_path / "never", tmp_path / "stuck"
    with worker_process(server, fresh_namespace, slots=3, grace=2.0) as process:
        async with dispatching(server, fresh_namespace) as hand, opened(server, fresh_namespace) as backend:
            good, lost = await submit(backend, 1, "hold", finishes, never)
            [thread] = await submit(backend, 2, "stick", stuck)
            for path in (finishes, never, stuck):
                await begun(path)
            process.send_signal(signal.SIGTERM)
            draining = await record_of(backend, lambda record: record is not None and record.draining)
            assert draining is not None
            [waiting] = await submit(backend, 3, "quick", tmp_path)
            finishes.touch()
            await hand.until(lambda: len({event.token for event in hand.events}) == 3)
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0, "though a thread is stuck"
            assert await backend.worker_record("w1") is None
            by_kind = sorted(event.kind.value for event in hand.events)
            assert by_kind == [EventKind.RETURNED.value] * 2 + [EventKind.SUCCEEDED.value]
            statuses = await backend.look_up([good, lost, thread, waiting])
            assert [status.state.value for status in statuses if status] == [
                "succeeded",
                "queued",
                "queued",
                "queued",
            ]


async def test_a_second_signal_hands_back_at_once(
    server: EmbeddedServer, fresh_namespace: str, tmp_path: Path
) -> None:
    with worker_process(server, fresh_namespace, grace=3600.0) as process:
        async with dispatching(server, fresh_namespace) as hand, opened(server, fresh_namespace) as backend:
            await submit(backend, 1, "hold", tmp_path / "never")
            await begun(tmp_path / "never")
            process.send_signal(signal.SIGINT)
            await record_of(backend, lambda record: record is not None and record.draining)
            process.send_signal(signal.SIGTERM)
            await hand.until(lambda: hand.events)
            assert [event.kind for event in hand.events] == [EventKind.RETURNED]
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0


async def test_an_idle_worker_that_is_told_to_stop_leaves(server: EmbeddedServer, fresh_namespace: str) -> None:
    with worker_process(server, fresh_namespace) as process:
        async with dispatching(server, fresh_namespace), opened(server, fresh_namespace) as backend:
            await record_of(backend, lambda record: record is not None)
            process.send_signal(signal.SIGTERM)
            await record_of(backend, lambda record: record is None)
            await until(lambda: process.poll() is not None)
            assert process.returncode == 0


@pytest.mark.parametrize("binary", ["valkey-server", "redis-server"])
async def test_results_survive_a_server_that_dies_and_comes_back(
    binary: str, request: pytest.FixtureRequest, fresh_namespace: str, tmp_path: Path
) -> None:
    request.getfixturevalue(f"{binary.partition('-')[0]}_server")  # skips where there is no such server
    paths = [tmp_path / "during", tmp_path / "after"]
    with (
        EmbeddedServer(binary=binary, appendfsync="always", data_dir=tmp_path / "data") as server,
        worker_process(server, fresh_namespace, lease=30.0, patience=30.0) as process,
    ):
        async with dispatching(server, fresh_namespace), opened(server, fresh_namespace) as backend:
            ids = await submit(backend, 1, "hold", *paths)
            for path in paths:
                await begun(path)
        server.kill()
        paths[0].touch()  # ends while there is no server
        await noticed(process)
        server.restart()
        await recovered(server, fresh_namespace, ids, paths)


async def noticed(process: subprocess.Popen[str]) -> None:
    """Return once the worker has said that reporting failed."""
    assert process.stderr is not None
    with anyio.fail_after(PATIENCE):
        while "reporting failed" not in await anyio.to_thread.run_sync(process.stderr.readline):
            assert process.poll() is None


async def recovered(server: EmbeddedServer, namespace: str, ids: list[str], paths: list[Path]) -> None:
    async with dispatching(server, namespace) as hand, opened(server, namespace) as backend:
        await hand.until(lambda: ids[0] in hand.ended)
        paths[1].touch()
        await hand.until(lambda: ids[1] in hand.ended)
        assert hand.ended == dict.fromkeys(ids, "succeeded")
        assert [starts(path) for path in paths] == ["x", "x"], "neither was run again"
        statuses = await backend.look_up(ids)
        values = [unpack_result(status.completion.value) for status in statuses if status and status.completion]
        assert values == [str(path) for path in paths]


async def test_a_read_whose_reply_was_lost_is_found_in_the_pending_list(
    server: EmbeddedServer, fresh_namespace: str
) -> None:
    """On a real server: the group has given the entries to this worker, which never saw them."""
    started = []
    async with dispatching(server, fresh_namespace) as hand, opened(server, fresh_namespace) as backend:
        lossy = LossyBackend(open_backend(server.url, namespace=fresh_namespace, clock=SystemClock()))
        worker = Worker(lossy, name="w1", slots=4, lease=LEASE * 10)

        @worker.task()
        async def note(what: str) -> None:
            started.append(what)

        async with anyio.create_task_group() as group:
            group.start_soon(worker.run)
            await record_of(backend, lambda record: record is not None)
            lossy.losses["read_attempts"] = 1
            specs = [JobSpec(LANE, "note", pack_arguments([name], {}), 0.0) for name in "abc"]
            ids = await backend.submit("tests", 1, specs)
            await hand.until(lambda: len(hand.ended) == 3)
            assert lossy.losses == {"read_attempts": 0}
            worker.stop()
        assert sorted(started) == ["a", "b", "c"]
        assert hand.ended == dict.fromkeys(ids, "succeeded")
        await lossy.close()


class LossyBackend:
    """A handle whose next replies are lost after the call took effect; siblings share the count."""

    def __init__(self, inner: Backend, losses: dict[str, int] | None = None) -> None:
        self._inner = inner
        self.losses: dict[str, int] = {} if losses is None else losses

    def sibling(self) -> LossyBackend:
        return LossyBackend(self._inner.sibling(), self.losses)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            reply = await method(*args, **kwargs)
            if reply and self.losses.get(name):
                self.losses[name] -= 1
                raise StoreUnavailable("the reply was lost")
            return reply

        return call
