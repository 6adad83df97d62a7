"""openai-agents: connections that last, and conversations that grow long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesCompactionSession,
    OpenAIResponsesWSModel,
    SQLiteSession,
    Tool,
)
from agents.models.openai_responses import ResponsesWebSocketError
from openai import AsyncOpenAI

from clients.ground import KNOWN_MODEL, MODEL, SMALL_MODEL
from clients.lasting import NO_COUNT, THRESHOLD, check_compacted, check_cut, past_threshold, sand, told, too_long
from clients.trying import Client, NotApplicable, Play, Trial
from clients.with_agents import CASES, add, model_at, ran, remembered, run
from clients.with_agents_more import MORE

UNKEPT = ModelSettings(store=False)


def client_at(at: Trial) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0, timeout=60)


@asynccontextmanager
async def socket_at(at: Trial) -> AsyncIterator[OpenAIResponsesWSModel]:
    """A model that has one WebSocket, and no other way to the server."""
    async with client_at(at) as client:
        model = OpenAIResponsesWSModel(MODEL, client)
        try:
            yield model
        finally:
            await model.close()


async def websocket(at: Trial) -> None:
    """A run with a call, and another that continues it: nothing is stored, and only what is new is sent."""
    async with socket_at(at) as model:
        prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        first = await ran(at, _worker(model, [add]), prompt, auto_previous_response_id=True)
        assert first.final_output == "The tool says: 42."
        second = await ran(at, _worker(model), "case:remember", previous_response_id=first.last_response_id)
        assert 'assistant called add: {"a": 20, "b": 22} | tool: 42 |' in second.final_output
        hot = Agent(name="hot", model=model, model_settings=ModelSettings(temperature=9))
        with pytest.raises(ResponsesWebSocketError, match="temperature"):
            await ran(at, hot, "case:plain")
        third = await ran(at, _worker(model), f"case:plain {at.mark}")
        assert third.final_output == f"You said: {at.mark}"


def _worker(model: OpenAIResponsesWSModel, tools: Sequence[Tool] = ()) -> Agent:
    return Agent(name="worker", model=model, tools=list(tools), model_settings=UNKEPT)


async def conversation(at: Trial) -> None:
    """The SDK's session, whose items are the server's; and the server's own conversation, by its id."""
    async with client_at(at) as client:
        session = OpenAIConversationsSession(openai_client=client)
        prompt = f'case:function call:add{{"a": 20, "b": 22}} {at.mark}'
        await run(at, prompt, tools=[add], session=session)
        second = await run(at, "case:remember", session=session)
        made = 'assistant called add: {"a": 20, "b": 22} | tool: 42 | assistant: The tool says: 42.'
        assert made in second.final_output
        kinds = [dict(item).get("type", "message") for item in await session.get_items()]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message", "message"]
        assert dict(await session.pop_item() or {})["role"] == "assistant"
        assert len(await session.get_items(limit=3)) == 3
        await session.clear_session()
        kept = await client.conversations.create()
        await run(at, f"case:plain {told(at)}", conversation_id=kept.id)
        third = await run(at, "case:remember", conversation_id=kept.id)
        assert third.final_output == remembered(at)


async def compaction(at: Trial) -> None:
    """The SDK's session that has its history compacted: by all items, or by the last response's id."""
    for mode in ("input", "previous_response_id"):
        async with client_at(at) as client:
            kept = SQLiteSession(at.mark)
            session = OpenAIResponsesCompactionSession(
                at.mark,
                kept,
                client=client,
                model=KNOWN_MODEL,
                compaction_mode=mode,
                should_trigger_compaction=lambda _: False,
            )
            try:
                first = await run(at, f"case:plain {told(at)} {sand(2500)}", session=session)
                await session.run_compaction({"force": True, "response_id": first.last_response_id or ""})
                kinds = [dict(item).get("type") for item in await session.get_items()]
                assert kinds.count("compaction") == 1
                second = await run(at, "case:remember", session=session)
            finally:
                kept.close()
        check_compacted(at, second.final_output)


async def auto_compaction(at: Trial) -> None:
    managed: Any = [{"type": "compaction", "compact_threshold": THRESHOLD}]
    settings = ModelSettings(store=False, context_management=managed)
    first = await run(at, past_threshold(at), settings=settings)
    assert [item.type for item in first.new_items].count("compaction_item") == 1
    check_compacted(at, first.final_output)
    second = await run(at, [*first.to_input_list(), {"role": "user", "content": "case:remember"}], settings=settings)
    check_compacted(at, second.final_output)


async def input_tokens(at: Trial) -> None:
    del at
    raise NotApplicable(NO_COUNT)


async def truncation(at: Trial) -> None:
    async with model_at(at, SMALL_MODEL) as model:
        agent = Agent(name="worker", model=model, model_settings=ModelSettings(store=False, truncation="auto"))
        result = await ran(at, agent, too_long(at))
        check_cut(result.final_output)
        strict = Agent(name="worker", model=model, model_settings=ModelSettings(store=False, truncation="disabled"))
        with pytest.raises(openai.BadRequestError) as caught:
            await ran(at, strict, too_long(at))
    assert caught.value.code == "context_length_exceeded"


LONG: dict[str, Play] = {
    "websocket": websocket,
    "conversation": conversation,
    "compaction": compaction,
    "auto-compaction": auto_compaction,
    "input-tokens": input_tokens,
    "truncation": truncation,
}

AGENTS = Client("openai-agents", "openai-agents", {**CASES, **MORE, **LONG})
