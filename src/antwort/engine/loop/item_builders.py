"""Items that are being written: how they are announced, fed and closed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Literal, TypeAlias

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Batch,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    CustomInputDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RunEvent,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from antwort.api.events import RefusalDelta as RefusalDeltaEvent
from antwort.api.events import RefusalDone as RefusalDoneEvent
from antwort.api.items import (
    ContentPart,
    CustomToolCall,
    FunctionCall,
    LogProb,
    McpCall,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antwort.api.requests import ReasoningOptions
from antwort.api.wire import replace
from antwort.engine.history.calls import Call, PendingCall, call_id_of
from antwort.engine.history.sealed_items import Seal
from antwort.engine.loop.custom_input import InputReader, is_object
from antwort.providers.base import ReasoningDelta, RefusalDelta, TextDelta

ClosedAs: TypeAlias = Literal["completed", "incomplete"]
ReasoningStyle: TypeAlias = Literal["text", "summary"]

_MARKS = re.compile(r'\\.|["{}]', re.DOTALL)


def reasoning_style(options: ReasoningOptions) -> ReasoningStyle:
    return "summary" if options.summary or options.generate_summary else "text"


class OpenReasoning:
    """Reasoning being written, as raw text or as a summary; with `seal`, what it comes to is given out sealed, too."""

    def __init__(
        self, index: int, style: ReasoningStyle, item_id: str, events: Batch, seal: Seal | None = None
    ) -> None:
        self.index, self.style, self._seal = index, style, seal
        self._item = Reasoning(id=item_id, status="in_progress")
        self._pieces: list[str] = []
        if style == "summary":
            summary = SummaryText(text="")
            events.append(OutputItemAdded(output_index=index, item=self._item))
            events.append(SummaryPartAdded(item_id=item_id, output_index=index, summary_index=0, part=summary))
        else:
            part = ReasoningText(text="")
            events.append(OutputItemAdded(output_index=index, item=replace(self._item, content=())))
            events.append(ContentPartAdded(item_id=item_id, output_index=index, content_index=0, part=part))

    def feed(self, delta: ReasoningDelta, events: Batch) -> None:
        text, at, item_id = delta.text, self.index, self._item.id
        self._pieces.append(text)
        if self.style == "summary":
            events.append(SummaryTextDelta(item_id=item_id, output_index=at, summary_index=0, delta=text))
        else:
            events.append(ReasoningTextDelta(item_id=item_id, output_index=at, content_index=0, delta=text))

    def close(self, status: ClosedAs, events: Batch) -> None:
        text, at, item_id = "".join(self._pieces), self.index, self._item.id
        if self.style == "summary":
            summary = SummaryText(text=text)
            item = replace(self._item, status=status, summary=(summary,))
            events.append(SummaryTextDone(item_id=item_id, output_index=at, summary_index=0, text=text))
            events.append(SummaryPartDone(item_id=item_id, output_index=at, summary_index=0, part=summary))
        else:
            part = ReasoningText(text=text)
            item = replace(self._item, status=status, content=(part,))
            events.append(ReasoningTextDone(item_id=item_id, output_index=at, content_index=0, text=text))
            events.append(ContentPartDone(item_id=item_id, output_index=at, content_index=0, part=part))
        if self._seal is not None:
            item = replace(item, encrypted_content=self._seal(text))
        events.append(OutputItemDone(output_index=at, item=item))


class OpenMessage:
    """A message being written: closed parts, and at most one open one."""

    _open: Literal["text", "refusal"] | None = None

    def __init__(self, index: int, item_id: str, events: Batch) -> None:
        self.index, self.id = index, item_id
        self._parts: list[ContentPart] = []
        self._pieces: list[str] = []
        self._logprobs: list[LogProb] = []
        item = Message(id=item_id, role="assistant", status="in_progress", content=())
        events.append(OutputItemAdded(output_index=index, item=item))

    def feed(self, delta: TextDelta | RefusalDelta, events: Batch) -> None:
        kind: Literal["text", "refusal"] = "refusal" if isinstance(delta, RefusalDelta) else "text"
        if self._open != kind:
            if self._open is not None:
                self._close_part(events)
            self._open, at = kind, len(self._parts)
            part = Refusal(refusal="") if kind == "refusal" else OutputText(text="")
            events.append(ContentPartAdded(item_id=self.id, output_index=self.index, content_index=at, part=part))
        text, at, item_id = delta.text, len(self._parts), self.id
        self._pieces.append(text)
        if isinstance(delta, RefusalDelta):
            events.append(RefusalDeltaEvent(item_id=item_id, output_index=self.index, content_index=at, delta=text))
            return
        if logprobs := delta.logprobs:
            self._logprobs.extend(logprobs)
        events.append(
            OutputTextDelta(item_id=item_id, output_index=self.index, content_index=at, delta=text, logprobs=logprobs)
        )

    def close(self, status: ClosedAs, events: Batch) -> None:
        if self._open is not None:
            self._close_part(events)
        item = Message(id=self.id, role="assistant", status=status, content=tuple(self._parts))
        events.append(OutputItemDone(output_index=self.index, item=item))

    def _close_part(self, events: Batch) -> None:
        at, text, logprobs = len(self._parts), "".join(self._pieces), tuple(self._logprobs)
        part: ContentPart
        if self._open == "text":
            part = OutputText(text=text, logprobs=logprobs)
            events.append(
                OutputTextDone(item_id=self.id, output_index=self.index, content_index=at, text=text, logprobs=logprobs)
            )
        else:
            part = Refusal(refusal=text)
            events.append(RefusalDoneEvent(item_id=self.id, output_index=self.index, content_index=at, refusal=text))
        events.append(ContentPartDone(item_id=self.id, output_index=self.index, content_index=at, part=part))
        self._parts.append(part)
        self._pieces, self._logprobs, self._open = [], [], None


# ---- calls ----


class OpenCall:
    """A call being written. It finds out when its arguments are a whole JSON object, and scans each character once."""

    is_whole = False
    """Whether they were a whole JSON object when `completes` was called last, and only space has come since."""
    _delta: ClassVar[type[ArgumentsDelta | McpArgumentsDelta] | None] = ArgumentsDelta
    _scanned = _depth = 0
    _is_quoted = _is_over = False

    def __init__(self, index: int, item: Call, events: Batch, called: str = "", before: int = 0) -> None:
        self.index = index
        self.called = called
        """What the model calls the tool."""
        self.before = before
        """How many calls were shown before it of those that a response runs only so many of."""
        self._item = item
        self._pieces: list[str] = []
        events.append(OutputItemAdded(output_index=index, item=item))

    @property
    def call_id(self) -> str:
        return call_id_of(self._item)

    @property
    def arguments(self) -> str:
        return "".join(self._pieces)

    def pending(self) -> PendingCall:
        """Return the call as it stands."""
        arguments = self.arguments
        return PendingCall(self.call_id, self.called, arguments, self.index, replace(self._item, arguments=arguments))

    def feed(self, arguments: str, events: Batch) -> None:
        self._pieces.append(arguments)
        if self.is_whole and not arguments.isspace():
            self.is_whole = False  # text behind an object: that is no JSON any more
        if self._delta is not None:
            events.append(self._delta(item_id=self._item.id, output_index=self.index, delta=arguments))

    def completes(self) -> bool:
        """Return whether the pieces since the last time make the arguments whole: true at most once."""
        pieces = self._pieces
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
        self.is_whole = self._is_over and is_object(self.arguments)
        return self.is_whole

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = self.arguments, self._item, self.index
        events.append(ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=arguments))
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenServerCall(OpenCall):
    """A call that shows as an `mcp_call`: when it is written, it stays open for its result, which closes it."""

    _delta = McpArgumentsDelta
    is_written = False
    """Whether its arguments are done; then it is open for its result alone."""

    def __init__(self, index: int, item: McpCall, events: Batch, called: str = "", before: int = 0) -> None:
        super().__init__(index, item, events, called, before)
        events.append(McpCallInProgress(item_id=item.id, output_index=index))

    def close(self, status: ClosedAs, events: Batch) -> None:
        arguments, item, at = self.arguments, self._item, self.index
        if not self.is_written:
            self.is_written = True
            events.append(McpArgumentsDone(item_id=item.id, output_index=at, arguments=arguments))
        if status != "completed":
            events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class OpenCustomCall(OpenCall):
    """A call of a free-form tool being written: its arguments come as JSON, and show as the text in them."""

    _delta = None

    def __init__(self, index: int, item: CustomToolCall, events: Batch) -> None:
        super().__init__(index, item, events)
        self._reader = InputReader()
        self._text: list[str] = []

    def feed(self, arguments: str, events: Batch) -> None:
        super().feed(arguments, events)
        self.feed_text(self._reader.feed(arguments), events)

    def feed_text(self, text: str, events: Batch) -> None:
        """Feed a piece of the input itself."""
        if text:
            self._text.append(text)
            events.append(CustomInputDelta(item_id=self._item.id, output_index=self.index, delta=text))

    def close(self, status: ClosedAs, events: Batch) -> None:
        """Close the item. Where the call was cut, it has what was shown of it: the rest may not be what it seems."""
        if status == "completed":
            self.feed_text(self._reader.finish(), events)
        whole, item, at = "".join(self._text), self._item, self.index
        events.append(CustomInputDone(item_id=item.id, output_index=at, input=whole))
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, input=whole)))


OpenItem: TypeAlias = OpenReasoning | OpenMessage | OpenCall


# ---- items that another process left open ----


def reopened_items(events: Iterable[RunEvent], seal: Seal | None = None) -> dict[int, OpenItem]:
    """Return the items that `events` opened and did not close, by their place in the output. Servers' calls that only
    wait for their results are among them.
    """
    opened: dict[int, OpenItem] = {}
    for event in events:
        if isinstance(event, OutputItemAdded):
            if (item := _reopened(event.output_index, event.item, seal)) is not None:
                opened[event.output_index] = item
        elif isinstance(event, OutputItemDone):
            opened.pop(event.output_index, None)
        else:
            _feed_again(event, opened)
    return opened


def _reopened(index: int, item: OutputItem, seal: Seal | None) -> OpenItem | None:
    sent: Batch = []
    match item:
        case Message():
            return OpenMessage(index, item.id, sent)
        case Reasoning():
            # Only summaries are added without content.
            style: ReasoningStyle = "text" if isinstance(item.content, tuple) else "summary"
            return OpenReasoning(index, style, item.id, sent, seal)
        case FunctionCall():
            return OpenCall(index, item, sent)
        case McpCall():
            return OpenServerCall(index, item, sent)
        case CustomToolCall():
            return OpenCustomCall(index, item, sent)
        case _:
            return None


def _feed_again(event: RunEvent, opened: dict[int, OpenItem]) -> None:
    """Feed a piece once more into an item that has sent it already."""
    item = opened.get(getattr(event, "output_index", -1))
    sent: Batch = []
    match event, item:
        case OutputTextDelta(), OpenMessage():
            item.feed(TextDelta(event.delta, event.logprobs), sent)
        case RefusalDeltaEvent(), OpenMessage():
            item.feed(RefusalDelta(event.delta), sent)
        case ReasoningTextDelta() | SummaryTextDelta(), OpenReasoning():
            item.feed(ReasoningDelta(event.delta), sent)
        case ArgumentsDelta() | McpArgumentsDelta(), OpenCall():
            item.feed(event.delta, sent)
        case McpArgumentsDone(), OpenServerCall():
            item.is_written = True
        case CustomInputDelta(), OpenCustomCall():
            item.feed_text(event.delta, sent)
        case _:
            pass
