"""What a job's payload and its result look like in bytes. The one place where both layouts are fixed.

A payload is the msgpack array ``[PAYLOAD_VERSION, positional arguments, keyword arguments]``; the last
two are an array and a map with string keys. A result is the array ``[RESULT_VERSION, value]``. Tuples
arrive as lists. The store and the dispatcher never look inside: only clients and workers have to agree.

The version comes first in both, so that a later layout can be told apart before anything else of the
message is trusted. A reader refuses a version that it does not know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, NamedTuple, TypeVar

from drr.backend import PROGRESS_LIMIT
from drr.errors import InvalidValue, MalformedMessage
from drr.model import PAYLOAD_LIMIT, RetryPolicy, check_number
from drr.wire import pack_payload, unpack

PAYLOAD_VERSION: Final = 1
RESULT_VERSION: Final = 1

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Call(Generic[R_co]):
    """A task's name with the arguments of one job; ``R_co`` is the type of the result.

    Made by `drr.worker.Task.bind`, which checks the arguments' types, or by hand.
    """

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pool: str = ""
    """The task's default pool, or empty."""
    retry: RetryPolicy | None = None
    """The task's default retry policy."""


def pack_arguments(args: Sequence[Any], kwargs: Mapping[str, Any], limit: int = PAYLOAD_LIMIT) -> bytes:
    """Encode the arguments of a job as its payload.

    Raises `InvalidValue` for anything that is not plain data and `PayloadTooLarge` over ``limit`` bytes.
    """
    for name in kwargs:
        if not isinstance(name, str):
            raise InvalidValue("name of a keyword argument", name, "it must be a string")
    return pack_payload("payload", (PAYLOAD_VERSION, args, kwargs), limit)


def unpack_arguments(payload: bytes, limit: int = PAYLOAD_LIMIT) -> tuple[list[Any], dict[str, Any]]:
    """Decode a payload of at most ``limit`` bytes; raises `MalformedMessage`, whatever is wrong."""
    message = unpack("payload", payload, limit)
    if not isinstance(message, list) or len(message) != 3 or message[0] != PAYLOAD_VERSION:
        raise MalformedMessage("payload", f"it is no array [{PAYLOAD_VERSION}, arguments, keyword arguments]")
    _, args, kwargs = message
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise MalformedMessage("payload", "its arguments are no array, or its keyword arguments no map")
    for name in kwargs:
        if not isinstance(name, str):
            raise MalformedMessage("payload", f"the keyword {name!r:.80} is no string")
    return args, kwargs


def pack_result(value: object, limit: int = PAYLOAD_LIMIT) -> bytes:
    """Encode what a handler returned.

    Raises `InvalidValue` for anything that is not plain data and `PayloadTooLarge` over ``limit`` bytes.
    """
    return pack_payload("result", (RESULT_VERSION, value), limit)


def unpack_result(data: bytes) -> Any:
    """Decode a result; raises `MalformedMessage`, whatever is wrong."""
    message = unpack("result", data)
    if not isinstance(message, list) or len(message) != 2 or message[0] != RESULT_VERSION:
        raise MalformedMessage("result", f"it is no array [{RESULT_VERSION}, value]")
    return message[1]


class Progress(NamedTuple):
    """What a handler says of how far it is: a part of the whole (0 to 1) if it knows, and words."""

    fraction: float | None
    message: str = ""


def pack_progress(fraction: float | None, message: str = "") -> bytes:
    """Encode a report of progress as the array ``[fraction or nil, message]``; a message that is too long is cut.

    Raises `InvalidValue` for a fraction outside 0 to 1 and a message that is no string.
    """
    if fraction is not None:
        fraction = check_number("progress", fraction, 0.0, 1.0)
    if not isinstance(message, str):
        raise InvalidValue("message of a report of progress", message, "it must be a string")
    text = message.encode("utf-8", "replace")[:_PROGRESS_TEXT].decode("utf-8", "ignore")
    return pack_payload("progress", (fraction, text), PROGRESS_LIMIT)


def unpack_progress(data: bytes) -> Progress:
    """Decode a report of progress; raises `MalformedMessage`, whatever is wrong."""
    message = unpack("progress", data, PROGRESS_LIMIT)
    if not isinstance(message, list) or len(message) != 2 or not isinstance(message[1], str):
        raise MalformedMessage("progress", "it is no array [fraction or nil, message]")
    fraction = message[0]
    if fraction is not None and not (isinstance(fraction, float) and 0.0 <= fraction <= 1.0):
        raise MalformedMessage("progress", "its fraction is not between 0 and 1")
    return Progress(fraction, message[1])


_PROGRESS_TEXT: Final = PROGRESS_LIMIT - 32
