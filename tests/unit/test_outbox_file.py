"""The outbox's file: what it keeps, whom it refuses, and what it makes of damage."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from drr.client.journal import BODY_LIMIT, Journal, Record, decode, encode
from drr.client.outbox import Outbox
from drr.errors import (
    InvalidConfiguration,
    InvalidValue,
    MalformedMessage,
    OutboxCorrupt,
    OutboxFailed,
    OutboxFull,
    OutboxInUse,
)
from drr.model import JobSpec, Lane, RetryPolicy
from drr.wire import pack
from tests.helpers.manual_clock import ManualClock

pytestmark = pytest.mark.anyio

PLAIN = JobSpec(Lane("default", ("acme", "web"), 5), "echo", b"\x00payload", 12.5)
FULL = JobSpec(
    Lane("renders", ("acme", "web"), 0, ("gpu", "postgres")),
    "echo",
    b"",
    12.5,
    estimate=0.5,
    timeout=30.0,
    result_ttl=60.0,
    reply_to="client",
    retry=RetryPolicy(5, 0.5),
    deadline=99.5,
    due_at=50.25,
    key="k1",
    key_ttl=7.0,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def opened(path: Path, namespace: str = "drr") -> Journal:
    journal = Journal(path)
    journal.open(namespace)
    return journal


def written(path: Path, *jobs: JobSpec) -> None:
    journal = opened(path)
    body = encode(jobs)
    journal.write([(Record(1, "segment", 1, len(jobs), len(body), 12.5), body)], [])
    journal.close()


# --- the file -------------------------------------------------------------------------------------------


def test_every_field_of_a_job_comes_back(path: Path) -> None:
    written(path, PLAIN, FULL)
    journal = Journal(path)
    assert journal.open("drr") == [Record(1, "segment", 1, 2, len(encode([PLAIN, FULL])), 12.5)]
    assert journal.read(1) == [PLAIN, FULL]
    journal.close()


@pytest.mark.parametrize("before", [None, 0o666], ids=["new", "open to all"])
def test_nobody_else_may_read_it(path: Path, before: int | None) -> None:
    if before is not None:
        path.touch()
        path.chmod(before)
    journal = opened(path)
    body = encode([PLAIN])
    journal.write([(Record(1, "segment", 1, 1, len(body), 12.5), body)], [])
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"outbox": 0o600, "outbox-wal": 0o600}
    journal.close()


def test_a_second_holder_is_refused_and_the_first_goes_on(path: Path) -> None:
    journal = opened(path)
    with pytest.raises(OutboxInUse, match="file of its own"):
        opened(path)
    body = encode([PLAIN])
    journal.write([(Record(1, "segment", 1, 1, len(body), 12.5), body)], [])
    journal.close()
    opened(path).close()


def test_a_file_of_another_namespace_is_refused(path: Path) -> None:
    opened(path, "shop").close()
    with pytest.raises(OutboxCorrupt, match=r"namespace 'shop'.*'drr'"):
        opened(path, "drr")
    opened(path, "shop").close()


def test_what_is_no_outbox_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"what is this? " * 100)
    with pytest.raises(OutboxCorrupt, match="move it away"):
        opened(path)
    assert path.read_bytes() == b"what is this? " * 100
    path.unlink()
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE people (name TEXT)")
    other.close()
    with pytest.raises(OutboxCorrupt, match="no outbox"):
        opened(path)


@pytest.mark.parametrize("where", ["/nowhere/at/all", "/"])
def test_a_place_that_cannot_be_written_is_named(where: str) -> None:
    with pytest.raises(OutboxFailed, match=where):
        opened(Path(where))


def test_a_damaged_page_is_found(path: Path) -> None:
    """Somewhere in a file of many pages: refused as a whole, or the call whose jobs it was is."""
    found = 0
    for seed in range(8):
        path.unlink(missing_ok=True)
        journal = opened(path)
        rng = Random(seed)
        jobs = [JobSpec(PLAIN.lane, "echo", rng.randbytes(3000), 0.0)]
        journal.write([(Record(n, "s", n, 1, 0, 1.0), encode(jobs)) for n in range(1, 40)], [])
        journal.close()
        data = bytearray(path.read_bytes())
        at = rng.randrange(4096, len(data) - 512)
        data[at : at + 64] = rng.randbytes(64)
        path.write_bytes(data)
        journal = Journal(path)
        try:
            records = journal.open("drr")
        except OutboxCorrupt:
            found += 1
            continue
        for record in records:
            try:
                assert journal.read(record.number) == jobs
            except (MalformedMessage, OutboxCorrupt):
                found += 1
        journal.close()
    assert found >= 6


def test_a_newer_format_is_refused(path: Path) -> None:
    opened(path).close()
    with sqlite3.connect(path) as file:
        file.execute("PRAGMA user_version = 99")
    file.close()
    with pytest.raises(OutboxCorrupt, match="format 99"):
        opened(path)


# --- bytes ----------------------------------------------------------------------------------------------

WRONG: list[Any] = [{"a": 1}, "{x}", -1, [[]]]
GOOD: list[Any] = [
    "default",
    ["acme", "web"],
    5,
    [],
    "echo",
    b"",
    1.0,
    None,
    None,
    0.0,
    "",
    None,
    None,
    0.0,
    "k",
    "",
    1,
]


def test_the_sample_is_good() -> None:
    assert decode(pack([GOOD]))[0].task == "echo"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        pack(None),
        pack([]),
        pack([1]),
        pack([GOOD[:-1]]),
        pack([[*GOOD, 1]]),
        pack([GOOD] * 1001),
        b"\xdd\xff\xff\xff\xff",
        bytes(BODY_LIMIT + 1),
        *[pack([[*GOOD[:n], value, *GOOD[n + 1 :]]]) for n in range(17) for value in WRONG],
    ],
)
def test_whatever_is_wrong_with_the_bytes_is_one_error(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(body)


# --- limits ---------------------------------------------------------------------------------------------


@pytest.fixture
async def outbox(path: Path) -> AsyncIterator[Outbox]:
    made = Outbox(path, max_jobs=1000, in_thread=False)
    await made.open("drr", ManualClock(), lambda: None)
    yield made
    await made.close()


async def put(outbox: Outbox, call: int, *jobs: JobSpec) -> Record:
    record, body = outbox.make("segment", call, jobs)
    await outbox.put(record, body)
    return record


async def test_jobs_are_bounded(outbox: Outbox) -> None:
    await put(outbox, 1, *[PLAIN] * 999)
    with pytest.raises(OutboxFull) as caught:
        outbox.make("segment", 2, [PLAIN] * 2)
    full = caught.value
    assert (full.what, full.held, full.wanted, full.limit) == ("jobs", 999, 2, 1000)
    assert "raise max_jobs" in str(full)
    record = await put(outbox, 2, PLAIN)
    await outbox.remove([record.number])
    assert (len(outbox), outbox.jobs) == (1, 999)


async def test_bytes_are_bounded(path: Path) -> None:
    outbox = Outbox(path, max_bytes=8 * 1024 * 1024, in_thread=False)
    await outbox.open("drr", ManualClock(), lambda: None)
    big = JobSpec(PLAIN.lane, "echo", bytes(1024 * 1024), 0.0)
    for call in range(7):
        await put(outbox, call, big)
    with pytest.raises(OutboxFull, match="max_bytes"):
        outbox.make("segment", 8, [big])
    assert outbox.size < 8 * 1024 * 1024
    await outbox.close()


async def test_what_was_held_counts_after_a_restart(outbox: Outbox, path: Path) -> None:
    await put(outbox, 1, PLAIN, PLAIN)
    size = outbox.size
    await outbox.close()
    again = Outbox(path, in_thread=False)
    await again.open("drr", ManualClock(), lambda: None)
    assert (len(again), again.jobs, again.size) == (1, 2, size)
    assert (await put(again, 2, PLAIN)).number == 2
    await again.close()
    await outbox.open("drr", ManualClock(), lambda: None)


async def test_a_write_that_fails_leaves_nothing_held(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OutboxFailed(outbox.path, "be written", "disk full")

    with monkeypatch.context() as patch:
        patch.setattr(outbox._journal, "write", fail)
        with pytest.raises(OutboxFailed, match="disk full"):
            await put(outbox, 1, PLAIN)
    assert (len(outbox), outbox.jobs, outbox.size) == (0, 0, 0)
    await put(outbox, 2, PLAIN)


async def test_only_what_is_set_aside_may_be_dropped_or_tried_again(outbox: Outbox) -> None:
    first, second = await put(outbox, 1, PLAIN), await put(outbox, 2, PLAIN)
    await outbox.set_aside(first.number, "too old")
    assert [(entry.number, entry.jobs, entry.reason) for entry in outbox.aside()] == [(first.number, 1, "too old")]
    with pytest.raises(InvalidValue, match="set aside"):
        await outbox.discard([first.number, second.number])
    with pytest.raises(InvalidValue, match="set aside"):
        await outbox.retry([second.number])
    await outbox.retry([first.number])
    assert outbox.aside() == []
    await outbox.set_aside(first.number, "again")
    await outbox.discard([first.number])
    assert len(outbox) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_jobs", 999), ("max_bytes", 1), ("horizon", -1.0), ("horizon", float("nan")), ("max_age", 86_400.0)],
)
def test_settings_out_of_range_are_refused(path: Path, name: str, value: Any) -> None:
    with pytest.raises(InvalidConfiguration, match=name):
        Outbox(path, **{name: value})
