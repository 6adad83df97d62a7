"""Parse the answers of backends with the Responses API, streamed or whole, into deltas. Pure.

Whatever can be read of an answer is: a field of an unknown shape counts as missing, and unknown events and items are
ignored.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from antwort.api.responses import Usage
from antwort.errors import AntwortError, BackendCut, BackendError
from antwort.providers.answer_parser import (
    DECODE_ERRORS,
    AnswerParser,
    ReportedLogProb,
    ReportedUsage,
    byte_size,
    delta_size,
    normalize_logprobs,
    normalize_usage,
    repair_usage,
)
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta
from antwort.providers.errors import BROKEN_OFF, SentRequest, error_in, json_text

# ---- what backends send ----


class _ReportedResponse(msgspec.Struct, gc=False):
    status: str | None = None
    usage: msgspec.Raw = msgspec.Raw(b"null")
    incomplete_details: Any = None
    error: Any = None
    output: Any = None


class _ReportedEvent(msgspec.Struct, gc=False):
    type: str = ""
    delta: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    logprobs: list[ReportedLogProb] | None = None
    text: str | None = None
    refusal: str | None = None
    arguments: Any = None
    item: Any = None
    response: msgspec.Raw = msgspec.Raw(b"null")


class _ReportedPart(msgspec.Struct, gc=False):
    """A content part of a message or of reasoning."""

    text: str | None = None
    refusal: str | None = None
    logprobs: list[ReportedLogProb] | None = None

    def append_to(self, out: list[Delta]) -> None:
        if self.text:
            out.append(TextDelta(self.text, normalize_logprobs(self.logprobs or ())))
        if self.refusal:
            out.append(RefusalDelta(self.refusal))


class _ReportedItem(msgspec.Struct, gc=False):
    type: str = ""
    id: str | None = None
    name: str = ""
    arguments: str = ""
    content: tuple[_ReportedPart, ...] = ()
    summary: tuple[_ReportedPart, ...] = ()

    def reasoning(self) -> list[ReasoningDelta]:
        """Return the deltas of a reasoning item: its content, or else its summary."""
        return [ReasoningDelta(part.text) for part in self.content or self.summary if part.text]


T = TypeVar("T", _ReportedEvent, _ReportedResponse)
_event_decoder = msgspec.json.Decoder(_ReportedEvent)
_response_decoder = msgspec.json.Decoder(_ReportedResponse)
_usage_decoder = msgspec.json.Decoder(ReportedUsage | None)


def _decode(payload: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode an object; if a field has another type than expected, decode the others one by one."""
    try:
        return decoder.decode(payload)
    except msgspec.ValidationError:
        result: T = decoder.type()
    try:
        values = msgspec.json.decode(payload, type=dict[str, msgspec.Raw])
    except msgspec.ValidationError:
        return result
    for field in msgspec.structs.fields(result):
        if field.name in values:
            with contextlib.suppress(msgspec.ValidationError):
                setattr(result, field.name, msgspec.json.decode(values[field.name], type=field.type))
    return result


def _parse_items(output: Any) -> list[_ReportedItem]:
    return [_parse_item(item) for item in output] if isinstance(output, list) else []


def _parse_item(item: Any) -> _ReportedItem:
    fields = item if isinstance(item, dict) else {}
    return _ReportedItem(
        type=_text_or_none(fields.get("type")) or "",
        id=_text_or_none(fields.get("id")),
        name=_text_or_none(fields.get("name")) or "",
        arguments=json_text(fields.get("arguments")),
        content=_parse_parts(fields.get("content")),
        summary=_parse_parts(fields.get("summary")),
    )


def _parse_parts(parts: Any) -> tuple[_ReportedPart, ...]:
    return tuple(_parse_part(part) for part in parts) if isinstance(parts, list) else ()


def _parse_part(part: Any) -> _ReportedPart:
    fields = part if isinstance(part, dict) else {}
    try:
        logprobs = msgspec.convert(fields.get("logprobs"), list[ReportedLogProb] | None)
    except DECODE_ERRORS:
        logprobs = None
    return _ReportedPart(_text_or_none(fields.get("text")), _text_or_none(fields.get("refusal")), logprobs)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _parse_usage(reported: msgspec.Raw) -> Usage | None:
    """Return the usage; None where it cannot be read, which is no reason to fail an answer."""
    try:
        usage = _usage_decoder.decode(reported)
    except DECODE_ERRORS:
        usage = repair_usage(reported, ReportedUsage)
    return None if usage is None else normalize_usage(usage)


# ---- which items and parts have come ----


class _StreamedCall:
    """A call of a stream. `id` is the backend's: it may be missing, or another one in every event."""

    __slots__ = ("has_arguments", "id", "is_done", "number")

    def __init__(self, number: int, item_id: str | None) -> None:
        self.number, self.id = number, item_id
        self.has_arguments = self.is_done = False


def _open_calls(calls: Sequence[_StreamedCall]) -> list[_StreamedCall]:
    return [call for call in calls if not call.is_done]


def _call_with_id(calls: list[_StreamedCall], item_id: str | None) -> _StreamedCall | None:
    return next((call for call in calls if item_id and call.id == item_id), None)


_REASONING = -1
"""The part number of an item's reasoning."""


class _EmittedParts:
    """Remember which parts of which items were emitted. An item is known by its index, its id or both."""

    __slots__ = ("_last", "_parts")

    def __init__(self) -> None:
        self._parts: set[tuple[int | str | None, int]] = set()
        self._last: tuple[int | None, str | None, int] | None = None

    @property
    def has_content(self) -> bool:
        return any(part != _REASONING for _, part in self._parts)

    @property
    def has_reasoning(self) -> bool:
        return any(part == _REASONING for _, part in self._parts)

    def add(self, index: int | None, item_id: str | None, part: int) -> None:
        """Add a part. This runs for every delta, so the part of the delta before costs one comparison."""
        here = (index, item_id, part)
        if here != self._last:
            self._last = here
            self._parts.update((key, part) for key in _item_keys(index, item_id))

    def has(self, index: int | None, item_id: str | None, part: int) -> bool:
        """Return whether the part was emitted. A part that came without index and id may belong to any item."""
        return any((key, part) in self._parts for key in (*_item_keys(index, item_id), None))


def _item_keys(index: int | None, item_id: str | None) -> tuple[int | str | None, ...]:
    return tuple(key for key in (index, item_id) if key is not None) or (None,)


# ---- parsers ----


class ResponsesParser(AnswerParser):
    """Parse events: deltas as they come, and what comes without deltas when its part, its item or the response is done.
    A whole response is parsed like the last event of a stream, but with every item, whatever its id.
    """

    _calls: list[_StreamedCall] = msgspec.field(default_factory=list)
    _calls_by_index: dict[int, list[_StreamedCall]] = msgspec.field(default_factory=dict)
    _calls_by_id: dict[str, list[_StreamedCall]] = msgspec.field(default_factory=dict)
    _has_reasoning_text: bool = False
    _emitted: _EmittedParts = msgspec.field(default_factory=_EmittedParts)

    def _parse(self, payload: bytes, out: list[Delta]) -> None:
        if self.is_whole:
            response = _response_decoder.decode(payload)
            items = _parse_items(response.output)
            for item in items:
                item.id = None
            self._end_with(response, items, response.status, payload, out)
            return
        event = _decode(payload, _event_decoder) if payload.startswith(b"{") else _ReportedEvent()
        if event.type in _TEXT_DELTAS and event.delta:
            self._emitted.add(event.output_index, event.item_id, event.content_index or 0)
            self._size += byte_size(event.delta)
            out.append(TextDelta(event.delta, normalize_logprobs(event.logprobs) if event.logprobs else ()))
            return
        before = len(out)
        self._parse_other_event(event, payload, out)
        self._size += sum(map(delta_size, out[before:]))

    def _parse_other_event(self, event: _ReportedEvent, payload: bytes, out: list[Delta]) -> None:
        match event.type.removeprefix("response."):
            case "reasoning_text.delta" | "reasoning.delta" if event.delta:
                self._has_reasoning_text = True
                self._emitted.add(event.output_index, event.item_id, _REASONING)
                out.append(ReasoningDelta(event.delta))
            case "reasoning_summary_text.delta" if event.delta and not self._has_reasoning_text:
                self._emitted.add(event.output_index, event.item_id, _REASONING)
                out.append(ReasoningDelta(event.delta))
            case "refusal.delta" if event.delta:
                self._emitted.add(event.output_index, event.item_id, event.content_index or 0)
                out.append(RefusalDelta(event.delta))
            case "function_call_arguments.delta" | "function_call_arguments.done":
                self._parse_arguments(event, out)
            case "output_text.done" | "refusal.done":
                part = _ReportedPart(text=event.text, refusal=event.refusal, logprobs=event.logprobs)
                self._emit_part(event.output_index, event.item_id, event.content_index or 0, part, out)
            case ("output_item.added" | "output_item.done") as kind:
                item = _parse_item(event.item)
                if item.type == "function_call":
                    self._parse_call(item, event.output_index, is_done=kind == "output_item.done", out=out)
                elif kind == "output_item.done":
                    self._emit_item(item, event.output_index, out)
            case _ if event.type in _TERMINAL_EVENTS:
                self._parse_terminal_event(event, payload, out)

    def _end(self, out: list[Delta]) -> None:  # noqa: ARG002 - without a terminal event there is nothing to emit
        self._fail(BackendCut(BROKEN_OFF))

    # ---- messages and reasoning ----

    def _emit_part(
        self, index: int | None, item_id: str | None, part_number: int, part: _ReportedPart, out: list[Delta]
    ) -> None:
        """Emit a finished part of a message, unless deltas of it came before."""
        if (part.text or part.refusal) and not self._emitted.has(index, item_id, part_number):
            self._emitted.add(index, item_id, part_number)
            part.append_to(out)

    def _emit_item(self, item: _ReportedItem, index: int | None, out: list[Delta]) -> None:
        """Emit what no delta has brought of a finished message or reasoning item."""
        if item.type == "reasoning" and not self._emitted.has(index, item.id, _REASONING):
            self._emitted.add(index, item.id, _REASONING)
            out.extend(item.reasoning())
        elif item.type == "message":
            for number, part in enumerate(item.content):
                self._emit_part(index, item.id, number, part, out)

    # ---- calls ----

    def _parse_call(self, item: _ReportedItem, index: int | None, *, is_done: bool, out: list[Delta]) -> None:
        """Emit a call's name when the call is added; and, if no deltas came, its arguments when it is done."""
        call = self._open_call(index, item.id) if is_done else None
        if call is None:
            call = _StreamedCall(len(self._calls), item.id)
            self._calls.append(call)
            if index is not None:
                self._calls_by_index.setdefault(index, []).append(call)
            if item.id:
                self._calls_by_id.setdefault(item.id, []).append(call)
            call.has_arguments = bool(item.arguments)
            out.append(CallDelta(call.number, item.name, item.arguments))
        elif item.arguments and not call.has_arguments:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", item.arguments))
        call.is_done = is_done

    def _open_call(self, index: int | None, item_id: str | None) -> _StreamedCall | None:
        """Return the call that a finished item was added as: by its index, else by its id, else the last open one."""
        if index is not None and (here := _open_calls(self._calls_by_index.get(index, ()))):
            return _call_with_id(here, item_id) or here[-1]
        if item_id:
            return next(iter(_open_calls(self._calls_by_id.get(item_id, ()))), None)
        return next((call for call in reversed(self._calls) if not call.is_done), None) if index is None else None

    def _parse_arguments(self, event: _ReportedEvent, out: list[Delta]) -> None:
        if event.output_index is not None and (here := self._calls_by_index.get(event.output_index)):
            call = _call_with_id(here, event.item_id) or here[-1]
        elif event.item_id and (known := self._calls_by_id.get(event.item_id)):
            call = known[0]
        elif self._calls:
            call = self._calls[-1]
        else:
            return
        arguments = event.delta or ("" if call.has_arguments else json_text(event.arguments))
        if arguments:
            call.has_arguments = True
            out.append(CallDelta(call.number, "", arguments))

    # ---- the end ----

    def _parse_terminal_event(self, event: _ReportedEvent, payload: bytes, out: list[Delta]) -> None:
        response = _decode(event.response, _response_decoder)
        status = response.status or event.type.removeprefix("response.")
        error = msgspec.json.encode({"error": response.error}) if response.error else payload
        self._end_with(response, _parse_items(response.output), status, error, out)

    def _end_with(
        self,
        response: _ReportedResponse,
        items: list[_ReportedItem],
        status: str | None,
        error: bytes,
        out: list[Delta],
    ) -> None:
        """Emit the items that only the whole response brings, once for each id, and how it ended. Of the kinds of items
        of which something came before, nothing is missing. `error`: the JSON with the error object of a response that
        has failed.
        """
        has_calls = bool(self._calls) or any(item.type == "function_call" for item in items)
        end = _outcome(response, status, error, self.sent, has_calls=has_calls)
        if not isinstance(end, Finished):
            self._fail(end)
            return
        calls, has_content, has_reasoning = len(self._calls), self._emitted.has_content, self._emitted.has_reasoning
        for index, item in enumerate(items):
            if item.type == "function_call" and not self._calls:
                out.append(CallDelta(calls, item.name, item.arguments))
                calls += 1
            elif not (has_reasoning if item.type == "reasoning" else has_content):
                self._emit_item(item, index, out)
        self.ended = True
        out.append(end)


_TEXT_DELTAS = frozenset({"response.output_text.delta", "output_text.delta"})
_TERMINAL_EVENTS = frozenset(
    {
        "error",
        "response.completed",
        "response.incomplete",
        "response.failed",
        "response.cancelled",
        "response.requires_action",
    }
)


def _outcome(
    response: _ReportedResponse, status: str | None, error: bytes, sent: SentRequest, *, has_calls: bool
) -> Finished | AntwortError:
    """Return how a response ended. Its own status comes first: some backends end all streams with
    `response.completed`.
    """
    match status:
        case "completed" | "requires_action":
            return Finished("tool_calls" if has_calls else "stop", _parse_usage(response.usage))
        case "incomplete":
            details = response.incomplete_details
            reason = details.get("reason") if isinstance(details, dict) else None
            if reason in (None, "max_output_tokens"):
                return Finished("length", _parse_usage(response.usage))
            if reason == "content_filter":
                return Finished(reason, _parse_usage(response.usage))
            # Any other limit is the backend's own: the answer is cut.
            word = reason if isinstance(reason, str) and re.fullmatch(r"[a-z_]{1,40}", reason) else "unknown reason"
            return BackendCut(f"The backend ended its answer before it was complete: {word}.")
        case "cancelled":
            return BackendCut("The backend's answer was cancelled there.")
        case _:
            return error_in(error, sent) or BackendError("The backend failed to answer.")
