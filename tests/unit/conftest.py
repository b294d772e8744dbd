"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.helpers.site import Site


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A memory store in virtual time."""
    found = Site()
    yield found
    await found.backend.close()
