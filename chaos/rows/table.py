"""All rows, in the order in which they are run, and those that cannot be."""

from __future__ import annotations

from chaos.row import Row
from chaos.rows import disk, hostile, leader, network, poison, server, service, storm, workers

ROWS: tuple[Row, ...] = (
    *workers.ROWS,
    *leader.ROWS,
    *server.ROWS,
    *disk.ROWS,
    *network.ROWS,
    *service.ROWS,
    *poison.ROWS,
    *hostile.ROWS,
    *storm.ROWS,
)

NOT_RUN: dict[str, str] = {
    "Sentinel failover (3 sentinels, kill -9 of the primary)": (
        "each site here is one server; `make soak PYTEST_ARGS='-k sentinel'` kills a primary under load"
    ),
}
"""Rows of the table of faults that this version has nothing to run on, and why."""
