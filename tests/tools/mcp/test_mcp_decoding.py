"""Messages of servers as JSON: what is too much is refused before it is held, and half characters are mended."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.tools.mcp.decoding import MOST_VALUES, TooHeavy, _values, decode, decoded_aside

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
        await decoded_aside(data)


@pytest.mark.parametrize("text", ["a, b, [c] {d} ", '"quoted", \\', "x" * 15], ids=["prose", "JSON", "plain"])
async def test_a_long_text_is_not_too_much_whatever_it_says(text: str) -> None:
    said = text * (5 * MOST_VALUES // len(text))
    assert await decoded_aside(msgspec.json.encode({"text": said})) == {"text": said}


@given(anything)
def test_no_value_goes_uncounted(value: Any) -> None:
    def count(one: Any) -> int:
        inner = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        return 1 + sum(map(count, inner))

    assert _values(msgspec.json.encode(value)) + 1 >= count(value)


def test_what_is_too_deep_is_no_json() -> None:
    with pytest.raises(ValueError, match="too deep"):
        decode(b"[" * 100_000)
