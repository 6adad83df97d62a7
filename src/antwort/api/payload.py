"""Measure the text of events, and encode large ones in pieces, so that their JSON is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from antwort.api.events import (
    DELTAS,
    TERMINAL,
    ArgumentsDone,
    ContentPartDone,
    CustomInputDone,
    McpArgumentsDone,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDone,
    RefusalDone,
    ResponseInProgress,
    RunEvent,
    SummaryPartDone,
    SummaryTextDone,
    Terminal,
)
from antwort.api.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    McpCall,
    Message,
    OpaqueItem,
    OutputText,
    Reasoning,
    ReasoningText,
    SummaryText,
)
from antwort.api.wire import UnsetType, encode

T = TypeVar("T", bound=RunEvent)

PIECE = 2**19
"""Characters, about, that a subscription reads at a time."""
LARGE = 2**18
"""A recorded event with more characters is a piece of its own, which subscriptions share."""
CUT_FROM = 2**16
"""An event with more characters is encoded in pieces."""

_LONG_TEXT = 2**12
"""Texts with more characters are encoded in pieces."""
_TEXT_PIECE = 2**15
_PLACEHOLDER = token_hex(16)
"""Takes the place of a long text. It is random, so that no text contains it."""


def payload(event: RunEvent) -> int:
    """Return about how many characters of text the event holds, including texts that earlier events hold, too."""
    measure = _EVENTS.get(event.__class__)
    return 0 if measure is None else measure(event)


def _items(event: ResponseInProgress | Terminal) -> int:
    output = event.response.output
    return sum([_ITEMS.get(item.__class__, _nothing)(item) for item in output]) if output else 0


def _nothing(_: object) -> int:
    return 0


def _part(part: object) -> int:
    """Measure a part of a message, a result or reasoning. Images are texts, too."""
    if isinstance(part, _TEXTS):
        return len(part.text)
    fields = part if isinstance(part, Mapping) else msgspec.to_builtins(part)
    return sum([len(value) for value in fields.values() if isinstance(value, str)])


def _parts(parts: str | tuple[object, ...] | UnsetType | None) -> int:
    if isinstance(parts, str):
        return len(parts)
    return 0 if parts is None or isinstance(parts, UnsetType) else sum([_part(part) for part in parts])


def _call(item: McpCall) -> int:
    size = len(item.arguments) + len(item.output or "")
    if item.content:
        size += _parts(item.content)
    return size if item.error is None else size + len(item.error_text or "")


_TEXTS = (OutputText, ReasoningText, SummaryText)
_ITEMS: dict[type, Callable[[Any], int]] = {
    Message: lambda item: _parts(item.content),
    Reasoning: lambda item: _parts(item.content) + _parts(item.summary) + _parts(item.encrypted_content),
    FunctionCall: lambda item: len(item.arguments),
    FunctionCallOutput: lambda item: _parts(item.output),
    CustomToolCall: lambda item: len(item.input),
    CustomToolCallOutput: lambda item: _parts(item.output),
    McpCall: _call,
    Compaction: lambda item: len(item.encrypted_content),
    OpaqueItem: lambda item: _part(item.fields),
}
"""The fields of items that can be large. Tool lists are limited elsewhere."""
_EVENTS: dict[type, Callable[[Any], int]] = {
    **dict.fromkeys(DELTAS, lambda event: len(event.delta)),
    OutputItemDone: lambda event: _ITEMS.get(event.item.__class__, _nothing)(event.item),
    ContentPartDone: lambda event: _part(event.part),
    SummaryPartDone: lambda event: _part(event.part),
    OutputTextDone: lambda event: len(event.text),
    ReasoningTextDone: lambda event: len(event.text),
    SummaryTextDone: lambda event: len(event.text),
    RefusalDone: lambda event: len(event.refusal),
    ArgumentsDone: lambda event: len(event.arguments),
    McpArgumentsDone: lambda event: len(event.arguments),
    CustomInputDone: lambda event: len(event.input),
    ResponseInProgress: _items,
    **dict.fromkeys(TERMINAL, _items),
}
"""The fields of events that can be large. Items and parts that are added are empty."""


def payload_of_all(events: Sequence[RunEvent]) -> int:
    """Return about how many characters of text the events hold."""
    size = 0
    for event in events:
        if event.__class__ is OutputTextDelta:  # most events are
            size += len(event.delta)
        elif (measure := _EVENTS.get(event.__class__)) is not None:
            size += measure(event)
    return size


def fitting(events: Sequence[T], start: int, most: int) -> list[T]:
    """Return the next events from `start` on that make a piece, at most `most`."""
    size = 0
    for end in range(start, min(start + most, len(events))):
        size += payload(events[end])
        if size >= PIECE:
            return [*events[start : end + 1]]
    return [*events[start : start + most]]


def json_pieces(plain: Any) -> Iterator[bytes]:
    """Yield the JSON of plain values. Long texts are encoded in pieces, and never copied as a whole."""
    long: list[str] = []
    parts = encode(_with_placeholders(plain, long)).split(b'"%b"' % _PLACEHOLDER.encode())
    yield parts[0]
    for text, part in zip(long, parts[1:], strict=True):
        yield b'"'
        for start in range(0, len(text), _TEXT_PIECE):
            yield encode(text[start : start + _TEXT_PIECE])[1:-1]
        yield b'"' + part


def _with_placeholders(value: Any, long: list[str]) -> Any:
    """Return the value with placeholders for its long texts, which are added to `long`."""
    if isinstance(value, str):
        if len(value) <= _LONG_TEXT:
            return value
        long.append(value)
        return _PLACEHOLDER
    if isinstance(value, dict):
        return {key: _with_placeholders(each, long) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_with_placeholders(each, long) for each in value]
    return value
