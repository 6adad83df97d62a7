"""Errors as HTTP answers."""

from __future__ import annotations

import json

import pytest

from antwort.errors import (
    AntwortError,
    BackendCut,
    BackendError,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    BodyTooLarge,
    Conflict,
    InvalidField,
    MethodNotAllowed,
    NotAuthenticated,
    NotPermitted,
    RateLimited,
    RequestCancelled,
    ResponseNotFound,
    ServerFault,
    ShuttingDown,
    StoreFault,
    WrongMediaType,
)
from antwort.transport.errors import failure

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
    (BackendError("Broken."), 502, "server_error", "server_error"),
    (BackendCut("Broke off."), 502, "server_error", "server_error"),
    (BackendUnavailable("Away."), 503, "server_error", "server_error"),
    (ShuttingDown(), 503, "server_error", "server_error"),
    (RequestCancelled(), 503, "server_error", "server_error"),
    (BackendTimeout("Slow."), 504, "server_error", "server_error"),
]


@pytest.mark.proves("TR-013", "RULING-12", "CP-030")
@pytest.mark.parametrize(("error", "status", "kind", "standard"), CASES, ids=lambda case: type(case).__name__)
def test_an_error_has_its_status_and_its_type_in_either_vocabulary(
    error: AntwortError, status: int, kind: str, standard: str
) -> None:
    for strict, expected in ((False, kind), (True, standard)):
        sent = failure(error, strict=strict)
        assert sent.status == status
        assert json.loads(sent.body) == {
            "error": {"message": error.message, "type": expected, "param": error.param, "code": error.code}
        }


@pytest.mark.parametrize(
    ("seconds", "whole", "milliseconds"), [(2.0, b"2", b"2000"), (0.2, b"1", b"200"), (1.0004, b"2", b"1001")]
)
def test_a_wait_is_told_in_whole_seconds_and_in_milliseconds_rounded_up(
    seconds: float, whole: bytes, milliseconds: bytes
) -> None:
    headers = dict(failure(RateLimited("Slow down.", retry_after=seconds)).headers)
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (whole, milliseconds)


def test_clients_are_told_not_to_repeat_a_wrong_request_and_may_repeat_the_others() -> None:
    told = {error.status: dict(failure(error).headers).get(b"x-should-retry") for error, *_ in CASES}
    assert {status for status, value in told.items() if value == b"false"} == {400, 401, 403, 404, 405, 413, 415}
    assert all(value in (b"false", None) for value in told.values())
