"""Whatever the body, it is a request or a fault with a name: nothing else comes out."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from antwort.api.decoding import Limits
from antwort.api.item_parsing import read_item
from antwort.api.items import Message
from antwort.api.requests import CreateRequest, parse_request
from antwort.api.wire import to_plain
from antwort.errors import AntwortError
from api.samples import CHOICES, ITEMS, PARTS, TOOLS

steady = settings(deadline=None, derandomize=True)
thorough = settings(steady, max_examples=300)
surrogates = st.characters(categories=["Cs"])
texts = st.text(max_size=5) | st.text(surrogates, min_size=1, max_size=2)
numbers = st.integers() | st.integers(min_value=2**62) | st.floats() | st.integers(0, 3).map(lambda n: 10 ** (n * 1400))
scalars = st.none() | st.booleans() | numbers | texts
words = st.sampled_from(
    (
        *("type", "role", "content", "id", "name", "output", "text", "image_url", "url", "tools", "summary", "call_id"),
        *("arguments", "status", "detail", "function", "server_label", "mode", "format", "schema", "headers", "input"),
        *("message", "reasoning", "function_call_output", "mcp_list_tools", "mcp", "allowed_tools", "item_reference"),
    )
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | words, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | texts, inner, max_size=4)
)
fields = st.sampled_from(CreateRequest.__struct_fields__) | words | texts


def is_read_or_refused(body: bytes) -> bool:
    try:
        return isinstance(parse_request(body, Limits(part_bytes=100)), CreateRequest)
    except AntwortError as error:
        return bool(error.message)


@steady
@given(values)
@example([[[]]])
@example({"input": [{"type": "reasoning", "content": 5}]})
def test_any_json_is_read_or_refused(value: object) -> None:
    assert is_read_or_refused(json.dumps(value).encode())


@thorough
@given(st.dictionaries(fields, values, max_size=4))
def test_any_object_is_read_or_refused(value: object) -> None:
    assert is_read_or_refused(json.dumps(value).encode())


@steady
@given(st.binary())
@example(b'{"input": NaN}')
@example(b'{"input": -Infinity}')
@example(b'{"input": "\xed\xa0\x80"}')
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    assert is_read_or_refused(body)


@steady
@given(st.integers(1, 1200), st.sampled_from([("[", "]"), ('{"type":', "}"), ('[{"content":', "}]")]))
def test_any_depth_is_read_or_refused(depth: int, brackets: tuple[str, str]) -> None:
    opening, closing = brackets
    for inside in (
        "{}",
        '{{"input":{}}}',
        '{{"input":[{{"type":"x","n":{}}}]}}',
        '{{"tools":[{{"type":"x","n":{}}}]}}',
    ):
        assert is_read_or_refused(inside.format(opening * depth + "1" + closing * depth).encode())


@st.composite
def damaged(draw: st.DrawFn) -> dict[str, Any]:
    """A sound request with something foreign somewhere in it."""
    request: dict[str, Any] = {
        "input": draw(st.lists(st.sampled_from(ITEMS), max_size=2)),
        "tools": draw(st.lists(st.sampled_from(TOOLS), max_size=2)),
        "tool_choice": draw(st.sampled_from(CHOICES)),
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "metadata": {"a": "b"},
    }
    request = json.loads(json.dumps(request))
    place: Any = request
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return request
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or draw(st.booleans()):
            place[key] = draw(values)
            return request
        place = place[key]


@thorough
@given(damaged())
def test_a_request_with_something_foreign_in_it_is_read_or_refused(value: dict[str, Any]) -> None:
    assert is_read_or_refused(json.dumps(value).encode())


# ---- messages ----

parts = st.sampled_from(PARTS) | st.builds(lambda text: {"type": "input_text", "text": text}, st.text())
messages = st.fixed_dictionaries(
    {
        "type": st.just("message"),
        "id": st.text(min_size=1),
        "role": st.sampled_from(["user", "assistant", "system", "developer"]),
        "content": st.lists(parts),
        "status": st.sampled_from(["in_progress", "completed", "incomplete"]),
    },
    optional={"phase": st.sampled_from(["commentary", "final_answer"])},
)


@steady
@given(messages)
def test_a_message_comes_back_as_it_went_in(value: dict[str, Any]) -> None:
    item = read_item(value, "input[0]", Limits())
    assert isinstance(item, Message)
    assert to_plain(item) == value
    (again,) = parse_request(json.dumps({"input": [to_plain(item)]}).encode(), Limits()).input
    assert again == item


@steady
@given(st.text())
def test_a_string_comes_back_as_the_text_of_one_part(text: str) -> None:
    (message,) = parse_request(json.dumps({"input": text}).encode(), Limits()).input
    assert to_plain(message)["content"] == [{"type": "input_text", "text": text}]
