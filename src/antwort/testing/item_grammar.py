"""The grammar of one item: from `output_item.added` through what happens inside it to `output_item.done`."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Any, Generic, Literal, TypeVar, cast

from antwort.api.events import (
    AnnotationAdded,
    ArgumentsDelta,
    ArgumentsDone,
    ContentPartAdded,
    ContentPartDone,
    Event,
    ItemEvent,
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from antwort.api.items import (
    FunctionCall,
    McpCall,
    McpListTools,
    Message,
    OutputItem,
    OutputText,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antwort.api.wire import UNSET
from antwort.testing.part_grammar import ArgumentsGrammar, ContentDelta, ContentText, PartsGrammar
from antwort.testing.rules import Broken, require, tag_of

ItemT = TypeVar("ItemT", bound=OutputItem)

_FIXED = ("id", "role", "call_id", "name", "namespace", "server_label")
"""What an item is known by: the same in `added` and in `done`."""

_GROWING = ("output", "input", "arguments", "tools")
"""What an item without inner events may be added without."""

_FINAL = ("completed", "incomplete", "failed")


class ItemGrammar(Generic[ItemT]):
    """What all items have in common; alone, the grammar of an item inside which nothing happens.

    Such an item may be added whole, and then does not change any more.
    """

    def __init__(self, item: ItemT) -> None:
        self.added = item
        self.done: ItemT | None = None

    def feed(self, event: ItemEvent) -> None:
        require(event.item_id == self.added.id, f"item_id is {event.item_id}, but the item here is {self.added.id}")
        require(self.done is None, f"item {self.added.id} is done and not touched any more")
        self.inside(event)

    def close(self, item: OutputItem) -> None:
        require(self.done is None, f"item {self.added.id} is done already")
        require(type(item) is type(self.added), f"the item was added as {tag_of(self.added)}, not as {tag_of(item)}")
        for name in _FIXED:
            before, after = getattr(self.added, name, None), getattr(item, name, None)
            require(before == after, f"the item's {name} changed from {before} to {after}")
        require(item.status in _FINAL, f"an item is not done with status {item.status}")
        done = cast("ItemT", item)
        self._check_done(done)
        self.done = done

    @singledispatchmethod
    def inside(self, _event: Event) -> None:
        raise Broken(f"this does not happen inside an item of type {tag_of(self.added)}")

    def _is_open(self) -> None:
        status = self.added.status
        require(status == "in_progress", f"an item is added with status in_progress, not {status}")

    def _check_done(self, item: ItemT) -> None:
        if self.added.status != "in_progress":
            require(item == self.added, "an item that was added whole does not change")
        for name in _GROWING:
            before, after = getattr(self.added, name, ""), getattr(item, name, "")
            require(before in ("", (), after), f"the item's {name} changed")


class ContentGrammar(ItemGrammar[ItemT]):
    """An item with content parts."""

    _content: PartsGrammar

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _add_part(self, event: ContentPartAdded) -> None:
        self._content.add(event.content_index, event.part)

    @inside.register
    def _feed_part(self, event: ContentDelta) -> None:
        self._content.at(event.content_index).delta(event)

    @inside.register
    def _say_part(self, event: ContentText) -> None:
        self._content.at(event.content_index).say(event)

    @inside.register
    def _annotate_part(self, event: AnnotationAdded) -> None:
        self._content.at(event.content_index).annotate(event)

    @inside.register
    def _close_part(self, event: ContentPartDone) -> None:
        self._content.at(event.content_index).close(event.part)


class MessageGrammar(ContentGrammar[Message]):
    def __init__(self, item: Message) -> None:
        super().__init__(item)
        self._is_open()
        require(item.role == "assistant", f"a message of the output is the assistant's, not of role {item.role}")
        require(not item.content, "a message is added without content")
        self._content = PartsGrammar(OutputText, Refusal)

    def _check_done(self, item: Message) -> None:
        require(item.content == self._content.whole(), "the item's content is not its parts as they were done")


class ReasoningGrammar(ContentGrammar[Reasoning]):
    """Content parts, and summary parts beside them."""

    def __init__(self, item: Reasoning) -> None:
        super().__init__(item)
        self._is_open()
        require(not item.content and not item.summary, "reasoning is added without content and summary")
        self._content = PartsGrammar(ReasoningText)
        self._summary = PartsGrammar(SummaryText)

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _add_summary(self, event: SummaryPartAdded) -> None:
        self._summary.add(event.summary_index, event.part)

    @inside.register
    def _feed_summary(self, event: SummaryTextDelta) -> None:
        self._summary.at(event.summary_index).delta(event)

    @inside.register
    def _say_summary(self, event: SummaryTextDone) -> None:
        self._summary.at(event.summary_index).say(event)

    @inside.register
    def _close_summary(self, event: SummaryPartDone) -> None:
        self._summary.at(event.summary_index).close(event.part)

    def _check_done(self, item: Reasoning) -> None:
        content = () if item.content is UNSET else item.content
        require(content == self._content.whole(), "the item's content is not its parts as they were done")
        require(item.summary == self._summary.whole(), "the item's summary is not its parts as they were done")


class FunctionCallGrammar(ItemGrammar[FunctionCall]):
    def __init__(self, item: FunctionCall) -> None:
        super().__init__(item)
        self._is_open()
        require(item.arguments == "", "a call is added with empty arguments")
        self._arguments = ArgumentsGrammar()

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _feed_arguments(self, event: ArgumentsDelta) -> None:
        self._arguments.delta(event.delta)

    @inside.register
    def _say_arguments(self, event: ArgumentsDone) -> None:
        require(event.name == self.added.name, f"the call is to {self.added.name}, not to {event.name}")
        self._arguments.say(event.arguments)

    def _check_done(self, item: FunctionCall) -> None:
        self._arguments.close(item.arguments, item.status)


class WorkGrammar:
    """Work of ours that an item shows: in progress once, then at most one outcome."""

    def __init__(self) -> None:
        self.is_begun = False
        self.outcome: Literal["completed", "failed"] | None = None

    def begin(self) -> None:
        require(not self.is_begun, "in_progress comes exactly once")
        self.is_begun = True

    def go_on(self) -> None:
        """As often as it takes, for those who watch."""
        require(self.is_begun and self.outcome is None, "in_progress comes again only while the tool works")

    def end(self, outcome: Literal["completed", "failed"]) -> None:
        require(self.is_begun, "the outcome comes after in_progress")
        require(self.outcome is None, "there is exactly one outcome")
        self.outcome = outcome


class McpCallGrammar(ItemGrammar[McpCall]):
    """In progress, the arguments, in progress again while the tool works, the outcome.

    Without an outcome it is a paused call (completed, with neither output nor error) or one closed as incomplete.
    """

    def __init__(self, item: McpCall) -> None:
        super().__init__(item)
        self._is_open()
        require(item.arguments == "", "a call is added with empty arguments")
        require(item.output is UNSET and item.error is UNSET, "a call is added without output and error")
        self._arguments = ArgumentsGrammar()
        self._work = WorkGrammar()

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _begin(self, _event: McpCallInProgress) -> None:
        if self._arguments.is_said:
            self._work.go_on()
        else:
            self._work.begin()

    @inside.register
    def _feed_arguments(self, event: McpArgumentsDelta) -> None:
        require(self._work.is_begun, "arguments come after in_progress")
        self._arguments.delta(event.delta)

    @inside.register
    def _say_arguments(self, event: McpArgumentsDone) -> None:
        require(self._work.is_begun, "arguments come after in_progress")
        self._arguments.say(event.arguments)

    @inside.register
    def _end(self, event: McpCallCompleted | McpCallFailed) -> None:
        require(self._arguments.is_said, "the outcome comes after the whole arguments")
        self._work.end("completed" if isinstance(event, McpCallCompleted) else "failed")

    def _check_done(self, item: McpCall) -> None:
        self._arguments.close(item.arguments, item.status)
        has_output, has_error = item.output is not UNSET, item.error is not UNSET
        if self._work.outcome == "completed":
            is_right = item.status == "completed" and has_output and not has_error
            require(is_right, "after mcp_call.completed the item is completed, with an output and no error")
        elif self._work.outcome == "failed":
            require(item.status == "failed" and has_error, "after mcp_call.failed the item is failed, with an error")
        else:
            require(item.status != "failed", "an mcp_call is done as failed only after mcp_call.failed")
            require(not has_output and not has_error, "an mcp_call has an output or error only after its outcome")


class ListToolsGrammar(ItemGrammar[McpListTools]):
    """In progress, the outcome; or added whole."""

    def __init__(self, item: McpListTools) -> None:
        super().__init__(item)
        is_whole = item.status != "in_progress"
        require(is_whole or (not item.tools and item.error is UNSET), "an open list of tools is added empty")
        self._work = WorkGrammar()

    @singledispatchmethod
    def inside(self, event: Event) -> None:
        super().inside(event)

    @inside.register
    def _begin(self, _event: McpListToolsInProgress) -> None:
        self._work.begin()

    @inside.register
    def _end(self, event: McpListToolsCompleted | McpListToolsFailed) -> None:
        self._work.end("completed" if isinstance(event, McpListToolsCompleted) else "failed")

    def _check_done(self, item: McpListTools) -> None:
        super()._check_done(item)
        if self._work.outcome is not None:
            has_failed = self._work.outcome == "failed"
            require((item.error is not UNSET) == has_failed, "a list of tools has an error if and only if it failed")
        elif item.status != "incomplete":
            is_whole = self.added.status != "in_progress" and not self._work.is_begun
            require(is_whole, "a list of tools is done only after its outcome")


_GRAMMARS: dict[type[OutputItem], type[ItemGrammar[Any]]] = {
    Message: MessageGrammar,
    Reasoning: ReasoningGrammar,
    FunctionCall: FunctionCallGrammar,
    McpCall: McpCallGrammar,
    McpListTools: ListToolsGrammar,
}


def grammar_of(item: OutputItem) -> ItemGrammar[Any]:
    """The grammar that `item`, just added, must follow."""
    return _GRAMMARS.get(type(item), ItemGrammar)(item)
