"""What an error tells a client, by OpenAI's types and by the standard's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from antwort import errors
from antwort.errors import AntwortError, InvalidField

SAMPLES: list[tuple[AntwortError, int, str, str, str]] = [
    (errors.RequestError("m"), 400, "invalid_request_error", "invalid_request", "invalid_request"),
    (errors.InvalidField("a.b", "p"), 400, "invalid_request_error", "invalid_request", "invalid_value"),
    (errors.UnsupportedFeature("m"), 400, "invalid_request_error", "invalid_request", "unsupported_parameter"),
    (errors.ContextTooLong("m"), 400, "invalid_request_error", "invalid_request", "context_length_exceeded"),
    (errors.BackendRefused("m"), 400, "invalid_request_error", "invalid_request", "invalid_prompt"),
    (errors.NotFound("m"), 404, "invalid_request_error", "not_found", "not_found"),
    (errors.ResponseNotFound("r"), 404, "invalid_request_error", "not_found", "response_not_found"),
    (errors.ItemNotFound("i", param="input[0].id"), 404, "invalid_request_error", "not_found", "item_not_found"),
    (errors.ConversationNotFound("c"), 404, "invalid_request_error", "not_found", "conversation_not_found"),
    (errors.ApprovalNotFound("a"), 404, "invalid_request_error", "not_found", "approval_not_found"),
    (errors.ModelNotFound("m"), 404, "invalid_request_error", "not_found", "model_not_found"),
    (errors.MissingField("input", "a"), 400, "invalid_request_error", "invalid_request", "missing_required_parameter"),
    (errors.DeadlineTooShort(0.1), 400, "invalid_request_error", "invalid_request", "deadline_too_short"),
    (errors.MethodNotAllowed("PUT", ("GET",)), 405, "invalid_request_error", "invalid_request", "method_not_allowed"),
    (errors.Conflict("m"), 409, "invalid_request_error", "invalid_request", "conflict"),
    (errors.KeyReused(), 409, "invalid_request_error", "invalid_request", "idempotency_key_reused"),
    (errors.KeyInUse(), 409, "invalid_request_error", "invalid_request", "idempotency_key_in_use"),
    (errors.ConversationLocked(), 409, "invalid_request_error", "invalid_request", "conversation_locked"),
    (errors.ApprovalInUse(), 409, "invalid_request_error", "invalid_request", "approval_in_use"),
    (errors.TooManyValues(5), 413, "invalid_request_error", "invalid_request", "too_many_values"),
    (errors.BodyTooLarge(5), 413, "invalid_request_error", "invalid_request", "body_too_large"),
    (errors.WrongMediaType("text/plain"), 415, "invalid_request_error", "invalid_request", "unsupported_media_type"),
    (errors.RequestTooSlow(), 408, "invalid_request_error", "invalid_request", "request_timeout"),
    (
        errors.ConnectionTooOld(60),
        400,
        "invalid_request_error",
        "invalid_request",
        "websocket_connection_limit_reached",
    ),
    (errors.BadUpgrade("m"), 400, "invalid_request_error", "invalid_request", "invalid_upgrade"),
    (
        errors.WrongSocketVersion(),
        426,
        "invalid_request_error",
        "invalid_request",
        "websocket_version_not_supported",
    ),
    (errors.SocketsOff(), 426, "invalid_request_error", "invalid_request", "websocket_not_offered"),
    (errors.HeadTooLarge(5), 431, "invalid_request_error", "invalid_request", "request_head_too_large"),
    (
        errors.UnknownTransferCoding("gzip"),
        501,
        "invalid_request_error",
        "invalid_request",
        "transfer_coding_not_supported",
    ),
    (errors.NotAuthenticated("m"), 401, "authentication_error", "invalid_request", "invalid_api_key"),
    (errors.NotPermitted("m"), 403, "permission_error", "invalid_request", "permission_denied"),
    (errors.RateLimited("m"), 429, "rate_limit_error", "too_many_requests", "rate_limit_exceeded"),
    (errors.QueueFull(5), 429, "rate_limit_error", "too_many_requests", "queue_full"),
    (errors.QuotaUsedUp("m"), 429, "rate_limit_error", "too_many_requests", "insufficient_quota"),
    (errors.AntwortError("m"), 500, "server_error", "server_error", "server_error"),
    (errors.ServerFault("m"), 500, "server_error", "server_error", "server_error"),
    (errors.StoreFault("m"), 500, "server_error", "server_error", "storage_error"),
    (errors.StoreUnavailable("m"), 503, "server_error", "server_error", "storage_unavailable"),
    (errors.HistoryMemoryFull(1, 2), 503, "server_error", "server_error", "history_memory_full"),
    (errors.Damaged(), 500, "server_error", "server_error", "storage_error"),
    (errors.AttemptsExhausted(3), 500, "server_error", "server_error", "attempts_exhausted"),
    (errors.MakerAway(), 503, "server_error", "server_error", "maker_unreachable"),
    (errors.ShuttingDown(), 503, "server_error", "server_error", "server_shutting_down"),
    (errors.TooManyFollowers(256, 128), 503, "server_error", "server_error", "too_many_followers"),
    (errors.TooManySockets(), 503, "server_error", "server_error", "too_many_websockets"),
    (errors.RequestCancelled(), 503, "server_error", "server_error", "request_cancelled"),
    (errors.BackendError("m"), 502, "server_error", "model_error", "backend_error"),
    (errors.ToolServerUnavailable("m"), 503, "server_error", "server_error", "tool_server_unavailable"),
    (errors.BackendUnavailable("m"), 503, "server_error", "server_error", "backend_unavailable"),
    (errors.BackendOverloaded("m"), 503, "server_error", "server_error", "server_is_overloaded"),
    (errors.BackendTimeout("m"), 504, "server_error", "model_error", "backend_timeout"),
    (errors.BackendCut("m"), 502, "server_error", "model_error", "backend_stream_cut"),
]


@pytest.mark.proves("RULING-12", "TR-013", "CP-030")
@pytest.mark.parametrize(("error", "status", "kind", "standard", "code"), SAMPLES, ids=lambda v: type(v).__name__)
def test_an_error_has_its_status_its_types_and_its_code(
    error: AntwortError, status: int, kind: str, standard: str, code: str
) -> None:
    assert (error.status, error.type, error.standard_type, error.code) == (status, kind, standard, code)
    assert error.message == str(error)


def _tree(kind: type[AntwortError]) -> Iterator[type[AntwortError]]:
    yield kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child)


def test_there_is_a_sample_of_every_error_and_all_are_in_the_picture() -> None:
    assert {type(error) for error, *_ in SAMPLES} == set(_tree(AntwortError))
    assert errors.__doc__ is not None
    assert all(kind.__name__ in errors.__doc__ for kind in _tree(AntwortError))


@pytest.mark.proves("CP-030")
def test_a_bad_field_is_named_in_the_message_and_apart() -> None:
    error = InvalidField("input[0].role", "missing.", code="x")
    assert (error.message, error.param, error.code) == ("Invalid 'input[0].role': missing.", "input[0].role", "x")
    assert (InvalidField("", "No body.").message, InvalidField("", "No body.").param) == ("No body.", None)


def test_a_missing_parent_has_the_code_that_clients_look_for() -> None:
    error = errors.ResponseNotFound("resp_1", param="previous_response_id")
    assert (error.code, error.param) == ("previous_response_not_found", "previous_response_id")


def test_an_error_may_say_when_to_come_back() -> None:
    assert errors.ShuttingDown().retry_after == 5
    assert errors.RateLimited("m", retry_after=1.5).retry_after == 1.5
    assert errors.RateLimited("m").retry_after is None


def test_a_code_of_one_error_is_not_that_of_its_kind() -> None:
    assert errors.BackendRefused("m", code="special").code == "special"
    assert errors.BackendRefused("m").code == "invalid_prompt"


@pytest.mark.parametrize(("got", "said"), [("text/plain", "not text/plain"), ("", "not of no declared type")])
def test_a_wrong_media_type_says_what_came(got: str, said: str) -> None:
    assert said in errors.WrongMediaType(got).message


def test_a_wrong_method_says_what_is_allowed() -> None:
    error = errors.MethodNotAllowed("PUT", ("GET", "DELETE"))
    assert error.message == "PUT is not allowed here; use GET or DELETE."
    assert error.allowed == ("GET", "DELETE")


@pytest.mark.parametrize("kind", [errors.Cancelled, errors.ClientLeft, errors.DeadlinePassed])
def test_being_told_to_stop_is_no_error_of_the_request(kind: type[errors.Interrupted]) -> None:
    assert issubclass(kind, errors.Interrupted)
    assert not issubclass(kind, AntwortError)


FOR_GOOD = {"context_length_exceeded", "insufficient_quota", "invalid_prompt"}
"""What Codex does not try again; of the codes that mean something to it, the ones that are ours to send."""


@pytest.mark.parametrize("error", [sample[0] for sample in SAMPLES], ids=lambda error: type(error).__name__)
def test_a_response_that_failed_for_good_has_a_code_that_no_client_tries_again(error: AntwortError) -> None:
    if error.may_pass is False:
        assert error.failed_code in FOR_GOOD
    else:
        assert error.failed_code == error.code
        assert error.failed_code not in FOR_GOOD


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ContextTooLong("m"), "context_length_exceeded"),
        (errors.QuotaUsedUp("m"), "insufficient_quota"),
        (errors.RateLimited("m"), "rate_limit_exceeded"),
        (errors.BackendOverloaded("m"), "server_is_overloaded"),
        (errors.BackendRefused("m"), "invalid_prompt"),
        (errors.ModelNotFound("m"), "invalid_prompt"),
        (errors.NotFound("m"), "invalid_prompt"),
        (errors.UnsupportedFeature("m"), "invalid_prompt"),
        (errors.BackendError("m", may_pass=False), "invalid_prompt"),
        (errors.BackendError("m"), "backend_error"),
        (errors.BackendCut("m"), "backend_stream_cut"),
        (errors.ShuttingDown(), "server_shutting_down"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_the_codes_of_failed_responses_are_those_that_clients_know(error: AntwortError, code: str) -> None:
    assert error.failed_code == code
