"""A backend that speaks the Responses API itself: recorded answers replayed, and what it is asked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from antwort.errors import AntwortError, BackendCut, BackendError, BackendRefused, ModelNotFound, RateLimited
from antwort.providers.base import Delta, Finished, TextDelta
from antwort.providers.responses import ResponsesProvider
from chat_kit import KEY, STREAMED, WHOLE, failure, said
from replay_backend import CASES, Answer, Backend, Case, recorded, serve, sse, whole

NATIVE = [case for case in CASES.values() if case.is_native]
DONE = b'data: {"type": "response.completed", "response": {"status": "completed"}}\n\n'
HI = b'data: {"type": "response.output_text.delta", "delta": "Hi"}\n\n'
RESPONSE = {"status": "completed", "output": [{"type": "message", "content": [{"type": "output_text", "text": "Hi"}]}]}


@asynccontextmanager
async def speaking(*answers: Case | Answer, **more: Any) -> AsyncGenerator[tuple[ResponsesProvider, Backend], None]:
    async with serve(*answers) as backend:
        provider = ResponsesProvider(backend.url, **more)
        try:
            yield provider, backend
        finally:
            await provider.close()
            assert provider.open_connections == 0


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


@pytest.mark.parametrize("case", NATIVE, ids=lambda case: case.name)
@pytest.mark.parametrize("size", [1, 100, 10**6])
async def test_a_recorded_answer_comes_out_as_its_deltas(case: Case, size: int) -> None:
    async with speaking(recorded(case).split(size)) as (provider, _):
        deltas = await said(provider)
    assert text_of(deltas) == "The capital of France is Paris."
    assert isinstance(last := deltas[-1], Finished)
    assert last.usage is not None
    assert (last.finish, last.usage.output_tokens) == ("stop", 8)


@pytest.mark.parametrize("request_sent", [STREAMED, WHOLE])
@pytest.mark.parametrize("answer", [sse(HI, DONE), whole(json.dumps(RESPONSE).encode())], ids=["stream", "whole"])
async def test_either_form_is_taken_whatever_was_asked_for(request_sent: Any, answer: Answer) -> None:
    async with speaking(answer, api_key=KEY) as (provider, backend):
        assert await said(provider, request_sent) == [TextDelta("Hi"), Finished("stop")]
    [seen] = backend.requests
    assert (seen.method, seen.path, seen.headers["authorization"]) == ("POST", "/v1/responses", f"Bearer {KEY}")
    sent = json.loads(seen.body)
    assert (sent["store"], sent.get("stream", False)) == (False, request_sent.stream)


@pytest.mark.proves("EN-034", "RULING-12")
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (whole(b'{"error": {"message": "bad thing", "code": "x"}}', 400), BackendRefused),
        (whole(b'{"error": {"message": "no such model", "code": "model_not_found"}}', 404), ModelNotFound),
        (whole(b"{}", 429, {"retry-after": "3"}), RateLimited),
        (whole(b"secret at 10.0.0.1", 500), BackendError),
        (sse(HI, ending="cut"), BackendCut),
        (sse(HI), BackendCut),
    ],
)
async def test_failures_are_ours(answer: Answer, expected: type[AntwortError]) -> None:
    async with speaking(answer) as (provider, _):
        error = await failure(provider)
    assert type(error) is expected
    assert "10.0.0.1" not in error.message


async def test_models_and_checks_are_those_of_every_backend() -> None:
    async with speaking(whole(b'{"data": [{"id": "m"}]}')) as (provider, backend):
        assert [model.id for model in await provider.models()] == ["m"]
        await provider.check()
    assert [seen.path for seen in backend.requests] == ["/v1/models"] * 2


def test_what_the_standard_knows_is_sent_to_a_backend_of_the_standard() -> None:
    capabilities = ResponsesProvider("http://host/v1").capabilities("m")
    assert capabilities.allowed_tools
    assert capabilities.developer_role
    assert capabilities.verbosity
