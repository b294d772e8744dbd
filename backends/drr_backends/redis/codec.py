"""Jobs in bytes: headers, frames and leases. docs/protocol.md shows the same layouts with examples.

A *frame* is what a lane and a pool entry hold of a job: a prefix of 20 bytes that Lua reads and rewrites
(``>QHHHHI``: sequence, attempts, losses, failures, flags, length of the header), the header (msgpack), and the
payload. The *head* of a frame is prefix and header.

All of it is hostile until decoded here. Headers are decoded by the thousand, so the checks are written out
rather than composed; each failure is a `MalformedMessage`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack

from drr.backend import TOKEN_LIMIT, Malformed, Struck, check_lane
from drr.errors import InvalidValue, MalformedMessage
from drr.model import ESTIMATE_MAX, ESTIMATE_MIN, Header, JobSpec, Lane, Lease, RetryPolicy, check_name
from drr.wire import unpack

VERSION: Final = 1
HEAD_LIMIT: Final = 20 + 4096
"""Most bytes of prefix and header; a reader of headers sees no more of an entry than the header's limit."""
HEADER_LIMIT: Final = 4096
SECONDS_MAX: Final = 1e9
"""Upper end of every duration in a message: about thirty years."""
WALL_MAX: Final = 1e11
SEQUENCE_MAX: Final = 2**53

PREFIX: Final = struct.Struct(">QHHHHI")
"""What a frame begins with: sequence, attempts, losses, failures, flags, length of the header."""
RETURNED: Final = 1
"""Flag of a frame: it was put back at the head of its lane."""
STRUCK: Final = 2
"""Flag of what is left of a job that was cancelled or has expired while it waited."""
_PREFIX_SIZE: Final = PREFIX.size
_pack = msgpack.Packer(use_bin_type=True, autoreset=True).pack
# What was found valid lately; bounded, and only there to be quick.
_known_names: set[str] = set()
_known_lanes: dict[Lane | tuple[Any, ...], Lane] = {}


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
        header.retry,
        header.deadline,
        header.failures,
        header.returned,
    )


# --- headers ------------------------------------------------------------------------------------------


def encode_header(job: JobSpec | Header, nonce: str) -> bytes:
    """Return the header part of a job's frame. Raises `InvalidValue` for what no reader would accept."""
    lane = job.lane
    retry = job.retry
    fields = (
        VERSION,
        lane.pool,
        lane.path,
        lane.priority,
        lane.limits,
        job.task,
        nonce,
        job.submitted_at,
        job.estimate,
        job.timeout,
        job.result_ttl,
        job.reply_to,
        retry and (retry.attempts, retry.delay, retry.factor, retry.max_delay, retry.jitter),
        job.deadline,
    )
    packed: bytes = _pack(fields)
    reason = _header_fault(job.task, nonce, job.submitted_at, job.estimate, job.timeout, job.result_ttl, job.reply_to)
    if reason is None and job.deadline is not None and not is_number(job.deadline, WALL_MAX):
        reason = "the deadline is out of range"
    if reason is None and len(packed) > HEADER_LIMIT:
        reason = f"the encoded header has {len(packed)} bytes and the limit is {HEADER_LIMIT}"
    if reason is not None:
        raise InvalidValue("job", job.task, f"it must be valid: {reason}")
    return packed


def _header_fault(
    task: Any, nonce: Any, submitted_at: Any, estimate: Any, timeout: Any, result_ttl: Any, reply_to: Any
) -> str | None:
    for what, name in (("task", task), ("reply_to", reply_to)):
        if name.__class__ is not str or (name not in _known_names and not _learn(what, name)):
            return f"{what} is no valid name"
    if nonce.__class__ is not str or not _is_nonce(nonce):
        return "nonce is no valid name"
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


def _is_nonce(nonce: str) -> bool:
    """Whether a nonce is a valid name. Those of one submit differ behind the dot, and are not learnt one by one."""
    name, dot, index = nonce.partition(".")
    if dot and not (index.isdecimal() and index.isascii() and len(index) <= 4):
        name = nonce
    return name in _known_names or _learn("nonce", name)


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


def decode_entry(entry: bytes, lane: Lane) -> Header | Malformed | Struck:
    """Decode what a peek shows of a lane's entry."""
    try:
        if len(entry) == _PREFIX_SIZE:
            sequence, _, _, _, flags, length = PREFIX.unpack(entry)
            if flags & STRUCK and not length and 0 < sequence <= SEQUENCE_MAX:
                return Struck(lane, sequence)
        return decode_head(entry, lane)
    except MalformedMessage as error:
        return Malformed(lane, entry, str(error))


def is_frame(entry: bytes) -> bool:
    """Whether what a peek shows of an entry has the form of a frame, and so a number, whatever else it is."""
    return len(entry) >= _PREFIX_SIZE and PREFIX.unpack_from(entry)[5] == len(entry) - _PREFIX_SIZE


def decode_head(head: bytes, lane: Lane | None = None) -> StoredHeader:
    """Decode a prefix and header, whose lane must be ``lane`` if given; raises `MalformedMessage`."""
    size = len(head)
    if size < _PREFIX_SIZE:
        raise MalformedMessage("job", f"{size} bytes are too few for a frame")
    sequence, attempts, losses, failures, flags, length = PREFIX.unpack_from(head)
    if length > HEADER_LIMIT or size != _PREFIX_SIZE + length:
        raise MalformedMessage("job", f"its header should have {length} bytes")
    if not 0 < sequence <= SEQUENCE_MAX or flags > RETURNED:
        raise MalformedMessage("job", f"{sequence} is no sequence number, or its flags are {flags}")
    raw = head[_PREFIX_SIZE:]
    fields = unpack("job header", raw, HEADER_LIMIT)
    if fields.__class__ is not list or len(fields) != 14 or fields[0].__class__ is not int or fields[0] != VERSION:
        raise MalformedMessage("job header", f"it is no array of 14 that begins with version {VERSION}")
    _, pool, path, priority, limits, task, nonce, submitted_at, estimate, timeout, ttl, reply_to, retry, deadline = (
        fields
    )
    if path.__class__ is not list or priority.__class__ is not int or limits.__class__ is not list:
        raise MalformedMessage("job header", "its lane is not a pool, a path, a priority and limits")
    if lane is None:
        lane = _checked_lane(pool, path, priority, limits)
    elif pool != lane.pool or tuple(path) != lane.path or priority != lane.priority or tuple(limits) != lane.limits:
        raise MalformedMessage("job header", "it names another lane than it waits in")
    fault = _header_fault(task, nonce, submitted_at, estimate, timeout, ttl, reply_to)
    if fault is None and deadline is not None and not (is_number(deadline, WALL_MAX) and deadline >= 0):
        fault = "the deadline is out of range"
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
        ttl,
        reply_to,
        attempts,
        losses,
        None if retry is None else _read_retry(retry),
        deadline,
        failures,
        flags == RETURNED,
        raw,
    )


def _read_retry(fields: Any) -> RetryPolicy:
    if not isinstance(fields, list) or len(fields) != 5:
        raise MalformedMessage("job header", "its retry policy is no array of 5")
    try:
        return RetryPolicy(*fields)
    except InvalidValue as error:
        raise MalformedMessage("job header", f"its retry policy makes no sense: {error}") from None


def _checked_lane(pool: Any, path: list[Any], priority: int, limits: list[Any]) -> Lane:
    try:
        lane = _known_lanes.get((pool, tuple(path), priority, tuple(limits)))
    except TypeError:
        lane = None  # something in it is no string
    if lane is not None:
        return lane
    lane = Lane(pool, tuple(path), priority, tuple(limits))
    try:
        check_lane(lane)
    except InvalidValue as error:
        raise MalformedMessage("job header", str(error)) from None
    if len(_known_lanes) >= 10_000:
        _known_lanes.clear()
    return _known_lanes.setdefault(lane, lane)


def decode_delayed(value: bytes) -> StoredHeader:
    """Decode a delayed job up to its header, behind the name of its lane; raises `MalformedMessage`."""
    name, _, head = value.partition(b"\n")
    header = decode_head(head)
    if str(header.lane).encode() != name:
        raise MalformedMessage("job header", "it names another lane than it is to wait in")
    return header


def raw_header(header: Header) -> bytes:
    """Return a job's header as it stands in the store."""
    raw: bytes = getattr(header, "raw", b"") or encode_header(header, header.nonce)
    return raw


def head_of(header: Header) -> bytes:
    """Return the prefix and header of a job as they stand in the store."""
    raw = raw_header(header)
    flags = RETURNED if header.returned else 0
    return PREFIX.pack(header.sequence, header.attempts, header.losses, header.failures, flags, len(raw)) + raw


def body_of(job: JobSpec, nonce: str) -> bytes:
    """Return a new job's frame without its sequence number, which the store gives."""
    header = encode_header(job, nonce)
    return PREFIX.pack(0, 0, 0, 0, 0, len(header))[8:] + header + job.payload


def split_frame(frame: bytes) -> tuple[bytes, bytes]:
    """Return head and payload of a frame; of what is no frame the beginning, and nothing."""
    if len(frame) >= _PREFIX_SIZE:
        end = _PREFIX_SIZE + int.from_bytes(frame[16:20], "big")
        if end <= HEAD_LIMIT and end <= len(frame):
            return frame[:end], frame[end:]
    return frame[:HEADER_LIMIT], b""


# --- leases -------------------------------------------------------------------------------------------


def encode_lease(lease: Lease) -> bytes:
    """Return what follows entry id and head in the record of a lease."""
    packed: bytes = _pack(
        (
            VERSION,
            lease.token,
            lease.attempt,
            lease.dispatched_at,
            lease.charged,
            lease.worker,
            lease.excused,
            lease.cancelled,
        )
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
    if not isinstance(fields, list) or len(fields) != 8 or type(fields[0]) is not int or fields[0] != VERSION:
        raise MalformedMessage("lease", f"it is no array of 8 that begins with version {VERSION}")
    _, token, attempt, dispatched_at, charged, worker, excused, cancelled = fields
    if not isinstance(excused, list) or len(excused) > 64 or type(cancelled) is not bool:
        raise MalformedMessage("lease", "its excused charges are no array, or whether it is cancelled is not said")
    if not isinstance(token, str) or not 0 < len(token) <= TOKEN_LIMIT:
        raise MalformedMessage("lease", "it has no token")
    if type(attempt) is not int or not 1 <= attempt <= 2**31:
        raise MalformedMessage("lease", "its attempt is no number from 1")
    if not all(is_number(value, WALL_MAX) for value in (dispatched_at, charged, *excused)):
        raise MalformedMessage("lease", "a number in it is out of range")
    if not isinstance(worker, str) or not _learn("reply_to", worker):
        raise MalformedMessage("lease", "its worker is no valid name")
    return Lease(token, header, attempt, dispatched_at, charged, worker, tuple(excused), cancelled)


def is_number(value: Any, limit: float) -> bool:
    """Whether ``value`` is an int or float between ``-limit`` and ``limit``."""
    return value.__class__ in (float, int) and -limit <= value <= limit
