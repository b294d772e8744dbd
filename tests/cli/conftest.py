"""What the commands change in this process is put back."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """A command sets up the log of its process, which here is everybody's."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
