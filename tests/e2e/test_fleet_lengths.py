"""Whole servers in front of several backends whose contexts differ: what one of them takes is answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import uvicorn

from antwort.app import build
from antwort.config import Settings
from antwort.config.settings import BackendSettings
from antwort.server.server import listen
from antwort.testing.backend import DemoBackend
from raw_http import Reply
from serving import RESPONSES, Serving, serving
from window_kit import words

MODEL, SMALL, LARGE = "scripted", 300, 20_000
GONE = "http://127.0.0.1:9/v1"


@asynccontextmanager
async def backend(context: int) -> AsyncIterator[str]:
    with listen("127.0.0.1", 0) as sock:
        config = uvicorn.Config(DemoBackend([MODEL], context=context), lifespan="off", log_config=None)
        server = uvicorn.Server(config)
        task = asyncio.create_task(server._serve([sock]))
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}/v1"
        finally:
            server.should_exit = True
            await task


@asynccontextmanager
async def fleet(*contexts: int | None, is_known: bool = True) -> AsyncIterator[Serving]:
    """A server in front of backends with these contexts; None: it is away. Where they are not known, the models are
    set, and nobody has looked at a list yet.
    """
    async with AsyncExitStack() as stack:
        urls = [GONE if size is None else await stack.enter_async_context(backend(size)) for size in contexts]
        models: Any = {} if is_known else {"models": (MODEL,)}
        told = tuple(BackendSettings(name=f"b{at}", url=url, **models) for at, url in enumerate(urls))
        app = await build(Settings(backends=told, memory=True))
        server = await stack.enter_async_context(serving(app.engine, app.asgi))
        if is_known:
            await server.ask("GET", "/v1/models")
        yield server


async def ask(server: Serving, count: int, truncation: str = "disabled") -> Reply:
    turns = [{"role": "user", "content": f"{n} {words(count // 10 - 1)}"} for n in range(10)]
    return await server.ask("POST", RESPONSES, {"model": MODEL, "input": turns, "truncation": truncation})


@pytest.mark.parametrize("is_known", [True, False], ids=["known", "unknown"])
@pytest.mark.parametrize("contexts", [(SMALL, LARGE), (LARGE, SMALL)], ids=["small first", "large first"])
@pytest.mark.parametrize("truncation", ["disabled", "auto"])
async def test_what_the_largest_takes_is_answered_whole(
    contexts: tuple[int, int], is_known: bool, truncation: str
) -> None:
    async with fleet(*contexts, is_known=is_known) as server:
        for count in (400, 8000):
            reply = await ask(server, count, truncation)
            assert (reply.status, reply.json()["usage"]["input_tokens"]) == (200, count)


async def test_the_list_tells_of_the_largest() -> None:
    async with fleet(SMALL, LARGE) as server:
        [model] = (await server.ask("GET", "/v1/models")).json()["data"]
    assert model["context_length"] == LARGE


async def test_what_none_of_them_takes_is_refused() -> None:
    async with fleet(SMALL, LARGE) as server:
        reply = await ask(server, 25_000)
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


async def test_where_only_a_small_one_is_left_it_refuses_or_gets_what_it_takes() -> None:
    async with fleet(None, SMALL, is_known=False) as server:
        refused, cut = await ask(server, 400), await ask(server, 400, "auto")
    assert (refused.status, refused.error["code"]) == (400, "context_length_exceeded")
    assert (cut.status, cut.json()["status"]) == (200, "completed")
    assert cut.json()["usage"]["input_tokens"] < SMALL
