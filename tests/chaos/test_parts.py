"""The parts of the fault matrix: shim, proxy, journals."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import chaos.shim
from chaos.journal import Journal, Journals
from chaos.proxy import Mischief, proxied
from chaos.rows.hostile import Forger
from chaos.shim import Shim
from drr.backend import Malformed, Struck
from drr_backends.redis.codec import decode_entry, split_frame

pytestmark = pytest.mark.anyio


def test_without_a_compiler_there_is_no_shim_and_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chaos.shim, "COMPILERS", ("no-such-compiler",))
    shim = Shim(tmp_path)
    assert "C compiler" in shim.missing or "Linux" in shim.missing
    assert shim.wrap(Path("/bin/server"), tmp_path) == Path("/bin/server")


def test_journals_are_read_as_they_grow_and_by_order(tmp_path: Path) -> None:
    journal, journals = Journal(tmp_path), Journals(tmp_path)
    journal.note("A", "o1.p0.1", "job-1")
    journal.note("S", 7, 1, "o1.p0.1", "job-1")
    first = journals.of("o1")
    assert [told.about for told in first.acknowledged] == ["job-1"]
    assert [run.attempt for run in first.open_runs(7)] == [1]
    journal.note("E", 7, 1, "o1.p0.1", "job-1")
    journal.note("R", "o2.p0.1", "StoreFull: it is\nfull")
    journal.note("D", "o1")
    assert journals.of("o1").open_runs(7) == []
    assert journals.of("o1").done == 1
    assert [told.about for told in journals.of("o2").refused] == ["StoreFull: it is full"]


async def test_the_proxy_resets_a_connection_in_place_of_a_reply() -> None:
    seen: list[bytes] = []
    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            seen.append(data)
            writer.write(b"reply")
        writer.close()
        await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, proxied(server.sockets[0].getsockname()[1], seed=1) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"reply"
        proxy.mischief = Mischief(reset=1.0)
        writer.write(b"second")
        with pytest.raises(ConnectionResetError):
            await reader.read(100)
        writer.close()
        await over.wait()
    assert seen == [b"first", b"second"]
    assert proxy.faults == {"reset": 1, "drop": 0, "hold": 0}


def test_what_is_forged_is_of_every_kind_and_the_same_for_the_same_seed() -> None:
    entries = []
    forger = Forger(3, tenants=8, projects=40)
    for _ in range(500):
        lane = forger.lane()
        entries.append((lane, forger.entry(lane)))
    again = Forger(3, tenants=8, projects=40)
    lane = again.lane()
    assert entries[0] == (lane, again.entry(lane))
    kinds = {type(decode_entry(split_frame(entry)[0], lane)) for lane, entry in entries}
    assert Malformed in kinds
    assert len(kinds - {Struck}) == 2, "some are jobs, for a task that nobody has"
    assert len({forger.message() for _ in range(200)}) > 50
