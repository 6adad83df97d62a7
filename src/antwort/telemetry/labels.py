"""The values of metric labels. Clients cannot choose values or their number: unknown ones become `other`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args
from urllib.parse import unquote

from antwort import errors
from antwort.api.status import ResponseStatus

OTHER = "other"
MAX_NAMES = 200
_MAX_NAME_CHARS = 128

METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "WS"})
"""`WS` is a turn on a WebSocket."""
STATUSES: tuple[str, ...] = get_args(ResponseStatus)
STOPS = frozenset({"max_turns", "max_tool_calls", "deadline", "token_budget", "stuck"})
REASONS = frozenset({"", "max_output_tokens", "content_filter", "max_output_bytes", "max_turn_calls", *STOPS})
OUTCOMES = frozenset({"ok", "cancelled"})

_PLACES = frozenset(
    {
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/responses/compact",
        "/v1/conversations",
        "/v1/approvals",
        "/v1/models",
        "/v1/toolsets",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
        "/docs",
    }
)
_PARTS = frozenset({"cancel", "input_items"})
_CONVERSATION = "/v1/conversations/{id}"
ROUTES = frozenset(
    {
        *_PLACES,
        "/v1/responses/{id}",
        *(f"/v1/responses/{{id}}/{part}" for part in _PARTS),
        *(f"{_CONVERSATION}{part}" for part in ("", "/items", "/items/{id}")),
        "/v1/approvals/{id}",
        "/v1/models/{id}",
        OTHER,
    }
)


class Names:
    """A bounded set of names that are known to be the operator's. The first ones stay."""

    def __init__(self, known: Iterable[str] = (), *, most: int = MAX_NAMES) -> None:
        self.known: set[str] = set()
        self._most = most
        self.learn(known)

    def learn(self, names: Iterable[str]) -> None:
        for name in names:
            if len(self.known) >= self._most:
                return
            if name and len(name) <= _MAX_NAME_CHARS:
                self.known.add(name)

    def of(self, name: str) -> str:
        return name if name in self.known else OTHER


def method_of(method: str) -> str:
    return method if method in METHODS else OTHER


def route_of(path: str) -> str:
    """Return the route template of a path."""
    if path in _PLACES:
        return path
    match place := [unquote(segment) for segment in path.split("/")[1:]]:
        case ["v1", "responses", subject] if subject:
            return "/v1/responses/{id}"
        case ["v1", "responses", subject, part] if subject and part in _PARTS:
            return f"/v1/responses/{{id}}/{part}"
        case ["v1", "conversations", subject] if subject:
            return _CONVERSATION
        case ["v1", "conversations", subject, "items"] if subject:
            return f"{_CONVERSATION}/items"
        case ["v1", "conversations", subject, "items", item] if subject and item and "/" not in subject:
            return f"{_CONVERSATION}/items/{{id}}"
        case ["v1", "approvals", subject] if subject:
            return "/v1/approvals/{id}"
        case ["v1", "models", *name] if name and name != [""]:
            return "/v1/models/{id}"
        case ["docs", file] if file:
            return "/docs"
    whole = f"/{'/'.join(place)}"
    return whole if whole in _PLACES else OTHER


# ---- the codes of errors ----

_MORE_CODES = frozenset(
    {
        "approval_decided",
        "approval_expired",
        "backend_circuit_open",
        "backend_unauthorized",
        "backend_closed",
        "backend_connect_timeout",
        "deadline_too_short",
        "duplicate_approval",
        "duplicate_output",
        "duplicate_tool",
        "host_not_allowed",
        "invalid_idempotency_key",
        "invalid_encrypted_content",
        "invalid_http",
        "invalid_json",
        "missing_required_parameter",
        "model_not_allowed",
        "mutually_exclusive_parameters",
        "not_a_client_call",
        "origin_not_allowed",
        "previous_response_not_found",
        "reserved_label",
        "response_in_progress",
        "server_not_allowed",
        "tool_changed",
        "server_not_started",
        "string_above_max_length",
        "too_many_items",
        "too_many_keys",
        "too_many_tools",
        "unexpected_parameter",
        "unknown_approval",
        "unknown_call_id",
        "unknown_tool",
        "unknown_tool_server",
        "unknown_url",
        "unsupported_tool",
    }
)
"""Codes that no class of errors has."""


def _codes(kind: type[errors.AntwortError]) -> Iterable[str]:
    yield kind.code
    for each in kind.__subclasses__():
        if each.__module__ == errors.__name__:  # another module's are not known to be a closed set
            yield from _codes(each)


CODES = frozenset({*_codes(errors.AntwortError), *_MORE_CODES})


def code_of(code: str) -> str:
    """Return the code if it is one of ours, and not a backend's or a tool server's."""
    return code if code in CODES else OTHER
