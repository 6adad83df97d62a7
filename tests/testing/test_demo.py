"""The demo: a stand-in for a model that follows its three rules."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any

import pytest

from antwort.api.items import FunctionCall
from antwort.api.wire import UNSET
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    TextDelta,
)
from antwort.testing import DEMO_MODEL, demo_provider, tokens
from engine_kit import CLOCK, WEATHER, ask, engine_of, kinds, only, stream, text_of, weather_tool


def tool(name: str, parameters: dict[str, Any] | None = None) -> ChatTool:
    return ChatTool(function=ChatToolFunction(name=name, parameters=UNSET if parameters is None else parameters))


async def reply_to(*messages: ChatMessage, **fields: Any) -> list[Delta]:
    request = ChatRequest(model=DEMO_MODEL, messages=list(messages), **fields)
    async with aclosing(demo_provider().infer(request)) as batches:
        return [delta async for batch in batches for delta in batch]


def said(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


USER = ChatMessage(role="user", content="Hello there")


async def test_it_repeats_what_was_said() -> None:
    deltas = await reply_to(ChatMessage(role="system", content="Be brief."), USER)
    assert said(deltas) == "You said: Hello there"
    assert deltas[-1] == Finished("stop", tokens(4, 4))


async def test_the_backends_headers_come_first() -> None:
    batches = demo_provider().infer(ChatRequest(model=DEMO_MODEL, messages=[USER]))
    assert await anext(batches) == []
    await batches.aclose()


async def test_it_calls_the_first_tool_it_is_offered() -> None:
    deltas = await reply_to(USER, tools=[tool("weather"), tool("clock")])
    assert deltas == [CallDelta(0, "weather", "{}"), Finished("tool_calls", tokens(2, 1))]


async def test_it_repeats_what_the_tool_answered() -> None:
    result = ChatMessage(role="tool", tool_call_id="call_1", content="sunny")
    deltas = await reply_to(USER, result, tools=[tool("weather")])
    assert said(deltas) == "The tool answered: sunny"
    assert isinstance(deltas[-1], Finished)
    assert deltas[-1].finish == "stop"


async def test_it_calls_nothing_when_it_may_not() -> None:
    assert said(await reply_to(USER, tools=[tool("weather")], tool_choice="none")) == "You said: Hello there"


async def test_it_names_what_is_not_text() -> None:
    parts: list[dict[str, Any]] = [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "data:"}},
    ]
    assert said(await reply_to(ChatMessage(role="user", content=parts))) == "You said: Look: [image_url]"


async def test_it_has_an_answer_to_nothing() -> None:
    assert said(await reply_to()) == "You said: "
    assert said(await reply_to(ChatMessage(role="assistant"))) == "You said: "


@pytest.mark.parametrize(
    ("schema", "example"),
    [
        ({"type": "string"}, "example"),
        ({"type": "integer"}, 1),
        ({"type": "number"}, 1.0),
        ({"type": "boolean"}, True),
        ({"type": "array"}, []),
        ({"type": "object"}, {}),
        ({"type": ["string", "null"]}, "example"),
        ({"enum": ["b", "a"]}, "b"),
        ({}, "example"),
    ],
)
async def test_it_fills_in_what_a_tool_requires(schema: dict[str, Any], example: Any) -> None:
    parameters = {"type": "object", "properties": {"x": schema, "y": {"type": "string"}}, "required": ["x"]}
    (call, _) = await reply_to(USER, tools=[tool("f", parameters)])
    assert isinstance(call, CallDelta)
    assert json.loads(call.arguments) == {"x": example}


async def test_it_fills_in_what_a_schema_requires_and_does_not_describe() -> None:
    (call, _) = await reply_to(USER, tools=[tool("f", {"type": "object", "required": ["x"]})])
    assert isinstance(call, CallDelta)
    assert json.loads(call.arguments) == {"x": "example"}


async def test_it_keeps_the_contract_of_a_provider() -> None:
    provider = demo_provider()
    assert [model.id for model in await provider.models()] == [DEMO_MODEL]
    assert provider.capabilities(DEMO_MODEL) == Capabilities()
    await provider.check()
    await provider.close()


# ---- through the engine ----


async def test_with_it_a_client_sees_the_whole_round_of_a_tool() -> None:
    engine = engine_of(demo_provider())
    first = await engine.create(ask("What time is it?", tools=[CLOCK]))
    call = only(first, FunctionCall)
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    second = await stream(engine, ask([output], previous_response_id=first.id, tools=[CLOCK]))
    assert text_of(second.response) == "The tool answered: noon"


async def test_with_it_the_loop_runs_and_ends() -> None:
    outcome = await stream(engine_of(demo_provider(), weather_tool()), ask("Weather?", tools=[WEATHER]))
    assert kinds(outcome.response) == ["function_call", "function_call_output", "message"]
    assert text_of(outcome.response) == "The tool answered: sunny in example"
