"""Whole servers in front of a backend with a small context: conversations that are longer than it go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest
import uvicorn
from openai import AsyncOpenAI

from antwort.app import build
from antwort.server.server import listen
from antwort.testing.backend import DemoBackend
from fitting_kit import GONE
from serving import Serving, serving
from settings_kit import in_front_of
from window_kit import words

MODEL, CONTEXT = "scripted", 300


class Heard:
    """The backend, and what it was asked and answered."""

    def __init__(self, *, has_tokenizer: bool) -> None:
        self._backend = DemoBackend([MODEL], context=CONTEXT, has_tokenizer=has_tokenizer)
        self.asked: list[dict[str, Any]] = []
        self.statuses: list[int] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] != "/v1/chat/completions":
            await self._backend(scope, receive, send)
            return
        message = await receive()
        self.asked.append(json.loads(message["body"]))

        async def again() -> Any:
            return message

        async def told(sent: Any) -> None:
            if sent["type"] == "http.response.start":
                self.statuses.append(sent["status"])
            await send(sent)

        await self._backend(scope, again, told)


@asynccontextmanager
async def running(backend: Heard) -> AsyncIterator[Serving]:
    with listen("127.0.0.1", 0) as sock:
        server = uvicorn.Server(uvicorn.Config(backend, lifespan="off", log_config=None))
        task = asyncio.create_task(server._serve([sock]))
        try:
            app = await build(in_front_of(f"http://127.0.0.1:{sock.getsockname()[1]}/v1"))
            async with serving(app.engine, app.asgi) as served:
                await served.ask("GET", "/v1/models")  # which the server does by itself, some time after its start
                yield served
        finally:
            server.should_exit = True
            await task


@pytest.mark.parametrize("has_tokenizer", [True, False])
async def test_a_conversation_three_times_the_context_goes_on(has_tokenizer: bool) -> None:
    backend = Heard(has_tokenizer=has_tokenizer)
    async with running(backend) as server, AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        previous: str | None = None
        for n in range(20):
            text = f"turn-{n} {words(20)}"
            response = await client.responses.create(
                model=MODEL, input=text, previous_response_id=previous, truncation="auto", max_output_tokens=50
            )
            assert (response.status, response.output_text) == ("completed", f"You said: {backend_heard(backend)}")
            assert response.truncation == "auto"
            previous = response.id
    assert backend.statuses.count(200) == 20
    assert not has_tokenizer or backend.statuses.count(400) == 0
    messages = backend.asked[-1]["messages"]
    assert messages[0]["content"].startswith(GONE)
    assert messages[-1]["content"] == f"turn-19 {words(20)}"


def backend_heard(backend: Heard) -> str:
    """The last message of what it was asked last."""
    said: str = backend.asked[-1]["messages"][-1]["content"]
    return said


async def test_what_is_too_long_is_an_error_that_clients_know_and_counting_says_so_before() -> None:
    backend = Heard(has_tokenizer=True)
    async with running(backend) as server, AsyncOpenAI(base_url=server.url, api_key="none", max_retries=0) as client:
        counted = await client.responses.input_tokens.count(model=MODEL, input=words(350), instructions="Be brief.")
        assert (counted.object, counted.input_tokens) == ("response.input_tokens", 352)
        with pytest.raises(openai.BadRequestError) as raised:
            await client.responses.create(model=MODEL, input=words(350))
    assert raised.value.code == "context_length_exceeded"
    assert "350 tokens" in raised.value.message
    assert backend.asked == []
