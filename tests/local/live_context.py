"""The embedded engine itself: what it says of its context, and what its tokenizer counts, is what it charges."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from antwort.errors import ContextTooLong
from antwort.local.provider import LocalProvider
from antwort.providers.base import ChatMessage, ChatRequest, ChatTool, ChatToolFunction, Finished, Provider
from antwort.providers.token_counter import BackendTokenCounter, by_template
from antwort.providers.tool_emulation.emulation import Constrained

pytestmark = pytest.mark.xdist_group("model")

PATIENCE = 60.0
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = ChatTool(function=ChatToolFunction(name="weather", description="Weather of a city.", parameters=CITY))


@asynccontextmanager
async def running(model: Path, context: int) -> AsyncIterator[LocalProvider]:
    provider = LocalProvider(model, context=context, slots=2, threads=1)
    try:
        async with asyncio.timeout(PATIENCE):
            await provider.ready()
            await provider.check()
            yield provider
    finally:
        await provider.close()


def asking(model: str, text: str, *tools: ChatTool) -> ChatRequest:
    messages = [ChatMessage(role="system", content="Be brief."), ChatMessage(role="user", content=text)]
    request = ChatRequest(model=model, messages=messages, max_tokens=1)
    return ChatRequest(model=model, messages=messages, max_tokens=1, tools=list(tools)) if tools else request


async def charged(provider: Provider, request: ChatRequest) -> int | None:
    ends = [delta async for batch in provider.infer(request) for delta in batch if isinstance(delta, Finished)]
    return ends[-1].usage.input_tokens if ends[-1].usage is not None else None


async def test_what_is_counted_is_what_is_charged(demo_model: Path) -> None:
    async with running(demo_model, 512) as provider:
        whole = Constrained(provider, "constrained")
        for request in (
            asking(provider.name, "Hello there"),
            asking(provider.name, "Grüße, 世界! " * 10),
            asking(provider.name, "How is Rome?", WEATHER),
        ):
            assert await whole.count(request) == await charged(whole, request)


async def test_an_older_llama_cpp_would_count_the_same(demo_model: Path) -> None:
    async with running(demo_model, 512) as provider:
        request = asking(provider.name, "Hello there " * 20)
        older = BackendTokenCounter(provider._post, (by_template,))
        assert await older.count(request) == await provider.count(request) is not None


async def test_the_context_is_that_of_one_request_and_what_is_longer_says_by_how_much(demo_model: Path) -> None:
    async with running(demo_model, 512) as provider:
        assert [model.context_length for model in await provider.models()] == [512]
        request = asking(provider.name, "word " * 600)
        with pytest.raises(ContextTooLong) as caught:
            await charged(provider, request)
        assert (caught.value.limit, caught.value.asked) == (512, await provider.count(request))


async def test_more_than_the_model_was_made_for_is_not_promised(demo_model: Path) -> None:
    async with running(demo_model, 16_384) as provider:
        assert [model.context_length for model in await provider.models()] == [8192]
        assert provider.capabilities(provider.name).context_length == 8192
