"""``drr demo`` as a newcomer runs it: real processes, and figures that must hold on any machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.redis, pytest.mark.processes]

DEMO = [sys.executable, "-m", "drr.cli", "demo"]
PATIENCE = 120
KEYS = [
    "newcomer_wait_ms",
    "fifo_wait_ms",
    "max_running_acme",
    "share_error",
    "takeover_ms",
    "lost",
    "duplicated_completions",
    "leases_left",
    "dispatched",
    "seconds",
]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A directory for everything that the demo writes; short, because a socket's path has to be."""
    path = Path(tempfile.mkdtemp(dir="/tmp", prefix="d-"))
    yield path
    shutil.rmtree(path)


def environment(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary)}


def left_behind(temporary: Path) -> list[str]:
    """Return files, and the command lines of processes, that the demo did not clear away."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(temporary) in line:
            processes.append(line)
    return [*(str(path) for path in temporary.iterdir()), *processes]


def test_the_demo_measures_what_it_promises(temporary: Path) -> None:
    """The exact figures hold on any machine; of times only what even a busy one can keep."""
    done = subprocess.run(
        [*DEMO, "--json", "--seconds", "12"],
        capture_output=True,
        text=True,
        env=environment(temporary),
        timeout=PATIENCE,
        check=False,
    )
    assert "Traceback" not in done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == KEYS
    assert figures["max_running_acme"] == 3
    assert figures["lost"] == figures["duplicated_completions"] == figures["leases_left"] == 0
    assert 0 < figures["newcomer_wait_ms"] < 5000 < figures["fifo_wait_ms"]
    assert 0 < figures["takeover_ms"] < 12_000
    assert 0 <= figures["share_error"] < 0.4
    assert figures["dispatched"] > 30
    assert 12 <= figures["seconds"] < PATIENCE
    disappointed = [line for line in done.stderr.splitlines() if line.startswith("drr: ")]
    assert done.returncode == bool(disappointed)
    for what in ("acme (weight 1", "globex submits", "is killed (SIGKILL)", "has taken over", "leases left"):
        assert what in done.stderr
    assert left_behind(temporary) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing_behind(temporary: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        DEMO, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(temporary)
    ) as demo:
        assert demo.stdout is not None
        line = demo.stdout.readline()
        assert "two dispatchers and 4 workers are up" in line
        assert len(left_behind(temporary)) >= 7, "it runs"
        demo.send_signal(number)
        _, stderr = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130
    assert stderr == ""
    assert left_behind(temporary) == []
