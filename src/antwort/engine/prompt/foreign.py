"""Log the input items that the model is not shown, because their types are unknown or not for it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from antwort.api.additional_tools import is_additional
from antwort.api.items import (
    CustomToolCall,
    FunctionCall,
    InputFile,
    InputImage,
    InputItem,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
)
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.history.calls import answered_in, called_in
from antwort.notes import note

_log = logging.getLogger("antwort.engine")

_MOST_TYPES, _LONGEST_TYPE = 10, 60


def note_unseen(stretches: Sequence[Sequence[InputItem]]) -> None:
    """Say in the log which items, and parts of items, of the new input, the last stretch, the model is not shown."""
    if not any(isinstance(item, OpaqueItem) or any(_hidden_in(item)) for item in stretches[-1]):
        return
    if types := [*_unseen(stretches)]:
        kinds = dict.fromkeys(types)
        shown = ", ".join(each[:_LONGEST_TYPE] for each in [*kinds][:_MOST_TYPES])
        more = f", and {len(kinds) - _MOST_TYPES} more" if len(kinds) > _MOST_TYPES else ""
        said = "input items that say nothing to the model were left out"
        note(_log, logging.INFO, said, types=f"{shown}{more}", items=len(types))


def _hidden_in(item: InputItem) -> Iterator[str]:
    """What of an item of a kind that we know is not shown."""
    match item:
        case FunctionCall(status="incomplete") | CustomToolCall(status="incomplete") | McpCall(status="incomplete"):
            yield _type_of(item)
        case Message(role="assistant"):
            yield from (
                _type_of(part) for part in item.content if isinstance(part, InputImage | InputFile | InputVideo)
            )


def _type_of(value: msgspec.Struct) -> str:
    return str(value.__struct_config__.tag)


def _unseen(stretches: Sequence[Sequence[InputItem]]) -> Iterator[str]:
    """Calls of other kinds are shown as far as there are results for them, in order; results where there is a call."""
    items = [item for stretch in stretches for item in stretch]
    results = Counter(call_id for item in items if (call_id := answered_in(item)) is not None)
    called = {call_id for item in items if (call_id := called_in(item)) is not None}
    first_new = len(items) - len(stretches[-1])
    for at, item in enumerate(items):
        call_id = called_in(item)
        is_shown = answered_in(item) in called if call_id is None else results[call_id] > 0
        if call_id is not None:
            results[call_id] -= 1
        if at >= first_new:
            yield from _hidden_in(item)
            is_heard = is_shown or is_additional(item) or (is_trigger(item) and at == len(items) - 1)
            if isinstance(item, OpaqueItem) and not is_heard:
                yield item.type
