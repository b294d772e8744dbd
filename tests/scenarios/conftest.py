"""The site of a scenario with processes: a server of its own, since some scenarios fill it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from drr.embedded import EmbeddedServer
from drr.errors import ServerNotFound
from tests.scenarios.processes import Site, opened


@pytest.fixture
async def site(request: pytest.FixtureRequest, fresh_namespace: str, tmp_path: Path) -> AsyncIterator[Site]:
    """On Valkey, or on the server that the test names by an indirect parameter."""
    try:
        server = EmbeddedServer(binary=getattr(request, "param", "valkey-server"))
    except ServerNotFound as missing:
        pytest.skip(str(missing))
    async with server, opened(server.url, fresh_namespace, tmp_path) as site:
        yield site
