"""What the tests of the Chat Completions provider share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort import ChatProvider
from antwort.errors import (
    AntwortError,
)
from antwort.providers.base import (
    ChatMessage,
    ChatRequest,
    Delta,
    Finished,
    Provider,
    TextDelta,
)
from replay_backend import Backend, sse, whole

PATIENCE = 5.0
KEY = "sk-very-secret-1234"
MESSAGES = [ChatMessage(role="user", content="Hello")]
STREAMED = ChatRequest(model="m", messages=MESSAGES, stream=True)
WHOLE = ChatRequest(model="m", messages=MESSAGES, stream=False)
HI = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\n'
STOP = b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = sse(HI, STOP, DONE)
ANSWER = whole(b'{"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}')
SAID: list[Delta] = [TextDelta("Hi"), Finished("stop")]


@asynccontextmanager
async def provider_of(backend: Backend, **settings: Any) -> AsyncGenerator[ChatProvider, None]:
    provider = ChatProvider(backend.url, **settings)
    try:
        yield provider
    finally:
        await provider.close()
        assert provider.open_connections == 0


async def said(provider: Provider, request: ChatRequest = STREAMED) -> list[Delta]:
    return [delta async for batch in provider.infer(request) for delta in batch]


async def failure(provider: Provider, request: ChatRequest = STREAMED) -> AntwortError:
    with pytest.raises(AntwortError) as caught:
        await said(provider, request)
    return caught.value


async def gone(backend: Backend) -> None:
    async with asyncio.timeout(PATIENCE):
        await backend.left.wait()
