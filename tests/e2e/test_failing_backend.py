"""A backend that fails, behind everything that stands between it and the client."""

from __future__ import annotations

import asyncio

import pytest

from antwort.app import build
from chat_backend import ChatBackend, Refuses
from serving import RESPONSES, serving
from settings_kit import in_front_of

BODY = {"model": "test-model", "input": "Hello"}


@pytest.mark.proves("RULING-8", "EN-034", "TR-013", "TR-015")
async def test_a_backend_that_stays_too_busy_is_tried_again_and_then_a_429_in_both_modes() -> None:
    async with ChatBackend(Refuses(429, "Slow down.", {"Retry-After": "1"})) as backend:
        app = await build(in_front_of(backend.url))
        async with serving(app.engine, app.asgi) as server:
            asked = [server.ask("POST", RESPONSES, {**BODY, "stream": stream}) for stream in (False, True)]
            replies = await asyncio.gather(*asked)
        assert len(backend.requests) > len(asked)
    for reply in replies:
        assert (reply.status, reply.error["type"]) == (429, "rate_limit_error")
        assert reply.headers["retry-after"] == "1"
