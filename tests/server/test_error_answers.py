"""Errors as HTTP answers."""

from __future__ import annotations

import json

import httpx2
import pytest
from openai import AsyncOpenAI

from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendOverloaded,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    Conflict,
    ContextTooLong,
    HeadTooLarge,
    InvalidField,
    KeyInUse,
    KeyReused,
    MethodNotAllowed,
    ModelNotFound,
    NotAuthenticated,
    NotPermitted,
    QuotaUsedUp,
    RateLimited,
    RequestCancelled,
    RequestTooSlow,
    ResponseNotFound,
    ServerFault,
    ShuttingDown,
    StoreFault,
    WrongMediaType,
)
from antwort.server.errors import failure, socket_failure
from antwort.testing import ScriptedProvider
from engine_kit import engine_of
from serving import HELLO, RESPONSES, serving

CASES: list[tuple[AntwortError, int, str, str]] = [
    # the error, its status, OpenAI's type, the standard's type
    (InvalidField("input[0].type", "missing."), 400, "invalid_request_error", "invalid_request"),
    (BackendRefused("The prompt is too long."), 400, "invalid_request_error", "invalid_request"),
    (NotAuthenticated("Who are you?"), 401, "authentication_error", "invalid_request"),
    (NotPermitted("Not yours."), 403, "permission_error", "invalid_request"),
    (ResponseNotFound("resp_1"), 404, "invalid_request_error", "not_found"),
    (MethodNotAllowed("PUT", ("POST",)), 405, "invalid_request_error", "invalid_request"),
    (Conflict("It still runs."), 409, "invalid_request_error", "invalid_request"),
    (BodyTooLarge(10), 413, "invalid_request_error", "invalid_request"),
    (WrongMediaType("text/plain"), 415, "invalid_request_error", "invalid_request"),
    (RateLimited("Slow down."), 429, "rate_limit_error", "too_many_requests"),
    (ServerFault("Broken."), 500, "server_error", "server_error"),
    (StoreFault("Disk full."), 500, "server_error", "server_error"),
    (BackendError("Broken."), 502, "server_error", "model_error"),
    (BackendCut("Broke off."), 502, "server_error", "model_error"),
    (BackendUnavailable("Away."), 503, "server_error", "server_error"),
    (ShuttingDown(), 503, "server_error", "server_error"),
    (RequestCancelled(), 503, "server_error", "server_error"),
    (BackendTimeout("Slow."), 504, "server_error", "model_error"),
]


@pytest.mark.proves("TR-013", "RULING-12", "CP-030")
@pytest.mark.parametrize(("error", "status", "kind", "standard"), CASES, ids=lambda case: type(case).__name__)
def test_an_error_has_its_status_and_its_type_in_either_vocabulary(
    error: AntwortError, status: int, kind: str, standard: str
) -> None:
    for strict, expected in ((False, kind), (True, standard)):
        sent = failure(error, strict=strict)
        assert sent.status == (min(status, 500) if strict else status)
        assert json.loads(sent.body) == {
            "error": {"message": error.message, "type": expected, "param": error.param, "code": error.code}
        }


@pytest.mark.proves("TR-013", "RULING-12")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("error", "status", "standard"),
    [
        (BackendError("Broken."), 502, (500, "model_error")),
        (BackendCut("Broke off."), 502, (500, "model_error")),
        (BackendTimeout("Slow."), 504, (500, "model_error")),
        (BackendUnavailable("Away."), 503, (500, "server_error")),
        (RateLimited("Slow down."), 429, (429, "too_many_requests")),
        (ModelNotFound("scripted"), 404, (404, "not_found")),
        (BackendRefused("Too hot."), 400, (400, "invalid_request")),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AntwortError) else "",
)
async def test_a_failure_of_the_backend_has_the_standards_status_and_type_under_the_strict_setting(
    error: AntwortError, status: int, standard: tuple[int, str], is_streamed: bool
) -> None:
    for strict, expected in ((False, (status, error.type)), (True, standard)):
        async with serving(engine_of(ScriptedProvider([error]), strict=strict)) as server:
            reply = await server.ask("POST", RESPONSES, {**HELLO, "stream": is_streamed})
        assert (reply.status, reply.error["type"], reply.error["code"]) == (*expected, error.code)
        assert reply.headers.get("retry-after") == ("1" if error.may_pass else None)


@pytest.mark.proves("RULING-12")
def test_the_status_in_the_message_of_a_websocket_is_the_same() -> None:
    told = [json.loads(socket_failure(BackendError("Broken."), strict=strict)) for strict in (False, True)]
    assert [(each["status"], each["error"]["type"]) for each in told] == [(502, "server_error"), (500, "model_error")]


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"), [(2.0, b"2", b"2000"), (0.2, b"1", b"200"), (1.0004, b"2", b"1001")]
)
def test_a_wait_is_told_in_whole_seconds_and_in_milliseconds_rounded_up(
    seconds: float, whole: bytes, milliseconds: bytes
) -> None:
    headers = dict(failure(RateLimited("Slow down.", retry_after=seconds)).headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (whole, milliseconds)


def told(error: AntwortError) -> tuple[str | None, str | None]:
    """What the headers say: whether to come back, and after how many seconds."""
    headers = dict(failure(error).headers)
    retry, wait = headers.get(b"x-should-retry"), headers.get(b"retry-after")
    return retry.decode() if retry else None, wait.decode() if wait else None


@pytest.mark.parametrize(
    ("error", "retry", "wait"),
    [
        (InvalidField("input[0].type", "missing."), "false", None),
        (BackendRefused("The prompt is too long."), "false", None),
        (ContextTooLong("Too long."), "false", None),
        (NotAuthenticated("Who are you?"), "false", None),
        (NotPermitted("Not yours."), "false", None),
        (ResponseNotFound("resp_1"), "false", None),
        (MethodNotAllowed("PUT", ("POST",)), "false", None),
        (RequestTooSlow(), "true", None),
        (Conflict("It still runs."), "false", None),
        (KeyReused(), "false", None),
        (KeyInUse(), "true", "1"),
        (BodyTooLarge(10), "false", None),
        (WrongMediaType("text/plain"), "false", None),
        (HeadTooLarge(10), "false", None),
        (RateLimited("Slow down."), "true", "1"),
        (RateLimited("Slow down.", retry_after=120), "true", "120"),
        (RateLimited("Slow down.", retry_after=121), "false", "121"),
        (QuotaUsedUp("No money."), "false", None),
        (ServerFault("Broken."), None, None),
        (StoreFault("Disk full."), None, None),
        (BackendError("Broken."), None, None),
        (BackendError("It does not know us.", may_pass=False), "false", None),
        (BackendCut("Broke off."), None, None),
        (BackendUnavailable("Away."), "true", "1"),
        (BackendUnavailable("Away.", retry_after=7.5), "true", "8"),
        (BackendOverloaded("Too much."), "true", "1"),
        (ShuttingDown(), "true", "5"),
        (RequestCancelled(), "true", "1"),
        (BackendTimeout("Slow."), None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, AntwortError) else None,
)
def test_clients_are_told_whether_to_come_back_and_when(
    error: AntwortError, retry: str | None, wait: str | None
) -> None:
    assert told(error) == (retry, wait)


@pytest.mark.parametrize(
    ("retry", "error"), [(True, RateLimited("m")), (False, QuotaUsedUp("m")), (True, ServerFault("m"))]
)
async def test_the_official_sdk_does_as_it_is_told(retry: bool, error: AntwortError) -> None:
    """It decides by the headers before it looks at the status."""
    sent = failure(error)
    reply = httpx2.Response(sent.status, headers=[(name.decode(), value.decode()) for name, value in sent.headers])
    async with AsyncOpenAI(api_key="none", base_url="http://127.0.0.1:9/v1") as client:
        assert client._should_retry(reply) is retry
