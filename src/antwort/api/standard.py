"""The standard's names and shapes, to the letter: what the strict setting writes.

Inside, and in the store, everything goes by the names that OpenAI's clients know. What goes out under the strict
setting is put into the standard's words here and nowhere else; what comes in is understood in either.

The standard's unions of items, tools and events are closed. What is not in them carries a prefix, `antwort:mcp_call`,
by which a client knows that it may pass it over.
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
"""What the standard calls an extension: whose it is, and its name."""

_ITEMS = frozenset({"message", "function_call", "function_call_output", "reasoning", "compaction"})
_TOOLS = frozenset({"function"})
_ANNOTATIONS = frozenset({"url_citation"})
_EFFORTS = frozenset({"none", "low", "medium", "high", "xhigh"})
_FOREIGN = ("response.mcp_", "response.custom_tool_", "response.requires_action", "response.steer.")
"""How the names of the events begin that the standard does not have."""
_OTHERWISE: dict[type, str] = {
    ReasoningTextDelta: "response.reasoning.delta",
    ReasoningTextDone: "response.reasoning.done",
}
"""The events that it has by another name."""


class Wording(msgspec.Struct, frozen=True, eq=False):
    """How values become JSON."""

    encode: Callable[[object], bytes]
    name: Callable[[type[Event]], str]
    """What an event of this kind is called."""
    plain: Callable[[object], Plain]
    """A value as `encode` writes it, before it is written; its texts are not copied."""


def wording(*, strict: bool) -> Wording:
    return STANDARD if strict else OPENAI


def own_kind(kind: str) -> str:
    """The type of an item or a tool as it is known inside."""
    return kind.removeprefix(SLUG)


def _prefixed(kind: str) -> str:
    """One that has a prefix already is somebody else's extension. What begins like ours gets it once more: reading
    takes one away.
    """
    return kind if _EXTENSION.fullmatch(kind) and not kind.startswith(SLUG) else f"{SLUG}{kind}"


def item_kind(kind: str) -> str:
    """The type of an item as it is written."""
    return kind if kind in _ITEMS else _prefixed(kind)


def tool_kind(kind: str) -> str:
    """The type of a tool as it is written."""
    return kind if kind in _TOOLS else _prefixed(kind)


# ---- events ----


def _own_name(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


def _standard_name(kind: type[Event]) -> str:
    name = _OTHERWISE.get(kind) or _own_name(kind)
    return _prefixed(name) if name.startswith(_FOREIGN) else name


def _is_flat(kind: type[Event]) -> bool:
    """Whether nothing inside it has other words: so it is with all that there are many of."""
    return not _EVENT.keys() & set(kind.__struct_fields__)


def _encode(value: object) -> bytes:
    if (flat := _heads.get(value.__class__)) is not None:
        head, cut = flat
        return head + encode(value)[cut:]
    return encode(_worded(value))


_KNOWN = get_args(KnownItem)


def _worded(value: Any) -> Any:
    """A list, a response, an event, an item: what `value` is tells, never what it looks like, since an item that is
    not known here has whatever fields its client gave it. What is none of these has no other words.
    """
    match value:
        case OpaqueItem():
            return _item(shown_plain(value))
        case Event():
            return {**_changed(shown_plain(value), _EVENT), "type": _standard_name(type(value))}
        case _ if isinstance(value, _KNOWN):
            return _item(shown_plain(value))
    match getattr(value, "object", None):  # of a struct, not of a mapping: only what is ours says so of itself
        case "list":
            return {**shown_plain(replace(value, data=())), "data": [_worded(entry) for entry in value.data]}
        case "response" | "response.compaction":
            return _changed(shown_plain(value), _RESPONSE)
    return shown_plain(value)


def _changed(plain: Plain, writing: dict[str, Callable[[Any], Any]]) -> Plain:
    """With those of its fields in the standard's words that have others."""
    return {**plain, **{key: write(plain[key]) for key, write in writing.items() if key in plain}}


# ---- items ----


def _item(plain: Plain) -> Plain:
    """One whose fields are known here."""
    match plain:
        case {"type": "message", "content": list(parts)}:
            return {**plain, "content": [_part(part) for part in parts]}
        case {"type": "function_call_output", "output": list(parts)}:
            return {**plain, "output": [_part(_of_result(part)) for part in parts]}
    return {**plain, "type": item_kind(plain["type"])}


def _of_result(part: Plain) -> Plain:
    """Results are made of what input is made of, less videos: one that has an address is a file that has one."""
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
    """An effort that the standard has no word for is none that it can echo."""
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
    "response": lambda response: _changed(response, _RESPONSE),
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
"""How the JSON of a flat event begins, and how much of its own that replaces."""

OPENAI = Wording(encode, _own_name, shown_plain)
STANDARD = Wording(_encode, _standard_name, _worded)
