"""Ports for servers of a test's own."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    held = [socket.socket() for _ in range(count)]
    try:
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in held]
    finally:
        for each in held:
            each.close()
