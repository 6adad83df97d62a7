"""Messages of servers as JSON: what is too much is refused before it is held, and half characters are mended."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.mcp.messages import MAX_VALUES, TooHeavy, decode, decode_aside, find_id

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=20,
)


@given(anything)
def test_what_is_json_is_read_as_it_is(value: Any) -> None:
    assert decode(msgspec.json.encode(value)) == value


@given(st.binary(max_size=60))
def test_what_is_none_is_a_value_error(data: bytes) -> None:
    try:
        decode(data)
    except ValueError:
        return


@given(st.text(st.characters(categories=["Cs", "Lu"]) | st.sampled_from(["\\", '"', "u", "😀"])))
def test_half_characters_are_read_with_a_replacement(text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert len(decode(json.dumps(text).encode())) == len(whole)


def test_an_escaped_backslash_is_no_half_character() -> None:
    assert decode(b'["\\\\ud83d", "\\\\\\ud83d", "\\ud83d\\ude00"]') == ["\\ud83d", "\\\ufffd", "😀"]


@pytest.mark.parametrize(
    "data",
    [b"[" + b"{}," * 5_000_000 + b"{}]", b"[" + b'"",' * 1_000_000 + b'""]', b"[" + b"0," * 1_000_000 + b"0]"],
    ids=["objects", "strings", "numbers"],
)
async def test_many_small_values_are_too_much(data: bytes) -> None:
    with pytest.raises(TooHeavy):
        await decode_aside(data)


@pytest.mark.parametrize("text", ["a, b, [c] {d} ", '"quoted", \\', "x" * 15], ids=["prose", "JSON", "plain"])
async def test_a_long_text_is_not_too_much_whatever_it_says(text: str) -> None:
    said = text * (5 * MAX_VALUES // len(text))
    assert await decode_aside(msgspec.json.encode({"text": said})) == {"text": said}


def test_what_is_too_deep_is_no_json() -> None:
    with pytest.raises(ValueError, match="too deep"):
        decode(b"[" * 100_000)


def test_numbers_that_are_none_are_read_as_nothing() -> None:
    assert decode(b"[NaN, Infinity, -Infinity, 1e999, -1e999, 1.5]") == [None, None, None, None, None, 1.5]
    tiny = [1.2345678901234567e-300, -5e-324, 0.0]
    assert decode(b"[1.2345678901234567e-300, -4.9e-324, 1e-999]") == tiny
    assert decode(b'{"x": NaN, "y": "\\ud83d NaN"}') == {"x": None, "y": "\ufffd NaN"}


def test_a_mark_of_the_byte_order_is_passed_over() -> None:
    assert decode(b'\xef\xbb\xbf{"x": 1}') == {"x": 1}


@pytest.mark.parametrize("data", [b'"\xe9"', b'"\xed\xa0\x80"', b"[1"], ids=["latin-1", "half a pair", "cut"])
def test_what_is_no_text_is_no_json(data: bytes) -> None:
    with pytest.raises(ValueError, match="no JSON"):
        decode(data)


READABLE = {
    "first": (b'{"id": 7, "result": {"x": \xe9', 7),
    "as most write it": (b'{"jsonrpc":"2.0","id":7,"result":{"id":8}', 7),
    "a text": (b'{"jsonrpc":"2.0","id":"a-7","error":{', "a-7"),
    "last": (b'{"jsonrpc": "2.0", "result": {"id": 8, "x": [' + b"1," * 5_000 + b'1]}, "id": 7}', 7),
    "last but one": (b'{"result": {"id": 8}, "id": 7, "jsonrpc": "2.0"} ', 7),
    "not its own": (b'{"jsonrpc": "2.0", "result": {"x": {"id": 8}}}', None),
    "in a text": (b'{"result": {"x": "\\"id\\": 8"}}', None),
    "a request": (b'{"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {"result": \xe9', None),
    "no message": (b'Result: {"id": 7}', None),
}


@pytest.mark.parametrize(("data", "number"), READABLE.values(), ids=READABLE)
def test_whose_answer_it_is_can_be_read_where_the_rest_cannot(data: bytes, number: int | str | None) -> None:
    assert find_id(data) == number
