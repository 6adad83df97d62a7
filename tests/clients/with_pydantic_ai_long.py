"""pydantic-ai: connections that last, and conversations that grow long."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from pydantic_ai import Agent, ModelMessage
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import CompactionPart, ModelRequest, ModelResponse, SystemPromptPart, TextPart, UserPromptPart
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAICompaction, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from clients.ground import MODEL, SMALL_MODEL
from clients.lasting import THRESHOLD, check_compacted, check_cut, past_threshold, sand, told, too_long
from clients.trying import Client, NotApplicable, Play, Trial
from clients.with_pydantic_ai import CASES, Ran, Settings, add, model_at, ran_by, run


def _refused(request: httpx2.Request) -> httpx2.Response:
    raise AssertionError(f"over HTTP: {request.method} {request.url}")


@asynccontextmanager
async def socket_at(at: Trial) -> AsyncIterator[OpenAIResponsesModel]:
    """A model that has one WebSocket, and no other way to the server."""
    async with httpx2.AsyncClient(transport=httpx2.MockTransport(_refused)) as http:
        client = AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0, http_client=http)
        async with OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client)) as model:
            yield model


async def websocket(at: Trial) -> None:
    """A run with a call, and another that continues it: nothing is stored, and only what is new is sent."""
    settings = Settings(openai_transport="websocket", openai_store=False)
    async with socket_at(at) as model:
        agent: Agent[None, str] = Agent(model, tools=[add], model_settings=settings, retries=1)
        prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        first = await ran_by(at, agent, prompt)
        assert first.output == "The tool says: 42."
        second = await ran_by(at, agent, "case:remember", first.messages)
        assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 |' in second.output
        hot: Agent[None, str] = Agent(model, model_settings=Settings(**settings, temperature=9), retries=1)
        with pytest.raises(ModelHTTPError, match="temperature") as caught:
            await ran_by(at, hot, "case:plain")
        assert caught.value.status_code == 400
        assert (await ran_by(at, agent, f"case:plain {at.mark}")).output == f"You said: {at.mark}"


async def conversation(at: Trial) -> None:
    async with AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0) as client:
        made = await client.conversations.create()
        settings = Settings(openai_conversation_id=made.id)
        await run(at, f"case:plain {told(at)}", settings=settings)
        second = await run(at, "case:remember", settings=settings)
        assert second.output == f"user: case:plain {told(at)} | assistant: You said: {told(at)} | user: case:remember"
        items = [item async for item in client.conversations.items.list(made.id)]
        assert len(items) == 4


def _history(plain: list[Any]) -> list[ModelMessage]:
    """The same history as messages of this client."""
    made: list[ModelMessage] = []
    for message in plain:
        text = message["content"]
        match message["role"]:
            case "assistant":
                made.append(ModelResponse(parts=[TextPart(text)]))
            case "system":
                made.append(ModelRequest(parts=[SystemPromptPart(text)]))
            case _:
                made.append(ModelRequest(parts=[UserPromptPart(text)]))
    return made


async def compaction(at: Trial) -> None:
    """By the client's own capability, which asks `/responses/compact` when the history has grown."""
    *history, question = past_threshold(at)
    async with model_at(at, MODEL) as model:
        capability: OpenAICompaction[None] = OpenAICompaction(message_count_threshold=2)
        agent: Agent[None, str] = Agent(
            model, capabilities=[capability], model_settings=Settings(openai_store=False), retries=1
        )
        answer = await ran_by(at, agent, question["content"], _history(history))
    assert _compactions(answer.messages) == 1
    check_compacted(at, answer.output)


def _compactions(messages: list[ModelMessage]) -> int:
    parts = [part for message in messages if isinstance(message, ModelResponse) for part in message.parts]
    return sum(isinstance(part, CompactionPart) for part in parts)


async def auto_compaction(at: Trial) -> None:
    *history, question = past_threshold(at)
    async with model_at(at, MODEL) as model:
        capability: OpenAICompaction[None] = OpenAICompaction(token_threshold=THRESHOLD)
        agent: Agent[None, str] = Agent(model, capabilities=[capability], retries=1)
        first = await ran_by(at, agent, question["content"], _history(history))
        assert _compactions(first.messages) == 1
        check_compacted(at, first.output)
        second = await ran_by(at, agent, "case:remember", first.messages)
    check_compacted(at, second.output)


async def input_tokens(at: Trial) -> None:
    if at.streamed:
        raise NotApplicable("a count is one number")
    async with model_at(at, MODEL) as model:
        counts = [
            (await model.count_tokens(_said(text), None, ModelRequestParameters())).input_tokens
            for text in (at.mark, f"{at.mark} {sand(500)}")
        ]
    assert 0 < counts[0] < counts[1]
    assert at.reached() == []


def _said(text: str) -> list[ModelRequest | ModelResponse]:
    return [ModelRequest(parts=[UserPromptPart(text)])]


async def truncation(at: Trial) -> None:
    answer = await _cut(at, "auto")
    check_cut(answer.output)
    with pytest.raises(ModelHTTPError) as caught:
        await _cut(at, "disabled")
    assert caught.value.status_code == 400
    assert "context_length_exceeded" in str(caught.value)


async def _cut(at: Trial, how: Any) -> Ran:
    *history, question = too_long(at)
    settings = Settings(openai_truncation=how, openai_store=False)
    return await run(at, question["content"], model=SMALL_MODEL, settings=settings, history=_history(history))


LONG: dict[str, Play] = {
    "websocket": websocket,
    "conversation": conversation,
    "compaction": compaction,
    "auto-compaction": auto_compaction,
    "input-tokens": input_tokens,
    "truncation": truncation,
}

PYDANTIC_AI = Client("pydantic-ai", "pydantic-ai-slim", {**CASES, **LONG})
