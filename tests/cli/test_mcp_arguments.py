"""A tool's arguments on a command line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.cli.mcp_arguments import read_arguments
from antwort.cli.subjects import Misused

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "count": {"type": "integer"},
        "either": {"type": ["string", "integer"]},
        "odd": True,
    },
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
        ("either=5", 5),
        ("either=five", "five"),
        ("odd=true", True),
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
    ],
)
def test_what_is_not_understood_is_said(words: list[str], problem: str) -> None:
    with pytest.raises(Misused, match=problem):
        read_arguments(words, SCHEMA)


@given(st.text(), st.dictionaries(st.text(), st.recursive(st.none() | st.text(), st.lists), max_size=3))
def test_whatever_a_server_says_of_its_arguments_text_is_read(text: str, properties: dict[str, Any]) -> None:
    assert "a" in read_arguments([f"a={text}"], {"properties": properties})
