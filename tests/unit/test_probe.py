"""The HTTP probe, over real sockets on the loopback: what it answers, what it refuses, and what it bounds."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drr import probe as module
from drr.durability import Level
from drr.errors import InvalidConfiguration, ProbeUnavailable
from drr.health import DispatcherHealth, Health, Reason
from drr.probe import CONNECTION_LIMIT, REQUEST_LIMIT, Probe, parse_address
from tests.helpers.site import Site, running

PATIENCE = 30.0


def health(reason: Reason = Reason.NONE, *, live: bool = True) -> DispatcherHealth:
    return DispatcherHealth(
        role="dispatcher",
        name="d1",
        state="leading",
        live=live,
        ready=reason is Reason.NONE,
        reason=reason,
        detail="",
        blocked=0.0,
        leader="1:abc",
        answered=0.5,
        committed=None,
        durability=Level.SYNCED,
        cautions=(),
    )


@contextmanager
def probing(source: Callable[[], Health] = health) -> Iterator[Probe]:
    with Probe("127.0.0.1:0", source) as probe:
        yield probe


def ask(probe: Probe, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", probe.port, timeout=PATIENCE)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


def connect(probe: Probe) -> socket.socket:
    return socket.create_connection(("127.0.0.1", probe.port), timeout=PATIENCE)


def sent(probe: Probe, data: bytes) -> bytes:
    """Return everything that is answered to raw bytes; empty too if the connection was reset."""
    with connect(probe) as link:
        received = b""
        try:
            link.sendall(data)
            link.shutdown(socket.SHUT_WR)
            while part := link.recv(65536):
                received += part
        except OSError:  # a reset comes as one of several errors, by when it comes
            pass
        return received


@pytest.mark.parametrize(
    ("said", "livez", "readyz"),
    [
        (health(), 200, 200),
        (health(Reason.STORE_LOST), 200, 503),
        (health(Reason.LOOP_BLOCKED, live=False), 503, 503),
    ],
)
def test_live_and_ready_are_two_questions(said: Health, livez: int, readyz: int) -> None:
    with probing(lambda: said) as probe:
        for path, status in (("/livez", livez), ("/readyz", readyz), ("/readyz?verbose", readyz)):
            code, headers, body = ask(probe, path)
            assert code == status
            assert json.loads(body) == json.loads(json.dumps(said.as_dict()))
            assert headers["Content-Type"] == "application/json"
            assert (headers["Connection"], headers["Cache-Control"]) == ("close", "no-store")


def test_head_has_the_same_answer_without_its_body() -> None:
    with probing(lambda: health(Reason.LOADING)) as probe:
        code, headers, body = ask(probe, "/readyz", "HEAD")
        assert (code, body) == (503, b"")
        assert int(headers["Content-Length"]) == len(ask(probe, "/readyz")[2])


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    with probing() as probe:
        code, headers, body = ask(probe, "/livez", method)
        assert (code, headers["Allow"], json.loads(body)["error"]) == (405, "GET, HEAD", "method_not_allowed")


@pytest.mark.parametrize("path", ["/", "/livez/", "/metrics", "/../livez", "//livez"])
def test_other_paths_are_not_found(path: str) -> None:
    with probing() as probe:
        code, _, body = ask(probe, path)
        assert (code, json.loads(body)["error"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"what?\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\nno colon\r\n\r\n", b"400"),
        (b"GET /livez HTTP/1.1\r\n\r\n", b"400"),  # no Host
        (b"GET /livez HTTP/1.0\r\n\r\n", b"200"),
        (b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n", b"405"),
    ],
)
def test_what_is_no_request_is_refused_and_bodies_are_not_waited_for(data: bytes, status: bytes) -> None:
    with probing() as probe:
        assert sent(probe, data).startswith(b"HTTP/1.1 " + status)


def test_a_request_without_end_is_cut_off() -> None:
    """With 431, which a client that still writes may not get to see: the connection is reset."""
    with probing() as probe:
        head = b"GET /livez HTTP/1.1\r\nHost: x\r\nX: "
        assert sent(probe, head + b"a" * 100 * REQUEST_LIMIT)[:12] in (b"", b"HTTP/1.1 431")
        assert ask(probe, "/livez")[0] == 200


def test_a_connection_without_a_request_is_no_error() -> None:
    """As port scanners and TCP checks make them."""
    with probing() as probe:
        assert sent(probe, b"") == b""
        assert ask(probe, "/livez")[0] == 200


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=200) | st.binary(max_size=60).map(lambda data: b"GET /livez HTTP/1.1\r\n" + data))
def test_nothing_that_is_sent_ends_the_probe(shared: Probe, data: bytes) -> None:
    answer = sent(shared, data)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert ask(shared, "/livez")[0] == 200


@pytest.fixture
def shared() -> Iterator[Probe]:
    with probing() as probe:
        yield probe


def test_a_connection_that_says_nothing_is_closed_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TIME_LIMIT", 0.1)
    with probing() as probe, connect(probe) as silent, connect(probe) as slow:
        slow.sendall(b"GET /livez HTTP/1.1\r\n")
        for link in (silent, slow):
            assert closed(link)


def closed(link: socket.socket) -> bool:
    """Return true once the other side has closed ``link``."""
    try:
        return link.recv(1) == b""
    except ConnectionError:
        return True


def test_silent_connections_do_not_shut_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest make room; the probe holds no more than its limit."""
    monkeypatch.setattr(module, "TIME_LIMIT", PATIENCE)
    with probing() as probe, ExitStack() as stack:
        links = [stack.enter_context(connect(probe)) for _ in range(CONNECTION_LIMIT + 3)]
        assert ask(probe, "/livez")[0] == 200
        assert all(closed(link) for link in links[:3])
        # A request of the newest is served: it was not among those that went.
        links[-1].sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert links[-1].recv(12) == b"HTTP/1.1 200"


def test_a_health_that_cannot_be_told_is_an_answer_too(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Health:
        raise ZeroDivisionError

    with probing(broken) as probe:
        code, _, body = ask(probe, "/livez")
        assert (code, json.loads(body)["error"]) == (500, "no_health")
        assert "ZeroDivisionError" in caplog.text


@pytest.mark.anyio
async def test_a_blocked_event_loop_is_answered_while_it_is_blocked(site: Site) -> None:
    """This very function holds the loop while it asks."""
    async with running(site, leader_lease=3.0) as dispatcher:
        with probing(dispatcher.health) as probe:
            assert (ask(probe, "/livez")[0], ask(probe, "/readyz")[0]) == (200, 200)
            site.clock.jump(5.0)
            assert (ask(probe, "/livez")[0], ask(probe, "/readyz")[0]) == (200, 503)
            site.clock.jump(6.0)
            code, _, body = ask(probe, "/livez")
            assert (code, json.loads(body)["reason"]) == (503, "event_loop_blocked")
            await site.clock.advance(1.0)
            assert (ask(probe, "/livez")[0], ask(probe, "/readyz")[0]) == (200, 200)


@pytest.mark.parametrize(
    "address",
    ["", ":8080", "8080", "localhost", "localhost:", "localhost:http", "localhost:65536", "localhost:-1", "::1:80"],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(InvalidConfiguration, match="must be HOST:PORT") as caught:
        Probe(address, health)
    assert caught.value.value == address


def test_addresses_are_read() -> None:
    assert parse_address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert parse_address("[::1]:8080") == ("::1", 8080)
    assert parse_address("probes.example.com:65535") == ("probes.example.com", 65535)


def test_a_port_that_is_taken_is_a_named_error_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with probing() as probe:
        with pytest.raises(ProbeUnavailable, match=f"cannot listen at 127.0.0.1:{probe.port}: .*in use"):
            Probe(f"127.0.0.1:{probe.port}", health).__enter__()
        with pytest.raises(ProbeUnavailable, match=r"cannot listen at a\.\.b:80"):
            Probe("a..b:80", health).__enter__()
        assert threading.active_count() == before + 1
        with pytest.raises(RuntimeError, match="once"):
            probe.__enter__()
    assert threading.active_count() == before


def test_leaving_closes_what_is_open() -> None:
    with ExitStack() as stack:
        with probing() as probe:
            link = stack.enter_context(connect(probe))
            assert ask(probe, "/livez")[0] == 200
        assert closed(link)
        with pytest.raises(OSError, match="refused"):
            connect(probe)


def test_bodies_hold_plain_values_only() -> None:
    assert json.loads(json.dumps(health().as_dict())) == health().as_dict() | {"cautions": []}
