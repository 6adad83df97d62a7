"""Items that are being written: each says what it needs to be opened, fed and closed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal, TypeAlias

from antwort.api.events import (
    ArgumentsDelta,
    Batch,
    ContentPartAdded,
    ContentPartDone,
    CustomInputDelta,
    McpArgumentsDelta,
    McpArgumentsDone,
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
from antwort.api.wire import replace
from antwort.engine.loop.call_builders import ClosedAs, OpenCall, OpenCustomCall, OpenServerCall
from antwort.providers.base import TextDelta

ReasoningStyle: TypeAlias = Literal["text", "summary"]
Seal: TypeAlias = Callable[[str], str]


class OpenReasoning:
    """Reasoning being written, as raw text or as a summary; with `seal`, what it comes to is given out sealed, too."""

    def __init__(self, index: int, style: ReasoningStyle, item_id: str, seal: Seal | None = None) -> None:
        self.index, self._style, self._seal = index, style, seal
        self._item = Reasoning(id=item_id, status="in_progress")
        self._pieces: list[str] = []

    def announce(self, events: Batch) -> None:
        at, item = self.index, self._item
        if self._style == "summary":
            summary = SummaryText(text="")
            events.append(OutputItemAdded(output_index=at, item=item))
            events.append(SummaryPartAdded(item_id=item.id, output_index=at, summary_index=0, part=summary))
        else:
            part = ReasoningText(text="")
            events.append(OutputItemAdded(output_index=at, item=replace(item, content=())))
            events.append(ContentPartAdded(item_id=item.id, output_index=at, content_index=0, part=part))

    def feed(self, text: str, events: Batch) -> None:
        self._pieces.append(text)
        at, item_id = self.index, self._item.id
        if self._style == "summary":
            events.append(SummaryTextDelta(item_id=item_id, output_index=at, summary_index=0, delta=text))
        else:
            events.append(ReasoningTextDelta(item_id=item_id, output_index=at, content_index=0, delta=text))

    def close(self, status: ClosedAs, events: Batch) -> None:
        text, at, item_id = "".join(self._pieces), self.index, self._item.id
        if self._style == "summary":
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

    def __init__(self, index: int, item_id: str) -> None:
        self.index, self.id = index, item_id
        self._parts: list[ContentPart] = []
        self._pieces: list[str] = []
        self._logprobs: list[LogProb] = []

    def announce(self, events: Batch) -> None:
        item = Message(id=self.id, role="assistant", status="in_progress", content=())
        events.append(OutputItemAdded(output_index=self.index, item=item))

    def feed_text(self, delta: TextDelta, events: Batch) -> None:
        if self._open != "text":
            self._open_part("text", OutputText(text=""), events)
        self._pieces.append(delta.text)
        if delta.logprobs:
            self._logprobs.extend(delta.logprobs)
        events.append(
            OutputTextDelta(
                item_id=self.id,
                output_index=self.index,
                content_index=len(self._parts),
                delta=delta.text,
                logprobs=delta.logprobs,
            )
        )

    def feed_refusal(self, text: str, events: Batch) -> None:
        if self._open != "refusal":
            self._open_part("refusal", Refusal(refusal=""), events)
        self._pieces.append(text)
        at = len(self._parts)
        events.append(RefusalDeltaEvent(item_id=self.id, output_index=self.index, content_index=at, delta=text))

    def close(self, status: ClosedAs, events: Batch) -> None:
        if self._open is not None:
            self._close_part(events)
        item = Message(id=self.id, role="assistant", status=status, content=tuple(self._parts))
        events.append(OutputItemDone(output_index=self.index, item=item))

    def _open_part(self, kind: Literal["text", "refusal"], part: ContentPart, events: Batch) -> None:
        if self._open is not None:
            self._close_part(events)
        self._open = kind
        at = len(self._parts)
        events.append(ContentPartAdded(item_id=self.id, output_index=self.index, content_index=at, part=part))

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


OpenItem: TypeAlias = OpenReasoning | OpenMessage | OpenCall | OpenCustomCall


# ---- picking up what another process left half said ----


def half_said(events: Iterable[RunEvent], seal: Seal | None = None) -> dict[int, OpenItem]:
    """The items that `events` opened and did not close, by their place in the output. Servers' calls that only wait for
    their results are among them.
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
    match item:
        case Message():
            return OpenMessage(index, item.id)
        case Reasoning():
            # Only summaries are added without content.
            return OpenReasoning(index, "text" if isinstance(item.content, tuple) else "summary", item.id, seal)
        case FunctionCall():
            return OpenCall(index, item)
        case McpCall():
            return OpenServerCall(index, item)
        case CustomToolCall():
            return OpenCustomCall(index, item)
        case _:
            return None


def _feed_again(event: RunEvent, opened: dict[int, OpenItem]) -> None:
    """The pieces once more, into an item that has sent them already."""
    item = opened.get(getattr(event, "output_index", -1))
    sent: Batch = []
    match event, item:
        case OutputTextDelta(), OpenMessage():
            item.feed_text(TextDelta(event.delta, event.logprobs), sent)
        case RefusalDeltaEvent(), OpenMessage():
            item.feed_refusal(event.delta, sent)
        case ReasoningTextDelta() | SummaryTextDelta(), OpenReasoning():
            item.feed(event.delta, sent)
        case ArgumentsDelta() | McpArgumentsDelta(), OpenCall():
            item.feed(event.delta, sent)
        case McpArgumentsDone(), OpenServerCall():
            item.is_said = True
        case CustomInputDelta(), OpenCustomCall():
            item.feed_text(event.delta, sent)
        case _:
            pass
