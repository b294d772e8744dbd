"""Jobs in bytes: headers, frames and leases. docs/protocol.md shows the same layouts with examples.

A *frame* is what a lane and a pool entry hold of a job: a prefix of 16 bytes that Lua reads and rewrites
(``>QHHI``: sequence, attempts, losses, length of the header), the header (msgpack), and the payload. The
*head* of a frame is prefix and header.

All of it is hostile until decoded here. Headers are decoded by the thousand, so the checks are written out
rather than composed; each failure is a `MalformedMessage`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from drr.backend import TOKEN_LIMIT
from drr.errors import InvalidValue, MalformedMessage
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, PRIORITIES, Header, JobSpec, Lane, Lease, check_name
from drr.wire import unpack

VERSION: Final = 1
HEAD_LIMIT: Final = 16 + 4096
"""Most bytes of prefix and header; a reader of headers sees no more of an entry than the header's limit."""
HEADER_LIMIT: Final = 4096
SECONDS_MAX: Final = 1e9
"""Upper end of every duration in a message: about thirty years."""
WALL_MAX: Final = 1e11
SEQUENCE_MAX: Final = 2**53

_PREFIX: Final = struct.Struct(">QHHI")
_PREFIX_SIZE: Final = _PREFIX.size
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
# What was found valid lately; bounded, and only there to be quick.
_known_names: set[str] = set()
_known_lanes: dict[tuple[Any, ...], Lane] = {}


@dataclass(frozen=True, slots=True, eq=False)
class StoredHeader(Header):
    """A header that remembers its encoding.

    A commit compares the head of a lane byte by byte; another program may have encoded the same header
    differently than `encode_header` would.
    """

    raw: bytes = field(default=b"", repr=False)

    def __eq__(self, other: object) -> bool:
        """A header is what it says, however it was encoded."""
        return _facts(self) == _facts(other) if isinstance(other, Header) else NotImplemented

    def __hash__(self) -> int:
        return hash(_facts(self))


def _facts(header: Header) -> tuple[Any, ...]:
    return (
        header.lane,
        header.sequence,
        header.nonce,
        header.task,
        header.submitted_at,
        header.estimate,
        header.timeout,
        header.result_ttl,
        header.reply_to,
        header.attempts,
        header.losses,
    )


# --- headers ------------------------------------------------------------------------------------------


def encode_header(job: JobSpec | Header, nonce: str) -> bytes:
    """Return the header part of a job's frame. Raises `InvalidValue` for what no reader would accept."""
    lane = job.lane
    fields = (
        VERSION,
        lane.pool,
        lane.path,
        lane.priority,
        job.task,
        nonce,
        job.submitted_at,
        job.estimate,
        job.timeout,
        job.result_ttl,
        job.reply_to,
    )
    packed: bytes = _pack(fields)
    reason = _header_fault(job.task, nonce, job.submitted_at, job.estimate, job.timeout, job.result_ttl, job.reply_to)
    if reason is None and len(packed) > HEADER_LIMIT:
        reason = f"the encoded header has {len(packed)} bytes and the limit is {HEADER_LIMIT}"
    if reason is not None:
        raise InvalidValue("job", job.task, f"it must be valid: {reason}")
    return packed


def _header_fault(
    task: Any, nonce: Any, submitted_at: Any, estimate: Any, timeout: Any, result_ttl: Any, reply_to: Any
) -> str | None:
    for what, name in (("task", task), ("nonce", nonce), ("reply_to", reply_to)):
        if name.__class__ is not str or (name not in _known_names and not _learn(what, name)):
            return f"{what} is no valid name"
    # Comparisons with NaN are false, so these refuse it too; a bool has another class.
    if submitted_at.__class__ not in (float, int) or not 0 <= submitted_at <= WALL_MAX:
        return "the time of submission is out of range"
    if result_ttl.__class__ not in (float, int) or not 0 <= result_ttl <= SECONDS_MAX:
        return "the time to keep the result is out of range"
    if estimate is not None and (
        estimate.__class__ not in (float, int) or not ESTIMATE_MIN <= estimate <= ESTIMATE_MAX
    ):
        return "the estimate is out of range"
    if timeout is not None and (timeout.__class__ not in (float, int) or not 0 < timeout <= SECONDS_MAX):
        return "the timeout is out of range"
    return None


def _learn(what: str, name: str) -> bool:
    """Whether ``name`` is valid; it is then recognised faster the next time."""
    if not name:
        return what == "reply_to"
    try:
        check_name(what, name)
    except InvalidValue:
        return False
    if len(_known_names) >= 10_000:
        _known_names.clear()
    _known_names.add(name)
    return True


def decode_head(head: bytes, lane: Lane | None = None) -> StoredHeader:
    """Decode a prefix and header, whose lane must be ``lane`` if given; raises `MalformedMessage`."""
    size = len(head)
    if size < _PREFIX_SIZE:
        raise MalformedMessage("job", f"{size} bytes are too few for a frame")
    sequence, attempts, losses, length = _PREFIX.unpack_from(head)
    if length > HEADER_LIMIT or size != _PREFIX_SIZE + length:
        raise MalformedMessage("job", f"its header should have {length} bytes")
    if not 0 < sequence <= SEQUENCE_MAX:
        raise MalformedMessage("job", f"{sequence} is no sequence number")
    raw = head[_PREFIX_SIZE:]
    fields = unpack("job header", raw, HEADER_LIMIT)
    if fields.__class__ is not list or len(fields) != 11 or fields[0].__class__ is not int or fields[0] != VERSION:
        raise MalformedMessage("job header", f"it is no array of 11 that begins with version {VERSION}")
    _, pool, path, priority, task, nonce, submitted_at, estimate, timeout, result_ttl, reply_to = fields
    if path.__class__ is not list or priority.__class__ is not int:
        raise MalformedMessage("job header", "its lane is not a pool, a path and a priority")
    if lane is None:
        lane = _checked_lane(pool, path, priority)
    elif pool != lane.pool or tuple(path) != lane.path or priority != lane.priority:
        raise MalformedMessage("job header", "it names another lane than it waits in")
    fault = _header_fault(task, nonce, submitted_at, estimate, timeout, result_ttl, reply_to)
    if fault is not None or not nonce:
        raise MalformedMessage("job header", fault or "it has no nonce")
    return StoredHeader(
        lane,
        sequence,
        nonce,
        task,
        submitted_at,
        estimate,
        timeout,
        result_ttl,
        reply_to,
        attempts,
        losses,
        raw,
    )


def _checked_lane(pool: Any, path: list[Any], priority: int) -> Lane:
    try:
        lane = _known_lanes.get((pool, tuple(path), priority))
    except TypeError:
        lane = None  # something in it is no string
    if lane is not None:
        return lane
    try:
        check_name("pool", pool)
        for name in path:
            check_name("tenant", name)
    except InvalidValue as error:
        raise MalformedMessage("job header", str(error)) from None
    if not path or priority not in PRIORITIES:
        raise MalformedMessage("job header", "its lane has no path, or its priority is not 0 to 9")
    if len(_known_lanes) >= 10_000:
        _known_lanes.clear()
    lane = Lane(pool, tuple(path), priority)
    return _known_lanes.setdefault(lane, lane)


def head_of(header: Header) -> bytes:
    """Return the prefix and header of a job as they stand in the store."""
    raw: bytes = getattr(header, "raw", b"") or encode_header(header, header.nonce)
    return _PREFIX.pack(header.sequence, header.attempts, header.losses, len(raw)) + raw


def body_of(job: JobSpec, nonce: str) -> bytes:
    """Return a new job's frame without its sequence number, which the store gives."""
    header = encode_header(job, nonce)
    return _PREFIX.pack(0, 0, 0, len(header))[8:] + header + job.payload


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """Return head and payload of a frame; of what is no frame the beginning, and nothing."""
    if len(frame) >= _PREFIX_SIZE:
        end = _PREFIX_SIZE + int.from_bytes(frame[12:16], "big")
        if end <= HEAD_LIMIT and end <= len(frame):
            return frame[:end], frame[end:]
    return frame[:HEADER_LIMIT], b""


# --- leases -------------------------------------------------------------------------------------------


def encode_lease(lease: Lease) -> bytes:
    """Return what follows entry id and head in the record of a lease."""
    packed: bytes = _pack(
        (VERSION, lease.token, lease.attempt, lease.dispatched_at, lease.charged, lease.worker, lease.excused)
    )
    return packed


def decode_lease(record: bytes) -> Lease:
    """Decode the whole record of a lease; raises `MalformedMessage`."""
    start = record.find(b" ", 0, 64)
    if start < 0:
        raise MalformedMessage("lease", "it does not begin with an entry id")
    head, rest = split_frame(record[start + 1 :])
    header = decode_head(head)
    fields = unpack("lease", rest, 16 * 1024)
    if not isinstance(fields, list) or len(fields) != 7 or type(fields[0]) is not int or fields[0] != VERSION:
        raise MalformedMessage("lease", f"it is no array of 7 that begins with version {VERSION}")
    _, token, attempt, dispatched_at, charged, worker, excused = fields
    if not isinstance(excused, list) or len(excused) > 64:
        raise MalformedMessage("lease", "its excused charges are no array")
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_LIMIT:
        raise MalformedMessage("lease", "it has no token")
    if type(attempt) is not int or not 1 <= attempt <= 2**31:
        raise MalformedMessage("lease", "its attempt is no number from 1")
    if not all(is_number(value, WALL_MAX) for value in (dispatched_at, charged, *excused)):
        raise MalformedMessage("lease", "a number in it is out of range")
    if not isinstance(worker, str) or not _learn("reply_to", worker):
        raise MalformedMessage("lease", "its worker is no valid name")
    return Lease(token, header, attempt, dispatched_at, charged, worker, tuple(excused))


def is_number(value: Any, limit: float) -> bool:
    """Whether ``value`` is an int or float between ``-limit`` and ``limit``."""
    return value.__class__ in (float, int) and -limit <= value <= limit
