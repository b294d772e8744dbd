"""How a store is found by its URL."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import drr.backend
from drr.backend import open_backend
from drr.clock import SystemClock
from drr.errors import BackendError, UnknownBackend
from drr_backends.memory import MemoryBackend
from drr_backends.redis import RedisBackend


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("postgres://localhost/db", "postgres"),
        ("memory", ""),
        ("localhost:6379", ""),
        ("", ""),
        ("://x", ""),
        ("memory:name", ""),
    ],
)
def test_an_unknown_scheme_names_the_known_ones(url: str, scheme: str) -> None:
    with pytest.raises(UnknownBackend) as caught:
        open_backend(url, namespace="a", clock=SystemClock())
    assert caught.value.scheme == scheme
    assert set(caught.value.known) >= {"memory", "redis", "rediss", "unix"}
    assert all(known in str(caught.value) for known in ("memory", "redis", repr(url)))
    assert isinstance(caught.value, BackendError)


@pytest.mark.parametrize(
    ("url", "adapter"),
    [
        ("memory://", MemoryBackend),
        ("memory://name", MemoryBackend),
        ("MEMORY://", MemoryBackend),
        ("redis://localhost:1/0", RedisBackend),
        ("rediss://localhost:1/0", RedisBackend),
        ("unix:///nowhere/server.sock", RedisBackend),
    ],
)
def test_a_scheme_finds_its_adapter_which_connects_later(url: str, adapter: type) -> None:
    assert isinstance(open_backend(url, namespace="a", clock=SystemClock()), adapter)


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed distribution that brings an adapter for ``shelf://``."""
    (tmp_path / "drr_shelf.py").write_text(
        "def open_shelf(url, namespace, clock):\n    return ('shelf', url, namespace, clock)\n"
    )
    info = tmp_path / "drr_shelf-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: drr-shelf\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[drr.backends]\nshelf = drr_shelf:open_shelf\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("drr_shelf", None)


def test_a_third_party_adapter_is_found_by_its_entry_point(third_party: None) -> None:
    clock = SystemClock()
    opened: object = open_backend("shelf://top?row=2", namespace="a", clock=clock)
    assert opened == ("shelf", "shelf://top?row=2", "a", clock)
    with pytest.raises(UnknownBackend, match="shelf"):
        open_backend("box://", namespace="a", clock=clock)


def test_the_port_does_not_import_its_adapters() -> None:
    assert not any(name.startswith("drr_backends") for name in vars(drr.backend))
