"""A backend that speaks the Responses API: one more server in between changes nothing but the ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.app import build
from antwort.config import Settings
from antwort.config.settings import BackendSettings
from antwort.engine.engine import Engine
from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendRefused,
    ContextTooLong,
    ModelNotFound,
    RateLimited,
)
from antwort.providers.base import ChatMessage
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, answer, call, refuse, say, think, tokens
from chat_backend import Calls, ChatBackend, Says
from raw_http import Reply
from serving import RESPONSES, Serving, serving
from settings_kit import in_front_of

Json = dict[str, Any]
ASK: Json = {"model": "scripted", "input": "Hello"}
TOOL: Json = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}}


@asynccontextmanager
async def in_front(url: str, kind: Any = "responses") -> AsyncIterator[Serving]:
    backend = BackendSettings(name="inner", url=url, kind=kind)
    app = await build(Settings(backends=(backend,), memory=True))
    async with serving(app.engine, app.asgi) as server:
        yield server


@asynccontextmanager
async def two_servers(provider: ScriptedProvider) -> AsyncIterator[Serving]:
    async with serving(Engine(provider, store=MemoryStore())) as inner, in_front(inner.url) as outer:
        yield outer


def last_response(reply: Reply) -> Json:
    frames = [line[6:] for line in reply.body.splitlines() if line.startswith(b"data: ")]
    response: Json = json.loads(frames[-2])["response"] if frames else reply.json()
    return response


def without_ids(response: Json) -> Json:
    kept = {name: response[name] for name in ("status", "usage", "incomplete_details", "error", "model")}
    ids = ("id", "call_id")
    return {**kept, "output": [{k: v for k, v in item.items() if k not in ids} for item in response["output"]]}


SCRIPTS = {
    "text": answer(say("Hello there."), usage=tokens(5, 7)),
    "reasoning": answer(think("Let me see."), say("Hello.")),
    "calls": answer(say("I will look."), call("weather", city="Paris"), call("weather", city="Rome")),
    "refusal": answer(refuse("I cannot help with that.")),
    "cut short": answer(say("Hello th"), finish="length"),
    "nothing": answer(),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
async def test_an_answer_comes_through_unchanged(script: Sequence[Any], stream: bool) -> None:
    body = {**ASK, "stream": stream, "tools": [TOOL]}
    async with serving(Engine(ScriptedProvider(script), store=MemoryStore())) as direct:
        expected = last_response(await direct.ask("POST", RESPONSES, body))
    async with two_servers(ScriptedProvider(script)) as outer:
        response = last_response(await outer.ask("POST", RESPONSES, body))
    assert without_ids(response) == without_ids(expected)
    assert response["status"] == ("incomplete" if script is SCRIPTS["cut short"] else "completed")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "error",
    [
        BackendRefused("The temperature is too high."),
        ContextTooLong("Too long.", param="input"),
        ModelNotFound("scripted"),
        RateLimited("x", retry_after=5),
        BackendError("x"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_comes_through_with_its_status(error: AntwortError, stream: bool) -> None:
    async with two_servers(ScriptedProvider([error])) as outer:
        reply = await outer.ask("POST", RESPONSES, {**ASK, "stream": stream})
    assert (reply.status, reply.error["code"]) == (error.status, error.code)
    assert reply.headers.get("retry-after") == (str(error.retry_after) if error.retry_after else None)


@pytest.mark.proves("EN-036")
async def test_an_answer_that_breaks_off_in_the_middle_is_failed_at_both() -> None:
    async with two_servers(ScriptedProvider([*say("Hel lo"), BackendCut("cut")])) as outer:
        reply = await outer.ask("POST", RESPONSES, {**ASK, "stream": True})
    response = last_response(reply)
    assert (reply.status, response["status"]) == (200, "failed")
    assert response["output"][0]["content"][0]["text"] == "Hel lo"


async def test_what_was_said_called_and_answered_before_reaches_the_model() -> None:
    provider = ScriptedProvider(answer(think("Hm."), say("Wait."), call("weather", city="Paris")), answer(say("Sun.")))
    async with two_servers(provider) as outer:
        first = last_response(await outer.ask("POST", RESPONSES, {**ASK, "tools": [TOOL], "instructions": "Be brief."}))
        result = {"type": "function_call_output", "call_id": first["output"][-1]["call_id"], "output": "sunny"}
        body = {"model": "scripted", "previous_response_id": first["id"], "input": [result], "tools": [TOOL]}
        second = last_response(await outer.ask("POST", RESPONSES, body))
    assert second["output"][0]["content"][0]["text"] == "Sun."
    asked, told, got = provider.requests[1].messages
    assert provider.requests[0].messages[0] == ChatMessage(role="system", content="Be brief.")
    assert (asked.role, asked.content) == ("user", "Hello")
    assert (told.content, told.reasoning_content) == ("Wait.", "Hm.")
    assert isinstance(told.tool_calls, list)
    assert told.tool_calls[0].function.name == "weather"
    assert (got.role, got.content, got.tool_call_id) == ("tool", "sunny", told.tool_calls[0].id)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_chat_backend_behind_two_servers(stream: bool) -> None:
    body = {"model": "test-model", "input": "Hello", "stream": stream, "tools": [TOOL]}
    async with ChatBackend(Calls([("weather", "{}")]), Says()) as backend:
        app = await build(in_front_of(backend.url))
        async with serving(app.engine, app.asgi) as inner, in_front(inner.url) as outer:
            calls, text = [last_response(await outer.ask("POST", RESPONSES, body)) for _ in range(2)]
            models = (await outer.ask("GET", "/v1/models")).json()["data"]
    assert [item["name"] for item in calls["output"]] == ["weather"]
    assert text["output"][0]["content"][0]["text"] == "Hello there"
    assert text["usage"]["total_tokens"] == 12
    assert [model["id"] for model in models] == ["test-model"]
    assert backend.requests[0]["tools"][0]["function"]["name"] == "weather"
