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
    "Sentinel failover (3 sentinels, kill -9 of the primary)": "no adapter reaches its store through sentinels",
}
"""Rows of the table of faults that this version has nothing to run on, and why."""
