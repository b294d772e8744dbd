"""The stores that the contract suite runs against."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from drr.backend import Backend
from tests.contract.adapters import MemoryHarness, RedisHarness
from tests.contract.harness import PATIENCE, Harness, Leader


@pytest.fixture(
    params=[
        "memory",
        pytest.param("valkey", marks=pytest.mark.redis),
        pytest.param("redis", marks=pytest.mark.redis),
    ]
)
async def harness(request: pytest.FixtureRequest, fresh_namespace: str) -> AsyncIterator[Harness]:
    """An empty, prepared store of each adapter in turn."""
    made: Harness
    if request.param == "memory":
        made = MemoryHarness(fresh_namespace)
    else:
        server = request.getfixturevalue(f"{request.param}_server")
        made = RedisHarness(server, fresh_namespace)
    yield made
    await made.close()


@pytest.fixture
async def backend(harness: Harness) -> Backend:
    """A handle on the store."""
    handle = harness.open()
    with anyio.fail_after(PATIENCE):
        await handle.prepare()
    return handle


@pytest.fixture
async def leader(backend: Backend) -> Leader:
    """The elected leader of the store."""
    return await Leader(backend).take_over()
