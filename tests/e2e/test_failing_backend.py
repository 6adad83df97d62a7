"""A backend that fails, behind everything that stands between it and the client."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from antwort.app import build
from antwort.config.settings import LoopSettings, ToolSettings
from chat_backend import Calls, ChatBackend, Refuses
from replay_backend import Answer, serve
from scenes import data_of
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


# ---- after the first byte ----


async def test_an_answer_whose_trailer_has_no_end_is_given_up() -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    endless = Answer((head + b"2\r\n{}\r\n0\r\nX: ", *[b"x" * 10_000] * 50), framing="raw", ending="hold")
    async with serve(*[endless] * 5) as backend:
        app = await build(in_front_of(backend.url))
        async with serving(app.engine, app.asgi) as server, asyncio.timeout(10):
            response = (await server.ask("POST", RESPONSES, BODY)).json()
    assert (response["status"], response["error"]["code"]) == ("failed", "backend_error")


CLOCK = {"type": "mcp", "server_label": "demo", "allowed_tools": ["current_time"]}


@pytest.mark.proves("TR-016", "EN-036", "EN-034")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("refusal", "code", "said"),
    [
        (Refuses(400, "Not like this."), "invalid_prompt", "Not like this."),
        (Refuses(400, "This model's maximum context length is 9 tokens."), "context_length_exceeded", "9 tokens"),
        (Refuses(401, "sk-123456789"), "backend_unauthorized", "did not accept this server's credentials"),
        (Refuses(403, "sk-123456789"), "backend_unauthorized", "did not accept this server's credentials"),
        (Refuses(404, "The model is gone"), "invalid_prompt", "The model 'test-model' does not exist."),
        (Refuses(404, "sk-123456789"), "invalid_prompt", "does not offer what was asked"),
        (Refuses(429, headers={"Retry-After": "30"}), "rate_limit_exceeded", "try again in 30s."),
        (Refuses(429, code="insufficient_quota"), "insufficient_quota", "quota is used up"),
        (Refuses(503, headers={"Retry-After": "30"}), "backend_unavailable", "try again in 30s."),
        (Refuses(503, headers={"Retry-After": "30"}, code="slow_down"), "server_is_overloaded", "too much to do"),
        (Refuses(500, "sk-123456789"), "backend_error", "failed to answer"),
    ],
    ids=lambda value: f"{value.status} {value.code or ''}" if isinstance(value, Refuses) else None,
)
async def test_a_failure_in_a_later_turn_has_a_code_by_which_clients_know_whether_to_try_again(
    refusal: Refuses, code: str, said: str, streamed: bool
) -> None:
    async with ChatBackend(Calls([("current_time", "{}")]), refusal) as backend:
        settings = msgspec.structs.replace(in_front_of(backend.url), tools=ToolSettings(demo=True))
        app = await build(settings)
        async with serving(app.engine, app.asgi) as server:
            reply = await server.ask("POST", RESPONSES, {**BODY, "stream": streamed, "tools": [CLOCK]})
            assert reply.status == 200
            response = data_of(reply.body)[-1]["response"] if streamed else reply.json()
            stored = (await server.ask("GET", f"{RESPONSES}/{response['id']}")).json()
    assert response["status"] == "failed"
    assert response["error"]["code"] == code
    assert said in response["error"]["message"]
    assert "sk-123456789" not in response["error"]["message"]
    assert stored["error"] == response["error"]


# ---- before it ----


@pytest.mark.proves("TR-015", "RULING-8", "EN-034")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("refusal", "status", "code", "retry", "wait"),
    [
        (Refuses(400, "Not like this."), 400, "invalid_prompt", "false", None),
        (Refuses(400, "The prompt is too long"), 400, "context_length_exceeded", "false", None),
        (Refuses(401), 502, "backend_unauthorized", "false", None),
        (Refuses(403), 502, "backend_unauthorized", "false", None),
        (Refuses(404, "The model is gone"), 404, "model_not_found", "false", None),
        (Refuses(429, headers={"Retry-After": "30"}), 429, "rate_limit_exceeded", "true", "30"),
        (Refuses(429, headers={"Retry-After": "900"}), 429, "rate_limit_exceeded", "false", "900"),
        (Refuses(429, code="insufficient_quota"), 429, "insufficient_quota", "false", None),
        (Refuses(503, headers={"Retry-After": "30"}), 503, "backend_unavailable", "true", "30"),
        (Refuses(529, headers={"Retry-After": "30"}), 503, "server_is_overloaded", "true", "30"),
        (Refuses(500), 502, "backend_error", None, None),
    ],
    ids=lambda value: f"{value.status} {value.code or ''}" if isinstance(value, Refuses) else None,
)
async def test_a_failure_before_the_first_byte_is_an_http_error_that_says_whether_to_come_back(
    refusal: Refuses, status: int, code: str, retry: str | None, wait: str | None, streamed: bool
) -> None:
    async with ChatBackend(refusal) as backend:
        app = await build(in_front_of(backend.url))
        async with serving(app.engine, app.asgi) as server:
            reply = await server.ask("POST", RESPONSES, {**BODY, "stream": streamed})
    assert (reply.status, reply.error["code"]) == (status, code)
    assert (reply.headers.get("x-should-retry"), reply.headers.get("retry-after")) == (retry, wait)
    assert reply.headers.get("retry-after-ms") == (None if wait is None else f"{wait}000")


@pytest.mark.proves("RULING-12", "EN-034")
async def test_a_backend_that_refuses_our_key_is_a_500_of_the_standards_type_under_strict_and_asked_once() -> None:
    async with ChatBackend(Refuses(401, "sk-123456789 at http://10.0.0.1:8000")) as backend:
        settings = msgspec.structs.replace(in_front_of(backend.url), loop=LoopSettings(strict=True))
        app = await build(settings)
        async with serving(app.engine, app.asgi) as server:
            reply = await server.ask("POST", RESPONSES, BODY)
        assert len(backend.requests) == 1
    assert (reply.status, reply.error["type"], reply.error["code"]) == (500, "server_error", "backend_unauthorized")
    assert reply.headers["x-should-retry"] == "false"
    assert reply.error["message"] == "The backend did not accept this server's credentials."
