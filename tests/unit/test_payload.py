"""The layout of payloads and results, byte for byte, and what is refused."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drr.errors import InvalidValue, MalformedMessage, PayloadTooLarge
from drr.payload import pack_arguments, pack_result, unpack_arguments, unpack_result

PLAIN: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def test_the_layout_is_fixed() -> None:
    """Workers in other languages rely on these bytes."""
    assert pack_arguments([1, "a"], {"b": None}) == b"\x93\x01\x92\x01\xa1a\x81\xa1b\xc0"
    assert pack_result(7) == b"\x92\x01\x07"


@given(st.lists(PLAIN, max_size=3), st.dictionaries(st.text(), PLAIN, max_size=3))
def test_arguments_come_back(args: list[Any], kwargs: dict[str, Any]) -> None:
    assert unpack_arguments(pack_arguments(args, kwargs)) == (args, kwargs)


@given(PLAIN)
def test_results_come_back(value: Any) -> None:
    assert unpack_result(pack_result(value)) == value


@given(st.binary(max_size=64) | PLAIN.map(msgpack.packb))
def test_any_other_bytes_are_malformed_and_nothing_else(data: bytes) -> None:
    for unpack in (unpack_arguments, unpack_result):
        try:
            unpack(data)
        except MalformedMessage:
            continue
        version = msgpack.unpackb(data, strict_map_key=False)[0]
        assert version == 1


@pytest.mark.parametrize(
    "message", [[2, [], {}], [1, []], [1, [], {}, 0], [1, {}, {}], [1, [], []], [1, [], {1: 2}], {}]
)
def test_arguments_of_another_shape_are_malformed(message: Any) -> None:
    with pytest.raises(MalformedMessage, match="payload"):
        unpack_arguments(msgpack.packb(message))


def test_limits_hold_on_both_sides() -> None:
    with pytest.raises(PayloadTooLarge, match="limit is 10 bytes"):
        pack_arguments([bytes(20)], {}, limit=10)
    with pytest.raises(PayloadTooLarge, match="result"):
        pack_result(bytes(20), limit=10)
    with pytest.raises(MalformedMessage, match="limit of 10"):
        unpack_arguments(pack_arguments([bytes(20)], {}), limit=10)


@pytest.mark.parametrize("value", [object(), {1, 2}, 2**64, "\ud800", 1j])
def test_what_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(InvalidValue, match="plain data"):
        pack_result(value)


def test_keywords_are_strings() -> None:
    bad: Any = {1: 2}
    with pytest.raises(InvalidValue, match="must be a string"):
        pack_arguments([], bad)
