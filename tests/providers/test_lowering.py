"""A conversation with tools, in words. The demo model's adapter was trained on exactly these: they are written out."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.wire import UNSET
from antwort.providers.base import ChatCall, ChatFunction, ChatMessage, ChatTool, ChatToolFunction
from antwort.providers.lowering import Choice, lowered

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
CHOICE = Choice(tools=(WEATHER,))


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
    assert plain(lowered(said, CHOICE)) == [
        ("system", f"Be brief.\n\n{TOLD}"),
        ("user", "Hi"),
        ("assistant", '{"answer": "Hello, \\"friend\\"."}'),
        ("user", "Rome and Köln?"),
        ("assistant", f'{{"calls": [{ROME}, {COLOGNE}]}}'),
        ("user", "Results:\nget_weather: 18\nget_weather: 9\nand rain"),
    ]


def test_where_words_will_not_do_they_are_not_spoken_of() -> None:
    assert plain(lowered([user("Rome?")], Choice(tools=(WEATHER,), may_answer=False)))[0] == ("system", ONLY_CALLS)


@pytest.mark.parametrize("role", ["system", "developer"])
@pytest.mark.parametrize("content", ["Be brief.", [{"type": "text", "text": "Be brief."}]])
def test_instructions_and_tools_are_told_in_one_message(role: str, content: str | list[dict[str, Any]]) -> None:
    made = lowered([ChatMessage(role=role, content=content), user("Hi")], CHOICE)
    assert plain(made) == [("system", f"Be brief.\n\n{TOLD}"), ("user", "Hi")]


def test_instructions_with_a_picture_and_later_ones_stay_where_they_are() -> None:
    pictures = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    said = [ChatMessage(role="system", content=pictures), user("Hi"), ChatMessage(role="system", content="Be brief.")]
    assert plain(lowered(said, CHOICE)) == [
        ("system", TOLD),
        ("system", pictures),
        ("user", "Hi"),
        ("system", "Be brief."),
    ]


def test_pictures_of_the_user_are_kept() -> None:
    shown = user([{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": "data:,"}}])
    assert lowered([shown], CHOICE)[1] is shown


def test_words_that_came_with_calls_stand_before_them() -> None:
    (_, message) = plain(lowered([calling(("1", "now", ""), text="One moment.")], CHOICE))
    assert message == ("assistant", 'One moment.\n{"calls": [{"name": "now", "arguments": {}}]}')


def test_thoughts_stay_with_what_was_said() -> None:
    said = ChatMessage(role="assistant", content="Hi", reasoning_content="hm")
    assert lowered([said], CHOICE)[1].reasoning_content == "hm"


def test_arguments_that_were_no_json_are_told_as_none() -> None:
    (_, message) = plain(lowered([calling(("1", "now", "{oops"))], CHOICE))
    assert message == ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}')


def test_a_result_of_a_call_that_nobody_knows_is_told_all_the_same() -> None:
    said = [result("gone", "9"), user("And?"), ChatMessage(role="tool", content=[{"type": "text", "text": "8"}])]
    assert plain(lowered(said, CHOICE))[1:] == [("user", "Results:\nfunction: 9\n\nAnd?\n\nResults:\nfunction: 8")]


def test_who_speaks_behind_results_does_not_speak_twice_in_a_row() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    called = calling(("1", "now", "{}"))
    said = [user("a"), user("b"), called, result("1", "9"), user([picture]), user("And?"), called, result("1", "8")]
    assert plain(lowered(said, CHOICE))[1:] == [
        ("user", "a"),  # these are the client's own
        ("user", "b"),
        ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", [{"type": "text", "text": "Results:\nnow: 9"}, picture, {"type": "text", "text": "And?"}]),
        ("assistant", '{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", "Results:\nnow: 8"),
    ]


@pytest.mark.parametrize("given", ['{"a":"\\ud800"}', '{"a": "\\uD800"}'])
def test_half_a_pair_of_surrogates_in_past_arguments_can_still_be_sent(given: str) -> None:
    (_, message) = plain(lowered([calling(("1", "f", given))], CHOICE))
    assert message == ("assistant", '{"calls": [{"name": "f", "arguments": {"a": "\\ud800"}}]}')


def test_arguments_that_are_too_deep_are_told_as_none() -> None:
    for depth in (900, 980, 100_000):
        assert lowered([calling(("1", "f", '{"a":' * depth + "1" + "}" * depth))], CHOICE)[1].content


def test_where_nothing_may_be_called_only_the_form_of_an_answer_is_told() -> None:
    said = [
        ChatMessage(role="system", content="Be brief."),
        calling(("1", "now", "{}"), text="One moment."),
        result("1", "9:00"),
    ]
    assert plain(lowered(said, Choice(tools=()))) == [
        ("system", 'Be brief.\n\nReply with one JSON object: {"answer": "..."}'),
        ("assistant", 'One moment.\n{"calls": [{"name": "now", "arguments": {}}]}'),
        ("user", "Results:\nnow: 9:00"),
    ]
