"""Items of kinds that are not ours to understand. A call and its result are told by their form, and shown to the model
as any others; what else there is says nothing to it, and the log tells of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from antwort.api.additional_tools import is_additional
from antwort.api.items import (
    CustomToolCall,
    CustomToolCallOutput,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputItem,
    InputText,
    InputVideo,
    McpCall,
    Message,
    OpaqueItem,
    ResultPart,
    Text,
)
from antwort.api.wire import encode
from antwort.engine.context.compaction_item import is_trigger
from antwort.engine.prompt.tool_names import legal_name
from antwort.notes import note
from antwort.tools.base import Output

_log = logging.getLogger("antwort.engine")

_OUTPUT: Final = "_output"
_BOOKKEEPING = frozenset({"type", "id", "call_id", "status", "name", "namespace", "caller", "fingerprint", "execution"})
_SAID = ("output", "result", "tools")
"""Where results say what they came to."""
_MOST_TYPES, _LONGEST_TYPE = 10, 60


class ForeignCall(msgspec.Struct, frozen=True):
    call_id: str
    name: str
    arguments: str


def foreign_call(item: OpaqueItem) -> ForeignCall | None:
    """The call that the item is, if it is one: under the name that its type gives it, with all that it says."""
    call_id = item.fields.get("call_id")
    if item.type.endswith(_OUTPUT) or not isinstance(call_id, str) or not call_id:
        return None
    name = item.fields.get("name")
    if not isinstance(name, str) or not name:
        name = item.type.removesuffix("_call") or item.type
    return ForeignCall(call_id, legal_name(name), _arguments(_said(item.fields)))


def _arguments(said: Mapping[str, Any]) -> str:
    arguments = said.get("arguments")
    if [*said] != ["arguments"] or not isinstance(arguments, str | dict):
        arguments = said
    return arguments if isinstance(arguments, str) else encode(arguments).decode()


def foreign_result(item: OpaqueItem) -> tuple[str, Output] | None:
    """The id of the call that the item answers, if it answers one, and what it says. Some give it as their own id."""
    call_id = item.fields.get("call_id") or item.id
    if not item.type.endswith(_OUTPUT) or not isinstance(call_id, str):
        return None
    said = _said(item.fields)
    for field in _SAID:
        if [*said] == [field]:
            return call_id, _output(said[field])
    return call_id, encode(said).decode() if said else str(item.fields.get("status") or "")


def with_result(item: OpaqueItem, text: str) -> OpaqueItem:
    """The same result, saying that instead."""
    kept = {key: value for key, value in item.fields.items() if key in _BOOKKEEPING}
    return OpaqueItem(item.type, item.id, {**kept, "output": text})


def _said(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in _BOOKKEEPING and value is not None}


# ---- what results are made of ----


def _output(value: object) -> Output:
    """Text as it is; pictures as pictures, wherever they stand: as text they would be letters without end."""
    if isinstance(value, str):
        return value
    parts = [_part(each) for each in (value if isinstance(value, list) else [value])]
    if all(isinstance(part, Text) for part in parts):
        return encode(value).decode()
    return tuple(parts)


def _part(value: object) -> ResultPart:
    if isinstance(value, dict):  # there may be very many, and matching takes three times as long
        if isinstance(url := value.get("image_url"), str):
            return InputImage(image_url=url)
        if value.get("type") in _TEXTS and isinstance(text := value.get("text"), str):
            return InputText(text=text)
    return Text(text=encode(value).decode())


_TEXTS = ("input_text", "output_text", "text")


# ---- what the model is not shown ----


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
    results = Counter(call_id for item in items if (call_id := _answered_by(item)) is not None)
    called = {call_id for item in items if (call_id := _called_by(item)) is not None}
    first_new = len(items) - len(stretches[-1])
    for at, item in enumerate(items):
        call_id = _called_by(item)
        is_shown = _answered_by(item) in called if call_id is None else results[call_id] > 0
        if call_id is not None:
            results[call_id] -= 1
        if at >= first_new:
            yield from _hidden_in(item)
            is_heard = is_shown or is_additional(item) or (is_trigger(item) and at == len(items) - 1)
            if isinstance(item, OpaqueItem) and not is_heard:
                yield item.type


def _called_by(item: InputItem) -> str | None:
    if isinstance(item, FunctionCall | CustomToolCall):
        return None if item.status == "incomplete" else item.call_id
    call = foreign_call(item) if isinstance(item, OpaqueItem) else None
    return None if call is None else call.call_id


def _answered_by(item: InputItem) -> str | None:
    if isinstance(item, FunctionCallOutput | CustomToolCallOutput):
        return item.call_id
    result = foreign_result(item) if isinstance(item, OpaqueItem) else None
    return None if result is None else result[0]
