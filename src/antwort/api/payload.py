"""How much text an event holds, and its JSON piece by piece: so that large ones are never held whole for a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
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
"""Characters, about, that a reader is given in one piece."""
LARGE = 2**18
"""An event of a log with more characters is a piece of its own, which its readers share."""
CUT_FROM = 2**16
"""An event with more characters is written bit by bit."""

_LONG = 2**12
"""Texts of more characters are cut, where they are written piece by piece."""
_CUT = 2**15
_MARK = token_hex(16)
"""Stands for a text that is cut. Nobody else knows it."""


def payload(event: RunEvent) -> int:
    """Return how many characters of text the event holds, about. One that repeats a text counts it again, as it is
    written again.
    """
    measure = _EVENTS.get(event.__class__)
    return 0 if measure is None else measure(event)


def _items(event: ResponseInProgress | Terminal) -> int:
    output = event.response.output
    return sum([_ITEMS.get(item.__class__, _nothing)(item) for item in output]) if output else 0


def _nothing(_: object) -> int:
    return 0


def _part(part: object) -> int:
    """Of a message, a result or a thought. Images are texts, too."""
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
"""What items hold that can be large. What tools are listed with is bounded elsewhere."""
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
"""And events. What is added is empty at first."""


_ONLY_TEXT = frozenset({OutputTextDelta})
_delta_of = attrgetter("delta")


def payload_of_all(events: Sequence[RunEvent]) -> int:
    """Return how many characters of text the events hold, about."""
    if _ONLY_TEXT.issuperset(map(type, events)):
        return sum(map(len, map(_delta_of, events)))
    size = 0
    for event in events:
        if event.__class__ is OutputTextDelta:
            size += len(event.delta)
        elif (measure := _EVENTS.get(event.__class__)) is not None:
            size += measure(event)
    return size


def fitting(events: Sequence[T], start: int, most: int) -> list[T]:
    """The next events from `start` on, as many as make a piece, and at most so many."""
    size = 0
    for end in range(start, min(start + most, len(events))):
        size += payload(events[end])
        if size >= PIECE:
            return [*events[start : end + 1]]
    return [*events[start : start + most]]


def json_pieces(plain: Any) -> Iterator[bytes]:
    """The JSON of plain values. Long texts are encoded bit by bit, and never copied whole."""
    long: list[str] = []
    parts = encode(_shortened(plain, long)).split(b'"%b"' % _MARK.encode())
    yield parts[0]
    for text, part in zip(long, parts[1:], strict=True):
        yield b'"'
        for start in range(0, len(text), _CUT):
            yield encode(text[start : start + _CUT])[1:-1]
        yield b'"' + part


def _shortened(value: Any, long: list[str]) -> Any:
    """With a mark for each text that goes to `long`."""
    if isinstance(value, str):
        if len(value) <= _LONG:
            return value
        long.append(value)
        return _MARK
    if isinstance(value, dict):
        return {key: _shortened(each, long) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shortened(each, long) for each in value]
    return value
