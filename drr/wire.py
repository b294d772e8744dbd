"""Bytes at the edge: msgpack with a limit on everything, and no type that could run code.

Whatever comes out of the store is hostile until decoded here: anybody who may submit may also write the
raw key. So every decode first bounds the length in bytes and then, inside msgpack, each container; and
every failure, of whatever class, becomes one `MalformedMessage`.
"""

from __future__ import annotations

from typing import Any, Final

import msgpack

from drr.errors import InvalidValue, MalformedMessage, PayloadTooLarge
from drr.model import PAYLOAD_LIMIT

ARRAY_LIMIT: Final = 65_536
MAP_LIMIT: Final = 65_536
MESSAGE_LIMIT: Final = 4 * 1024 * 1024
"""Upper end of what `unpack` accepts for messages between drr's own parts, in bytes."""


def pack(value: object) -> bytes:
    """Encode plain data (None, bool, int, float, str, bytes, list, tuple, dict). Raises `InvalidValue`."""
    try:
        packed: bytes = msgpack.packb(value, use_bin_type=True)
    except Exception as error:
        raise InvalidValue(
            "value", value, f"it must be plain data (none, bool, int, float, str, bytes, list, dict): {error}"
        ) from error
    return packed


def pack_payload(what: str, value: object, limit: int = PAYLOAD_LIMIT) -> bytes:
    """Encode a payload or result; `PayloadTooLarge` if it is over ``limit`` bytes."""
    packed = pack(value)
    if len(packed) > limit:
        raise PayloadTooLarge(
            what, f"{len(packed)} bytes", f"the limit is {limit} bytes; store the data elsewhere and pass a reference"
        )
    return packed


def unpack(what: str, data: bytes, limit: int = MESSAGE_LIMIT) -> Any:
    """Decode one message of at most ``limit`` bytes; raises `MalformedMessage`, whatever is wrong."""
    if len(data) > limit:
        raise MalformedMessage(what, f"{len(data)} bytes are over the limit of {limit}")
    try:
        return msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=False,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=ARRAY_LIMIT,
            max_map_len=MAP_LIMIT,
            max_ext_len=0,
        )
    except Exception as error:
        # msgpack raises ValueError, its own classes, UnicodeDecodeError, TypeError, RecursionError ...
        raise MalformedMessage(what, f"{type(error).__name__}: {error}") from error
