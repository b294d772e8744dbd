"""An embedded server never outlives its parent, by either way of tying their lives together."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import redis

from drr.embedded import EmbeddedServer

pytestmark = [pytest.mark.redis, pytest.mark.processes]

PARENT = """
import sys, threading
from drr import embedded

embedded._LIFELINE = sys.argv[2]
server = embedded.EmbeddedServer(sys.argv[1] or None)
starter = threading.Thread(target=server.start)  # whose end must not end the server
starter.start()
starter.join()
print(server.socket_path, flush=True)
sys.stdin.readline()
"""


class Parent:
    """Another process that starts a server, and our connection to that server."""

    def __init__(self, data_dir: Path | str, lifeline: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PARENT, str(data_dir), lifeline], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.socket_path = Path(self.process.stdout.readline().decode().strip())
        self.client = redis.Redis(unix_socket_path=str(self.socket_path), socket_timeout=20)
        self.link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.link.settimeout(20)
        self.link.connect(str(self.socket_path))

    def server_has_gone(self) -> bool:
        """Wait for the server to drop the connection."""
        return self.link.recv(1) == b""

    def close(self) -> None:
        self.link.close()
        self.client.close()
        if self.process.poll() is None:
            self.process.communicate(b"\n", timeout=20)  # a killed one would leave its temporary directory
        with self.process:
            pass


@pytest.fixture(params=["signal", "pipe"])
def lifeline(request: pytest.FixtureRequest) -> str:
    if request.param == "signal" and sys.platform != "linux":
        pytest.skip("only Linux has a death signal")
    return str(request.param)


def test_server_dies_with_a_killed_parent_and_loses_nothing(lifeline: str, tmp_path: Path) -> None:
    parent = Parent(tmp_path, lifeline)
    try:
        for number in range(500):
            parent.client.rpush("acknowledged", number)
        parent.process.kill()
        assert parent.server_has_gone()
    finally:
        parent.close()
    with EmbeddedServer(tmp_path) as server, redis.Redis.from_url(server.url) as client:
        assert client.llen("acknowledged") == 500


def test_server_outlives_the_thread_that_started_it(lifeline: str) -> None:
    parent = Parent("", lifeline)
    try:
        # The starting thread ended before we connected. A blocking read gives a wrong signal time to work.
        assert parent.client.blpop(["nothing"], timeout=0.3) is None
        assert parent.client.ping()
    finally:
        parent.close()


def test_a_parent_that_just_exits_leaves_nothing(lifeline: str) -> None:
    parent = Parent("", lifeline)
    try:
        parent.process.communicate(b"\n", timeout=20)
        assert parent.server_has_gone()
        assert parent.process.returncode == 0
        assert not parent.socket_path.parent.exists(), "the temporary directory is gone"
    finally:
        parent.close()
