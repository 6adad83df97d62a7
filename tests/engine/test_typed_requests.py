"""Requests with the types that OpenAI's library has for them. That they are accepted is proved by mypy, which reads the
tests, too; that they work is proved here.
"""

from __future__ import annotations

from typing import assert_type

from openai.types.responses import (
    FunctionToolParam,
    ResponseInputParam,
    ResponseTextConfigParam,
    ToolChoiceFunctionParam,
    ToolParam,
)
from openai.types.responses.response_create_params import ResponseCreateParamsNonStreaming
from openai.types.responses.tool_param import Mcp
from openai.types.shared_params import Reasoning

from antwort import Engine, Response, ToolContext, Toolset, tool
from antwort.testing import ScriptedProvider, answer, call, say

WEATHER: FunctionToolParam = {"type": "function", "name": "weather", "parameters": {}, "strict": False}
SHOP: Mcp = {"type": "mcp", "server_label": "shop"}

shop = Toolset("shop")


@shop.tool(timeout=5)
async def orders(context: ToolContext | None = None) -> list[str]:
    return [] if context is None else [context.identity.owner]


@tool
def weather(city: str = "here") -> str:
    return f"sunny in {city}"


async def test_openais_own_types_are_accepted_by_keywords() -> None:
    said: ResponseInputParam = [{"role": "user", "content": "Hi"}]
    tools: list[ToolParam] = [WEATHER, SHOP]
    choice: ToolChoiceFunctionParam = {"type": "function", "name": "weather"}
    thinking: Reasoning = {"effort": "low"}
    text: ResponseTextConfigParam = {"verbosity": "low"}
    provider = ScriptedProvider(answer(call("weather")), answer(say("Fine.")))
    async with Engine(provider, executors=[shop, weather]) as engine:
        response = await engine.create(input=said, tools=tools, tool_choice=choice, reasoning=thinking, text=text)
    assert_type(response, Response)
    assert response.output_text == "Fine."


async def test_openais_own_request_is_accepted_whole() -> None:
    request: ResponseCreateParamsNonStreaming = {"model": "scripted", "input": "Hi", "tools": [WEATHER]}
    async with Engine(ScriptedProvider(answer(say("Fine.")))) as engine:
        assert (await engine.create(request)).output_text == "Fine."


async def test_plain_values_and_what_came_before_are_accepted_together() -> None:
    plain: list[dict[str, str]] = [{"role": "user", "content": "Hi"}]
    async with Engine(ScriptedProvider(answer(say("Fine.")), answer(say("Still.")), answer(say("Yes.")))) as engine:
        first = await engine.create(input=plain)
        second = await engine.create(input=[*first.output, {"role": "user", "content": "And now?"}])
        third = await engine.create({"input": "Sure?", "previous_response_id": second.id})
    assert [each.output_text for each in (first, second, third)] == ["Fine.", "Still.", "Yes."]


def test_a_tool_is_typed_as_the_function_that_it_was() -> None:
    assert_type(weather("Rome"), str)
    assert weather("Rome") == "sunny in Rome"
