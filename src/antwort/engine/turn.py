"""A turn: a backend's deltas become items and events. No I/O, no decisions about what comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import msgspec

from antwort.api.events import (
    ArgumentsDelta,
    ArgumentsDone,
    Batch,
    ContentPartAdded,
    ContentPartDone,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallInProgress,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    StandardReasoningDelta,
    StandardReasoningDone,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
    TurnEnded,
)
from antwort.api.events import RefusalDelta as RefusalDeltaEvent
from antwort.api.events import RefusalDone as RefusalDoneEvent
from antwort.api.items import (
    ContentPart,
    FunctionCall,
    LogProb,
    McpCall,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antwort.api.wire import UNSET, replace
from antwort.ids import new_id
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, RefusalDelta, TextDelta

ClosedAs: TypeAlias = Literal["completed", "incomplete"]
CUT = frozenset({"length", "content_filter"})
"""Finish reasons that say the answer was broken off: what was being written is incomplete."""


class Shown(msgspec.Struct, frozen=True):
    """How a call shows: as a `function_call`, or, with a server's label, as an `mcp_call` under `name`."""

    name: str
    server_label: str | None = None


class _OpenReasoning:
    def __init__(self, index: int, events: Batch, style: Literal["text", "standard", "summary"]) -> None:
        self.index, self._style = index, style
        self._item = Reasoning(id=new_id("rs"), status="in_progress")
        self._pieces: list[str] = []
        item = self._item if style == "summary" else replace(self._item, content=())
        events.append(OutputItemAdded(output_index=index, item=item))
        if style == "summary":
            part = SummaryText(text="")
            events.append(SummaryPartAdded(item_id=item.id, output_index=index, summary_index=0, part=part))
        else:
            opened = ReasoningText(text="")
            events.append(ContentPartAdded(item_id=item.id, output_index=index, content_index=0, part=opened))

    def feed(self, text: str, events: Batch) -> None:
        self._pieces.append(text)
        at, item_id = self.index, self._item.id
        if self._style == "summary":
            events.append(SummaryTextDelta(item_id=item_id, output_index=at, summary_index=0, delta=text))
        elif self._style == "standard":
            events.append(StandardReasoningDelta(item_id=item_id, output_index=at, content_index=0, delta=text))
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
            done = StandardReasoningDone if self._style == "standard" else ReasoningTextDone
            events.append(done(item_id=item_id, output_index=at, content_index=0, text=text))
            events.append(ContentPartDone(item_id=item_id, output_index=at, content_index=0, part=part))
        events.append(OutputItemDone(output_index=at, item=item))


class _OpenMessage:
    """A message being written: closed parts, and at most one open one."""

    def __init__(self, index: int, events: Batch) -> None:
        self.index = index
        self.id = new_id("msg")
        self._parts: list[ContentPart] = []
        self._pieces: list[str] = []
        self._logprobs: list[LogProb] = []
        self._open: Literal["text", "refusal"] | None = None
        item = Message(id=self.id, role="assistant", status="in_progress", content=())
        events.append(OutputItemAdded(output_index=index, item=item))

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
        self._close_part(events)
        item = Message(id=self.id, role="assistant", status=status, content=tuple(self._parts))
        events.append(OutputItemDone(output_index=self.index, item=item))

    def _open_part(self, kind: Literal["text", "refusal"], part: ContentPart, events: Batch) -> None:
        self._close_part(events)
        self._open = kind
        at = len(self._parts)
        events.append(ContentPartAdded(item_id=self.id, output_index=self.index, content_index=at, part=part))

    def _close_part(self, events: Batch) -> None:
        if self._open is None:
            return
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


class _OpenCall:
    """A call being written. Its id is ours: backends repeat theirs, or leave them out."""

    def __init__(self, index: int, shown: Shown, events: Batch) -> None:
        self.index = index
        self._pieces: list[str] = []
        self._item: FunctionCall | McpCall
        call_id = new_id("call")
        if shown.server_label is None:
            self._item = FunctionCall(
                id=new_id("fc"), call_id=call_id, name=shown.name, arguments="", status="in_progress"
            )
        else:
            self._item = McpCall(
                id=new_id("mcp"),
                server_label=shown.server_label,
                name=shown.name,
                arguments="",
                status="in_progress",
                call_id=call_id,
            )
        events.append(OutputItemAdded(output_index=index, item=self._item))
        if isinstance(self._item, McpCall):
            events.append(McpCallInProgress(item_id=self._item.id, output_index=index))

    def feed(self, arguments: str, events: Batch) -> None:
        self._pieces.append(arguments)
        delta = ArgumentsDelta if isinstance(self._item, FunctionCall) else McpArgumentsDelta
        events.append(delta(item_id=self._item.id, output_index=self.index, delta=arguments))

    def close(self, status: ClosedAs, events: Batch) -> None:
        """A function call is finished when it is written; an `mcp_call` stays open for its result."""
        arguments, item, at = "".join(self._pieces), self._item, self.index
        if isinstance(item, FunctionCall):
            events.append(ArgumentsDone(item_id=item.id, output_index=at, name=item.name, arguments=arguments))
        else:
            events.append(McpArgumentsDone(item_id=item.id, output_index=at, arguments=arguments))
            if status == "completed":
                return
        events.append(OutputItemDone(output_index=at, item=replace(item, status=status, arguments=arguments)))


class Turn:
    """Feed it the deltas of one inference; `take` gives the events since the last `take`.

    `shown` says how a call to a name shows; it is asked once for each call, when its first delta comes.
    """

    def __init__(
        self,
        first_index: int,
        shown: Callable[[str], Shown],
        reasoning: Literal["text", "standard", "summary"] = "text",
    ) -> None:
        self._index = first_index
        self._shown = shown
        self._style = reasoning
        self._events: Batch = []
        self._message: _OpenMessage | None = None
        self._reasoning: _OpenReasoning | None = None
        self._calls: dict[int, _OpenCall] = {}
        self._early: dict[int, str] = {}  # arguments that came before their call's name
        self._finished: Finished | None = None

    def feed(self, delta: Delta) -> None:
        match delta:
            case TextDelta():
                self._feed_text(delta)
            case ReasoningDelta(text):
                self._feed_reasoning(text)
            case CallDelta():
                self._feed_call(delta)
            case RefusalDelta(text):
                self._feed_refusal(text)
            case Finished():
                self._finished = delta

    @property
    def is_finished(self) -> bool:
        return self._finished is not None

    def take(self) -> Batch:
        events, self._events = self._events, []
        return events

    def finish(self) -> None:
        """The backend has said all: close the items and mark the end of the inference."""
        finished = self._finished
        assert finished is not None, "a provider ends with Finished or raises"
        self._close_all("incomplete" if finished.finish in CUT else "completed")
        usage = UNSET if finished.usage is None else finished.usage
        self._events.append(TurnEnded(finish=finished.finish, usage=usage))

    def abort(self) -> None:
        """The inference broke off: what is open is closed as incomplete, and the turn has not ended."""
        for item in self._open_items():
            item.close("incomplete", self._events)
        self._forget()

    # ---- one kind of delta each ----

    def _feed_text(self, delta: TextDelta) -> None:
        if delta.text:  # an empty first chunk opens nothing
            self._open_message().feed_text(delta, self._events)

    def _feed_refusal(self, text: str) -> None:
        if text:
            self._open_message().feed_refusal(text, self._events)

    def _feed_reasoning(self, text: str) -> None:
        if not text:
            return
        self._close_message()
        if self._reasoning is None:
            self._reasoning = _OpenReasoning(self._next_index(), self._events, self._style)
        self._reasoning.feed(text, self._events)

    def _feed_call(self, delta: CallDelta) -> None:
        call = self._calls.get(delta.index)
        arguments = delta.arguments
        if call is None:
            arguments = self._early.pop(delta.index, "") + arguments
            if not delta.name:
                self._early[delta.index] = arguments
                return
            self._close_message()
            self._close_reasoning()
            call = self._calls[delta.index] = _OpenCall(self._next_index(), self._shown(delta.name), self._events)
        if arguments:
            call.feed(arguments, self._events)

    # ---- opening and closing ----

    def _next_index(self) -> int:
        index = self._index
        self._index += 1
        return index

    def _open_message(self) -> _OpenMessage:
        if self._message is None:
            self._close_reasoning()
            self._message = _OpenMessage(self._next_index(), self._events)
        return self._message

    def _close_message(self) -> None:
        if self._message is not None:
            self._message.close("completed", self._events)
            self._message = None

    def _close_reasoning(self) -> None:
        if self._reasoning is not None:
            self._reasoning.close("completed", self._events)
            self._reasoning = None

    def _open_items(self) -> list[_OpenMessage | _OpenReasoning | _OpenCall]:
        singles = [item for item in (self._reasoning, self._message) if item is not None]
        return sorted((*singles, *self._calls.values()), key=lambda item: item.index)

    def _close_all(self, last: ClosedAs) -> None:
        """Only the item that was being written last can be cut."""
        items = self._open_items()
        for item in items[:-1]:
            item.close("completed", self._events)
        for item in items[-1:]:
            item.close(last, self._events)
        self._forget()

    def _forget(self) -> None:
        self._message, self._reasoning, self._calls = None, None, {}
