"""What is encoded decodes to itself, and nothing that is decoded raises anything but `MalformedMessage`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drr.backend import DeathCause, Event, EventKind, MalformedEvent, WorkerRecord
from drr.errors import InvalidValue, MalformedMessage, PayloadTooLarge
from drr.model import (
    ESTIMATE_MAX,
    ESTIMATE_MIN,
    Completion,
    Header,
    JobSpec,
    JobState,
    Lane,
    Lease,
    NodePolicy,
    NodeState,
    Policies,
    PoolPolicy,
    RetryPolicy,
    Settings,
    Share,
)
from drr_backends.redis.codec import (
    HEADER_LIMIT,
    StoredHeader,
    body_of,
    decode_head,
    decode_lease,
    encode_header,
    encode_lease,
    head_of,
    split_frame,
)
from drr_backends.redis.keys import Keys, consumer, lane_of, node_field, node_of
from drr_backends.redis.passes import check_cursor
from drr_backends.redis.records import (
    decode_completion,
    decode_dead_letter,
    decode_events,
    decode_node,
    decode_request,
    decode_worker,
    encode_completion,
    encode_events,
    encode_held,
    encode_node,
    encode_preamble,
    encode_shape,
)
from drr_backends.redis.settings import decode_settings, encode_settings

NAMES = st.text("ABCXYZabcxyz0189_-.@", min_size=1, max_size=128)
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(tuple)
LIMITS = st.sets(st.text("abcXYZ019_-.@", min_size=1), max_size=4).map(lambda names: tuple(sorted(names)))
LANES = st.builds(Lane, NAMES, PATHS, st.integers(0, 9), LIMITS)
SECONDS = st.floats(0, 1e9) | st.integers(0, 10**9)
JOBS = st.builds(
    JobSpec,
    LANES,
    NAMES,
    st.binary(max_size=200),
    submitted_at=st.floats(0, 1e11),
    estimate=st.none() | st.floats(ESTIMATE_MIN, ESTIMATE_MAX),
    timeout=st.none() | st.floats(1e-300, 1e9),
    result_ttl=SECONDS,
    reply_to=st.just("") | NAMES,
    retry=st.none() | st.builds(RetryPolicy, st.integers(1, 1000), st.floats(0, 1e6), jitter=st.floats(0, 1)),
    deadline=st.none() | st.floats(0, 1e11),
)
COUNTS = st.integers(0, 2**16 - 1)
HEADERS = st.builds(
    lambda job, sequence, nonce, attempts, losses, failures, returned: Header(
        job.lane, sequence, nonce, job.task, job.submitted_at, job.estimate, job.timeout, job.result_ttl,
        job.reply_to, attempts, losses, job.retry, job.deadline, failures, returned,
    ),
    JOBS, st.integers(1, 2**53), NAMES, COUNTS, COUNTS, COUNTS, st.booleans(),
)  # fmt: skip
ROUNDS = st.integers(-(10**30), 10**30)
NUMBERS = st.floats(-1e9, 1e9)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
SHAPES = st.builds(
    WorkerRecord,
    NAMES,
    NAMES,
    st.dictionaries(NAMES, st.integers(0, 1_000_000), max_size=4),
    st.lists(TEXTS, max_size=4).map(tuple),
    st.booleans(),
    TEXTS.map(lambda text: text[:128]),
)
POLICIES = st.builds(
    NodePolicy,
    st.floats(1e-3, 1e6),
    hard_cap=st.none() | st.integers(1, 99) | st.floats(0, 1).map(Share),
    ceiling=st.none() | st.floats(0, 1e9),
)
SETTINGS = st.builds(
    Settings,
    st.dictionaries(NAMES, st.builds(PoolPolicy, st.floats(1e-3, 1e6), reserve=st.integers(0, 9)), max_size=3),
    st.dictionaries(NAMES, st.dictionaries(PATHS, POLICIES, max_size=3), max_size=3),
)


@given(HEADERS)
def test_a_header_survives(header: Header) -> None:
    decoded = decode_head(head_of(header), header.lane)
    assert decoded == header
    assert header == decoded
    assert hash(decoded) == hash(decode_head(head_of(header)))
    assert decode_head(head_of(replace(decoded, attempts=7))) == replace(header, attempts=7)


def test_a_header_keeps_the_bytes_it_was_read_from() -> None:
    """Also through `dataclasses.replace`: the dispatcher changes counts, and the lane's head must still match."""
    raw = msgpack.packb([1, "p", ["o"], 5, [], "t", "n", 1, None, None, 0, "", None, None])
    head = (1).to_bytes(8, "big") + bytes(8) + len(raw).to_bytes(4, "big") + raw
    decoded = decode_head(head)
    assert head_of(decoded) == head
    assert head_of(replace(decoded, attempts=1))[20:] == raw
    assert "raw" not in repr(decoded)


@given(JOBS, NAMES)
def test_a_frame_splits_into_head_and_payload(job: JobSpec, nonce: str) -> None:
    head, payload = split_frame((1).to_bytes(8, "big") + body_of(job, nonce))
    assert payload == job.payload
    assert decode_head(head, job.lane).nonce == nonce


@given(HEADERS, st.lists(NUMBERS, max_size=5).map(tuple), st.just("") | NAMES, NUMBERS)
def test_a_lease_survives(header: Header, excused: tuple[float, ...], worker: str, charged: float) -> None:
    lease = Lease("token", header, 1, 1.5e9, charged, worker, excused, cancelled=charged > 0)
    assert decode_lease(b"12-3 " + head_of(header) + encode_lease(lease)) == lease


@given(
    st.lists(
        st.builds(Event, st.text("ab", min_size=1), st.sampled_from(EventKind), NAMES, SECONDS, st.binary(), TEXTS)
    )
)
def test_events_survive(events: list[Event]) -> None:
    assert [event for batch in encode_events(events) for event in decode_events(batch)] == events


def test_a_big_report_is_cut_and_stays_in_order() -> None:
    events = [Event(f"t{number}", EventKind.FAILED, "w", 1, b"x" * 100_000) for number in range(10)]
    batches = encode_events(events)
    assert len(batches) > 3
    assert [event for batch in batches for event in decode_events(batch)] == events


def test_an_event_that_no_reader_would_take_is_refused() -> None:
    with pytest.raises(PayloadTooLarge):
        encode_events([Event("t", EventKind.FAILED, "w", 1, bytes(5_000_000))])


@given(SHAPES)
def test_a_worker_survives(record: WorkerRecord) -> None:
    values = (record.incarnation.encode(), encode_shape(record), encode_held(record), b"7")
    assert decode_worker(record.name, *values) == replace(record, renewals=7)


@given(st.builds(Completion, st.sampled_from(JobState), st.integers(1, 99), NUMBERS, NUMBERS, st.binary(), TEXTS))
def test_an_outcome_survives(completion: Completion) -> None:
    assert decode_completion(encode_completion(completion)) == completion


@given(st.builds(NodeState, NUMBERS, ROUNDS, ROUNDS, floor_credit=NUMBERS, round=ROUNDS))
def test_an_account_survives(state: NodeState) -> None:
    assert decode_node(encode_node(state)) == state


@given(SETTINGS)
def test_settings_survive(settings: Settings) -> None:
    assert decode_settings(encode_settings(settings)) == settings


def test_settings_of_a_hundred_thousand_nodes_survive() -> None:
    nodes: Policies = {("organisation", f"project-{number}"): NodePolicy(1.0 + number) for number in range(100_000)}
    assert decode_settings(encode_settings(Settings(nodes={"default": nodes}))).nodes["default"] == nodes


@given(LANES, PATHS)
def test_names_of_lanes_and_nodes_survive(lane: Lane, path: tuple[str, ...]) -> None:
    assert lane_of(str(lane).encode()) == lane
    assert node_of(node_field(lane.pool, path).encode()) == (lane.pool, path)


@given(LANES, LANES)
def test_two_lanes_never_meet_in_one_key(one: Lane, two: Lane) -> None:
    keys = Keys("n")
    assert (keys.lane(one) == keys.lane(two)) == (one == two)
    assert keys.lane(one)[keys.lane_name_from - 1 :] == str(one)


# --- what cannot be decoded, or must not be encoded

GOOD: Header = Header(Lane("p", ("o",), 5), 1, "n", "t", 1.0)
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "head": decode_head,
    "lease": decode_lease,
    "framed lease": lambda data: decode_lease(b"1-1 " + head_of(GOOD) + data),
    "outcome": decode_completion,
    "account": decode_node,
    "settings": decode_settings,
    "shape": lambda data: decode_worker("w", b"i", data, encode_held(WorkerRecord("w", "i", {})), b"1"),
    "held": lambda data: decode_worker("w", b"i", encode_shape(WorkerRecord("w", "i", {})), data, b"1"),
    "lane": lane_of,
    "node": node_of,
}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS | st.binary(),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(TEXTS | st.integers(0, 9), inner, max_size=4),
    max_leaves=30,
)
VERSIONED = st.lists(PLAIN, max_size=13).map(lambda fields: [1, *fields])


@pytest.mark.parametrize("decode", DECODERS.values(), ids=DECODERS.keys())
@given(data=st.binary(max_size=300) | (PLAIN | VERSIONED).map(msgpack.packb))
def test_anything_else_is_malformed(decode: Callable[[bytes], Any], data: bytes) -> None:
    with contextlib.suppress(MalformedMessage):
        decode(data)


@given(fields=VERSIONED)
def test_a_head_of_any_fields_is_malformed_or_a_job(fields: list[Any]) -> None:
    raw = msgpack.packb(fields)
    try:
        head = decode_head((1).to_bytes(8, "big") + bytes(4) + len(raw).to_bytes(4, "big") + raw)
    except MalformedMessage:
        return
    assert encode_header(head, head.nonce)


@given(data=st.binary(max_size=300) | (PLAIN | VERSIONED).map(msgpack.packb))
def test_events_and_dead_letters_never_raise(data: bytes) -> None:
    decode_events(data)
    decode_dead_letter(1, data)
    decode_dead_letter(1, bytes(8) + encode_preamble("p:o:5", "why", DeathCause.OTHER, job=True) + data)
    decode_request(data)


@pytest.mark.parametrize("field", range(14))
@pytest.mark.parametrize("value", [None, True, -1, 10.5, float("nan"), float("inf"), "a b", "", b"x", [], {}, 2**60])
def test_every_field_of_a_header_is_checked(field: int, value: object) -> None:
    """Whatever passes must be a value that a client could have given."""
    retry = [3, 1.0, 2.0, 9.0, 0.5]
    fields: list[object] = [1, "p", ["o"], 5, [], "t", "n", 1.0, 2.0, 3.0, 4.0, "c", retry, 5.0]
    fields[field] = value
    raw = msgpack.packb(fields)
    head = (1).to_bytes(8, "big") + bytes(8) + len(raw).to_bytes(4, "big") + raw
    allowed: dict[int, list[object]] = {
        4: [[]], 7: [10.5], 8: [None, 10.5], 9: [None, 10.5], 10: [10.5], 11: [""], 12: [None], 13: [None, 10.5],
    }  # fmt: skip
    if any(value is each or value == each for each in allowed.get(field, [])) and value is not True:
        decode_head(head)
    else:
        with pytest.raises(MalformedMessage):
            decode_head(head)


@pytest.mark.parametrize("sequence", [0, 2**53 + 1, 2**64 - 1])
def test_a_number_out_of_range_is_malformed(sequence: int) -> None:
    with pytest.raises(MalformedMessage, match="sequence"):
        decode_head(sequence.to_bytes(8, "big") + head_of(GOOD)[8:])


def test_a_header_over_its_limit_is_not_written() -> None:
    path = tuple("x" * 128 for _ in range(40))
    with pytest.raises(InvalidValue, match=str(HEADER_LIMIT)):
        encode_header(replace(GOOD, lane=Lane("p", path, 5)), "n")


def test_deep_and_wide_messages_are_refused_cheaply() -> None:
    for data in (b"\x91" * 100_000, b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"):
        with pytest.raises(MalformedMessage):
            decode_completion(data)
        assert isinstance(decode_events(data)[0], MalformedEvent)


@pytest.mark.parametrize("name", ["", "a b", "a:b", "a{b}", "a*", "é", "a\n", "x" * 129])
def test_a_bad_name_gets_into_no_key(name: str) -> None:
    keys = Keys("n")
    for make in (
        Keys,
        keys.pool,
        keys.reply,
        keys.calls,
        lambda name: consumer("w", name),
        lambda n: consumer(n, "i"),
    ):
        with pytest.raises(InvalidValue):
            make(name)
    for lane in (Lane(name, ("o",), 5), Lane("p", (name,), 5), Lane("p", (), 5), Lane("p", ("o",), 10)):
        with pytest.raises(InvalidValue):
            keys.lane(lane)


@pytest.mark.parametrize("cursor", ["0-0", "18446744073709551615-18446744073709551615"])
def test_cursors_of_every_size_are_accepted(cursor: str) -> None:
    assert "-".join(map(str, check_cursor(cursor))) == cursor


def test_a_stored_header_is_like_no_other_thing() -> None:
    assert decode_head(head_of(GOOD)) != "header"
    assert isinstance(decode_head(head_of(GOOD)), StoredHeader)
