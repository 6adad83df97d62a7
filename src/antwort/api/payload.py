"""How much text an event holds, and its JSON piece by piece: so that large ones are never held whole for a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from secrets import token_hex
from typing import Any, TypeVar

import msgspec

from antwort.api.events import (
    DELTAS,
    TERMINAL,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDone,
    McpArgumentsDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDone,
    ReasoningTextDone,
    RefusalDone,
    ResponseInProgress,
    RunEvent,
    SummaryPartDone,
    SummaryTextDone,
)
from antwort.api.items import McpListTools
from antwort.api.wire import encode

T = TypeVar("T", bound=RunEvent)

PIECE = 2**19
"""Characters, about, that a reader is given in one piece."""
LARGE = 2**18
"""An event with more characters is written piece by piece."""

_LONG = 2**12
"""Texts of more characters are cut, where they are written piece by piece."""
_CUT = 2**15
_MARK = token_hex(16)
"""Stands for a text that is cut. Nobody else knows it."""

_TEXT, _ARGUMENTS, _OUTPUT = attrgetter("text"), attrgetter("arguments"), attrgetter("response.output")
_HELD: dict[type, Callable[[Any], object]] = {
    OutputItemAdded: attrgetter("item"),
    OutputItemDone: attrgetter("item"),
    ContentPartAdded: attrgetter("part"),
    ContentPartDone: attrgetter("part"),
    SummaryPartDone: attrgetter("part"),
    OutputTextDone: _TEXT,
    ReasoningTextDone: _TEXT,
    SummaryTextDone: _TEXT,
    RefusalDone: attrgetter("refusal"),
    ArgumentsDone: _ARGUMENTS,
    McpArgumentsDone: _ARGUMENTS,
    CustomInputDone: attrgetter("input"),
    ResponseInProgress: _OUTPUT,
    **dict.fromkeys(TERMINAL, _OUTPUT),
}
"""What the events hold that can be large. An event that repeats a text counts it again, as it is written again."""


def payload(event: RunEvent) -> int:
    """Return how many characters of text the event holds, about."""
    if isinstance(event, DELTAS):
        return len(event.delta)
    held = _HELD.get(event.__class__)
    return 0 if held is None else _texts(held(event))


def _texts(value: object) -> int:
    """The texts in items and their parts; what tools are listed with is bounded elsewhere."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, tuple | list):
        return sum(map(_texts, value))
    if isinstance(value, dict):
        return sum([len(each) for each in value.values() if isinstance(each, str)])
    if isinstance(value, msgspec.Struct) and not isinstance(value, McpListTools):
        return sum([_texts(getattr(value, name)) for name in value.__struct_fields__])
    return 0


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
