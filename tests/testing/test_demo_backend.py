"""The stand-in behind HTTP answers as a Chat Completions backend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from antwort.api.wire import UNSET, replace
from antwort.errors import AntwortError, BackendRefused, ContextTooLong, ModelNotFound
from antwort.providers.base import (
    CallDelta,
    ChatMessage,
    ChatRequest,
    ChatTool,
    ChatToolFunction,
    Delta,
    Finished,
    ReasoningDelta,
    TextDelta,
)
from antwort.providers.chat import ChatProvider
from antwort.server.server import listen
from antwort.testing import say
from antwort.testing.backend import DemoBackend


@pytest.fixture
async def provider() -> AsyncIterator[ChatProvider]:
    async with provided(DemoBackend(["small", "large"])) as provider:
        yield provider


@asynccontextmanager
async def provided(backend: DemoBackend, path: str = "/v1") -> AsyncIterator[ChatProvider]:
    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(backend, lifespan="off", log_config=None))
        serving = asyncio.create_task(server._serve([sock]))
        provider = ChatProvider(f"http://127.0.0.1:{sock.getsockname()[1]}{path}")
        try:
            yield provider
        finally:
            await provider.close()
            server.should_exit = True
            await serving


def asking(model: str = "small", *, stream: bool = True, tools: bool = False) -> ChatRequest:
    offered = [ChatTool(function=ChatToolFunction(name="now"))] if tools else UNSET
    message = ChatMessage(role="user", content="Hello you")
    return ChatRequest(model=model, messages=[message], stream=stream, tools=offered)


async def heard(provider: ChatProvider, request: ChatRequest) -> list[Delta]:
    return [delta async for batch in provider.infer(request) for delta in batch]


async def test_it_lists_the_models_it_is_told_to_have(provider: ChatProvider) -> None:
    assert [model.id for model in await provider.models()] == ["small", "large"]


@pytest.mark.parametrize("stream", [True, False])
async def test_it_thinks_aloud_where_it_is_told_to(stream: bool) -> None:
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(DemoBackend(["small"], reasons=True), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server._serve([sock]))
        provider = ChatProvider(f"http://127.0.0.1:{sock.getsockname()[1]}/v1")
        deltas = await heard(provider, asking(stream=stream))
        calls = await heard(provider, asking(stream=stream, tools=True))
        await provider.close()
        server.should_exit = True
        await serving
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "Let me see."
    assert isinstance(end := calls[-1], Finished)
    assert end.finish == "tool_calls"


async def test_a_stream_repeats_what_was_said_and_says_what_it_cost(provider: ChatProvider) -> None:
    *words, end = await heard(provider, asking())
    assert words == say("You said: Hello you")
    assert isinstance(end, Finished)
    assert end.usage is not None
    assert (end.finish, end.usage.input_tokens, end.usage.output_tokens) == ("stop", 2, 4)


async def test_a_whole_answer_says_the_same_in_one_piece(provider: ChatProvider) -> None:
    *words, end = await heard(provider, asking(stream=False))
    assert words == [TextDelta("You said: Hello you")]
    assert isinstance(end, Finished)


@pytest.mark.parametrize("stream", [True, False])
async def test_the_first_tool_it_is_offered_is_called(provider: ChatProvider, stream: bool) -> None:
    first, end = await heard(provider, asking(stream=stream, tools=True))
    assert first == CallDelta(0, "now", "{}")
    assert isinstance(end, Finished)
    assert end.finish == "tool_calls"


async def test_a_model_it_does_not_have_is_not_found(provider: ChatProvider) -> None:
    with pytest.raises(ModelNotFound):
        await heard(provider, asking("other"))


async def test_a_request_that_is_none_is_refused(provider: ChatProvider) -> None:
    bad = ChatRequest(model="small", messages=[ChatMessage(role=7)])  # type: ignore[arg-type]  # the point of it
    with pytest.raises(BackendRefused):
        await heard(provider, bad)


async def test_anything_else_is_not_found() -> None:
    async with provided(DemoBackend(["small"]), "/v2") as provider:
        with pytest.raises(AntwortError):
            await provider.models()


# ---- with a context ----


async def test_it_says_how_much_fits_and_counts_as_it_charges() -> None:
    async with provided(DemoBackend(["small"], context=300)) as provider:
        [model] = await provider.models()
        assert model.context_length == provider.capabilities("small").context_length == 300
        *_, end = await heard(provider, asking())
        assert isinstance(end, Finished)
        assert end.usage is not None
        assert await provider.count(asking()) == end.usage.input_tokens == 2


@pytest.mark.parametrize("stream", [True, False])
async def test_what_does_not_fit_is_refused_with_both_numbers(stream: bool) -> None:
    long = ChatRequest(model="small", messages=[ChatMessage(role="user", content="word " * 300)], stream=stream)
    async with provided(DemoBackend(["small"], context=300)) as provider:
        with pytest.raises(ContextTooLong) as caught:
            await heard(provider, long)
        assert (caught.value.limit, caught.value.asked) == (300, 300)


async def test_an_answer_that_may_not_fit_is_refused_too() -> None:
    async with provided(DemoBackend(["small"], context=300)) as provider:
        await heard(provider, replace(asking(), max_tokens=298))
        with pytest.raises(ContextTooLong) as caught:
            await heard(provider, replace(asking(), max_tokens=299))
        assert (caught.value.limit, caught.value.asked) == (300, 2)


@pytest.mark.parametrize("backend", [DemoBackend(["small"]), DemoBackend(["small"], context=9, has_tokenizer=False)])
async def test_without_a_tokenizer_nothing_is_counted(backend: DemoBackend) -> None:
    async with provided(backend) as provider:
        assert await provider.count(asking()) is None
