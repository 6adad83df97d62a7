"""Turns of a conversation, by the official SDK and by openai-agents, against live servers on either store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI
from openai.types.responses import FunctionToolParam

from antwort.app import build
from chat_backend import Calls, ChatBackend, Says
from serving import serving
from settings_kit import in_front_of

MODEL = "test-model"
QUIET = RunConfig(tracing_disabled=True)
WEATHER: FunctionToolParam = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": False,
}


@pytest.fixture(params=["memory", "sqlite"])
async def client(request: pytest.FixtureRequest, backend: ChatBackend, tmp_path: Path) -> AsyncIterator[AsyncOpenAI]:
    app = await build(in_front_of(backend.url, data=None if request.param == "memory" else tmp_path))
    async with (
        serving(app.engine, app.asgi) as server,
        AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0, timeout=30) as connected,
    ):
        yield connected


async def told(client: AsyncOpenAI, conversation: str) -> list[str]:
    """The types of its items, oldest first; of messages the role."""
    items = [item async for item in client.conversations.items.list(conversation, order="asc")]
    return [item.role if item.type == "message" else item.type for item in items]


def heard(backend: ChatBackend) -> list[Any]:
    messages: list[Any] = backend.requests[-1]["messages"]
    return [(message["role"], message.get("content")) for message in messages]


async def test_turns_by_the_id_of_the_conversation(client: AsyncOpenAI, backend: ChatBackend) -> None:
    conversation = await client.conversations.create(metadata={"topic": "greetings"})
    first = await client.responses.create(model=MODEL, input="Hello", conversation=conversation.id)
    assert first.conversation is not None
    assert first.conversation.id == conversation.id
    second = await client.responses.create(model=MODEL, input="Again", conversation={"id": conversation.id})
    assert second.output_text == "Hello there"
    assert heard(backend) == [("user", "Hello"), ("assistant", "Hello there"), ("user", "Again")]
    assert await told(client, conversation.id) == ["user", "assistant", "user", "assistant"]
    retrieved = await client.responses.retrieve(second.id)
    assert retrieved.conversation == second.conversation


async def test_a_streamed_turn_that_is_not_stored(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create(items=[{"type": "message", "role": "user", "content": "Hello"}])
    async with client.responses.stream(model=MODEL, input="Go on", conversation=conversation.id, store=False) as stream:
        async for event in stream:
            if event.type == "response.created":
                assert event.response.conversation is not None
    final = await stream.get_final_response()
    assert final.output_text == "Hello there"
    assert await told(client, conversation.id) == ["user", "user", "assistant"]


async def test_a_call_is_answered_in_the_next_turn(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Calls([("weather", '{"city": "Rome"}')]), Says(["Sunny."])]
    conversation = await client.conversations.create()
    first = await client.responses.create(model=MODEL, input="Rome?", conversation=conversation.id, tools=[WEATHER])
    (call,) = [item for item in first.output if item.type == "function_call"]
    second = await client.responses.create(
        model=MODEL,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        conversation=conversation.id,
        tools=[WEATHER],
    )
    assert second.output_text == "Sunny."
    assert [role for role, _ in heard(backend)] == ["user", "assistant", "tool"]
    assert await told(client, conversation.id) == ["user", "function_call", "function_call_output", "assistant"]


async def test_turns_that_come_at_once(client: AsyncOpenAI, backend: ChatBackend) -> None:
    conversation = await client.conversations.create()
    await asyncio.gather(
        *(client.responses.create(model=MODEL, input=f"{n}", conversation=conversation.id) for n in range(10))
    )
    assert await told(client, conversation.id) == ["user", "assistant"] * 10
    assert sorted(len(request["messages"]) for request in backend.requests) == list(range(1, 20, 2))


async def test_errors_are_the_sdks_own(client: AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.responses.create(model=MODEL, input="Hello", conversation="conv_none")
    assert (missing.value.code, missing.value.param) == ("conversation_not_found", "conversation")
    conversation = await client.conversations.create()
    with pytest.raises(openai.BadRequestError) as both:
        await client.responses.create(
            model=MODEL, input="Hello", conversation=conversation.id, previous_response_id="resp_1"
        )
    assert both.value.param == "conversation"


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"sunny in {city}"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_a_runner_that_is_given_a_conversation(client: AsyncOpenAI, backend: ChatBackend, streamed: bool) -> None:
    backend.answers = [Calls([("weather", json.dumps({"city": "Rome"}))]), Says(["Sunny."]), Says(["As I said."])]
    conversation = (await client.conversations.create()).id
    agent = Agent(name="worker", model=OpenAIResponsesModel(MODEL, client), tools=[weather])
    for question, expected in (("Rome?", "Sunny."), ("Sure?", "As I said.")):
        if streamed:
            result = Runner.run_streamed(agent, question, conversation_id=conversation, run_config=QUIET)
            async for _ in result.stream_events():
                pass
            assert result.final_output == expected
        else:
            done = await Runner.run(agent, question, conversation_id=conversation, run_config=QUIET)
            assert done.final_output == expected
    kinds = ["user", "function_call", "function_call_output", "assistant", "user", "assistant"]
    assert await told(client, conversation) == kinds
    assert [role for role, _ in heard(backend)] == ["user", "assistant", "tool", "assistant", "user"]
