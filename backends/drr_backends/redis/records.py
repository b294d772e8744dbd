"""Everything in the store that is no job: events, workers, outcomes, dead letters, requests, accounts.

Each record is msgpack, starts with its version, and is hostile until decoded here (`MalformedMessage`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgpack

from drr.backend import (
    ITEM_LIMIT,
    TOKEN_LIMIT,
    DeadLetter,
    DeathCause,
    Event,
    EventKind,
    LeaderRecord,
    MalformedEvent,
    MalformedRequest,
    Request,
    RequestKind,
    WorkerRecord,
    check_request,
)
from drr.errors import InvalidValue, MalformedMessage, PayloadTooLarge, StoreCorrupt
from drr.model import Completion, JobState, Lane, NodeState, check_name
from drr.policy import DELAY_MAX
from drr.wire import ARRAY_LIMIT, MESSAGE_LIMIT, pack, unpack
from drr_backends.redis.codec import SECONDS_MAX, VERSION, WALL_MAX, decode_head, is_number, split_frame
from drr_backends.redis.keys import lane_of

BATCH_BYTES: Final = 256 * 1024
"""A report is cut into event entries of about this size, so that none comes near `MESSAGE_LIMIT`."""
RAW_LIMIT: Final = 1024
"""Bytes of an undecodable event that are shown."""

_packer = msgpack.Packer(use_bin_type=True, autoreset=True)
_length = struct.Struct(">I")


def record(what: str, data: bytes, size: int, limit: int = MESSAGE_LIMIT, optional: int = 0) -> list[Any]:
    """Return an array of ``size`` that begins with the version; raises `MalformedMessage`.

    The last ``optional`` fields may be left out; then the array is shorter.
    """
    fields = unpack(what, data, limit)
    if (
        not isinstance(fields, list)
        or not size - optional <= len(fields) <= size
        or type(fields[0]) is not int
        or fields[0] != VERSION
    ):
        raise MalformedMessage(what, f"it is no array of {size} that begins with version {VERSION}")
    return fields


# --- events -------------------------------------------------------------------------------------------


def encode_events(events: Sequence[Event]) -> list[bytes]:
    """Return the batches, each for an entry of its own, that report ``events`` in order."""
    batches: list[bytes] = []
    batch: list[tuple[str, str, str, float, bytes, str, float | None]] = []
    size = 0
    for event in events:
        length = len(event.value) + len(event.error) * 4 + 512
        if length > MESSAGE_LIMIT:
            raise PayloadTooLarge("result", f"{length} bytes", f"the limit of a report is {MESSAGE_LIMIT} bytes")
        if batch and size + length > BATCH_BYTES:
            batches.append(pack((VERSION, batch)))
            batch, size = [], 0
        batch.append(
            (
                event.token,
                event.kind.value,
                event.worker,
                event.seconds,
                event.value,
                event.error,
                event.retry_after,
            )
        )
        size += length
    if batch:
        batches.append(pack((VERSION, batch)))
    return batches


def decode_events(data: bytes) -> list[Event | MalformedEvent]:
    """Decode one batch; what cannot be decoded of it is a `MalformedEvent`."""
    try:
        _, batch = record("events", data, 2)
        if not isinstance(batch, list) or len(batch) > ITEM_LIMIT:
            raise MalformedMessage("events", f"they are no array of at most {ITEM_LIMIT}")
    except MalformedMessage as error:
        return [MalformedEvent(data[:RAW_LIMIT], str(error))]
    return [_decode_event(fields) for fields in batch]


def _decode_event(fields: Any) -> Event | MalformedEvent:
    def bad(reason: str) -> MalformedEvent:
        return MalformedEvent(repr(fields)[:RAW_LIMIT].encode(errors="replace"), reason)

    if not isinstance(fields, list) or len(fields) != 7:
        return bad("an event is an array of token, kind, worker, seconds, value, error and pause")
    token, kind, worker, seconds, value, error, pause = fields
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_LIMIT:
        return bad("its token is no string of 1 to 256 characters")
    try:
        kind = EventKind(kind)
        check_name("worker", worker)
    except (ValueError, TypeError):
        return bad("its kind or its worker is not valid")
    if not is_number(seconds, SECONDS_MAX) or seconds < 0:
        return bad("its seconds are out of range")
    if not isinstance(value, bytes) or not isinstance(error, str):
        return bad("its value is no bytes or its error no string")
    if pause is not None and not (is_number(pause, DELAY_MAX) and pause >= 0):
        return bad("its pause before the next attempt is out of range")
    return Event(token, kind, worker, seconds, value, error, pause)


# --- workers and leader -------------------------------------------------------------------------------


def encode_shape(record: WorkerRecord) -> bytes:
    """Return the part of a worker's record whose change (in bytes) the dispatcher is told of."""
    return pack((VERSION, dict(sorted(record.slots.items())), record.draining))


def encode_held(record: WorkerRecord) -> bytes:
    """Return the part that changes all the time. Raises `InvalidValue` for more tokens than a message can hold."""
    if len(record.held) > ARRAY_LIMIT:
        raise InvalidValue("number of held attempts", len(record.held), f"the limit is {ARRAY_LIMIT}")
    return pack((VERSION, record.held, record.version, record.blocks))


def decode_worker(name: str, incarnation: bytes, shape: bytes, held: bytes, renewals: bytes) -> WorkerRecord:
    """Decode one worker's record."""
    try:
        check_name("worker", name)
        check_name("incarnation", chosen := incarnation.decode("ascii", "replace"))
        _, slots, draining = record("worker", shape, 3)
        if not isinstance(slots, dict) or type(draining) is not bool:
            raise MalformedMessage("worker", "its shape is not slots by pool and draining")
        for pool, count in slots.items():
            check_name("pool", pool)
            if type(count) is not int or not 0 <= count <= 1_000_000:
                raise MalformedMessage("worker", f"{count!r:.40} is no number of slots")
        _, tokens, version, *more = record("held attempts", held, 4, optional=1)
        blocks = more[0] if more else 0
        if not isinstance(version, str) or not isinstance(tokens, list):
            raise MalformedMessage("worker", "what it holds is no array of tokens and a version")
        if not all(isinstance(token, str) for token in tokens):
            raise MalformedMessage("worker", "a token that it holds is no string")
        if type(blocks) is not int or not 0 <= blocks < 2**63:
            raise MalformedMessage("worker", f"{blocks!r:.40} is no number of blocks")
        counter = int(renewals)
    except ValueError as error:
        raise MalformedMessage("worker", str(error)[:200]) from None
    return WorkerRecord(name, chosen, slots, tuple(tokens), draining, version[:128], counter, blocks)


def decode_workers(flat: Sequence[bytes]) -> tuple[list[WorkerRecord], list[MalformedMessage]]:
    """Decode the hash of all workers, sorted by name, and say what in it is none."""
    parts: dict[str, dict[str, bytes]] = {}
    for field, value in zip(flat[::2], flat[1::2], strict=True):
        name, _, part = field.decode("utf-8", "replace").partition(":")
        parts.setdefault(name, {})[part] = value
    records, faults = [], []
    for name, found in sorted(parts.items()):
        try:
            values = (found.get(part, b"") for part in ("incarnation", "shape", "held", "renewals"))
            records.append(decode_worker(name, *values))
        except MalformedMessage as fault:
            faults.append(fault)
    return records, faults


def decode_leader(fields: Sequence[bytes | None]) -> LeaderRecord:
    """Decode token, renewals and passes of the leader."""
    token, renewals, passes = fields
    try:
        return LeaderRecord((token or b"").decode(), int(renewals or 0), int(passes or 0))
    except ValueError:
        raise StoreCorrupt("the leader record is not a token and two counters; delete the key `leader`") from None


# --- outcomes and dead letters ------------------------------------------------------------------------


def encode_completion(completion: Completion) -> bytes:
    """Return the record of a job's end."""
    packed: bytes = _packer.pack(
        (
            VERSION,
            completion.state.value,
            completion.attempt,
            completion.finished_at,
            completion.seconds,
            completion.value,
            completion.error,
        )
    )
    return packed


def decode_completion(data: bytes) -> Completion:
    """Decode the record of a job's end; raises `MalformedMessage`."""
    _, state, attempt, finished_at, seconds, value, error = record("outcome", data, 7)
    if not isinstance(value, bytes) or not isinstance(error, str) or type(attempt) is not int:
        raise MalformedMessage("outcome", "its attempt, value or error has the wrong type")
    if not is_number(finished_at, WALL_MAX) or not is_number(seconds, SECONDS_MAX):
        raise MalformedMessage("outcome", "a number in it is out of range")
    try:
        return Completion(JobState(state), attempt, finished_at, seconds, value, error)
    except (ValueError, TypeError):
        raise MalformedMessage("outcome", f"{state!r:.40} is no state") from None


def encode_preamble(lane: str, reason: str, cause: DeathCause, *, job: bool) -> bytes:
    """Return what stands in front of the entry in a dead letter. ``job``: the entry is a valid frame."""
    packed: bytes = _packer.pack((VERSION, lane, reason[:4096], cause.value, job))
    return _length.pack(len(packed)) + packed


def decode_dead_letter(number: int, data: bytes) -> DeadLetter:
    """Decode a dead letter; one that is none is shown as such rather than refused."""
    at = int.from_bytes(data[:8], "big") / 1000
    size = int.from_bytes(data[8:12], "big")
    entry = data[12 + size :]
    try:
        _, name, reason, cause, job = record("dead letter", data[12 : 12 + size], 5, 64 * 1024)
        if not isinstance(name, str) or not isinstance(reason, str):
            raise MalformedMessage("dead letter", "its lane or reason is no string")
        lane, cause = lane_of(name.encode(errors="replace")), DeathCause(cause)
    except (MalformedMessage, ValueError) as error:
        reason = f"this dead letter cannot be decoded: {error}"
        return DeadLetter(number, UNKNOWN_LANE, reason, DeathCause.OTHER, at, None, data[:4096])
    if job:
        head, payload = split_frame(entry)
        try:
            return DeadLetter(number, lane, reason, cause, at, decode_head(head), payload)
        except MalformedMessage:
            pass  # the job was spoilt in the store before it was buried
    return DeadLetter(number, lane, reason, cause, at, None, entry)


# --- requests -----------------------------------------------------------------------------------------


def encode_request(request: Request) -> bytes:
    """Return what asks something of the leader."""
    return pack((VERSION, request.kind.value, request.subject, request.body, request.id, request.by))


def decode_request(data: bytes) -> Request | MalformedRequest:
    """Decode what is asked; never raises."""
    try:
        _, kind, subject, body, name, by = record("request", data, 6)
        if not (
            isinstance(subject, str) and isinstance(body, bytes) and isinstance(name, str) and isinstance(by, str)
        ):
            raise MalformedMessage("request", "a part of it has the wrong type")
        request = Request(RequestKind(kind), subject, body, name, by)
        check_request(request)
    except (MalformedMessage, ValueError, TypeError) as error:
        return MalformedRequest(data[:RAW_LIMIT], str(error)[:300])
    return request


UNKNOWN_LANE: Final = Lane("unknown", ("unknown",))
"""Stands for the lane of what tells of none."""


# --- accounts ----------------------------------------------------------------------------


_NODE_DEFAULT: Final = NodeState()


def encode_node(state: NodeState) -> bytes:
    """Return the record of a node's account."""
    packed: bytes
    try:
        packed = _packer.pack((VERSION, *state))
    except OverflowError:
        # A clock of rounds beyond 64 bits: huge jobs at a tiny quantum. msgpack has no such number.
        _packer.reset()
        packed = _packer.pack((VERSION, *(str(x) if type(x) is int and abs(x) >= 2**63 else x for x in state)))
    return packed


def decode_node(data: bytes) -> NodeState:
    """Decode a node's account; raises `MalformedMessage`."""
    fields = record("account", data, 1 + len(_NODE_DEFAULT), 1024)[1:]
    for place, (name, value, like) in enumerate(zip(NodeState._fields, fields, _NODE_DEFAULT, strict=True)):
        if isinstance(value, str) and type(like) is int and re.fullmatch(r"-?[0-9]{19,40}", value):
            fields[place] = value = int(value)
        fits = is_number(value, 1e300) if type(like) is float else type(value) is type(like)
        if not fits:
            raise MalformedMessage("account", f"{name} is {value!r:.40}")
    return NodeState(*fields)
