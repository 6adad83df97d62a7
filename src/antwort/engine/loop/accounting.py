"""What the end of a turn does not say itself: what it may have cost, and why it was the last. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from antwort.api.events import Batch, TurnEnded
from antwort.api.items import FunctionCall, McpCall, Message, OutputItem, Reasoning
from antwort.api.wire import UNSET, replace
from antwort.engine.context.token_counter import TokenEstimator
from antwort.engine.loop.fold import Run, fold
from antwort.engine.prompt.messages import said_in
from antwort.providers.base import ChatMessage, ChatRequest


def accounted(
    batch: Batch, said: Run, first: int, asked: ChatRequest, meter: TokenEstimator, stop: str | None
) -> Batch:
    """The batch, with its mark complete where it ends a turn.

    `said` is the run before the batch, and `first` the place of the turn's first item in it; `stop` says why it was
    made without tools.
    """
    if not isinstance(ended := batch[-1], TurnEnded) or (stop is None and ended.usage is not UNSET):
        return batch
    if stop is not None:
        ended = replace(ended, stop=stop)
    if ended.usage is UNSET:
        ended = replace(ended, estimate=estimated(asked, fold(said, batch).output[first:], meter))
    return [*batch[:-1], ended]


def estimated(asked: ChatRequest, items: Iterable[OutputItem], meter: TokenEstimator) -> int:
    """Tokens that the inference may have taken, where the backend does not tell: for what it read and what it wrote."""
    written = ChatMessage(role="assistant", content="".join(map(_written, items)))
    return meter.estimate(asked) + meter.estimate_message(asked.model, written)


def _written(item: OutputItem) -> str:
    match item:
        case Message():
            return said_in(item.content)
        case Reasoning():
            raw = () if item.content is UNSET else item.content
            return "".join(part.text for part in raw or item.summary)
        case FunctionCall() | McpCall():
            return item.name + item.arguments
        case _:
            return ""
