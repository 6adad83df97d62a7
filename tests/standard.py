"""The standard's own types, as the package `openresponses_types` has them, to hold ours against.

The package is laxer than the standard in one thing: it takes null for every optional field. The standard has no
optional field that may be null in what a server writes, so null there is a mismatch too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import openresponses_types as types
from pydantic import BaseModel, TypeAdapter

EVENTS: dict[str, type[BaseModel]] = {
    "error": types.ErrorStreamingEvent,
    "response.completed": types.ResponseCompletedStreamingEvent,
    "response.content_part.added": types.ResponseContentPartAddedStreamingEvent,
    "response.content_part.done": types.ResponseContentPartDoneStreamingEvent,
    "response.created": types.ResponseCreatedStreamingEvent,
    "response.failed": types.ResponseFailedStreamingEvent,
    "response.function_call_arguments.delta": types.ResponseFunctionCallArgumentsDeltaStreamingEvent,
    "response.function_call_arguments.done": types.ResponseFunctionCallArgumentsDoneStreamingEvent,
    "response.in_progress": types.ResponseInProgressStreamingEvent,
    "response.incomplete": types.ResponseIncompleteStreamingEvent,
    "response.output_item.added": types.ResponseOutputItemAddedStreamingEvent,
    "response.output_item.done": types.ResponseOutputItemDoneStreamingEvent,
    "response.output_text.annotation.added": types.ResponseOutputTextAnnotationAddedStreamingEvent,
    "response.output_text.delta": types.ResponseOutputTextDeltaStreamingEvent,
    "response.output_text.done": types.ResponseOutputTextDoneStreamingEvent,
    "response.queued": types.ResponseQueuedStreamingEvent,
    "response.reasoning.delta": types.ResponseReasoningDeltaStreamingEvent,
    "response.reasoning.done": types.ResponseReasoningDoneStreamingEvent,
    "response.reasoning_summary_part.added": types.ResponseReasoningSummaryPartAddedStreamingEvent,
    "response.reasoning_summary_part.done": types.ResponseReasoningSummaryPartDoneStreamingEvent,
    "response.reasoning_summary_text.delta": types.ResponseReasoningSummaryDeltaStreamingEvent,
    "response.reasoning_summary_text.done": types.ResponseReasoningSummaryDoneStreamingEvent,
    "response.refusal.delta": types.ResponseRefusalDeltaStreamingEvent,
    "response.refusal.done": types.ResponseRefusalDoneStreamingEvent,
}
"""The standard's 24 events."""

ITEMS: dict[str, type[BaseModel]] = {
    "compaction": types.CompactionBody,
    "function_call": types.FunctionCall,
    "function_call_output": types.FunctionCallOutput,
    "message": types.Message,
    "reasoning": types.ReasoningBody,
}
"""The standard's 5 items."""


class StandardMismatch(AssertionError):
    """What was written is not what the standard asks for."""


def validate_response(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is a response of the standard."""
    _validate(plain, types.ResponseResource)


def validate_event(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is one of the standard's events, number included."""
    kind = plain.get("type")
    if kind not in EVENTS:
        raise StandardMismatch(f"the standard has no event {kind!r}")
    _validate(plain, EVENTS[kind])


def validate_item(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is one of the standard's output items."""
    kind = plain.get("type")
    if kind not in ITEMS:
        raise StandardMismatch(f"the standard has no item {kind!r}")
    _validate(plain, ITEMS[kind])


def validate_request(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is a request that the standard allows."""
    TypeAdapter(types.CreateResponseBody).validate_json(json.dumps(plain), strict=True)


def validate_compaction(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is a compacted window of the standard."""
    _validate(plain, types.CompactResource)


def validate_socket_error(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is an error as the standard sends it over a WebSocket."""
    _validate(plain, types.WebSocketErrorEvent)


ERROR_TYPES = frozenset({"server_error", "invalid_request", "not_found", "model_error", "too_many_requests"})


def validate_error(plain: dict[str, Any]) -> None:
    """Raise unless `plain` is the body of an error. The standard has no schema for it: its prose has."""
    error = plain["error"]
    _validate(error, types.ErrorPayload)
    if list(plain) != ["error"] or error["type"] not in ERROR_TYPES:
        raise StandardMismatch(f"not an error of the standard: {plain}")


# ---- extensions: what the standard does not have has a prefix ----

_EXTENSION = re.compile(r"[a-z][a-z0-9_-]*:[a-z][a-z0-9_.-]*")
_SOME_ITEM = {"type": "compaction", "id": "cmp_1", "encrypted_content": ""}


def validate_extended_response(plain: dict[str, Any]) -> None:
    """As `validate_response`, with items and tools of other types among those of the standard."""
    validate_response(_without_extensions(plain))


def validate_extended_event(plain: dict[str, Any]) -> None:
    """As `validate_event`, with other events and items among those of the standard."""
    if ":" in plain["type"]:
        _check_extension(plain, "sequence_number")
    elif "response" in plain:
        validate_event({**plain, "response": _without_extensions(plain["response"])})
    else:
        validate_event({**plain, "item": _stand_in(plain["item"])} if "item" in plain else plain)


def _without_extensions(response: dict[str, Any]) -> dict[str, Any]:
    own = [tool for tool in response["tools"] if not _is_extension(tool)]
    choice = response["tool_choice"]
    is_own = isinstance(choice, dict) and _is_extension(choice)
    output = [_stand_in(item) for item in response["output"]]
    return {**response, "output": output, "tools": own, "tool_choice": "auto" if is_own else choice}


def _stand_in(item: dict[str, Any]) -> dict[str, Any]:
    return _SOME_ITEM if _is_extension(item, "id", "status") else item


def _is_extension(plain: dict[str, Any], *fields: str) -> bool:
    if ":" in plain["type"]:
        _check_extension(plain, *fields)
    return ":" in plain["type"]


def _check_extension(plain: dict[str, Any], *fields: str) -> None:
    if not _EXTENSION.fullmatch(plain["type"]) or not all(plain.get(field) is not None for field in fields):
        raise StandardMismatch(f"not an extension of the standard: {plain}")


def _validate(plain: dict[str, Any], model: type[BaseModel]) -> None:
    # From JSON, and strictly: a float is no timestamp, and "1" is no number.
    parsed = model.model_validate_json(json.dumps(plain), strict=True)
    if nulls := sorted(_nulls(parsed, model.__name__)):
        raise StandardMismatch(f"null where the standard has no null: {', '.join(nulls)}")


def _nulls(value: object, path: str) -> Iterator[str]:
    """The optional fields in `value` that were written as null."""
    if isinstance(value, list):
        for i, entry in enumerate(value):
            yield from _nulls(entry, f"{path}[{i}]")
    if not isinstance(value, BaseModel):
        return
    for name in value.model_fields_set:
        entry, field = getattr(value, name), type(value).model_fields.get(name)
        if entry is None and field is not None and not field.is_required():
            yield f"{path}.{name}"
        yield from _nulls(entry, f"{path}.{name}")
