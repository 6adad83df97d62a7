"""Write values in the names and shapes of the Open Responses standard, as the strict setting asks.

Everywhere else, and in the store, names are those of OpenAI's clients. Requests may use either.

The standard's unions of items, tools and events are closed. Types that are not in them get a prefix, as in
`antwort:mcp_call`, which tells clients that they may ignore them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from antwort.api.events import Event, ReasoningTextDelta, ReasoningTextDone, StreamEvent
from antwort.api.items import KnownItem, OpaqueItem
from antwort.api.wire import Plain, encode, replace, shown_plain
from antwort.errors import standard_type

SLUG = "antwort:"
_EXTENSION = re.compile(r"[^\s:]+:\S+")
"""The form of an extension in the standard: its owner and its name."""

_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "compaction"})
_TOOLS = frozenset({"function"})
_ANNOTATIONS = frozenset({"url_citation"})
_EFFORTS = frozenset({"none", "low", "medium", "high", "xhigh"})
_FOREIGN = ("response.mcp_", "response.custom_tool_", "response.requires_action", "response.steer.")
"""Prefixes of events that the standard does not have."""
_OTHERWISE: dict[type, str] = {
    ReasoningTextDelta: "response.reasoning.delta",
    ReasoningTextDone: "response.reasoning.done",
}
"""Events that the standard has under another name."""


class Wording(msgspec.Struct, frozen=True, eq=False):
    """The functions that make JSON of values."""

    encode: Callable[[object], bytes]
    name: Callable[[type[Event]], str]
    """Return the name of an event."""
    plain: Callable[[object], Plain]
    """Return a value as plain values that encode to the same JSON; texts are not copied."""


def wording(*, strict: bool) -> Wording:
    """Return how values are written under the strict setting, or without it."""
    return STANDARD if strict else OPENAI


def own_kind(kind: str) -> str:
    """Return our name for the type of an item or tool in a request."""
    return kind.removeprefix(SLUG)


def _prefixed(kind: str) -> str:
    """Return a type with our prefix; an extension with the prefix of others stays. A type that has our prefix gets
    another one, because parsing removes one.
    """
    return kind if _EXTENSION.fullmatch(kind) and not kind.startswith(SLUG) else f"{SLUG}{kind}"


def item_kind(kind: str) -> str:
    """Return the type of an item as it is written."""
    return kind if kind in _ITEMS else _prefixed(kind)


def tool_kind(kind: str) -> str:
    """Return the type of a tool as it is written."""
    return kind if kind in _TOOLS else _prefixed(kind)


# ---- events ----


def _own_name(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def _standard_name(kind: type[Event]) -> str:
    name = _OTHERWISE.get(kind) or _own_name(kind)
    return _prefixed(name) if name.startswith(_FOREIGN) else name


def _is_flat(kind: type[Event]) -> bool:
    """Return whether an event differs in its name only. All frequent events do."""
    return not _EVENT.keys() & set(kind.__struct_fields__)


def _encode(value: object) -> bytes:
    if (flat := _heads.get(value.__class__)) is not None:
        head, cut = flat
        return head + encode(value)[cut:]
    return encode(_standard(value))


_KNOWN = get_args(KnownItem)


def _standard(value: Any) -> Any:
    """Return a list, a response, an event or an item in the words of the standard, and anything else as it is.

    The class of `value` decides, not its fields: an opaque item has whatever fields its client gave it.
    """
    match value:
        case OpaqueItem():
            return _item(shown_plain(value))
        case Event():
            return {**_with_changes(shown_plain(value), _EVENT), "type": _standard_name(type(value))}
        case _ if isinstance(value, _KNOWN):
            return _item(shown_plain(value))
    match getattr(value, "object", None):  # of a struct, not of a mapping: only our types have it
        case "list":
            return {**shown_plain(replace(value, data=())), "data": [_standard(entry) for entry in value.data]}
        case "response" | "response.compaction":
            return _with_changes(shown_plain(value), _RESPONSE)
    return shown_plain(value)


def _with_changes(plain: Plain, writing: dict[str, Callable[[Any], Any]]) -> Plain:
    """Return the values with the fields replaced that `writing` has a function for."""
    return {**plain, **{key: write(plain[key]) for key, write in writing.items() if key in plain}}


# ---- items ----


def _item(plain: Plain) -> Plain:
    """Return an item in the words of the standard."""
    match plain:
        case {"type": "message", "content": list(parts)}:
            return {**plain, "content": [_part(part) for part in parts]}
        case {"type": "function_call_output", "output": list(parts)}:
            return {**plain, "output": [_part(_of_result(part)) for part in parts]}
    return {**plain, "type": item_kind(plain["type"])}


def _of_result(part: Plain) -> Plain:
    """Return a part of a result as a part of input. The standard has no videos in results: they become files."""
    match part:
        case {"type": "text" | "output_text", "text": text}:
            return {"type": "input_text", "text": text}
        case {"type": "input_video", "video_url": url}:
            return {"type": "input_file", "file_url": url}
    return part


def _part(part: Plain) -> Plain:
    match part:
        case {"type": "input_image", "detail": "original"}:
            return {**part, "detail": "high"}
        case {"type": "input_file"}:
            return {key: value for key, value in part.items() if value is not None}
        case {"type": "output_text", "annotations": [_, *_] as annotations}:
            return {**part, "annotations": [_annotation(annotation) for annotation in annotations]}
    return part


def _annotation(plain: Plain) -> Plain:
    match plain:
        case {"type": str(kind)} if kind not in _ANNOTATIONS:
            return {**plain, "type": _prefixed(kind)}
    return plain


# ---- what a response echoes ----


def _tool(plain: Plain) -> Plain:
    match plain:
        case {"type": "namespace", "tools": list(tools)}:
            return {**plain, "type": tool_kind("namespace"), "tools": [_tool(tool) for tool in tools]}
    return {**plain, "type": tool_kind(plain["type"])}


def _choice(choice: str | Plain) -> str | Plain:
    if isinstance(choice, str):
        return choice
    match choice:
        case {"type": "allowed_tools", "tools": list(tools)}:
            return {**choice, "tools": [_tool(tool) for tool in tools]}
    return _tool(choice)


def _text(text: Plain) -> Plain:
    match text:
        case {"format": {"type": "json_schema"} as form}:
            return {**text, "format": {**form, "schema": None}}
    return text


def _reasoning(reasoning: Plain | None) -> Plain | None:
    """Leave out an effort that the standard does not have."""
    return reasoning if reasoning is None or reasoning["effort"] in _EFFORTS else {**reasoning, "effort": None}


def _error(error: Plain | None) -> Plain | None:
    return None if error is None else {**error, "type": standard_type(error["type"], error["code"])}


def _items(items: list[Plain]) -> list[Plain]:
    return [_item(item) for item in items]


_RESPONSE: dict[str, Callable[[Any], Any]] = {
    "output": _items,
    "tools": lambda tools: [_tool(tool) for tool in tools],
    "tool_choice": _choice,
    "text": _text,
    "reasoning": _reasoning,
    "error": _error,
}
_EVENT: dict[str, Callable[[Any], Any]] = {
    "response": lambda response: _with_changes(response, _RESPONSE),
    "item": _item,
    "part": _part,
    "annotation": _annotation,
    "error": _error,
}
_heads: dict[type, tuple[bytes, int]] = {
    kind: (f'{{"type":"{_standard_name(kind)}"'.encode(), len(f'{{"type":"{_own_name(kind)}"'))
    for kind in get_args(StreamEvent)
    if _is_flat(kind)
}
"""The beginning of the JSON of a flat event, and how many of its own bytes that replaces."""

OPENAI = Wording(encode, _own_name, shown_plain)
STANDARD = Wording(_encode, _standard_name, _standard)
