"""A bad field names its path, before any work is done."""

from __future__ import annotations

import json

import pytest

from antwort.api.decoding import Limits
from antwort.api.requests import parse_request
from antwort.errors import InvalidField

MESSAGE = {"role": "user", "content": "hi"}


def user(part: dict[str, object]) -> dict[str, object]:
    return {"role": "user", "content": [part]}


def fault(body: bytes, limits: Limits | None = None) -> InvalidField:
    with pytest.raises(InvalidField) as caught:
        parse_request(body, limits or Limits())
    return caught.value


FIELDS: list[tuple[dict[str, object], str]] = [
    ({"model": 5}, "model"),
    ({"previous_response_id": []}, "previous_response_id"),
    ({"include": "all"}, "include"),
    ({"include": ["a", 5]}, "include[1]"),
    ({"metadata": []}, "metadata"),
    ({"metadata": {"a": "b", "c": 5}}, "metadata.c"),
    ({"metadata": {"a": "b", "c": "x" * 513}}, "metadata.c"),
    ({"text": "json"}, "text"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": 5, "schema": {}}}}, "text.format.name"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": 5}}}, "text.format.schema"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 1.1}, "top_p"),
    ({"presence_penalty": -2.1}, "presence_penalty"),
    ({"frequency_penalty": 2.1}, "frequency_penalty"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"stream": 1}, "stream"),
    ({"stream_options": []}, "stream_options"),
    ({"background": "yes"}, "background"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 1.5}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"reasoning": {"effort": 5}}, "reasoning.effort"),
    ({"safety_identifier": "x" * 65}, "safety_identifier"),
    ({"prompt_cache_key": "x" * 65}, "prompt_cache_key"),
    ({"truncation": "some"}, "truncation"),
    ({"instructions": [MESSAGE]}, "instructions"),
    ({"store": "no"}, "store"),
    ({"service_tier": 5}, "service_tier"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"user": 5}, "user"),
    # tools
    ({"tools": {}}, "tools"),
    ({"tools": ["add"]}, "tools[0]"),
    ({"tools": [{"name": "add"}]}, "tools[0].type"),
    ({"tools": [{"type": 5}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "x" * 129}]}, "tools[0].name"),
    ({"tools": [{"type": "function", "name": "a"}, {"type": "function", "name": "a"}]}, "tools[1].name"),
    ({"tools": [{"type": "function", "name": "a", "parameters": "x"}]}, "tools[0].parameters"),
    ({"tools": [{"type": "function", "function": {"description": "d"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "mcp"}]}, "tools[0].server_label"),
    ({"tools": [{"type": "mcp", "server_label": "s", "headers": {"a": "b", "c": 1}}]}, "tools[0].headers.c"),
    ({"tools": [{"type": "mcp", "server_label": "s", "allowed_tools": [1]}]}, "tools[0].allowed_tools[0]"),
    ({"tool_choice": "any"}, "tool_choice"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"tool_choice": {"name": "add"}}, "tool_choice.type"),
    ({"tool_choice": {"type": ""}}, "tool_choice.type"),
    ({"tool_choice": {"type": 5}}, "tool_choice.type"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "mcp"}}, "tool_choice.server_label"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "f", "name": "a"}] * 129}}, "tool_choice.tools"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [{"name": "a"}]}}, "tool_choice.tools[0].type"),
    ({"tool_choice": {"type": "allowed_tools", "tools": [{"type": "f"}], "mode": "x"}}, "tool_choice.mode"),
    ({"allowed_tools": "add"}, "allowed_tools"),
    ({"allowed_tools": ["add", 5]}, "allowed_tools[1]"),
    ({"allowed_tools": [{"name": "add"}]}, "allowed_tools[0].type"),
    # input
    ({"input": 5}, "input"),
    ({"input": {}}, "input"),
    ({"input": [MESSAGE, "hi"]}, "input[1]"),
    ({"input": [MESSAGE, None]}, "input[1]"),
    ({"input": [{}]}, "input[0].type"),
    ({"input": [{"content": "hi"}]}, "input[0].type"),
    ({"input": [{"role": None, "content": "hi"}]}, "input[0].type"),
    ({"input": [{"type": 5}]}, "input[0].type"),
    ({"input": [{"id": 5}]}, "input[0].id"),
    ({"input": [{"type": "item_reference"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": ""}]}, "input[0].id"),
    ({"input": [{**MESSAGE, "id": 5}]}, "input[0].id"),
    ({"input": [{"type": "acme:note", "id": 5}]}, "input[0].id"),
    ({"input": [{"type": "message"}]}, "input[0].role"),
    ({"input": [{"role": "tool", "content": "hi"}]}, "input[0].role"),
    ({"input": [{**MESSAGE, "status": "done"}]}, "input[0].status"),
    ({"input": [{**MESSAGE, "phase": "last"}]}, "input[0].phase"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": {}}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": ["hi", 5]}]}, "input[0].content[1]"),
    ({"input": [user({"text": "hi"})]}, "input[0].content[0].type"),
    ({"input": [MESSAGE, MESSAGE, user({"type": "foo"})]}, "input[2].content[0].type"),
    ({"input": [user({"type": "input_text"})]}, "input[0].content[0].text"),
    ({"input": [user({"type": "input_text", "text": 5})]}, "input[0].content[0].text"),
    ({"input": [user({"type": "input_image"})]}, "input[0].content[0].image_url"),
    ({"input": [user({"type": "image_url", "image_url": None})]}, "input[0].content[0].image_url"),
    ({"input": [user({"type": "image_url", "image_url": {}})]}, "input[0].content[0].image_url"),
    ({"input": [user({"type": "image_url", "image_url": 5})]}, "input[0].content[0].image_url"),
    ({"input": [user({"type": "input_image", "image_url": "data:,", "detail": "huge"})]}, "input[0].content[0].detail"),
    ({"input": [{"type": "function_call", "name": "a", "arguments": ""}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "name": "a", "call_id": "c", "arguments": {}}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": 5}]}, "input[0].output"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": [5]}]}, "input[0].output[0]"),
    (
        {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "refusal"}]}]},
        "input[0].output[0].type",
    ),
    ({"input": [{"type": "reasoning", "content": 5}]}, "input[0].content"),
    ({"input": [{"type": "reasoning", "content": [5]}]}, "input[0].content[0]"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "image"}]}]}, "input[0].summary[0].type"),
    ({"input": [{"type": "reasoning", "summary": [{"type": "text"}]}]}, "input[0].summary[0].text"),
    ({"input": [{"type": "reasoning", "encrypted_content": 5}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "compaction"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "mcp_list_tools", "server_label": "s", "tools": [5]}]}, "input[0].tools[0]"),
    ({"input": [{"type": "mcp_list_tools", "server_label": "s", "tools": {}}]}, "input[0].tools"),
    (
        {"input": [{"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "a", "input_schema": 5}]}]},
        "input[0].tools[0].input_schema",
    ),
    ({"input": [{"type": "mcp_approval_response", "approval_request_id": "a"}]}, "input[0].approve"),
]


@pytest.mark.proves("CP-030")
@pytest.mark.parametrize(("fields", "path"), FIELDS, ids=[f"{i} {path}" for i, (_, path) in enumerate(FIELDS)])
def test_a_bad_field_names_its_path(fields: dict[str, object], path: str) -> None:
    error = fault(json.dumps(fields).encode())
    assert error.param == path
    assert error.message.startswith(f"Invalid '{path}': ")
    assert (error.status, error.type) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"tools": [{"type": "function"}]}, "missing_required_parameter"),
        ({"input": [{}]}, "missing_required_parameter"),
        ({"input": [{"type": "item_reference"}]}, "missing_required_parameter"),
        ({"temperature": 3}, "invalid_value"),
        ({"tools": [{"type": "function", "name": "a"}] * 2}, "duplicate_tool"),
    ],
)
def test_a_fault_has_a_code_of_its_kind(fields: dict[str, object], code: str) -> None:
    assert fault(json.dumps(fields).encode()).code == code


def test_a_fault_says_what_was_expected_and_what_came() -> None:
    assert fault(b'{"input": 5}').message == "Invalid 'input': expected a string or a list of items, got a number."
    assert fault(b'{"tools": true}').message == "Invalid 'tools': expected a list, got a boolean."
    assert fault(b'{"input": [null]}').message == "Invalid 'input[0]': expected an object, got null."
    assert fault(b'{"stream": 1}').message == "Invalid 'stream': expected `bool | null`, got `int`."


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"not json",
        b'{"a":1}}',
        b"{'a':1}",
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": 1e999}',
        b'{"input": "\xff"}',
        b'\xef\xbb\xbf{"input": "hi"}',
        b'{"input": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=range(12),
)
def test_what_is_not_json_is_said_so(body: bytes) -> None:
    error = fault(body)
    assert (error.param, error.code) == (None, "invalid_json")
    assert error.message.startswith("The body is not valid JSON: ")


def test_a_number_without_end_is_said_so() -> None:
    error = fault(b'{"max_output_tokens": ' + b"9" * 5000 + b"}")
    assert (error.message, error.code) == ("The body holds a number of more than 256 digits.", "invalid_json")


@pytest.mark.parametrize("body", [b"5", b"[]", b'"hi"', b"null", b"true"])
def test_a_body_that_is_no_object_is_said_so(body: bytes) -> None:
    assert fault(body).message == "The body must be a JSON object."


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_a_body_nested_beyond_reason_is_refused(opening: bytes, closing: bytes) -> None:
    for depth in range(200, 1000, 50):
        body = b'{"input":[{"type":"x","n":' + opening * depth + b"1" + closing * depth + b"}]}"
        assert fault(body).code == "invalid_json"


def test_a_body_nested_within_reason_is_read_and_written_again() -> None:
    body = b'{"input":[{"type":"x","n":' + b"[" * 197 + b"]" * 197 + b"}]}"
    (raw,) = parse_request(body, Limits()).raw_input
    assert b"[" * 197 in raw
    assert fault(body.replace(b"[[", b"[[[").replace(b"]]", b"]]]")).message.endswith("more than 200 levels deep.")


def test_a_long_flat_body_is_no_deep_one() -> None:
    assert len(parse_request(json.dumps({"input": [MESSAGE] * 300}).encode(), Limits()).input) == 300


def test_a_number_beyond_all_bounds_is_told_as_such() -> None:
    with pytest.raises(InvalidField, match="number out of range"):
        parse_request(b'{"input": "x", "temperature": 1e999}', Limits())
