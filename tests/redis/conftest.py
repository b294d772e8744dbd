"""A prepared namespace on each kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from drr.embedded import EmbeddedServer
from tests.contract.harness import Leader
from tests.redis.harness import RedisHarness


@pytest.fixture
async def store(server: EmbeddedServer, fresh_namespace: str) -> AsyncIterator[RedisHarness]:
    """An empty, prepared namespace."""
    harness = RedisHarness(server.url, fresh_namespace)
    await harness.handle.prepare()
    yield harness
    await harness.close()


@pytest.fixture
async def leader(store: RedisHarness) -> Leader:
    """The elected leader of the namespace."""
    return await Leader(store.handle).take_over()
