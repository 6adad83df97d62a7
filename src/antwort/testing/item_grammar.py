"""The grammar of one item: from `output_item.added` through what happens inside it to `output_item.done`."""

from __future__ import annotations

from functools import singledispatchmethod
from typing import Any

from antwort.api.events import (
    AnnotationAdded,
    ContentPartAdded,
    ContentPartDone,
    Event,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
    SummaryPartAdded,
    SummaryPartDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from antwort.api.items import (
    CustomToolCall,
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
from antwort.testing.base_grammar import ItemGrammar, ItemT, WorkGrammar
from antwort.testing.call_grammar import CustomCallGrammar, FunctionCallGrammar, McpCallGrammar
from antwort.testing.part_grammar import ContentDelta, ContentText, PartsGrammar
from antwort.testing.rules import require


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
    CustomToolCall: CustomCallGrammar,
    McpCall: McpCallGrammar,
    McpListTools: ListToolsGrammar,
}


def grammar_of(item: OutputItem) -> ItemGrammar[Any]:
    """The grammar that `item`, just added, must follow."""
    return _GRAMMARS.get(type(item), ItemGrammar)(item)
