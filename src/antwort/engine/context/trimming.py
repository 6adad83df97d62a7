"""The latest turns within bounds: their longest results are shortened, with a mark where something is missing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.items import (
    CustomToolCallOutput,
    FunctionCallOutput,
    InputItem,
    McpCall,
    OpaqueItem,
    ResultPart,
    ToolError,
)
from antwort.api.wire import UNSET, replace
from antwort.engine.context.shortening import short_text
from antwort.engine.context.verbatim import Measure
from antwort.engine.history.calls import result_of, with_result
from antwort.tools.base import Output

_LEAST = 32
"""What a result keeps whatever happens, in the unit of the budget."""


def trimmed(items: Sequence[InputItem], budget: int, measure: Measure) -> tuple[InputItem, ...]:
    """The items within the budget, as far as that can be had by shortening results. What was said, and all calls, stay
    as they are.
    """
    sizes = [measure(item) for item in items]
    excess = sum(sizes) - budget
    results = [size for item, size in zip(items, sizes, strict=True) if result_of(item) is not None]
    if excess <= 0 or not results:
        return tuple(items)
    most = max(_LEAST, _level(results, sum(results) - excess))
    pairs = zip(items, sizes, strict=True)
    return tuple(_shorter(item, most / size) if size > most else item for item, size in pairs)


def _level(sizes: Sequence[int], room: int) -> int:
    """What each may take, so that all fit: those that take less leave the rest to the others."""
    for at, size in enumerate(sorted(sizes)):
        share = room // (len(sizes) - at)
        if size > share:
            return share
        room -= size
    return max(sizes)


def _shorter(item: InputItem, share: float) -> InputItem:
    """The item with about this share of its result's text."""
    match item:
        case FunctionCallOutput() | CustomToolCallOutput():
            return replace(item, output=_short(item.output, share))
        case McpCall():
            return replace(
                item,
                output=None if item.output is None else _short_text(item.output, share),
                error=_short_error(item.error, share),
                content=item.content if item.content is UNSET else _short_parts(item.content, share),
            )
        case OpaqueItem() if (result := result_of(item)) is not None and isinstance(result, str):
            return with_result(item, _short_text(result, share))
        case _:
            return item


def _short_error(error: str | ToolError | None, share: float) -> str | ToolError | None:
    if isinstance(error, ToolError):
        return replace(
            error, content=tuple(replace(part, text=_short_text(part.text, share)) for part in error.content)
        )
    return _short_text(error, share) if isinstance(error, str) else error


def _short(output: Output, share: float) -> Output:
    return _short_text(output, share) if isinstance(output, str) else _short_parts(output, share)


def _short_parts(parts: Sequence[ResultPart], share: float) -> tuple[ResultPart, ...]:
    """Text alone is shortened: of a picture there is no half."""
    return tuple(replace(part, text=_short_text(part.text, share)) if hasattr(part, "text") else part for part in parts)


def _short_text(text: str, share: float) -> str:
    return short_text(text, int(len(text) * share))
