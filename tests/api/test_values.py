"""Values in JSON text are counted before it is decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.decoding import MAX_DIGITS, has_long_number, has_more_values

Json: TypeAlias = None | bool | int | str | list["Json"] | dict[str, "Json"]
texts = st.text(st.sampled_from(["a", "\\", '"', ",", "[", "{", "]", "ä"]), max_size=8)
anything: st.SearchStrategy[Json] = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
)


def number_of(value: Json) -> int:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return 1 + sum(map(number_of, inner))


@given(anything)
def test_every_value_counts_and_nothing_that_stands_in_a_text(value: Json) -> None:
    text, number = msgspec.json.encode(value), number_of(value)
    assert has_more_values(text, number - 1)
    assert not has_more_values(text, number)


@given(anything, st.sampled_from([b" ", b"\n", b"\r\n\t"]))
def test_white_space_makes_no_value_go_uncounted(value: Json, space: bytes) -> None:
    text = msgspec.json.format(msgspec.json.encode(value), indent=2).replace(b" ", space)
    assert has_more_values(text, number_of(value) - 1)


@pytest.mark.parametrize("piece", [b"x", b",", b"[", rb"\"", rb"\\", rb"\n", b"\xc3\xa4,"])
def test_a_long_text_is_one_value_whatever_it_says(piece: bytes) -> None:
    text = b'{"a": "' + piece * (3 * 2**20 // len(piece)) + b'", "b": [1, 2]}'
    assert not has_more_values(text, 5)
    assert has_more_values(text, 4)


@pytest.mark.parametrize(
    "before", [b"[", b'{"a": "' + b"7" * 3000 + b'", "b": -', b"[" + b" " * (8 * 2**20 - 103) + b"0."]
)
def test_a_number_is_held_against_its_digits_and_a_text_is_not(before: bytes) -> None:
    end = b"]" if before.startswith(b"[") else b"}"
    assert not has_long_number(before + b"7" * MAX_DIGITS + end)
    assert has_long_number(before + b"7" * (MAX_DIGITS + 1) + end)
