"""Clients, workers and dispatchers that are cancelled at whatever await they have come to, inside one service."""

from __future__ import annotations

from functools import partial

from chaos.load import Load
from chaos.row import Findings, Row
from chaos.site import NAMESPACE, Site

PATIENCE = 600.0


async def cancel(site: Site, load: Load, findings: Findings) -> None:
    """Run the service to its end; it notes itself what is left of what it cancelled."""
    rounds = -(-site.scale.cancelled // site.scale.strikes)
    arguments = (site.proxy.url, NAMESPACE, load.number, str(findings.faults), str(rounds))
    process = site.run("service", "chaos.cancelling", *arguments)
    await site.until(partial(site.ended, "service"), "the service to end", PATIENCE)
    if process.status:
        findings.problems.append(f"the service ended with {process.status}: {process.log[-1500:]}")
    site.kill("service")
    findings.faults += rounds


ROWS = (Row("cancellation at a random await", cancel),)
