"""Measure the text of events, and encode large ones in pieces, so that their JSON is never in memory as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from secrets import token_hex
from typing import Any, TypeVar

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
)
from antwort.api.items import (
    Compaction,
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    Text,
    ToolError,
)
from antwort.api.wire import encode

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

_LARGE_FIELDS: Mapping[type, Callable[[Any], Any]] = {
    **dict.fromkeys(DELTAS, attrgetter("delta")),
    **dict.fromkeys((OutputTextDone, ReasoningTextDone, SummaryTextDone), attrgetter("text")),
    **dict.fromkeys((ArgumentsDone, McpArgumentsDone), attrgetter("arguments")),
    **dict.fromkeys((ContentPartDone, SummaryPartDone), attrgetter("part")),
    **dict.fromkeys((ResponseInProgress, *TERMINAL), attrgetter("response.output")),
    CustomInputDone: attrgetter("input"),
    RefusalDone: attrgetter("refusal"),
    OutputItemDone: attrgetter("item"),
    Message: attrgetter("content"),
    Reasoning: attrgetter("content", "summary", "encrypted_content"),
    FunctionCall: attrgetter("arguments"),
    CustomToolCall: attrgetter("input"),
    **dict.fromkeys((FunctionCallOutput, CustomToolCallOutput), attrgetter("output")),
    McpCall: attrgetter("arguments", "output", "content", "error"),
    ToolError: attrgetter("content"),
    Compaction: attrgetter("encrypted_content"),
    OpaqueItem: attrgetter("fields"),
    **dict.fromkeys((InputText, OutputText, Text, ReasoningText, SummaryText), attrgetter("text")),
    Refusal: attrgetter("refusal"),
    InputImage: attrgetter("image_url"),
    InputFile: attrgetter("file_data", "file_url"),
    InputVideo: attrgetter("video_url"),
}
"""The fields of events, items and parts that can be large. Items and parts that are added are empty, and tool lists are
limited elsewhere.
"""


def payload(*events: RunEvent) -> int:
    """Return about how many characters of text the events hold, including texts that earlier events hold, too."""
    size = 0
    waiting: list[Any] = [*events]
    while waiting:
        value = waiting.pop()
        kind = value.__class__
        if kind is str:
            size += len(value)
        elif kind is OutputTextDelta:  # most events are
            size += len(value.delta)
        elif kind is tuple or kind is list:
            waiting += value
        elif kind is dict:
            waiting += value.values()
        elif (fields := _LARGE_FIELDS.get(kind)) is not None:
            waiting.append(fields(value))
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
