"""Fixtures that all tests share.

Servers are started by the test run itself, on a unix socket each, and shared by all tests: a test keeps to
its own namespace (`fresh_namespace`) and leaves the server alone. A test that stops, fills or reconfigures a
server starts one of its own with `drr.embedded.EmbeddedServer`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from drr.core import is_compiled
from drr.embedded import EmbeddedServer
from drr.errors import ServerNotFound


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs the core as source, where it is compiled (``make test-compiled``)."""
    if is_compiled():
        for item in items:
            if item.get_closest_marker("source"):
                item.add_marker(pytest.mark.skip("it replaces parts of the core, and this one is compiled"))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def _shared_server(binary: str) -> Iterator[EmbeddedServer]:
    try:
        server = EmbeddedServer(binary=binary)
    except ServerNotFound as missing:
        pytest.skip(str(missing))
    with server:
        yield server


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[EmbeddedServer]:
    """A running Valkey, shared by the whole run."""
    yield from _shared_server("valkey-server")


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedServer]:
    """A running Redis, shared by the whole run."""
    yield from _shared_server("redis-server")


@pytest.fixture(
    scope="session",
    params=[pytest.param(name, id=name, marks=pytest.mark.redis) for name in ("valkey", "redis")],
)
def server(request: pytest.FixtureRequest) -> EmbeddedServer:
    """Each kind of server in turn."""
    running = request.getfixturevalue(f"{request.param}_server")
    assert isinstance(running, EmbeddedServer)
    return running


@pytest.fixture
def fresh_namespace() -> str:
    """A namespace that no other test has."""
    return f"test-{uuid.uuid4().hex[:16]}"
