"""One incarnation of a participant: whether it lives, whether it is stopped, and what its clocks show."""

from __future__ import annotations

import asyncio
from typing import Final

import anyio

from tests.world.virtual import EPOCH

LAST_WAIT: Final = 0.05
"""Longest wait of the dead, in seconds."""


class Life:
    """From a start to a crash. ``name``: the participant's, and the number of the incarnation.

    Dead: nothing that it still does reaches anybody. Its code runs on for a few instants, since cancelling it runs
    what it has to say on its way out; its calls fail, its waits are short.

    Stopped: as by SIGSTOP. Its calls under way are carried out, but no answer reaches it and no wait ends.
    """

    def __init__(self, name: str, offset: float) -> None:
        """``offset``: where its monotonic clock begins; nobody may compare those of two processes."""
        self.name = name
        self.alive = True
        self.cut_off_until = float("-inf")
        """Until then none of its calls reaches the store."""
        self.wall_offset = 0.0
        self.scope = anyio.CancelScope()
        self._offset = offset
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Event | None = None

    # --- its clock

    def monotonic(self) -> float:
        return self._loop.time() + self._offset

    def wall(self) -> float:
        return self._loop.time() + EPOCH + self.wall_offset

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds) if self.alive else min(seconds, LAST_WAIT))
        await self.turn()

    # --- what is done to it

    async def turn(self) -> None:
        """Return when it is not stopped."""
        while self._stopped is not None:
            await self._stopped.wait()

    def stop(self) -> None:
        self._stopped = self._stopped or asyncio.Event()

    def go_on(self) -> None:
        if self._stopped is not None:
            self._stopped.set()
            self._stopped = None

    def kill(self) -> None:
        """As by SIGKILL."""
        self.alive = False
        self.go_on()
        self.scope.cancel()
