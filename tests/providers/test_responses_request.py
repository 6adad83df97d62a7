"""A chat request in the words of the Responses API, which our own reader of requests takes back apart."""

from __future__ import annotations

import json
from typing import Any

import pytest

from antwort.api.decoding import Limits
from antwort.api.items import FunctionCall, FunctionCallOutput, Message, Reasoning
from antwort.api.requests import read_request
from antwort.api.tools import ForcedFunction, FunctionTool
from antwort.api.wire import encode
from antwort.providers.base import ChatCall, ChatFunction, ChatMessage, ChatRequest, ChatTool, ChatToolFunction
from antwort.providers.responses import responses_request

Json = dict[str, Any]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = ChatTool(function=ChatToolFunction(name="weather", description="d", parameters=SCHEMA, strict=True))


def body(*messages: ChatMessage, **fields: Any) -> Json:
    plain: Json = json.loads(encode(responses_request(ChatRequest(model="m", messages=list(messages), **fields))))
    return plain


def items(*messages: ChatMessage) -> list[Json]:
    made: list[Json] = body(*messages)["input"]
    return made


USER = ChatMessage(role="user", content="Hi")


@pytest.mark.proves("EN-024")
def test_unset_parameters_are_left_out_and_nothing_is_kept() -> None:
    said = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}
    assert body(USER) == {"model": "m", "input": [said], "store": False}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, {"stream": True}),
        ({"stream": False}, {}),
        ({"max_tokens": 9}, {"max_output_tokens": 9}),
        ({"max_completion_tokens": 9}, {"max_output_tokens": 9}),
        ({"temperature": 0.0, "top_p": 0.5}, {"temperature": 0.0, "top_p": 0.5}),
        ({"presence_penalty": 1, "frequency_penalty": 1}, {"presence_penalty": 1, "frequency_penalty": 1}),
        ({"reasoning_effort": "low"}, {"reasoning": {"effort": "low"}}),
        ({"logprobs": True, "top_logprobs": 2}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2}),
        ({"prompt_cache_key": "k", "user": "u"}, {"prompt_cache_key": "k", "user": "u"}),
        ({"verbosity": "low"}, {"text": {"verbosity": "low"}}),
        ({"response_format": {"type": "json_object"}}, {"text": {"format": {"type": "json_object"}}}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}}},
        ),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, {}),  # without tools there is nothing to choose
    ],
)
def test_parameters_are_named_as_the_standard_names_them(fields: Json, expected: Json) -> None:
    made = body(USER, **fields)
    assert {name: value for name, value in made.items() if name not in ("model", "input", "store")} == expected


@pytest.mark.proves("EN-023")
@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "function": {"name": "weather"}}, {"type": "function", "name": "weather"}),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]},
            },
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "weather"}]},
        ),
    ],
)
def test_tools_and_the_choice_among_them_are_flat(choice: str | Json, expected: str | Json) -> None:
    made = body(USER, tools=[TOOL], tool_choice=choice, parallel_tool_calls=False)
    flat = {"type": "function", "name": "weather", "description": "d", "parameters": SCHEMA, "strict": True}
    assert made["tools"] == [flat]
    assert (made["tool_choice"], made["parallel_tool_calls"]) == (expected, False)


def test_a_tool_that_is_not_strict_says_so_because_silence_would_mean_yes() -> None:
    [tool] = body(USER, tools=[ChatTool(function=ChatToolFunction(name="f"))])["tools"]
    empty = {"type": "object", "properties": {}}
    assert tool == {"type": "function", "name": "f", "parameters": empty, "strict": False}


def test_parts_of_all_kinds_are_carried_over() -> None:
    parts: list[Json] = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "https://x/y.png", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:x"}},
        {"type": "video_url", "video_url": {"url": "https://x/y.mp4"}},
        {"type": "unheard_of", "x": 1},
    ]
    [item] = items(ChatMessage(role="user", content=parts))
    assert item["content"] == [
        {"type": "input_text", "text": "Look:"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"},
        {"type": "input_image", "image_url": "https://x/y.png", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:x"},
        {"type": "input_video", "video_url": "https://x/y.mp4"},
        {"type": "unheard_of", "x": 1},
    ]


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
@pytest.mark.proves("EN-021")
def test_an_answer_falls_apart_into_thoughts_words_and_calls(field: str) -> None:
    calls = [ChatCall(id=f"c{n}", function=ChatFunction(name="weather", arguments="{}")) for n in (1, 2)]
    answer = ChatMessage(role="assistant", content="Let me see.", tool_calls=calls, **{field: "hm"})
    results = [ChatMessage(role="tool", tool_call_id=f"c{n}", content="sunny") for n in (1, 2)]
    made = items(USER, answer, *results)
    assert [item["type"] for item in made] == [
        *("message", "reasoning", "message"),
        *("function_call", "function_call", "function_call_output", "function_call_output"),
    ]
    assert made[1]["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert made[2]["content"] == [{"type": "output_text", "text": "Let me see.", "annotations": []}]
    assert made[3] == {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"}
    assert made[5] == {"type": "function_call_output", "call_id": "c1", "output": "sunny"}


def test_a_refusal_is_a_part_and_an_answer_of_calls_alone_has_no_message() -> None:
    call = ChatCall(id="c", function=ChatFunction(name="f", arguments="{}"))
    refused, called = (
        ChatMessage(role="assistant", content=None, refusal="No."),
        ChatMessage(role="assistant", content=None, tool_calls=[call]),
    )
    assert [item.get("content") for item in items(refused, called)] == [[{"type": "refusal", "refusal": "No."}], None]


def test_the_result_of_a_tool_may_come_in_parts() -> None:
    parts: list[Json] = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:x"}}]
    [item] = items(ChatMessage(role="tool", tool_call_id="c", content=parts))
    assert [part["type"] for part in item["output"]] == ["input_text", "input_image"]


def test_our_own_reader_of_requests_takes_what_is_made() -> None:
    calls = [ChatCall(id="c1", function=ChatFunction(name="weather", arguments="{}"))]
    made = body(
        ChatMessage(role="developer", content="Be brief."),
        USER,
        ChatMessage(role="assistant", content="Let me see.", tool_calls=calls, reasoning_content="hm"),
        ChatMessage(role="tool", tool_call_id="c1", content="sunny"),
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=9,
        stream=True,
    )
    request = read_request(made, Limits())
    kinds = [Message, Message, Reasoning, Message, FunctionCall, FunctionCallOutput]
    assert [type(item) for item in request.input] == kinds
    [tool] = request.tools
    assert isinstance(tool, FunctionTool)
    assert isinstance(request.tool_choice, ForcedFunction)
    assert (request.is_stored, request.stream, request.max_output_tokens) == (False, True, 9)
