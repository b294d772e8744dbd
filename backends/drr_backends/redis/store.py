"""What the three roles share: the keys, the connections, and how a function is called."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Sequence
from typing import Any, Final

from drr.backend import DeadLetter
from drr.durability import Survey
from drr.errors import BackendError, StoreUnavailable
from drr.model import Lane
from drr_backends.redis.keys import Keys
from drr_backends.redis.library import function
from drr_backends.redis.link import BLOCK_LIMIT, Address, BlockingLink, Command, Link
from drr_backends.redis.records import decode_dead_letter
from drr_backends.redis.server import SETTINGS, survey_of

BLOCK_MILLISECONDS: Final = round(BLOCK_LIMIT * 1000)

log = logging.getLogger("drr.redis")


class Store:
    """One handle on a namespace of a server. Connects when first used; belongs to one event loop."""

    def __init__(self, address: Address, keys: Keys) -> None:
        self.address = address
        self.keys = keys
        self.link = Link(address)
        self._blocking: dict[Hashable, BlockingLink] = {}

    async def call(
        self, operation: str, keys: Sequence[str], *args: str | bytes | int | float, repeatable: bool = False
    ) -> Any:
        """Call one function of the library."""
        return await self.link.call("FCALL", function(operation), len(keys), *keys, *args, repeatable=repeatable)

    async def blocking_call(self, reader: Hashable, block: float, build: tuple[Command, Command]) -> Any:
        """Read on the connection that belongs to ``reader`` until something comes or ``block`` seconds have passed.

        ``build`` is the command before and after ``BLOCK milliseconds``. One command lasts at most
        `BLOCK_LIMIT`; a longer wait is made of several.
        """
        link = self._blocking.get(reader)
        if link is None:
            link = self._blocking[reader] = BlockingLink(self.link)
        head, tail = build
        if block <= 0:
            return await link.call(*head, *tail)
        left = round(block * 1000)
        while True:
            # 0 would mean to block for ever. The server measures the time: no clock is needed here.
            milliseconds = min(max(left, 1), BLOCK_MILLISECONDS)
            reply = await link.call(*head, "BLOCK", milliseconds, *tail)
            left -= milliseconds
            if reply is not None or left <= 0:
                return reply

    async def lane_lengths(self, lanes: Sequence[Lane]) -> list[int]:
        """See `drr.backend.ClientPort.lane_lengths`."""
        if not lanes:
            return []
        replies = await self.link.calls([("LLEN", self.keys.lane(lane)) for lane in lanes], repeatable=True)
        return [int(reply) for reply in checked(replies)]

    async def survey(self) -> Survey:
        """See `drr.backend.ClientPort.survey`. What the server forbids to ask is unknown."""
        commands: list[Command] = [("INFO",), *(("CONFIG", "GET", name) for name in SETTINGS)]
        info, *found = await self.link.calls(commands, repeatable=True)
        for reply in (info, *found):
            if isinstance(reply, StoreUnavailable):
                raise reply
        settings: dict[str, str] = {}
        for reply in found:
            if not isinstance(reply, BackendError) and len(reply) == 2:
                settings[reply[0].decode("utf-8", "replace")] = reply[1].decode("utf-8", "replace")
        return survey_of(None if isinstance(info, BackendError) else info, settings)

    async def attendance(self, dispatcher: str) -> int | None:
        """See `drr.backend.ClientPort.attendance`."""
        found = await self.link.call("GET", self.keys.attendance(dispatcher), repeatable=True)
        return int(found) if found is not None and found.isdigit() else None

    async def read_letters(self, numbers: Sequence[int]) -> list[DeadLetter | None]:
        """Return dead letters by their numbers."""
        if not numbers:
            return []
        found = await self.link.call("HMGET", self.keys.dead, *numbers, repeatable=True)
        return [
            None if data is None else decode_dead_letter(number, data)
            for number, data in zip(numbers, found, strict=True)
        ]

    async def close(self) -> None:
        """See `drr.backend.Backend.close`."""
        readers, self._blocking = list(self._blocking.values()), {}
        await self.link.close()
        for reader in readers:
            await reader.close()


def checked(replies: Sequence[Any]) -> Sequence[Any]:
    """Return ``replies``, or raise the first refusal among them."""
    for reply in replies:
        if isinstance(reply, Exception):
            raise reply
    return replies


def stream_entries(reply: Any) -> list[tuple[str, dict[bytes, bytes]]]:
    """Return the entries of one stream as (id, fields); entries that were deleted meanwhile have none."""
    return [
        (entry[0].decode(), dict(zip(entry[1][::2], entry[1][1::2], strict=False)) if entry[1] else {})
        for entry in reply or ()
    ]


def by_stream(reply: Any) -> dict[bytes, Any]:
    """Return what an ``XREAD`` found, by key."""
    return dict(reply or ())
