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
from antwort.engine.history.calls import call_id_of
from antwort.engine.loop.custom_input import InputReader

ClosedAs: TypeAlias = Literal["completed", "incomplete"]


_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)


class Arguments:
    """Arguments that come in pieces. Finds out when they are a whole JSON object, and scans each character once."""

    __slots__ = ("_depth", "_is_over", "_is_quoted", "_scanned", "is_whole", "pieces")

    def __init__(self) -> None:
        self.pieces: list[str] = []
        self.is_whole = False
        """Whether they were a whole JSON object when `completes` was called last, and only space has come since."""
        self._scanned = 0
        self._depth = 0
        self._is_quoted = self._is_over = False

    def feed(self, piece: str) -> None:
        self.pieces.append(piece)
        if self.is_whole and not piece.isspace():
            self.is_whole = False  # text behind an object: that is no JSON any more

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def completes(self) -> bool:
        """Return whether the pieces since the last time make the arguments whole: true at most once."""
        pieces = self.pieces
        if self._is_over or self._scanned == len(pieces):
            return False
        if (last := pieces[-1].rstrip()) and not last.endswith("}"):
            return False
        for mark in _MARKS.findall("".join(pieces[self._scanned :])):  # what ends so does not end within an escape
            if mark == '"':
                self._is_quoted = not self._is_quoted
            elif not self._is_quoted:
                self._depth += 1 if mark == "{" else -1 if mark == "}" else 0
                self._is_over = self._is_over or (mark == "}" and self._depth <= 0)
        self._scanned = len(pieces)
        self.is_whole = self._is_over and is_object(self.text)
        return self.is_whole


def is_object(text: str) -> bool:
    """Whether it is a whole JSON object. Nothing but space can follow one: more of it is no JSON at all."""
    try:
        return isinstance(msgspec.json.decode(text), dict)
    except (ValueError, RecursionError):
        return False


class OpenCall:
    """A call being written."""

    _delta: ClassVar[type[ArgumentsDelta | McpArgumentsDelta]] = ArgumentsDelta

    def __init__(self, index: int, item: FunctionCall | McpCall, called: str = "", before: int = 0) -> None:
        self.index = index
        self.called = called
        """What the model calls the tool."""
        self.before = before
        """How many calls were shown before it of those that a response runs only so many of."""
        self.written = Arguments()
        self._item = item

    @property
    def call_id(self) -> str:
        return call_id_of(self._item) if isinstance(self._item, McpCall) else self._item.call_id

    @property
    def arguments(self) -> str:
        return self.written.text

    @property
    def item(self) -> FunctionCall | McpCall:
        """As it stands."""
        return replace(self._item, arguments=self.arguments)

    def announce(self, events: Batch) -> None:
        events.append(OutputItemAdded(output_index=self.index, item=self._item))

    def feed(self, arguments: str, events: Batch) -> None:
        self.written.feed(arguments)
        events.append(self._delta(item_id=self._item.id, output_index=self.index, delta=arguments))

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = self.arguments, self._item, self.index
        events.append(ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=arguments))
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenServerCall(OpenCall):
    """One that shows as an `mcp_call`: when it is written, it stays open for its result. It is closed as completed by
    that result, and not here.
    """

    _delta = McpArgumentsDelta
    is_said = False
    """Whether its arguments are done; then it is open for its result alone."""

    def announce(self, events: Batch) -> None:
        item, at = self._item, self.index
        events += (
            OutputItemAdded(output_index=at, item=item),
            McpCallInProgress(item_id=item.id, output_index=at),
        )

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = self.arguments, self._item, self.index
        if not self.is_said:
            self.is_said = True
            events.append(McpArgumentsDone(item_id=item.id, output_index=at, arguments=arguments))
        if status != "completed":
            events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenCustomCall:
    """A call of a free-form tool being written: its arguments come as JSON, and show as the text in them."""

    def __init__(self, index: int, item: CustomToolCall) -> None:
        self.index = index
        self.written = Arguments()
        self._item = item
        self._reader = InputReader()
        self._pieces: list[str] = []

    def announce(self, events: Batch) -> None:
        events.append(OutputItemAdded(output_index=self.index, item=self._item))

    def feed(self, arguments: str, events: Batch) -> None:
        self.written.feed(arguments)
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
