"""A backend behind which nobody answers, not even to refuse: a handshake that never comes stands for lost packets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antwort.app import build
from antwort.config import Settings
from antwort.config.settings import BackendSettings, RetrySettings, RoutingSettings, TimeoutSettings
from chat_backend import ChatBackend
from replay_backend import Answer, Backend, serve
from serving import RESPONSES, Serving, serving

BODY = {"model": "test-model", "input": "Hello"}


@asynccontextmanager
async def in_front_of_a_black_hole(*others: ChatBackend) -> AsyncIterator[tuple[Serving, Backend]]:
    async with serve(Answer(ending="silence")) as hole:
        dark = BackendSettings(
            name="dark",
            url=hole.url.replace("http:", "https:"),
            models=("test-model",),
            timeouts=TimeoutSettings(connect=0.05),
        )
        lit = (BackendSettings(name=f"b{at}", url=other.url) for at, other in enumerate(others))
        routing = RoutingSettings(retry=RetrySettings(attempts=1))
        app = await build(Settings(backends=(dark, *lit), routing=routing, memory=True))
        await app.start()
        async with serving(app.engine, app.asgi) as server:
            yield server, hole


@pytest.mark.proves("RULING-8", "TR-015")
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_alone_it_is_an_http_error_in_both_modes(stream: bool) -> None:
    async with in_front_of_a_black_hole() as (server, _):
        reply = await server.ask("POST", RESPONSES, {**BODY, "stream": stream})
    assert (reply.status, reply.error["code"]) == (504, "backend_connect_timeout")


async def test_beside_another_it_costs_the_requests_nothing() -> None:
    async with ChatBackend() as other, in_front_of_a_black_hole(other) as (server, hole):
        assert (await server.ask("GET", "/v1/models")).status == 200  # all have been looked at
        tried = hole.connections
        replies = await asyncio.gather(*(server.ask("POST", RESPONSES, BODY) for _ in range(20)))
        assert hole.connections <= tried + 1  # whoever looks after it may have come by
    assert {reply.json()["status"] for reply in replies} == {"completed"}


@pytest.mark.proves("RULING-8", "TR-015")
async def test_two_of_them_are_an_http_error_in_time_by_the_settings_as_they_come() -> None:
    async with serve(Answer(ending="silence")) as one, serve(Answer(ending="silence")) as other:
        urls = [hole.url.replace("http:", "https:") for hole in (one, other)]
        dark = (BackendSettings(name=f"b{at}", url=url, models=("test-model",)) for at, url in enumerate(urls))
        app = await build(Settings(backends=tuple(dark), memory=True))
        async with serving(app.engine, app.asgi) as server:
            reply = await server.ask("POST", RESPONSES, {**BODY, "stream": True})
    assert (reply.status, reply.error["code"]) == (504, "backend_connect_timeout")
