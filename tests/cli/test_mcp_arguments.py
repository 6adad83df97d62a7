"""A tool's arguments on a command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.cli.mcp import read_arguments
from antwort.cli.output import UsageError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer"},
        "either": {"type": ["string", "integer"]},
        "odd": True,
        "level": {"$ref": "#/$defs/Level"},
        "maybe_level": {"anyOf": [{"$ref": "#/$defs/Level"}, {"type": "null"}]},
        "wrapped": {"allOf": [{"$ref": "#/$defs/Level"}], "description": "How much."},
        "same": {"const": "7"},
        "number": {"enum": [1, 2]},
        "circle": {"$ref": "#/$defs/Circle"},
        "words": {"anyOf": [{"type": "string"}, {"type": "array"}]},
    },
    "$defs": {"Level": {"enum": ["1", "2"]}, "Circle": {"anyOf": [{"$ref": "#/$defs/Circle"}]}},
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("text=5", "5"),
        ("text=", ""),
        ("text=a=b", "a=b"),
        ('text="5"', '"5"'),
        ("maybe=null", "null"),
        ("count=5", 5),
        ("count=five", "five"),
        ("either=5", "5"),
        ("either=five", "five"),
        ("odd=true", True),
        ("level=1", "1"),
        ("maybe_level=2", "2"),
        ("wrapped=1", "1"),
        ("same=7", "7"),
        ("number=1", 1),
        ("circle=1", 1),
        ("words=true", "true"),
        ('words=["a"]', ["a"]),
        ("count=NaN", "NaN"),
        ("unknown=[1, 2]", [1, 2]),
        ("unknown=plain words", "plain words"),
    ],
)
def test_a_value_is_read_as_the_tool_wants_it(word: str, value: object) -> None:
    assert read_arguments([word], SCHEMA) == {word.partition("=")[0]: value}


def test_an_object_is_taken_as_it_is() -> None:
    assert read_arguments([' {"text": 5}'], SCHEMA) == {"text": 5}
    assert read_arguments([], None) == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["text"], "'text' is not an argument"),
        (["=5"], "'=5' is not an argument"),
        (["text=1", "text=2"], "'text' is given twice"),
        (['{"text": '], "not valid JSON"),
        (["{}", "text=1"], "'{}' is not an argument"),
        (['{"count": NaN}'], "NaN is no number in JSON"),
        (['{"a": ' + "[" * 100_000], "nested too deep"),
        (["text=\udcff"], "not valid UTF-8"),
    ],
)
def test_what_is_not_understood_is_said(words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        read_arguments(words, SCHEMA)


@given(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.dictionaries(st.text(), st.recursive(st.none() | st.text(), st.lists), max_size=3),
)
def test_whatever_a_server_says_of_its_arguments_text_is_read(text: str, properties: dict[str, Any]) -> None:
    assert "a" in read_arguments([f"a={text}"], {"properties": properties})
