"""The prompt of a model without tool calls. The demo model's adapter was trained on it: it is written out here."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import UNSET, UnsetType
from antwort.providers.base import ChatCall, ChatFunction, ChatMessage, ChatTool, ChatToolFunction
from antwort.providers.tool_emulation.prompt import describe_tools, rewrite_messages
from antwort.providers.tool_emulation.tool_choice import AnswerOptions

WEATHER = ChatTool(
    function=ChatToolFunction(
        name="get_weather",
        description="Current weather of a city.",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
        },
    )
)
TOLD = """\
You can call these functions:
get_weather(city: string, unit?: "C" | "F") - Current weather of a city.
  city: Name of the city

Reply with one JSON object. If a function helps, call it: {"calls": [{"name": "...", "arguments": {...}}]}
If none is needed, or you have the results, answer: {"answer": "..."}"""
ONLY_CALLS = """\
You can call these functions:
get_weather(city: string, unit?: "C" | "F") - Current weather of a city.
  city: Name of the city

Reply with one JSON object that calls a function: {"calls": [{"name": "...", "arguments": {...}}]}"""
ROME = '{"name": "get_weather", "arguments": {"city": "Rome"}}'
COLOGNE = '{"name": "get_weather", "arguments": {"city": "Köln", "unit": "C"}}'
CHOICE = AnswerOptions(tools=(WEATHER,))


def user(content: str | list[dict[str, Any]]) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def calling(*calls: tuple[str, str, str], text: str | None = None) -> ChatMessage:
    made = [ChatCall(id=key, function=ChatFunction(name=name, arguments=given)) for key, name, given in calls]
    return ChatMessage(role="assistant", content=text, tool_calls=made)


def result(call_id: str, content: str) -> ChatMessage:
    return ChatMessage(role="tool", tool_call_id=call_id, content=content)


def plain(messages: list[ChatMessage]) -> list[tuple[str, object]]:
    assert all(message.tool_calls is UNSET and message.tool_call_id is UNSET for message in messages)
    return [(message.role, message.content) for message in messages]


def test_the_words_of_a_whole_conversation() -> None:
    said = [
        ChatMessage(role="system", content="Be brief."),
        user("Hi"),
        ChatMessage(role="assistant", content='Hello, "friend".'),
        user("Rome and Köln?"),
        calling(("1", "get_weather", '{"city":"Rome"}'), ("2", "get_weather", '{"city": "Köln", "unit": "C"}')),
        result("1", "18"),
        result("2", "9\nand rain"),
    ]
    assert plain(rewrite_messages(said, CHOICE)) == [
        ("system", f"Be brief.\n\n{TOLD}"),
        ("user", "Hi"),
        ("assistant", '{"answer": "Hello, \\"friend\\"."}'),
        ("user", "Rome and Köln?"),
        ("assistant", f'{{"calls": [{ROME}, {COLOGNE}]}}'),
        ("user", "Results:\nget_weather: 18\nget_weather: 9\nand rain"),
    ]


def test_where_words_will_not_do_they_are_not_spoken_of() -> None:
    assert plain(rewrite_messages([user("Rome?")], AnswerOptions(tools=(WEATHER,), may_answer=False)))[0] == (
        "system",
        ONLY_CALLS,
    )


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_instructions_and_tools_are_told_in_one_message(role: str, content: str | list[dict[str, Any]]) -> None:
    made = rewrite_messages([ChatMessage(role=role, content=content), user("Hi")], CHOICE)
    assert plain(made) == [("system", f"Be brief.\n\n{TOLD}"), ("user", "Hi")]


def test_instructions_with_a_picture_and_later_ones_stay_where_they_are() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    said = [ChatMessage(role="system", content=pictures), user("Hi"), ChatMessage(role="system", content="Be brief.")]
    assert plain(rewrite_messages(said, CHOICE)) == [
        ("system", TOLD),
        ("system", pictures),
        ("user", "Hi"),
        ("system", "Be brief."),
    ]


def test_pictures_of_the_user_are_kept() -> None:
    shown = user([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:,"}}])
    assert rewrite_messages([shown], CHOICE)[1] is shown


def test_words_that_came_with_calls_stand_before_them() -> None:
    (_, message) = plain(rewrite_messages([calling(("1", "now", ""), text="One moment.")], CHOICE))
    assert message == ("assistant", 'One moment.\n{"calls": [{"name": "now", "arguments": {}}]}')


def test_thoughts_stay_with_what_was_said() -> None:
    said = ChatMessage(role="assistant", content="Hi", reasoning_content="hm")
    assert rewrite_messages([said], CHOICE)[1].reasoning_content == "hm"


def test_arguments_that_were_no_json_are_told_as_none() -> None:
    (_, message) = plain(rewrite_messages([calling(("1", "now", "{oops"))], CHOICE))
    assert message == ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}')


def test_a_result_of_a_call_that_nobody_knows_is_told_all_the_same() -> None:
    said = [result("gone", "9"), user("And?"), ChatMessage(role="tool", content=[{"type": "text", "text": "8"}])]
    assert plain(rewrite_messages(said, CHOICE))[1:] == [
        ("user", "Results:\nfunction: 9\n\nAnd?\n\nResults:\nfunction: 8")
    ]


def test_who_speaks_behind_results_does_not_speak_twice_in_a_row() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    called = calling(("1", "now", "{}"))
    said = [user("a"), user("b"), called, result("1", "9"), user([picture]), user("And?"), called, result("1", "8")]
    assert plain(rewrite_messages(said, CHOICE))[1:] == [
        ("user", "a"),  # these are the client's own
        ("user", "b"),
        ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", [{"type": "text", "text": "Results:\nnow: 9"}, picture, {"type": "text", "text": "And?"}]),
        ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", "Results:\nnow: 8"),
    ]


@pytest.mark.parametrize("given", ['{"a":"\\ud800"}', '{"a": "\\uD800"}'])
def test_half_a_pair_of_surrogates_in_past_arguments_can_still_be_sent(given: str) -> None:
    (_, message) = plain(rewrite_messages([calling(("1", "f", given))], CHOICE))
    assert message == ("assistant", '{"calls": [{"name": "f", "arguments": {"a": "\\ud800"}}]}')


def test_arguments_that_are_too_deep_are_told_as_none() -> None:
    for depth in (900, 980, 100_000):
        assert rewrite_messages([calling(("1", "f", '{"a":' * depth + "1" + "}" * depth))], CHOICE)[1].content


def test_where_nothing_may_be_called_only_the_form_of_an_answer_is_told() -> None:
    said = [
        ChatMessage(role="system", content="Be brief."),
        calling(("1", "now", "{}"), text="One moment."),
        result("1", "9:00"),
    ]
    assert plain(rewrite_messages(said, AnswerOptions(tools=()))) == [
        ("system", 'Be brief.\n\nReply with one JSON object: {"answer": "..."}'),
        ("assistant", 'One moment.\n{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", "Results:\nnow: 9:00"),
    ]


# ---- the signatures of tools ----


def line(field: Any, **more: Any) -> str:
    schema = {"type": "object", "properties": {"a": field}, "required": ["a"], **more}
    return describe_tools([ChatTool(function=ChatToolFunction(name="f", parameters=schema))])


@pytest.mark.parametrize(
    ("field", "shown"),
    [
        ({"type": "string"}, "string"),
        ({"type": ["string", "null"]}, "string | null"),
        ({"enum": ["C", 1, None]}, '"C" | 1 | null'),
        ({"const": "é"}, '"é"'),
        ({"type": "array", "items": {"type": "integer"}}, "integer[]"),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, '("a" | "b")[]'),
        ({"type": "array"}, "any[]"),
        ({"anyOf": [{"type": "string"}, {"type": "string"}, {"type": "null"}]}, "string | null"),
        ({"type": "object"}, "object"),
        ({"properties": {"x": {"type": "number"}}}, "{x?: number}"),
        ({"$ref": "#/$defs/p~1q"}, "boolean"),
        ({"$ref": "http://elsewhere"}, "any"),
        ({"allOf": [{"$ref": "#/$defs/unit"}], "default": "C"}, '"C" | "F"'),
        ({"allOf": [{"type": "string"}, {"minLength": 1}]}, "string"),
        ({}, "any"),
        (True, "any"),
    ],
)
def test_a_parameter_shows_its_type(field: Any, shown: str) -> None:
    assert line(field, **{"$defs": {"p/q": {"type": "boolean"}, "unit": {"enum": ["C", "F"]}}}) == f"f(a: {shown})"


def test_a_type_that_refers_to_itself_comes_to_an_end() -> None:
    node = {"type": "array", "items": {"$ref": "#/$defs/node"}}
    assert line({"$ref": "#/$defs/node"}, **{"$defs": {"node": node}}) == "f(a: any[][])"


def test_references_that_multiply_are_worked_out_once() -> None:
    # 20 * 500 at every level: without that this would not end.
    many = {"type": "object", "properties": {f"p{i}": {"anyOf": [{"$ref": "#/$defs/m"}] * 500} for i in range(20)}}
    assert line({"$ref": "#/$defs/m"}, **{"$defs": {"m": many}}).startswith("f(a: {p0?: {p0?: any, p1?: any")


def test_alternatives_without_end_are_not_told() -> None:
    deep: Any = {"type": "string"}
    for _ in range(5000):
        deep = {"anyOf": [deep]}
    assert line(deep) == "f(...)"


@pytest.mark.parametrize("parameters", [UNSET, {}, {"type": "object", "properties": "none"}])
def test_a_tool_without_parameters_takes_none(parameters: dict[str, Any] | UnsetType) -> None:
    assert describe_tools([ChatTool(function=ChatToolFunction(name="now", parameters=parameters))]) == "now()"


def test_each_tool_has_a_line_and_each_parameter_that_is_described() -> None:
    fields = {
        "a": {"type": "string", "description": "What\n  it is"},
        "b": {"type": "string", "description": "  "},
        "c": {"type": "string"},
    }
    tools = [
        ChatTool(
            function=ChatToolFunction(
                name="f", description="Does\nsomething. ", parameters={"properties": fields, "required": ["b"]}
            )
        ),
        ChatTool(function=ChatToolFunction(name="g")),
    ]
    assert describe_tools(tools) == "f(a?: string, b: string, c?: string) - Does something.\n  a: What it is\ng()"


CITY = {"type": "object", "properties": {"city": {"type": "string", "description": "Its name"}}, "required": ["city"]}
PLACE = {"type": "object", "properties": {"lat": {"type": "number"}}}


@pytest.mark.parametrize(
    ("parameters", "shown"),
    [
        ({"$ref": "#/$defs/c", "$defs": {"c": CITY}}, "f(city: string)\n  city: Its name"),
        (
            {"allOf": [CITY, {"$ref": "#/$defs/p"}], "$defs": {"p": PLACE}},
            "f(city: string, lat?: number)\n  city: Its name",
        ),
        ({"anyOf": [CITY, {"type": "null"}]}, "f(city: string)\n  city: Its name"),
        (
            {"oneOf": [CITY, {"$ref": "#/$defs/p"}], "$defs": {"p": PLACE}},
            "f(city: string) or f(lat?: number)\n  city: Its name",
        ),
        (
            {"type": "object", "properties": PLACE["properties"], "anyOf": [{"required": ["lat"]}, {}]},
            "f(lat: number) or f(lat?: number)",
        ),
        ({"anyOf": [{"type": "string"}]}, "f()"),
    ],
)
def test_parameters_that_are_said_in_parts_are_told_as_one(parameters: dict[str, Any], shown: str) -> None:
    assert describe_tools([ChatTool(function=ChatToolFunction(name="f", parameters=parameters))]) == shown


def test_short_words_about_parts_of_a_parameter_are_told() -> None:
    long = {"type": "string", "description": "x" * 81}
    sku = {"type": "string", "description": "Begins\nwith SKU-"}
    order = {"type": "object", "properties": {"sku": sku, "note": long}}
    for field, path in [
        (order, "a.sku"),
        ({"type": "array", "items": order}, "a[].sku"),
        ({"anyOf": [{"$ref": "#/$defs/order"}, {"type": "null"}]}, "a.sku"),
    ]:
        assert line(field, **{"$defs": {"order": order}}).splitlines()[1:] == [f"  {path}: Begins with SKU-"]
    many = {"properties": {f"p{at}": sku for at in range(40)}}
    assert len(line(many).splitlines()) == 17


def test_parts_that_multiply_are_not_told_without_end() -> None:
    parts = [{"allOf": [{"$ref": "#/$defs/m"}]}] * 200
    many = {"properties": {f"p{at}": {"anyOf": parts} for at in range(200)}}
    assert line({"$ref": "#/$defs/m"}, **{"$defs": {"m": many}}).startswith("f(a: {p0?: ")
