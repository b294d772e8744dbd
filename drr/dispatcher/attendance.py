"""Letting others see from the store that a dispatcher lives, whether it leads or stands by.

A standby does not show otherwise, and one that nobody misses is missed when the leader fails. Nothing in drr decides
anything by it.
"""

from __future__ import annotations

import logging
from typing import Final

from drr.backend import Backend
from drr.clock import Clock
from drr.dispatcher.options import Options
from drr.errors import BackendError

log = logging.getLogger("drr.dispatcher")

PER_LEASE: Final = 3
"""Signs of life in a leader lease, as the leader renews its own."""
FORGOTTEN_AFTER: Final = 60.0
"""Seconds beyond two leader leases after which the store forgets a dispatcher."""


async def keep_attending(backend: Backend, clock: Clock, options: Options) -> None:
    """Give signs of life for ever. What fails is left to the next: the loop that leads deals with errors."""
    while True:
        try:
            await backend.attend(options.name, 2 * options.leader_lease + FORGOTTEN_AFTER)
        except BackendError as error:
            log.debug("the store does not take a sign of life: %s", error)
        await clock.sleep(options.leader_lease / PER_LEASE)
