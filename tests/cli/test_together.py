"""The commands against a real server, with a dispatcher and a worker in processes of their own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from drr.cli.exits import Exit
from drr.embedded import EmbeddedServer
from tests.cli.command import PATIENCE, drr, run, start

pytestmark = [pytest.mark.redis, pytest.mark.processes]

JOBS = """
import time

from drr.worker import Tasks

tasks = Tasks()


@tasks.task()
async def add(a: int, b: int = 0) -> int:
    return a + b


@tasks.task()
def shout(text: str) -> bytes:
    return text.upper().encode()


@tasks.task()
def fail() -> None:
    raise ValueError("no\\nluck")


@tasks.task()
def work(seconds: float) -> None:
    time.sleep(seconds)
"""
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (DEBUG|INFO|WARNING|ERROR) +drr\.\w+: .+")


class Service:
    """A server with its own namespace, and processes that are ended with it."""

    def __init__(self, url: str, place: Path) -> None:
        self.url = url
        self.place = place
        self._processes: list[subprocess.Popen[bytes]] = []
        (place / "jobs.py").write_text(JOBS)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        process = start(*arguments, cwd=self.place, log=self.log(arguments[0]), DRR_URL=self.url)
        self._processes.append(process)
        return process

    def log(self, command: str) -> Path:
        return self.place / f"{command}.log"

    def leave(self, *arguments: str) -> None:
        """Submit and go."""
        done = drr("submit", *arguments, "--url", self.url)
        assert done.exit_code == Exit.OK, done.stderr

    def submit(self, *arguments: str) -> tuple[int, list[Any], str]:
        """Submit as a process; return the exit code, what stdout held and stderr."""
        done = run("submit", *arguments, cwd=self.place, DRR_URL=self.url)
        return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def status(self) -> Any:
        done = drr("status", self.url, "--json")
        assert done.exit_code == Exit.OK
        return json.loads(done.stdout)

    def eventually(self, true: Callable[[Any], bool]) -> Any:
        """Return the first status that is as wanted."""
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        while not true(found := self.status()):
            assert time.monotonic() < deadline, found
            pause.wait(0.05)
        return found

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def stop(process: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> int:
    process.send_signal(number)
    return process.wait(PATIENCE)


def node(status: Any, *path: str) -> Any:
    """Return the description of a tenant, or ``None``."""
    pools = status["status"]["pools"] if status["status"] else ()
    return next((node for pool in pools for node in pool["nodes"] if tuple(node["path"]) == path), None)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.delenv("DRR_NAMESPACE", raising=False)
    with EmbeddedServer() as server:
        made = Service(server.url, tmp_path)
        done = drr("init", made.url)
        assert (done.exit_code, done.stdout) == (Exit.OK, f"namespace drr at {made.url} is ready\n")
        try:
            yield made
        finally:
            made.close()


def test_jobs_there_and_back(service: Service) -> None:
    serve = service.start("serve")
    worker = service.start("worker", "jobs:tasks", "--slots", "2", "--name", "w1")

    code, [end], _ = service.submit("add", "--org", "acme", "--args", "[1]", "--kwargs", '{"b": 2}', "--wait")
    assert code == Exit.OK
    assert (end["state"], end["result"], end["attempt"]) == ("succeeded", 3, 1)
    assert re.fullmatch(r"default:acme:default:5:\d+~\w+", end["job"])

    code, ends, _ = service.submit("add", "--org", "acme", "--args", "[4]", "--count", "30", "--wait")
    assert code == Exit.OK
    assert [end["result"] for end in ends] == [4] * 30
    assert len({end["job"] for end in ends}) == 30

    code, [end], _ = service.submit("shout", "--org", "acme", "--args", '["hé"]', "--within", "60")
    assert (code, end["result"]) == (Exit.OK, "HÉ")

    code, [end], stderr = service.submit("fail", "--org", "acme", "--wait")
    assert (code, end["state"], end["error"]) == (Exit.FAILED, "failed", "ValueError: no\nluck")
    assert stderr == f"drr: job {end['job']} failed at attempt 1: ValueError: no / luck\n"

    code, [end], _ = service.submit("unheard-of", "--org", "acme", "--wait")
    assert code == Exit.FAILED
    assert "has no task 'unheard-of'" in end["error"]

    code, [end], _ = service.submit("work", "--org", "acme", "--args", "[0.3]", "--timeout", "0.1", "--wait")
    assert (code, end["state"]) == (Exit.FAILED, "failed")
    assert "TimedOut" in end["error"]

    assert stop(worker) == Exit.OK
    assert stop(serve) == Exit.OK
    for line in service.log("serve").read_text().splitlines():
        assert LINE.fullmatch(line), line
    assert "worker w1 joined with slots {'default': 2}" in service.log("worker").read_text()


def test_submitting_prints_ids_and_needs_nobody(service: Service) -> None:
    done = run("submit", "add", "--org", "acme", "--project", "imports", "--count", "2500", DRR_URL=service.url)
    assert done.returncode == Exit.OK
    ids = done.stdout.split()
    assert len(set(ids)) == 2500
    assert all(job_id.startswith("default:acme:imports:5:") for job_id in ids)
    assert not done.stderr


def test_waiting_has_an_end(service: Service) -> None:
    code, ends, stderr = service.submit("add", "--org", "acme", "--args", "[1]", "--within", "0.2")
    assert (code, ends) == (Exit.FAILED, [])
    assert stderr == "drr: not all jobs have ended within 0.2 s; they stay where they are\n"


def test_status_tells_who_leads_who_works_and_what_waits(service: Service) -> None:
    assert (
        "leader     none: jobs wait until a dispatcher leads (start: drr serve)" in drr("status", service.url).stdout
    )
    assert "workers    none: jobs wait (start: drr worker)" in drr("status", service.url).stdout

    serve = service.start("serve", "--name", "chief", "--hard-cap", "acme=1", "--weight", "acme=2.5")
    service.start("worker", "jobs:tasks", "--slots", "3", "--name", "w1")
    service.leave("work", "--org", "acme", "--args", "[60]", "--count", "4")
    service.leave("work", "--org", "globex", "--project", "mail", "--args", "[60]")
    status = service.eventually(lambda status: bool((acme := node(status, "acme")) and acme["running"] == 1))
    acme = node(status, "acme")
    assert (acme["queued"], acme["hard_cap"], acme["weight"], acme["waits"]) == (3, 1, 2.5, "capped")
    assert status["leader"]["alive"] is True
    assert status["status"]["dispatcher"] == "chief"
    assert [(worker["name"], worker["slots"]) for worker in status["workers"]] == [("w1", {"default": 3})]
    service.eventually(lambda status: bool((mail := mail_of(status)) and mail["running"] == 1))

    printed = drr("status", service.url).stdout
    assert re.search(r"^leader     chief \(1:[0-9a-f]+\), leads for ", printed, re.MULTILINE)
    assert re.search(r"^pool default   2 of 3 slots busy, 3 queued", printed, re.MULTILINE)
    assert re.search(r"^acme +2\.5 +3 +1/1 +[+-]\d+\.\d\d +\d+\.\d% +\d+\.\d s .*capped", printed, re.MULTILINE)
    assert re.search(r"^  mail +1 +0 +1 ", printed, re.MULTILINE)

    serve.kill()
    serve.wait()
    service.eventually(lambda status: not status["leader"]["alive"])
    assert "gives no sign of life" in drr("status", service.url).stdout


def mail_of(status: Any) -> Any:
    return node(status, "globex", "mail")


def test_entitlements_survive_and_are_replaced_as_a_whole(service: Service) -> None:
    service.leave("add", "--org", "acme", "--args", "[1]")
    service.leave("add", "--org", "globex", "--args", "[1]")

    def caps(status: Any) -> list[tuple[float, int | None]]:
        found = [node(status, "acme"), node(status, "globex")]
        return [(one["weight"], one["hard_cap"]) for one in found if one]

    def lead(name: str, wanted: list[tuple[float, int | None]], *options: str) -> None:
        serve = service.start("serve", "--name", name, *options)
        service.eventually(lambda status: bool(status["status"]) and status["status"]["dispatcher"] == name)
        service.eventually(lambda status: caps(status) == wanted)
        assert stop(serve) == Exit.OK

    lead("first", [(2.0, 3), (1.0, 7)], "--weight", "acme=2", "--hard-cap", "acme=3", "--hard-cap", "globex=7")
    lead("stored", [(2.0, 3), (1.0, 7)])
    lead("acme-anew", [(5.0, None), (1.0, 7)], "--weight", "acme=5")


def test_a_worker_drains_at_sigterm(service: Service) -> None:
    service.start("serve")
    worker = service.start("worker", "jobs:tasks", "--name", "w1")
    # Long enough to be still running when the description, at times a second old, shows it on a busy machine.
    service.leave("work", "--org", "acme", "--args", "[5.0]", "--count", "2")
    service.eventually(lambda status: bool((found := node(status, "acme")) and found["running"] == 1))
    assert stop(worker) == Exit.OK
    # What ran was finished, what waited was left.
    status = service.eventually(lambda status: status["status"]["counters"]["succeeded"] == 1)
    assert (node(status, "acme")["queued"], node(status, "acme")["running"], status["workers"]) == (1, 0, [])
    assert status["status"]["counters"]["lost"] == 0


def test_serve_stops_at_ctrl_c(service: Service) -> None:
    serve = service.start("serve")
    service.eventually(lambda status: status["leader"]["alive"])
    assert stop(serve, signal.SIGINT) == Exit.OK
    assert service.status()["leader"]["token"] == ""
