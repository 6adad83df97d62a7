"""The schema of an emulated answer admits only calls that are allowed and whose arguments fit."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antwort.api.wire import UNSET, UnsetType
from antwort.providers.base import CallDelta, ChatRequest, ChatTool, ChatToolFunction, Finished, TextDelta
from antwort.providers.tool_emulation.answer_schema import answer_schema, response_format
from antwort.providers.tool_emulation.parser import EmulatedAnswerParser
from antwort.providers.tool_emulation.tool_choice import AnswerOptions, answer_options
from schema_kit import admitted, nasty_schemas, tool_schemas

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name: str, parameters: dict[str, Any] | UnsetType = UNSET) -> ChatTool:
    return ChatTool(function=ChatToolFunction(name=name, parameters=parameters))


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def request(tools: list[ChatTool], choice: str | dict[str, Any] | UnsetType, *, parallel: bool = True) -> ChatRequest:
    return ChatRequest(model="m", messages=[], tools=tools, tool_choice=choice, parallel_tool_calls=parallel)


def calls_in(text: str) -> tuple[list[tuple[str, Any]], str]:
    """The calls of an answer, and its words."""
    calls: list[tuple[str, str]] = []
    words = ""
    for delta in EmulatedAnswerParser().feed([TextDelta(text), Finished("stop")]):
        if isinstance(delta, CallDelta) and delta.name:
            calls.append((delta.name, ""))
        elif isinstance(delta, CallDelta):
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
        elif isinstance(delta, TextDelta):
            words += delta.text
    return [(name, json.loads(arguments)) for name, arguments in calls], words


# ---- the form ----


def test_an_answer_is_calls_or_words_and_a_name_comes_first() -> None:
    schema = answer_schema(AnswerOptions(tools=(tool("weather", CITY), tool("now"))))
    calls, words = schema["anyOf"]
    assert list(calls["properties"]) == calls["required"] == ["calls"]
    assert words["properties"] == {"answer": {"type": "string"}}
    made = calls["properties"]["calls"]
    assert (made["minItems"], made["maxItems"]) == (1, 8)
    assert [list(each["properties"]) for each in made["items"]["anyOf"]] == [["name", "arguments"]] * 2
    assert [each["properties"]["name"] for each in made["items"]["anyOf"]] == [{"const": "weather"}, {"const": "now"}]
    assert made["items"]["anyOf"][0]["properties"]["arguments"] == {**CITY, "additionalProperties": False}


def test_the_format_is_strict_and_has_a_name() -> None:
    sent = response_format(AnswerOptions(tools=(tool("now"),), may_answer=False, max_calls=1))
    assert sent["type"] == "json_schema"
    assert sent["json_schema"]["strict"] is True
    assert sent["json_schema"]["schema"]["required"] == ["calls"]


def test_an_answer_that_the_client_wants_as_json_stands_in_the_place_of_words() -> None:
    schema = answer_schema(AnswerOptions(tools=(tool("now"),)), CITY)
    assert schema["anyOf"][1]["properties"]["answer"] == CITY


def test_where_nothing_may_be_called_the_answer_alone_is_the_form() -> None:
    assert answer_schema(AnswerOptions(tools=()))["properties"] == {"answer": {"type": "string"}}
    assert answer_schema(AnswerOptions(tools=()), CITY)["properties"] == {"answer": CITY}


STRICT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "share": {"type": "number", "minimum": 0, "multipleOf": 0.5},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
        "enum": {"$ref": "#/definitions/old"},
    },
    "required": ["share"],
    "$defs": {"tag": {"type": "string", "pattern": "a", "examples": [{"$ref": "#/nowhere"}]}},
    "definitions": {"old": {"anyOf": [{"$ref": "#/$defs/tag"}, {"type": "null"}]}},
}


def test_a_schema_of_the_client_loses_nothing_and_its_references_still_hold() -> None:
    with_refs = {"properties": {"a": {"$ref": "#/$defs/thing"}}, "$defs": {"thing": {"type": "integer"}}}
    schema = answer_schema(AnswerOptions(tools=(tool("f", with_refs),)), STRICT)
    answer = schema["anyOf"][1]["properties"]["answer"]
    assert answer["properties"]["share"] == {"type": "number", "minimum": 0, "multipleOf": 0.5}
    assert schema["$defs"]["answer_tag"] == STRICT["$defs"]["tag"]
    for each in ({"share": 1, "tags": ["a"]}, {"share": 1, "tags": ["b"]}, {"share": 0.3}, {"share": 1, "enum": 1}):
        is_fit = jsonschema_rs.is_valid(STRICT, each)
        assert jsonschema_rs.is_valid(schema, {"answer": each}) == is_fit


@pytest.mark.parametrize(
    ("answer", "fits"),
    [
        ({"properties": {"next": {"$ref": "#"}}}, {"next": {"next": {}}}),
        ({"$id": "urn:x", **CITY}, {"city": "Rome"}),
        ({**CITY, "$defs": {"a": {}}, "definitions": {"a": {}}}, {"city": "Rome"}),
        ({**CITY, "$defs": []}, {"city": "Rome"}),
    ],
)
def test_a_schema_of_the_client_that_holds_only_where_it_stands_is_cleaned(answer: dict[str, Any], fits: Any) -> None:
    schema = answer_schema(AnswerOptions(tools=()), answer)
    assert jsonschema_rs.is_valid(schema, {"answer": fits})
    assert not jsonschema_rs.is_valid(schema, {"answer": {**fits, "more": 1}})


def test_a_large_tool_takes_nothing_from_the_others() -> None:
    huge = {"properties": {f"p{at}": {"type": "string"} for at in range(20_000)}}
    many = {"properties": {f"p{at}": {"type": "string"} for at in range(100)}}
    tools = (tool("huge", huge), *(tool(f"t{at}", many) for at in range(127)))
    calls = answer_schema(AnswerOptions(tools=tools, may_answer=False))["properties"]["calls"]["items"]["anyOf"]
    arguments = [each["properties"]["arguments"] for each in calls]
    assert arguments[1:] == [{"type": "object", **many, "required": [], "additionalProperties": False}] * 127
    assert len(arguments[0]["properties"]) == 20_000
    assert jsonschema_rs.is_valid(arguments[0], {"p0": "x", "p19999": {"any": 1}})


def test_arguments_that_are_too_much_to_describe_may_be_any_object() -> None:
    deep: dict[str, Any] = {"properties": {"a": {"type": "string"}}}
    for _ in range(30):
        deep = {"anyOf": [deep]}
    schema = answer_schema(AnswerOptions(tools=(tool("f", deep),), may_answer=False))
    arguments = schema["properties"]["calls"]["items"]["properties"]["arguments"]
    assert jsonschema_rs.is_valid(arguments, {"a": "x"})
    assert not jsonschema_rs.is_valid(arguments, [])


def test_definitions_of_several_tools_do_not_get_in_each_others_way() -> None:
    def parameters(kind: str) -> dict[str, Any]:
        return {"properties": {"a": {"$ref": "#/$defs/thing"}}, "$defs": {"thing": {"type": kind}}}

    schema = answer_schema(AnswerOptions(tools=(tool("one", parameters("string")), tool("two", parameters("integer")))))
    assert sorted(each["type"] for each in schema["$defs"].values()) == ["integer", "string"]


@pytest.mark.parametrize(
    "parameters", [UNSET, {}, {"type": "object"}, {"type": "object", "properties": {}}, {"type": "string"}]
)
def test_a_tool_without_parameters_is_called_with_none(parameters: dict[str, Any] | UnsetType) -> None:
    schema = answer_schema(AnswerOptions(tools=(tool("now", parameters),), may_answer=False))
    arguments = schema["properties"]["calls"]["items"]["properties"]["arguments"]
    assert arguments == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


# ---- by construction ----


@UNHURRIED
@given(tool_schemas(), st.data())
def test_whatever_the_schema_lets_through_is_a_call_that_fits_the_tool(
    parameters: dict[str, Any], data: st.DataObject
) -> None:
    schema = answer_schema(AnswerOptions(tools=(tool("f", parameters),), may_answer=False, max_calls=1))
    calls, words = calls_in(data.draw(admitted(schema)))
    ((name, arguments),) = calls
    assert (name, words) == ("f", "")
    jsonschema_rs.validate(parameters, arguments)


TOOLS = [tool("weather", CITY), tool("now"), tool("add", {"properties": {"n": {"type": "integer"}}})]
CHOICES: list[tuple[str | dict[str, Any] | UnsetType, bool, set[str]]] = [
    (UNSET, True, {"weather", "now", "add"}),
    ("auto", True, {"weather", "now", "add"}),
    ("required", False, {"weather", "now", "add"}),
    (named("now"), False, {"now"}),
    (
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("now"), named("add")]}},
        True,
        {"now", "add"},
    ),
    ({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("add")]}}, False, {"add"}),
    ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}, False, {"add"}),
]


@UNHURRIED
@given(st.sampled_from(CHOICES), st.booleans(), st.data())
def test_the_choice_holds_whatever_the_model_writes(
    case: tuple[str | dict[str, Any] | UnsetType, bool, set[str]], parallel: bool, data: st.DataObject
) -> None:
    choice, may_answer, allowed = case
    text = data.draw(admitted(answer_schema(answer_options(request(TOOLS, choice, parallel=parallel)))))
    calls, words = calls_in(text)
    is_forced = isinstance(choice, dict) and choice["type"] == "function"
    assert {name for name, _ in calls} <= allowed
    assert len(calls) <= (1 if is_forced or not parallel else 8)
    assert calls or may_answer
    assert not (calls and words)


def test_none_and_a_choice_of_nothing_leave_no_tools_to_call() -> None:
    assert answer_options(request(TOOLS, "none")) == AnswerOptions(tools=())
    assert answer_options(request(TOOLS, named("gone"))).tools == ()
    assert answer_options(ChatRequest(model="m", messages=[], tool_choice="required")).tools == ()


# ---- what decoders take ----

KNOWN = {
    *("type", "properties", "required", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("anyOf", "const", "enum", "$ref", "$defs", "pattern", "format", "minLength", "maxLength", "minimum", "maximum"),
}


@UNHURRIED
@given(nasty_schemas())
def test_any_schema_becomes_one_that_decoders_take(parameters: dict[str, Any]) -> None:
    schema = answer_schema(AnswerOptions(tools=(tool("f", parameters),)))
    for definition in schema.get("$defs", {}).values():
        check(definition, schema)
    check({key: value for key, value in schema.items() if key != "$defs"}, schema)
    json.dumps(schema, allow_nan=False)


def check(schema: Any, root: Any) -> None:
    assert isinstance(schema, dict)
    assert schema.keys() <= KNOWN
    if "$ref" in schema:
        assert schema["$ref"].removeprefix("#/$defs/") in root["$defs"]
        return
    assert not {"type", "anyOf", "const", "enum"}.isdisjoint(schema)
    for low, high in (("minItems", "maxItems"), ("minLength", "maxLength"), ("minimum", "maximum")):
        assert low not in schema or high not in schema or schema[low] <= schema[high]
    more = schema.get("additionalProperties")
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", []), *schema.get("prefixItems", [])]
    inner += [schema["items"]] if "items" in schema else []
    for each in inner + ([more] if isinstance(more, dict) else []):
        check(each, root)
