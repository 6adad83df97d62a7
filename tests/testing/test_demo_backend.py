"""The stand-in behind HTTP answers as a Chat Completions backend does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import uvicorn

from antwort.api.wire import UNSET
from antwort.errors import AntwortError, BackendRefused, ModelNotFound
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
from antwort.testing import say
from antwort.testing.backend import DemoBackend
from antwort.transport.server import listen


@pytest.fixture
async def provider() -> AsyncIterator[ChatProvider]:
    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(DemoBackend(["small", "large"]), lifespan="off", log_config=None))
        serving = asyncio.create_task(server._serve([sock]))
        provider = ChatProvider(f"http://127.0.0.1:{sock.getsockname()[1]}/v1")
        yield provider
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


async def test_anything_else_is_not_found(provider: ChatProvider) -> None:
    provider._path = "/v2"
    with pytest.raises(AntwortError):
        await provider.models()
