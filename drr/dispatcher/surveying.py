"""Preparing the store at the start, and asking it what it keeps: then and ever again, since servers are replaced."""

from __future__ import annotations

import logging
import random
from typing import Final

from drr.backend import Backend
from drr.clock import Clock
from drr.dispatcher.vitals import Vitals
from drr.errors import BackendError, StoreUnavailable
from drr.timing import Backoff

log = logging.getLogger("drr.dispatcher")

INTERVAL: Final = 60.0
"""Seconds between two questions."""


async def prepare(backend: Backend, clock: Clock, rng: random.Random, patience: float) -> None:
    """Prepare the store; while it cannot be reached, try again for ``patience`` seconds, then raise."""
    began, backoff, told = clock.monotonic(), Backoff(rng), False
    while True:
        try:
            await backend.prepare()
        except StoreUnavailable as error:
            pause = backoff.next()
            if clock.monotonic() + pause - began > patience:
                raise
            if not told:
                log.warning("%s; waiting for %g s at most", error, patience)
                told = True
        else:
            return
        await clock.sleep(pause)


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
