"""Replies that get lost on the way: half of the processes reach the server through a proxy that sees to that."""

from __future__ import annotations

from typing import Final

import anyio

from chaos.load import Load
from chaos.proxy import Mischief
from chaos.row import Findings, Row
from chaos.site import Site

RESETS: Final = 12
"""Connections that are torn down in one strike, each in place of a reply."""
DROPS: Final = 3
"""Connections on which no reply comes any more, in one strike. Who asked finds out after ten seconds."""
HOLD: Final = 0.5
PATIENCE: Final = 30.0


async def reset(site: Site, load: Load, findings: Findings) -> None:
    """Tear connections down after a request was carried out, in place of its reply."""
    await _until_done(site, load, findings, "reset", RESETS, Mischief(reset=0.05))


async def withhold(site: Site, load: Load, findings: Findings) -> None:
    """Hold replies back, and withhold some for good."""
    await _until_done(site, load, findings, "drop", DROPS, Mischief(drop=0.02, drops=DROPS, hold=0.1, hold_for=HOLD))


async def _until_done(site: Site, load: Load, findings: Findings, kind: str, number: int, mischief: Mischief) -> None:
    """Let the proxy do mischief until it has done so much, with new submits all the while."""
    await _lead_through_proxy(site)
    before = dict(site.proxy.faults)
    site.proxy.mischief = mischief
    try:
        with anyio.move_on_after(PATIENCE):
            while site.proxy.faults[kind] - before[kind] < number:
                site.check()
                await load.go(site.scale.jobs // 10)
    finally:
        site.proxy.mischief = Mischief()
    for name, count in site.proxy.faults.items():
        if count > before[name]:
            findings.faults += count - before[name]
            findings.count(name, count - before[name])
    await load.moves_on()


async def _lead_through_proxy(site: Site) -> None:
    """See to it that the leader is one of those behind the proxy."""
    while site.is_direct(name := site.name_of(token := await site.leader())):
        for other in site.dispatchers:
            await site.ripe(other)
        site.kill(name)
        site.start(name)
        await site.new_leader(token)


ROWS = (
    Row("connection reset after execution, before the reply", reset, slow=True),
    Row("replies held back or dropped", withhold, slow=True),
)
