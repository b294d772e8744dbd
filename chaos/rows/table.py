"""All rows, in the order in which they are run."""

from __future__ import annotations

from chaos.row import Row
from chaos.rows import disk, hostile, leader, network, poison, server, service, workers

ROWS: tuple[Row, ...] = (
    *workers.ROWS,
    *leader.ROWS,
    *server.ROWS,
    *disk.ROWS,
    *network.ROWS,
    *service.ROWS,
    *poison.ROWS,
    *hostile.ROWS,
)
