"""A dispatcher records its own traffic: the files, what goes wrong with them, and that the simulator reads them."""

from __future__ import annotations

import gzip
import io
import logging
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from drr.client import Client
from drr.dispatcher import Dispatcher, Recorder
from drr.dispatcher.recording_rows import HEADER
from drr.errors import InvalidConfiguration, InvalidValue, TraceError
from drr.model import Lane
from drr.simulate.run import Setup, simulate, slots_of
from drr.simulate.trace import open_source, open_sources
from drr.worker import Tasks, Worker
from tests.helpers.site import Site
from tests.helpers.traffic import ACME, lease, read, settled

pytestmark = pytest.mark.anyio


def slots(pool: str) -> int:
    return 7


def record(recorder: Recorder, *numbers: int, at: float = 100.0) -> None:
    """Note jobs that were submitted at the second of their number."""
    wall = 1_700_000_000.0
    recorder.ended(
        [settled(lease(number, submitted=float(number), started=at - 1)) for number in numbers],
        slots,
        at,
        wall + at,
    )


def opened(path: Path, **options: Any) -> Recorder:
    recorder = Recorder(path, **options)
    recorder.open()
    recorder.resume(0.0, 1_700_000_000.0)
    return recorder


def numbers(path: Path) -> list[int]:
    return [int(row["job_id"]) for row in read(path)]


# --- files ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["day.csv", "day.csv.gz"])
@pytest.mark.parametrize("run_bytes", [1, 200, 2**20])
def test_jobs_end_out_of_order_and_the_trace_is_in_order_of_submission(
    tmp_path: Path, name: str, run_bytes: int
) -> None:
    recorder = opened(tmp_path / name, run_bytes=run_bytes)
    record(recorder, 7, 3, 9)
    record(recorder, 1, 8, 2)
    recorder.close()
    assert numbers(tmp_path / name) == [1, 2, 3, 7, 8, 9]
    assert [path.name for path in tmp_path.iterdir()] == [name], "nothing else is left"
    assert (tmp_path / name).read_bytes().startswith(b"\x1f\x8b") is name.endswith(".gz")


def test_without_jobs_there_is_no_file(tmp_path: Path) -> None:
    opened(tmp_path / "day.csv").close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_file_is_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    recorder = opened(tmp_path / "day.csv", max_jobs=2, keep=2)
    for first in (1, 3, 5, 7, 9):
        record(recorder, first, first + 1)
    recorder.close()
    found = {path.name: numbers(path) for path in tmp_path.iterdir()}
    assert found == {"day.csv": [9, 10], "day.1.csv": [7, 8], "day.2.csv": [5, 6]}


def test_the_size_is_bounded(tmp_path: Path) -> None:
    recorder = opened(tmp_path / "day.csv", max_bytes=4096, keep=3)
    for number in range(1, 1001):
        record(recorder, number)
    recorder.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert 2 <= len(sizes) <= 4
    assert max(sizes) < 4096 + 200


def test_what_was_there_before_is_not_overwritten(tmp_path: Path) -> None:
    for number in (1, 2):
        recorder = opened(tmp_path / "day.csv")
        record(recorder, number)
        recorder.close()
    assert (numbers(tmp_path / "day.csv"), numbers(tmp_path / "day.1.csv")) == ([2], [1])


def test_what_a_killed_process_left_is_published_without_the_row_that_was_cut_off(tmp_path: Path) -> None:
    killed = opened(tmp_path / "day.csv")
    record(killed, 1, 2, 3)
    killed.close()
    whole = (tmp_path / "day.csv").read_bytes()
    (tmp_path / "day.csv").unlink()
    (tmp_path / "day.csv.part").write_bytes(whole[:-5])
    opened(tmp_path / "day.csv").close()
    assert numbers(tmp_path / "day.csv") == [1, 2]


def test_two_recorders_do_not_share_a_file(tmp_path: Path) -> None:
    first = opened(tmp_path / "day.csv")
    with pytest.raises(InvalidConfiguration, match="no other process"):
        Recorder(tmp_path / "day.csv").open()
    record(first, 1)
    first.close()
    assert numbers(tmp_path / "day.csv") == [1]


@pytest.mark.parametrize("name", ["day.txt", "day", ".csv", "day.csv.bz2"])
def test_a_trace_has_a_trace_s_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"ends in \.csv or \.csv\.gz"):
        Recorder(tmp_path / name)


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    for path in (tmp_path / "folder.csv", tmp_path / "nowhere" / "day.csv"):
        with pytest.raises(InvalidConfiguration, match="file to record into"):
            Recorder(path).open()


@pytest.mark.parametrize(
    "options", [{"max_bytes": 100}, {"max_bytes": 1e6}, {"max_jobs": 0}, {"keep": -1}, {"keep": 1001}]
)
def test_limits_have_ranges(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfiguration, match="whole number"):
        Recorder(tmp_path / "day.csv", **options)


# --- trouble ----------------------------------------------------------------------------------------------


class FullDisk(io.FileIO):
    """A file on a disk that takes ``room`` bytes."""

    room = 400

    def write(self, data: Any) -> int:
        if len(data) > self.room:
            raise OSError(28, "No space left on device")
        type(self).room -= len(data)
        return super().write(data)


def test_a_full_disk_ends_the_recording_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FullDisk, "room", 400)
    recorder = opened(tmp_path / "day.csv", opener=FullDisk)
    for number in range(1, 100):
        record(recorder, number)
    recorder.close()
    assert recorder.failed
    assert "No space left on device" in caplog.text
    record(recorder, 100)  # the dispatcher goes on handing over

    opened(tmp_path / "day.csv").close()
    found = numbers(tmp_path / "day.csv")
    assert found == list(range(1, len(found) + 1)), "what was written before is there"
    assert found


def test_what_the_disk_cannot_keep_up_with_is_counted_and_dropped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(tmp_path / "day.csv", pending_limit=5)
    recorder.resume(0.0, 1_700_000_000.0)
    for number in range(1, 9):
        record(recorder, number)
    recorder.open()  # only now is there a thread that takes something
    recorder.close()
    assert numbers(tmp_path / "day.csv") == [1, 2, 3, 4, 5]
    assert "3 jobs are missing" in caplog.text


def test_it_can_be_opened_once(tmp_path: Path) -> None:
    recorder = opened(tmp_path / "day.csv")
    with pytest.raises(RuntimeError, match="once"):
        recorder.open()
    recorder.close()


# --- a dispatcher -----------------------------------------------------------------------------------------


async def work(site: Site, jobs: int, lane: Lane = ACME) -> None:
    """Run so many jobs of one second, one by one."""
    await site.submit(lane, jobs)
    for _ in range(jobs):
        [attempt] = await site.take()
        await site.clock.advance(1.0)
        await site.finish(attempt)
        await site.beat("w1")
        await site.clock.advance(0.1)


async def test_a_dispatcher_records_what_ends_while_it_leads(tmp_path: Path) -> None:
    site = Site()
    trace = tmp_path / "day.csv.gz"
    async with site.dispatcher(record=trace) as dispatcher:
        await dispatcher.wait_leading()
        await site.join()
        await work(site, 3)
        await work(site, 2, Lane("default", ("globex", "mail"), 5))
    rows = read(trace)
    assert [row["org"] for row in rows] == ["acme"] * 3 + ["globex"] * 2
    assert {(row["workers"], row["attempts"], row["outcome"], row["kind"]) for row in rows} == {
        ("1", "1", "ok", "work")
    }
    assert sum(float(row["duration_s"]) for row in rows) == pytest.approx(5.0, abs=0.1)


async def test_the_simulator_reads_what_a_dispatcher_recorded(tmp_path: Path) -> None:
    site = Site()
    trace = tmp_path / "day.csv"
    async with site.dispatcher(record=Recorder(trace)) as dispatcher:
        await dispatcher.wait_leading()
        await site.join()
        await work(site, 4)
    jobs = list(open_source(str(trace)))
    assert [(job.path, job.estimate) for job in jobs] == [(("acme", "web"), 1.0)] * 4
    assert sum(job.duration for job in jobs) == pytest.approx(4.0, abs=0.1)
    assert [job.at for job in jobs] == sorted(job.at for job in jobs)


async def test_what_still_runs_at_the_end_is_in_it(tmp_path: Path) -> None:
    site = Site()
    trace = tmp_path / "day.csv"
    async with site.dispatcher(record=trace) as dispatcher:
        await dispatcher.wait_leading()
        await site.join()
        await site.submit()
        await site.take()
        await site.clock.advance(4.0)
    [row] = read(trace)
    assert row["outcome"] == "unfinished"
    assert float(row["duration_s"]) == pytest.approx(4.0, abs=0.5)


async def test_a_standby_records_nothing(tmp_path: Path) -> None:
    site = Site()
    async with site.dispatcher() as leader:
        await leader.wait_leading()
        async with site.dispatcher(name="d2", record=tmp_path / "standby.csv"):
            await site.join()
            await work(site, 2)
    assert not (tmp_path / "standby.csv").exists()


async def test_a_disk_that_fails_does_not_stop_the_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FullDisk, "room", len(HEADER) + 10)
    caplog.set_level(logging.ERROR)
    site = Site()
    recorder = Recorder(tmp_path / "day.csv", opener=FullDisk)
    async with site.dispatcher(record=recorder) as dispatcher:
        await dispatcher.wait_leading()
        await site.join()
        await work(site, 3)
        assert recorder._thread is not None
        await anyio.to_thread.run_sync(recorder._thread.join, 30.0)  # it ends when the disk fails
        assert recorder.failed
        assert "recording into" in caplog.text
        await work(site, 2)  # each would wait for ever if dispatching had stopped
    assert site.held["w1"] == []


async def test_a_file_that_cannot_be_used_keeps_a_dispatcher_from_starting(tmp_path: Path) -> None:
    site = Site()
    with pytest.raises(InvalidConfiguration, match="file to record into"):
        async with site.dispatcher(record=tmp_path / "nowhere" / "day.csv"):
            raise AssertionError


def test_compressed_bytes_do_not_depend_on_the_time(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        recorder = opened(tmp_path / name)
        record(recorder, 1, 2)
        recorder.close()
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.csv.gz").read_bytes()).startswith(HEADER)


# --- read again -------------------------------------------------------------------------------------------

COLUMNS = "submit_s,duration_s,org,project,pool,start_s,workers"


def written(path: Path, *rows: str) -> str:
    path.write_text("\n".join((COLUMNS, *rows)) + "\n")
    return str(path)


def test_the_slots_that_were_live_then_are_the_simulator_s(tmp_path: Path) -> None:
    trace = written(
        tmp_path / "day.csv",
        "0,10,a,p,default,0,4",
        "1,10,a,p,default,5,3",
        "2,70,a,p,default,5,6",
        "3,200,a,p,default,5,0",
        "4,300,a,p,default,5,6",
        "5,400,a,p,default,5,2",
        "6,1,a,p,other,6,99",
    )
    assert list(slots_of(open_source(trace, pool="default"))) == [(0.0, 4), (60.0, 6), (360.0, 2)]
    assert list(slots_of(open_source(trace, pool="default", speedup=2.0))) == [(0.0, 4), (30.0, 6), (180.0, 2)]
    assert list(slots_of(open_source(trace, pool="default"), workers=5)) == [(0.0, 5)], "what is given comes first"


def test_one_pool_is_read(tmp_path: Path) -> None:
    trace = written(tmp_path / "day.csv", "0,1,a,p,default,0,1", "1,2,b,p,gpu,1,1", "2,3,a,p,default,2,1")
    assert [job.duration for job in open_source(trace, pool="gpu")] == [2.0]
    assert open_source(trace, pool="default").demand().worker_seconds == 4.0
    with pytest.raises(TraceError, match=r"line 3, column pool is 'gpu', but there are jobs of 'default' as well"):
        list(open_source(trace))
    with pytest.raises(TraceError, match="'renders', but the trace has these: 'default', 'gpu'"):
        list(open_source(trace, pool="renders"))


def test_the_only_pool_need_not_be_named(tmp_path: Path) -> None:
    trace = written(tmp_path / "day.csv", "0,1,a,p,gpu,0,1", "1,2,b,p,gpu,1,1")
    assert len(list(open_source(trace))) == 2


def test_without_a_record_of_workers_somebody_must_say_how_many(tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("submit_s,duration_s,org,project\n0,1,a,p\n")
    with pytest.raises(InvalidValue, match="give --workers or --load"):
        slots_of(open_source(str(trace)))


def test_terms_are_those_of_the_trace_s_own_pool(tmp_path: Path) -> None:
    trace = written(tmp_path / "day.csv", "0,1,a,p,gpu,0,1", "1,2,b,p,gpu,1,1")
    assert open_source(trace).pool == "gpu"
    assert open_source(trace, pool="other").pool == "other"
    plain = tmp_path / "plain.csv"
    plain.write_text("submit_s,duration_s,org,project\n0,1,a,p\n")
    assert open_source(str(plain)).pool is None
    assert open_sources([str(plain), trace]).pool == "gpu"


def test_a_pool_is_named_by_one_column(tmp_path: Path) -> None:
    trace = tmp_path / "day.csv"
    trace.write_text("submit_s,duration_s,org,project,pool,pool\n0,1,a,p,x,y\n")
    with pytest.raises(TraceError, match="a column is named once"):
        list(open_source(str(trace)))


# --- all of it --------------------------------------------------------------------------------------------


async def test_from_real_workers_to_the_simulator_s_report(tmp_path: Path, fresh_namespace: str) -> None:
    """Jobs of two tenants through client, dispatcher and worker; the report knows each of them and what it took."""
    trace = tmp_path / "day.csv.gz"
    url = "memory://recording"
    tasks = Tasks()

    @tasks.task("work")
    async def handler(number: int) -> int:
        return number

    async with Dispatcher(url, namespace=fresh_namespace, record=Recorder(trace)) as dispatcher:
        await dispatcher.wait_leading()
        worker = Worker(url, namespace=fresh_namespace, slots=3, tasks=tasks)
        async with Client(url, namespace=fresh_namespace) as client, anyio.create_task_group() as group:
            group.start_soon(worker.run)
            handles = [
                await client.submit("work", [number], tenant=f"o{number % 2}/p", estimate=0.5) for number in range(20)
            ]
            with anyio.fail_after(30):
                for handle in handles:
                    await handle.result()
            worker.stop()
    rows = read(trace)
    [result] = simulate(open_source(str(trace)), Setup(slots_of(open_source(str(trace))))).policies.values()
    assert (len(rows), result.jobs) == (20, 20)
    spent = sum(tenant.worker_seconds for tenant in result.tenants if len(tenant.path) == 1)
    assert spent == pytest.approx(sum(float(row["duration_s"]) for row in rows))
    assert {"/".join(tenant.path): tenant.jobs for tenant in result.tenants if len(tenant.path) == 1} == {
        "o0": 10,
        "o1": 10,
    }


async def test_a_dispatcher_that_leads_again_goes_on_with_its_recording(tmp_path: Path) -> None:
    site = Site()
    trace = tmp_path / "day.csv"
    async with site.dispatcher(record=trace) as dispatcher:
        await dispatcher.wait_leading()
        await site.join()
        await work(site, 2)
        found = await site.backend.leader()
        await site.backend.elect(found.token, f"{int(found.token.partition(':')[0]) + 1}:rival")
        await site.submit()  # its next commit is refused
        await site.clock.advance(1.0)
        led = [dispatcher.is_leader]
        await site.backend.resign((await site.backend.leader()).token)
        await site.clock.advance(5.0)
        led.append(dispatcher.is_leader)
        assert led == [False, True]
        await work(site, 1)
    outcomes = [row["outcome"] for row in read(trace)]
    assert outcomes.count("ok") >= 3
