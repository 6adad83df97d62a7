"""Calls that are being written."""

from __future__ import annotations

import re
from typing import ClassVar, Literal, TypeAlias

import msgspec

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Batch,
    CustomInputDelta,
    CustomInputDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
)
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.api.wire import replace
from antwort.engine.pairs import call_id_of
from antwort.engine.unwrapping import InputReader

ClosedAs: TypeAlias = Literal["completed", "incomplete"]


_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)


class _Closing:
    """Sees where an object ends that comes in pieces, as long as it may be JSON. Each character is looked at once."""

    __slots__ = ("_depth", "_is_over", "_is_quoted", "_unread")

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._depth = 0
        self._is_quoted = self._is_over = False

    def ends_with(self, piece: str) -> bool:
        """Whether the piece ends the object: once, as nothing but space can follow one."""
        if self._is_over:
            return False
        self._unread.append(piece)
        if not piece.rstrip().endswith("}"):
            return False
        for mark in _MARKS.findall("".join(self._unread)):  # what ends so does not end within an escape
            if mark == '"':
                self._is_quoted = not self._is_quoted
            elif not self._is_quoted:
                self._depth += (mark == "{") - (mark == "}")
        self._unread.clear()
        self._is_over = self._depth <= 0 and not self._is_quoted
        return self._is_over


def is_object(text: str) -> bool:
    """Whether it is a whole JSON object. Nothing but space can follow one: more of it is no JSON at all."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


class OpenCall:
    """A call being written."""

    is_whole = False
    """Whether somebody asked, and it was a call then: see `is_object`."""
    _delta: ClassVar[type[ArgumentsDelta | McpArgumentsDelta]] = ArgumentsDelta
    _closing: _Closing | None = None

    def __init__(self, index: int, item: FunctionCall | McpCall, called: str = "", before: int = 0) -> None:
        self.index = index
        self.called = called
        """What the model calls the tool."""
        self.before = before
        """How many calls were shown before it of those that a response runs only so many of."""
        self._item = item
        self._pieces: list[str] = []

    @property
    def call_id(self) -> str:
        return call_id_of(self._item) if isinstance(self._item, McpCall) else self._item.call_id

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    @property
    def item(self) -> FunctionCall | McpCall:
        """As it stands."""
        return replace(self._item, arguments=self.arguments)

    def announce(self, events: Batch) -> None:
        events.append(OutputItemAdded(output_index=self.index, item=self._item))

    def feed(self, arguments: str, events: Batch) -> None:
        self._pieces.append(arguments)
        if self.is_whole and not arguments.isspace():
            self.is_whole = False  # a backend that writes behind an object: that is no call any more
        events.append(self._delta(item_id=self._item.id, output_index=self.index, delta=arguments))

    def is_complete_with(self, arguments: str) -> bool:
        """Whether these, which it was fed last, make it whole. Asked each time, or never."""
        if self._closing is None:
            self._closing = _Closing()
        if self._closing.ends_with(arguments):
            self.is_whole = is_object(self.arguments)
            return self.is_whole
        return False

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = self.arguments, self._item, self.index
        events.append(ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=arguments))
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenServerCall(OpenCall):
    """One that shows as an `mcp_call`: when it is written, it stays open for its result."""

    _delta = McpArgumentsDelta

    def announce(self, events: Batch) -> None:
        item, at = self._item, self.index
        events += (
            OutputItemAdded(output_index=at, item=item),
            McpCallInProgress(item_id=item.id, output_index=at),
        )

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = "".join(self._pieces), self._item, self.index
        events.append(McpArgumentsDone(item_id=item.id, output_index=at, arguments=arguments))
        if status != "completed":
            events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenCustomCall:
    """A call of a free-form tool being written: its arguments come as JSON, and show as the text in them."""

    def __init__(self, index: int, item: CustomToolCall) -> None:
        self.index = index
        self._item = item
        self._reader = InputReader()
        self._pieces: list[str] = []

    def announce(self, events: Batch) -> None:
        events.append(OutputItemAdded(output_index=self.index, item=self._item))

    def feed(self, arguments: str, events: Batch) -> None:
        self.feed_text(self._reader.feed(arguments), events)

    def feed_text(self, text: str, events: Batch) -> None:
        """A piece of the input itself."""
        if text:
            self._pieces.append(text)
            events.append(CustomInputDelta(item_id=self._item.id, output_index=self.index, delta=text))

    def close(self, status: ClosedAs, events: Batch) -> None:
        """One that was cut holds what was shown of it: what else has come may not be what it looks like."""
        if status == "completed":
            self.feed_text(self._reader.finish(), events)
        whole, item, at = "".join(self._pieces), self._item, self.index
        events.append(CustomInputDone(item_id=item.id, output_index=at, input=whole))
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, input=whole)))


ShownCall: TypeAlias = OpenCall | OpenCustomCall
