"""langchain-openai: conversations that grow long."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from openai import AsyncOpenAI

from clients.ground import SMALL_MODEL
from clients.lasting import NO_COUNT, ONLY_HTTP, THRESHOLD, check_compacted, check_cut, past_threshold, told, too_long
from clients.trying import Client, NotApplicable, Play, Trial
from clients.with_langchain import CASES, asked, awaited, chat

_KINDS: dict[str, type[BaseMessage]] = {"user": HumanMessage, "assistant": AIMessage, "system": SystemMessage}


def _history(plain: list[Any]) -> list[BaseMessage]:
    return [_KINDS[message["role"]](message["content"]) for message in plain]


async def websocket(at: Trial) -> None:
    del at
    raise NotApplicable(ONLY_HTTP)


async def conversation(at: Trial) -> None:
    async with AsyncOpenAI(base_url=at.ground.url, api_key="none", max_retries=0) as client:
        made = await client.conversations.create()
        async with chat(at, model_kwargs={"conversation": made.id}) as model:
            await awaited(at, model, f"case:plain {told(at)}")
            second = await awaited(at, model, "case:remember")
        items = [item async for item in client.conversations.items.list(made.id)]
    assert second.text == f"user: case:plain {told(at)} | assistant: You said: {told(at)} | user: case:remember"
    assert len(items) == 4


async def compaction(at: Trial) -> None:
    del at
    raise NotApplicable("the client does not ask for it: it leaves compaction to the server")


async def auto_compaction(at: Trial) -> None:
    managed = [{"type": "compaction", "compact_threshold": THRESHOLD}]
    history = _history(past_threshold(at))
    async with chat(at, store=False, context_management=managed) as model:
        first = await asked(at, model, history)
        assert [block["type"] for block in first.content if isinstance(block, dict)].count("compaction") == 1
        check_compacted(at, first.text)
        second = await asked(at, model, [*history, first, HumanMessage("case:remember")])
    check_compacted(at, second.text)


async def input_tokens(at: Trial) -> None:
    del at
    raise NotApplicable(NO_COUNT)


async def truncation(at: Trial) -> None:
    async with chat(at, model=SMALL_MODEL, truncation="auto", store=False) as model:
        answer = await awaited(at, model, _history(too_long(at)))  # where it is cut may change as the server learns
    check_cut(answer.text)
    async with chat(at, model=SMALL_MODEL, truncation="disabled", store=False) as strict:
        with pytest.raises(openai.BadRequestError) as caught:
            await awaited(at, strict, _history(too_long(at)))
    assert caught.value.code == "context_length_exceeded"


LONG: dict[str, Play] = {
    "websocket": websocket,
    "conversation": conversation,
    "compaction": compaction,
    "auto-compaction": auto_compaction,
    "input-tokens": input_tokens,
    "truncation": truncation,
}

LANGCHAIN = Client("langchain-openai", "langchain-openai", {**CASES, **LONG})
