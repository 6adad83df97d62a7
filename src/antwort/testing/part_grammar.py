"""The grammar of what grows inside an item: content parts, summary parts, arguments."""

from __future__ import annotations

from typing import Any, TypeAlias

from antwort.api.events import (
    AnnotationAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    RefusalDelta,
    RefusalDone,
    SummaryTextDelta,
    SummaryTextDone,
)
from antwort.api.items import ContentPart, LogProb, OutputText, ReasoningText, Refusal, SummaryText
from antwort.testing.rules import require, tag_of

ContentDelta: TypeAlias = OutputTextDelta | RefusalDelta | ReasoningTextDelta
ContentText: TypeAlias = OutputTextDone | RefusalDone | ReasoningTextDone

_PART_OF: dict[str, type[ContentPart]] = {
    "response.output_text": OutputText,
    "response.refusal": Refusal,
    "response.reasoning_text": ReasoningText,
    "response.reasoning_summary_text": SummaryText,
}
"""Which part the deltas and the whole text of a family of events belong to."""


class PartGrammar:
    """A part: added empty, its deltas, its whole text exactly once, done."""

    def __init__(self, part: ContentPart) -> None:
        self._kind = type(part)
        self._pieces: list[str] = []  # a text that grew piece by piece would be copied for each
        self._logprobs: list[LogProb] = []
        self._annotations: tuple[dict[str, Any], ...] = ()
        self._is_said = False
        self.done: ContentPart | None = None
        require(part == self._folded(), "a part is added empty")

    def delta(self, event: ContentDelta | SummaryTextDelta) -> None:
        self._belongs(event)
        require(not self._is_said, "no delta comes after the whole text of its part")
        self._pieces.append(event.delta)
        if isinstance(event, OutputTextDelta):
            self._logprobs += event.logprobs

    def say(self, event: ContentText | SummaryTextDone) -> None:
        self._belongs(event)
        require(not self._is_said, "the whole text of a part comes exactly once")
        text = event.refusal if isinstance(event, RefusalDone) else event.text
        if text != self._text:
            require(False, f"the whole text {text!r} is not the sum of its deltas, {self._text!r}")
        if isinstance(event, OutputTextDone):
            logprobs = tuple(self._logprobs)
            require(event.logprobs == logprobs, "the logprobs of the whole text are not those of its deltas")
        self._is_said = True

    @property
    def _text(self) -> str:
        return "".join(self._pieces)

    def annotate(self, event: AnnotationAdded) -> None:
        require(self._kind is OutputText, f"a part of type {tag_of(self._kind)} has no annotations")
        require(event.annotation_index == len(self._annotations), "annotations are numbered one by one from 0")
        self._annotations += (event.annotation,)

    def close(self, part: ContentPart) -> None:
        require(type(part) is self._kind, f"the part was added as {tag_of(self._kind)}, not as {tag_of(part)}")
        require(self._is_said, "a part is done only after its whole text")
        require(part == self._folded(), "the part is not the sum of its events")
        self.done = part

    def _belongs(self, event: ContentDelta | ContentText | SummaryTextDelta | SummaryTextDone) -> None:
        family = tag_of(event).rpartition(".")[0]
        require(_PART_OF[family] is self._kind, f"this does not happen to a part of type {tag_of(self._kind)}")

    def _folded(self) -> ContentPart:
        """The part that the events so far amount to."""
        if self._kind is OutputText:
            return OutputText(text=self._text, annotations=self._annotations, logprobs=tuple(self._logprobs))
        if self._kind is Refusal:
            return Refusal(refusal=self._text)
        return SummaryText(text=self._text) if self._kind is SummaryText else ReasoningText(text=self._text)


class PartsGrammar:
    """The parts of an item, one after the other, numbered from 0."""

    def __init__(self, *kinds: type[ContentPart]) -> None:
        self._kinds = kinds
        self._parts: list[PartGrammar] = []

    def add(self, index: int, part: ContentPart) -> None:
        require(index == len(self._parts), f"the next part has index {len(self._parts)}, not {index}")
        require(isinstance(part, self._kinds), f"a part of type {tag_of(part)} has no place in this item")
        require(not self._parts or self._parts[-1].done is not None, "the part before it is still open")
        self._parts.append(PartGrammar(part))

    def at(self, index: int) -> PartGrammar:
        """The open part at `index`."""
        require(0 <= index < len(self._parts), f"no part with index {index} was added")
        require(self._parts[index].done is None, f"part {index} is done and not touched any more")
        return self._parts[index]

    def whole(self) -> tuple[ContentPart, ...]:
        """All parts, as they were done."""
        done = tuple(part.done for part in self._parts if part.done is not None)
        require(len(done) == len(self._parts), "a part is still open")
        return done


class ArgumentsGrammar:
    """Arguments, or what else a call is given: their deltas, then the whole of them once."""

    def __init__(self, word: str = "arguments") -> None:
        self._word = word
        self._text = ""
        self.is_said = False

    def delta(self, text: str) -> None:
        require(not self.is_said, f"no delta comes after the whole {self._word}")
        self._text += text

    def say(self, text: str) -> None:
        require(not self.is_said, f"the whole {self._word} must come exactly once")
        require(text == self._text, f"the deltas add up to {self._text!r}, not to the whole {self._word} {text!r}")
        self.is_said = True

    def close(self, text: str, status: str) -> None:
        require(text == self._text, f"the deltas add up to {self._text!r}, not to the item's {self._word} {text!r}")
        require(self.is_said or status == "incomplete", f"a call is done only after its whole {self._word}")
