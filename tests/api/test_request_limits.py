"""How large a request may be, as configured."""

from __future__ import annotations

import json

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import parse_request
from antwort.errors import InvalidField

pytestmark = pytest.mark.proves("CP-040")

MESSAGE = {"role": "user", "content": "hi"}
SMALL = Limits(input_items=2, part_bytes=64, tools=2, metadata_keys=2)


def refused(limits: Limits, **fields: object) -> tuple[str | None, str]:
    with pytest.raises(InvalidField) as caught:
        parse_request(json.dumps(fields).encode(), limits)
    return caught.value.param, caught.value.code


def taken(limits: Limits, **fields: object) -> bool:
    return parse_request(json.dumps(fields).encode(), limits) is not None


def functions(count: int) -> list[dict[str, str]]:
    return [{"type": "function", "name": f"f{i}"} for i in range(count)]


def test_the_limits_by_default() -> None:
    assert (Limits().input_items, Limits().part_bytes, Limits().tools) == (10_000, 10 * 2**20, 128)


def test_more_input_items_than_allowed_are_refused() -> None:
    assert taken(Limits(), input=[MESSAGE] * 10_000)
    assert refused(Limits(), input=[MESSAGE] * 10_001) == ("input", "too_many_items")
    assert taken(SMALL, input=[MESSAGE] * 2)
    assert refused(SMALL, input=[MESSAGE] * 3) == ("input", "too_many_items")


def test_more_tools_than_allowed_are_refused() -> None:
    assert taken(Limits(), tools=functions(128))
    assert refused(Limits(), tools=functions(129)) == ("tools", "too_many_tools")
    assert taken(SMALL, tools=functions(2))
    assert refused(SMALL, tools=functions(3)) == ("tools", "too_many_tools")


def test_a_part_longer_than_allowed_is_refused() -> None:
    text = "x" * (10 * 2**20)
    assert taken(Limits(), input=text)
    assert refused(Limits(), input=text + "x") == ("input[0].content[0].text", "string_above_max_length")


@pytest.mark.parametrize("text", ["x" * 64, "ä" * 32, "😀" * 16])
def test_a_part_is_measured_in_bytes(text: str) -> None:
    assert len(text.encode()) == 64
    assert taken(SMALL, input=text)
    assert refused(SMALL, input=text + "x") == ("input[0].content[0].text", "string_above_max_length")


LONG = "x" * 65


IMAGE = {"type": "image_url", "image_url": {"url": LONG}}


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "user", "content": [{"type": "input_text", "text": LONG}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image", "image_url": LONG}]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [IMAGE]}, "input[0].content[0].image_url"),
        ({"role": "user", "content": [{"type": "input_file", "file_data": LONG}]}, "input[0].content[0].file_data"),
        ({"type": "function_call", "call_id": "c", "name": "n", "arguments": LONG}, "input[0].arguments"),
        ({"type": "function_call_output", "call_id": "c", "output": LONG}, "input[0].output"),
        ({"type": "function_call_output", "call_id": "c", "output": [{"text": LONG}]}, "input[0].output[0].text"),
        ({"type": "reasoning", "encrypted_content": LONG}, "input[0].encrypted_content"),
        ({"type": "x", "note": LONG}, "input[0].note"),
        ({"type": "x", "a": [{"b": [{"c": LONG}]}]}, "input[0].a[0].b[0].c"),
    ],
)
def test_every_text_of_an_item_is_measured(item: dict[str, object], path: str) -> None:
    assert refused(SMALL, input=[item]) == (path, "string_above_max_length")


def test_more_metadata_than_allowed_is_refused() -> None:
    pairs = {str(i): "v" for i in range(17)}
    assert refused(Limits(), metadata=pairs) == ("metadata", "too_many_keys")
    pairs.popitem()
    assert taken(Limits(), metadata=pairs)
    assert refused(SMALL, metadata={"a": "", "b": "", "c": ""}) == ("metadata", "too_many_keys")


def test_keys_of_metadata_have_1_to_64_characters() -> None:
    assert taken(Limits(), metadata={"ä" * 64: ""})
    assert refused(Limits(), metadata={"": "x"}) == ("metadata", "invalid_value")
    named = "metadata." + "ä" * 64 + "..."
    assert refused(Limits(), metadata={"ä" * 5000: "x"}) == (named, "string_above_max_length")


def test_a_key_is_repeated_in_short_where_its_value_is_wrong() -> None:
    assert refused(Limits(), metadata={"k" * 5000: 5}) == ("metadata." + "k" * 64, "invalid_value")
