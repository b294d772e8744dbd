"""Probes of ``drr serve`` and ``drr worker`` as processes, through the loss of their server."""

from __future__ import annotations

import http.client
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
from tests.cli.command import PATIENCE, drr, start

pytestmark = [pytest.mark.redis, pytest.mark.processes]

JOBS = """
import time
from pathlib import Path

from drr.worker import Tasks

tasks = Tasks()


@tasks.task()
async def block() -> None:
    \"\"\"Hold the event loop until the file is there.\"\"\"
    while not Path("release").exists():
        time.sleep(0.01)
"""
LISTENS = re.compile(r"answering /livez and /readyz at 127\.0\.0\.1:0 \(port (\d+)\)")


class Probed:
    """A process with a probe at a port of its own choice."""

    def __init__(self, place: Path, *arguments: str, **environment: str) -> None:
        self._log = place / f"{arguments[0]}.log"
        self.process = start(*arguments, "--probe", "127.0.0.1:0", cwd=place, log=self._log, **environment)
        self.port = int(self._eventually(lambda: LISTENS.search(self._log.read_text())).group(1))

    def ask(self, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def until(self, path: str, status: int, **fields: object) -> None:
        """Return once the probe answers so."""

        def answered() -> bool:
            code, body = self.ask(path)
            return code == status and fields.items() <= body.items()

        self._eventually(answered)

    def _eventually(self, found: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + PATIENCE
        pause = threading.Event()
        while not (value := found()):
            assert self.process.poll() is None, self._log.read_text()
            assert time.monotonic() < deadline, self._log.read_text()
            pause.wait(0.05)
        return value


@pytest.fixture
def probed(tmp_path: Path) -> Iterator[Callable[..., Probed]]:
    (tmp_path / "jobs.py").write_text(JOBS)
    started: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, **environment: str) -> Probed:
        made = Probed(tmp_path, *arguments, **environment)
        started.append(made.process)
        return made

    yield begin
    for process in started:
        process.kill()
        process.wait()


def test_probes_follow_the_store_and_never_ask_for_a_restart(probed: Callable[..., Probed]) -> None:
    with EmbeddedServer() as server:
        serve = probed("serve", server.url, "--name", "chief")
        worker = probed("worker", "jobs:tasks", "--name", "w1", "--lease", "1.5", DRR_URL=server.url)
        serve.until("/readyz", 200, role="dispatcher", name="chief", state="leading", reason="")
        worker.until("/readyz", 200, role="worker", name="w1", state="working", reason="")
        server.kill()
        serve.until("/readyz", 503, state="recovering", reason="store_lost")
        worker.until("/readyz", 503, state="lapsed", reason="lease_lapsed")
        assert (serve.ask("/livez")[0], worker.ask("/livez")[0]) == (200, 200)
        server.restart()
        serve.until("/readyz", 200, state="leading")
        worker.until("/readyz", 200, state="working")
        for one in (serve, worker):
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(PATIENCE) == Exit.OK


def test_a_worker_whose_loop_is_blocked_is_not_ready_and_not_to_be_restarted(
    probed: Callable[..., Probed], tmp_path: Path
) -> None:
    with EmbeddedServer() as server:
        probed("serve", server.url)
        worker = probed("worker", "jobs:tasks", "--name", "w1", "--blocked-after", "0.3", DRR_URL=server.url)
        worker.until("/readyz", 200)
        assert drr("submit", "block", "--org", "acme", "--url", server.url).exit_code == Exit.OK
        worker.until("/readyz", 503, reason="event_loop_blocked", state="working", running=1)
        code, told = worker.ask("/livez")
        assert (code, told["live"]) == (200, True)
        assert told["blocked"] > 0.3
        (tmp_path / "release").touch()
        worker.until("/readyz", 200, blocks=1, running=0, blocked=0.0)


def test_a_probe_that_cannot_be_is_one_line() -> None:
    done = drr("serve", "redis://127.0.0.1:1", "--probe", "8080")
    assert done.exit_code == Exit.USAGE
    assert done.stderr.startswith("drr: address of the probe is '8080', but it must be HOST:PORT")
    done = drr("serve", "redis://127.0.0.1:1", "--probe", "203.0.113.1:80")
    assert done.exit_code == Exit.FAILED
    assert "drr: the probe cannot listen at 203.0.113.1:80: " in done.stderr
