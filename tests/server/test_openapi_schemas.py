"""The schemas of the document hold for what is taken and written, and for nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from antwort.api.decoding import Limits
from antwort.api.events import StreamEvent
from antwort.api.items import OutputItem
from antwort.api.requests import PlainFields, parse_request
from antwort.api.tool_parsing import _NAME
from antwort.api.tools import echo_choice, echo_tool
from antwort.api.wire import encode, to_plain
from antwort.errors import InvalidField
from antwort.server.openapi_schemas import FIELDS, TOOL_NAME, members
from antwort.testing import ScriptedProvider, answer, call, say, think
from api.samples import CHOICES, EVENTS, ITEMS, RESPONSE, TOOLS, Json
from engine_kit import CLOCK, WEATHER, ask, engine_of, stream, weather_tool
from openapi_kit import described, faults
from serving import HELLO, RESPONSES, STREAMED, serving


@pytest.mark.parametrize("sample", EVENTS, ids=[sample["type"] for sample in EVENTS])
def test_a_sample_of_every_event_fits_and_does_not_without_any_of_its_fields(sample: Json) -> None:
    numbered = {**sample, "sequence_number": 3}
    assert faults("StreamEvent", numbered) == []
    assert faults("StreamEvent", {**numbered, "more": 1}) != []
    for field in numbered:
        rest = {name: value for name, value in numbered.items() if name != field}
        may_miss = sample["type"] == "response.mcp_call.progress" and field in ("progress", "total", "message")
        assert (faults("StreamEvent", rest) == []) is may_miss


@pytest.mark.parametrize("sample", [item for item in ITEMS if item["type"] != "item_reference"])
def test_a_sample_of_every_item_fits_both_ways(sample: Json) -> None:
    assert faults("OutputItem", sample) == []
    assert faults("Item", sample) == []
    assert faults("InputItemParam", sample) == []
    assert faults("OutputItem", {**sample, "id": None}) != []


def test_there_is_a_field_for_everything_that_is_written() -> None:
    """What an encoded struct holds, its schema has, and requires unless it can be left out."""
    schemas = described()["components"]["schemas"]
    for struct in (*members(StreamEvent), *members(OutputItem)):
        fields = {field.encode_name for field in msgspec.structs.fields(struct)}
        optional = {field.encode_name for field in msgspec.structs.fields(struct) if field.default is msgspec.UNSET}
        schema = schemas[struct.__name__]
        assert schema["properties"].keys() - {"type", "sequence_number", "stream_id"} == fields
        assert {*schema["required"]} - {"type", "sequence_number"} == fields - optional
        assert schema["additionalProperties"] is False


@pytest.mark.parametrize("name", RESPONSE)
def test_a_response_has_all_its_keys(name: str) -> None:
    assert faults("Response", RESPONSE) == []
    assert faults("Response", {key: value for key, value in RESPONSE.items() if key != name}) != []


@pytest.mark.parametrize("sample", TOOLS)
def test_a_sample_of_every_tool_fits_and_so_does_its_echo(sample: Json) -> None:
    assert faults("ToolParam", sample) == []
    for tool in parse_request(encode({"input": "Hello", "tools": [sample]}), Limits()).tools:
        assert faults("Tool", echo_tool(tool)) == []
        assert "authorization" not in echo_tool(tool)


@pytest.mark.parametrize("sample", CHOICES)
def test_a_sample_of_every_choice_fits_and_so_does_its_echo(sample: str | Json) -> None:
    assert faults("ToolChoiceParam", sample) == []
    request = parse_request(encode({"input": "Hello", "tool_choice": sample}), Limits())
    assert faults("ToolChoice", echo_choice(request.tool_choice)) == []


A_CALL = {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}"}
TAKEN: list[Json] = [
    {},
    {"conversation": None},
    {"conversation": "conv_1"},
    {"conversation": {"id": "conv_1"}, "previous_response_id": None},
    {"conversation": None, "previous_response_id": "resp_1"},
    {"input": None},
    {"input": "Hello"},
    {"input": [{"role": "user", "content": "Hello"}]},
    {"input": [{"role": "user"}, {"id": "msg_1"}]},
    {"input": [{"role": "user", "content": ["Hello", {"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    {"input": [{"type": "reasoning", "summary": [], "content": ["hm"], "encrypted_content": None}]},
    {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "3"}]}]},
    {"input": [{"type": "something_else", "whatever": 1}]},
    {"input": [{**A_CALL, "content": ["3", {"type": "image_url", "image_url": {"url": "data:,"}, "detail": None}]}]},
    {"input": [{**A_CALL, "content": None, "output": [{"type": "input_text", "text": "3"}]}]},
    {"tools": [{"type": "function", "function": {"name": "add", "parameters": {}}}]},
    {"tools": [{"type": "web_search", "external_web_access": False}, {"type": "anything"}]},
    {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "strict": None}]}]},
    {"tools": [{"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}]},
    {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    {"tool_choice": {"type": "web_search"}},
    {"allowed_tools": ["add", {"type": "function", "name": "sub"}]},
    {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": None}},
    {"text": {"format": {"type": "json_schema", "name": "n"}}},
    {"text": {"format": {"type": "json_schema", "schema": {}}}},
    {"reasoning": {"effort": "low", "summary": "auto"}, "include": ["reasoning.encrypted_content"]},
    {"metadata": {"k" * 64: "x" * 512}},
    {"client_metadata": {"x": [1]}, "moderation": None, "context_management": []},
]
REFUSED: list[Json] = [
    {"input": 5},
    {"input": [{"content": "Hello"}]},
    {"input": [{"role": "king", "content": "Hello"}]},
    {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
    {"input": [{"type": "function_call", "name": "add", "arguments": "{}"}]},
    {"input": [{"type": "function_call", "call_id": "", "name": "add", "arguments": "{}"}]},
    {"input": [{**A_CALL, "content": "3"}]},
    {"input": [{**A_CALL, "content": [{"type": "input_image"}]}]},
    {"input": [{**A_CALL, "content": [{"type": "refusal", "refusal": "no"}]}]},
    {"input": [{"role": "user", "content": []}] * 10_001},
    {"tools": [{"name": "add"}]},
    {"tools": [{"type": "function"}]},
    {"tools": [{"type": "function", "name": "a b"}]},
    {"tools": [{"type": "mcp"}]},
    {"tools": [{"type": "x"}] * 129},
    {"tool_choice": "sometimes"},
    {"tool_choice": {"type": "function"}},
    {"tool_choice": {"type": "allowed_tools", "tools": []}},
    {"allowed_tools": [{"type": "function"}]},
    {"text": {"format": {"type": "json_schema", "name": 5}}},
    {"temperature": 3},
    {"top_logprobs": 21},
    {"max_output_tokens": 0},
    {"metadata": {"a": 1}},
    {"metadata": {str(i): "" for i in range(17)}},
    {"metadata": {"": "x"}},
    {"metadata": {"k" * 65: "x"}},
    {"conversation": 5},
    {"conversation": ""},
    {"conversation": {"name": "conv_1"}},
    {"conversation": "conv_1", "previous_response_id": "resp_1"},
    {"prompt": {"id": "p"}},
]


@pytest.mark.parametrize("body", TAKEN, ids=str)
def test_what_is_taken_is_described(body: Json) -> None:
    parse_request(encode(body), Limits())
    assert faults("CreateResponse", body) == []


@pytest.mark.parametrize("body", REFUSED, ids=lambda body: str(body)[:80])
def test_what_is_refused_is_not(body: Json) -> None:
    with pytest.raises(InvalidField):
        parse_request(encode(body), Limits())
    assert faults("CreateResponse", body) != []


def test_every_field_of_a_request_is_explained() -> None:
    described_fields = described()["components"]["schemas"]["CreateResponse"]["properties"]
    assert described_fields.keys() >= {*PlainFields.__struct_fields__}
    assert described_fields.keys() == FIELDS.keys()


def test_what_is_always_refused_is_not_described_or_says_so() -> None:
    schemas = described()["components"]["schemas"]
    for name, field in (
        ("InputImageParam", "file_id"),
        ("InputFileParam", "file_url"),
    ):
        assert "refused" in schemas[name]["properties"][field]["description"]


def within(schema: object) -> Iterator[Json]:
    """The schema, and all that it holds."""
    if isinstance(schema, dict):
        yield schema
    for inner in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from within(inner)


def test_no_field_of_a_request_has_a_default_which_generators_take_for_a_field_that_is_always_there() -> None:
    for name, schema in described()["components"]["schemas"].items():
        assert not [each for each in within(schema) if "default" in each and "properties" not in each], name


def test_every_object_whose_fields_are_not_told_says_that_it_may_have_any() -> None:
    for name, schema in described()["components"]["schemas"].items():
        for each in within(schema):
            if each.get("type") == "object" and "properties" not in each:
                assert "additionalProperties" in each, name
    for name in ("OtherItemParam", "OtherToolParam", "OtherNamespacedToolParam", "OtherItem", "OtherTool"):
        assert described()["components"]["schemas"][name]["additionalProperties"] is True


def test_every_object_has_a_name_of_its_own_for_generators_to_call_it_by() -> None:
    for name, schema in described()["components"]["schemas"].items():
        inner = [each for each in within(schema) if each is not schema and each.get("type") == "object"]
        assert not [each for each in inner if "properties" in each], name


def test_the_name_of_a_tool_is_described_as_it_is_read() -> None:
    assert f"^{_NAME.pattern}$" == TOOL_NAME


CASES: dict[str, tuple[list[Any], Json]] = {
    "text": ([answer(say("Hello there"))], {}),
    "reasoning": ([answer(think("Let me see"), say("42"))], {"reasoning": {"summary": "auto"}}),
    "calls": ([answer(call("weather", city="Paris")), answer(say("Sunny."))], {"tools": [WEATHER]}),
    "a client's call": ([answer(call("clock"))], {"tools": [CLOCK], "tool_choice": "required"}),
    "structure": ([answer(say("{}"))], {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}}}),
}


@pytest.mark.parametrize("case", CASES)
async def test_what_the_engine_writes_fits(case: str) -> None:
    answers, fields = CASES[case]
    outcome = await stream(engine_of(ScriptedProvider(*answers), weather_tool()), ask(**fields))
    for number, event in enumerate(outcome.events):
        assert faults("StreamEvent", {**to_plain(event), "sequence_number": number}) == []
    assert faults("Response", to_plain(outcome.response)) == []


async def test_what_the_server_answers_fits() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hello")), answer(say("Hello"))), weather_tool())
    async with serving(engine) as server:
        made = (await server.ask("POST", RESPONSES, {**HELLO, "input": [{"role": "user", "content": "Hello"}]})).json()
        await server.ask("POST", RESPONSES, STREAMED)
        one = f"{RESPONSES}/{made['id']}"
        for path, name in {
            RESPONSES: "ResponseList",
            one: "Response",
            f"{one}/input_items": "ItemList",
            "/v1/models": "ModelList",
            "/v1/models/scripted": "Model",
            "/v1/toolsets": "ToolsetList",
            "/healthz": "Health",
            "/readyz": "Readiness",
            "/v1/responses/resp_none": "ErrorBody",
        }.items():
            assert faults(name, (await server.ask("GET", path)).json()) == [], path
        assert faults("Deleted", (await server.ask("DELETE", one)).json()) == []
