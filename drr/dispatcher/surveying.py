"""Asking the store what it keeps: at the start, and again and again, since servers are replaced and set anew."""

from __future__ import annotations

import logging
from typing import Final

from drr.backend import Backend
from drr.clock import Clock
from drr.dispatcher.vitals import Vitals
from drr.errors import BackendError

log = logging.getLogger("drr.dispatcher")

INTERVAL: Final = 60.0
"""Seconds between two questions."""


async def survey(backend: Backend, vitals: Vitals) -> None:
    """Ask once; warn in the log of what is wrong and was not before. A store that cannot say is left for later."""
    try:
        found = await backend.survey()
    except BackendError as error:
        log.info("the store does not say what it keeps: %s", error)
        return
    told_before = vitals.survey is not None and vitals.survey.unknown == found.unknown
    new = vitals.surveyed(found)
    for remark in found.warnings:
        if remark.caution in new:
            log.warning("%s: %s", remark.caution, remark.text)
    if found.unknown and not told_before:
        log.info("the store does not tell: %s; see that it is set as the docs ask", ", ".join(found.unknown))


async def keep_surveying(backend: Backend, clock: Clock, vitals: Vitals) -> None:
    """Ask for ever."""
    while True:
        await clock.sleep(INTERVAL)
        await survey(backend, vitals)
