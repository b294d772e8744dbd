"""docs/protocol.md is enough to write a worker, and shows the bytes that drr writes."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
from redis import Redis

from drr.backend import Event, EventKind, MalformedEvent, Requeue, WorkerRecord
from drr.errors import WorkerNameInUse
from drr.model import Completion, JobSpec, JobState, Lane, Lease
from drr.payload import Progress, pack_arguments, pack_result, unpack_progress, unpack_result
from drr_backends.redis import codec, records
from drr_backends.redis.client import CALL_MEMORY
from drr_backends.redis.library import OPERATIONS, library
from tests.contract.harness import LANE, Leader, heads, job, submit, worker
from tests.redis.harness import RedisHarness
from tests.redis.page_worker import PageWorker

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()


@pytest.fixture
def page_worker(store: RedisHarness):  # type: ignore[no-untyped-def]
    with Redis.from_url(store.url, protocol=2) as client:
        yield PageWorker(client, store.namespace, "page")


def add(left: int, right: int = 0) -> int:
    return left + right


@pytest.mark.anyio
@pytest.mark.redis
async def test_the_worker_of_the_page_runs_jobs(store: RedisHarness, page_worker: PageWorker) -> None:
    assert page_worker.join() == ""
    leader = await Leader(store.handle).take_over()
    (record,) = await store.handle.workers()
    assert record == WorkerRecord("page", page_worker.incarnation, {"default": 1}, version="page")
    payload = pack_arguments([40], {"right": 2})
    (job_id,) = await submit(store.handle, job(payload=payload, task="add", result_ttl=9.0))
    (lease,) = await leader.dispatch(*await heads(store.handle))
    assert page_worker.work({"add": add}) == 1
    assert page_worker.done == [(job_id, 1)]
    facts = await leader.receive()
    (event,) = facts.events
    assert isinstance(event, Event)
    assert (event.token, event.kind, event.worker) == (lease.token, EventKind.SUCCEEDED, "page")
    assert unpack_result(event.value) == 42
    assert facts.workers_changed
    page_worker.draining = True
    assert page_worker.beat()
    assert [record.draining for record in await store.handle.workers()] == [True]
    page_worker.leave()
    assert await store.handle.workers() == []


@pytest.mark.anyio
@pytest.mark.redis
async def test_it_reports_what_it_cannot_run(store: RedisHarness, page_worker: PageWorker) -> None:
    page_worker.join()
    leader = await Leader(store.handle).take_over()
    await leader.start(job(task="unknown", payload=pack_arguments([], {})), job(task="add", payload=b"rubbish"))
    while page_worker.work({"add": add}):
        pass
    events = (await leader.receive()).events
    assert [event.kind for event in events if not isinstance(event, MalformedEvent)] == [EventKind.FAILED] * 2


@pytest.mark.anyio
@pytest.mark.redis
async def test_it_finds_its_pending_attempts_again(store: RedisHarness, page_worker: PageWorker) -> None:
    page_worker.join()
    leader = await Leader(store.handle).take_over()
    (lease,) = await leader.start(job(task="add", payload=pack_arguments([1], {})))
    assert len(page_worker.entries(">")) == 1  # and the reply is lost
    assert page_worker.work({"add": add}) == 0
    assert page_worker.work({"add": add}, after="0") == 1
    await leader.receive()
    await leader.settle(lease)
    assert page_worker.work({"add": add}, after="0") == 0


@pytest.mark.anyio
@pytest.mark.redis
async def test_it_makes_a_lost_group_again(store: RedisHarness, page_worker: PageWorker) -> None:
    page_worker.join()
    await store.raw("DEL", store.keys.pool("default"))
    leader = await Leader(store.handle).take_over()
    await leader.start(job(task="add", payload=pack_arguments([1], {})))
    assert page_worker.work({"add": add}) == 1


@pytest.mark.anyio
@pytest.mark.redis
async def test_names_and_incarnations_are_kept_apart(store: RedisHarness, page_worker: PageWorker) -> None:
    assert page_worker.join() == ""
    assert page_worker.join() == ""
    with pytest.raises(WorkerNameInUse):
        await store.handle.join(worker("page", "other"))
    await store.handle.join(worker("page", "other"), replacing=page_worker.incarnation)
    assert not page_worker.beat()
    assert page_worker.join() == "other"
    assert page_worker.join(replacing="other") == ""
    leader = await Leader(store.handle).take_over()
    (lease,) = await leader.start(job(task="add", payload=pack_arguments([1], {})))
    await leader.commit(requeues=[Requeue(lease, 1, 1)])
    await leader.dispatch(*await heads(store.handle))
    assert page_worker.work({"add": add}) == 1
    assert page_worker.done[0][1] == 2


@pytest.mark.anyio
@pytest.mark.redis
async def test_it_hears_of_cancelled_jobs_and_tells_its_progress(
    store: RedisHarness, page_worker: PageWorker
) -> None:
    page_worker.join()
    leader = await Leader(store.handle).take_over()
    (lease,) = await leader.start(job(task="add", payload=pack_arguments([1], {})))
    cursor, tokens = page_worker.to_stop()
    assert tokens == []
    job_id = lease.header.job_id
    assert page_worker.progress(lease.token.encode(), job_id, 0.5, "half")
    (said,) = await store.handle.progress([job_id])
    assert said is not None
    assert unpack_progress(said) == Progress(0.5, "half")
    await leader.commit(charges={lease.token: replace(lease, cancelled=True)}, stops=[lease.token])
    assert page_worker.to_stop(cursor)[1] == page_worker.to_stop()[1] == [lease.token]
    page_worker.report([[lease.token, "cancelled", "page", 0.5, b"", "", None]])
    (event,) = (await leader.receive()).events
    assert isinstance(event, Event)
    assert event.kind is EventKind.CANCELLED
    await leader.settle(lease, state=JobState.CANCELLED)
    assert not page_worker.progress(lease.token.encode(), job_id, None, "late")


def test_it_imports_nothing_of_drr() -> None:
    tree = ast.parse((Path(__file__).parent / "page_worker.py").read_text())
    names = {
        name.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in node.names
    }
    assert not [name for name in names if name.startswith(("drr", "tests"))]


# --- the bytes on the page


def shown(data: bytes) -> bool:
    """Whether the page shows these bytes, in one of its hexadecimal examples."""
    digits = "".join(re.findall(r"^ {4,}(?:[a-z]+ {2,})?((?:(?:[0-9a-f]{2})+ ?)+)", PAGE, re.MULTILINE)).replace(
        " ", ""
    )
    inline = "|".join(re.findall(r"`((?:(?:[0-9a-f]{2})+ ?)+)`", PAGE)).replace(" ", "")
    return data.hex() in digits or data.hex() in inline


PARTS = ("pass_read", "pass_write")
"""Sources of the library that hold no operation of their own."""
PARAMETERS = "key|pool|lane|workers|back|counter|dead|graves|organisation|admission"
"""What Lua calls a key that it was handed."""
LANE_SHOWN = Lane("default", ("acme", "web"), 5)
JOB = JobSpec(
    LANE_SHOWN, "resize", pack_arguments([7], {"w": 640}), 1_700_000_000.0, 1.5, 30.0, result_ttl=60.0, reply_to="c1"
)
FRAME = (42).to_bytes(8, "big") + codec.body_of(JOB, "0f1e2d3c4b")
HEAD = codec.split_frame(FRAME)[0]


@pytest.mark.parametrize(
    "data",
    [
        FRAME,
        records.encode_shape(WorkerRecord("w1", "i1", {"default": 4})),
        records.encode_held(WorkerRecord("w1", "i1", {}, ("3-42-1",), version="1.0", blocks=2)),
        records.encode_events([Event("3-42-1", EventKind.SUCCEEDED, "w1", 0.25, pack_result("ok"))])[0],
        records.encode_completion(Completion(JobState.SUCCEEDED, 1, 1_700_000_000.0, 0.25, pack_result("ok"))),
        codec.encode_lease(Lease("3-42-1", codec.decode_head(HEAD), 1, 1_700_000_000.0, 1.5)),
    ],
    ids=["frame", "shape", "held", "events", "outcome", "lease"],
)
def test_the_page_shows_the_bytes_that_drr_writes(data: bytes) -> None:
    assert shown(data)


def test_the_job_on_the_page_has_the_id_on_the_page() -> None:
    assert f"`{codec.decode_head(HEAD, LANE_SHOWN).job_id}`" in PAGE
    assert len(FRAME) - len(HEAD) == 10


def test_the_page_names_every_function_and_key(fresh_namespace: str) -> None:
    for operation in OPERATIONS:
        assert f"`{operation}`" in PAGE
    store = RedisHarness("redis://nowhere", fresh_namespace)
    for name, value in vars(store.keys).items():
        if isinstance(value, str) and value.startswith("drr:") and not name.startswith("_") and name != "prefix":
            assert f"`<ns>:{value.removeprefix(store.keys.prefix)}`" in PAGE
    assert str(CALL_MEMORY) in PAGE


def test_every_lua_file_says_what_it_takes_and_returns() -> None:
    folder = ROOT / "backends" / "drr_backends" / "redis" / "lua"
    assert {path.stem for path in folder.glob("*.lua")} == {*OPERATIONS, *PARTS, "prelude"}
    for operation in OPERATIONS:
        text = (folder / f"{operation}.lua").read_text()
        comment = text.partition("\n\n")[0]
        for word in ("-- KEYS ", "-- ARGV ", "-- Returns "):
            assert word in comment, f"{operation}.lua does not say {word}"
        assert f"register('{operation}', {operation}, " in text


def test_no_key_is_built_in_lua() -> None:
    """Every key is declared: what follows a command's name is a variable, never put together from parts."""
    first = re.findall(r"redis\.p?call\('[A-Z]+'(?:, '[A-Z]+')?, ([^,)]+)", library().source)
    assert len(first) > 50
    for expression in first:
        assert re.match(rf"(keys\[|({PARAMETERS})$)", expression), expression
        assert ".." not in expression, expression


def test_the_lane_of_the_examples_is_the_one_of_the_suite() -> None:
    assert LANE == LANE_SHOWN
