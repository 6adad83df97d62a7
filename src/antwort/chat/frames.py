"""What is read of the events of a stream: as much as is shown, whoever sends them.

An event of a kind that nobody here knows has a frame that nobody looks at, and a field of an odd shape is as good as
not there: a server may be newer than this program.
"""

from __future__ import annotations

import contextlib
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


class Item(msgspec.Struct):
    type: str = ""
    id: str = ""
    name: str = ""
    server_label: str = ""
    namespace: str = ""
    arguments: str = ""
    input: str = ""
    call_id: str = ""
    output: object = None
    error: object = None
    is_error: bool = False
    content: object = None
    summary: object = None


class Tokens(msgspec.Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0


class Ending(msgspec.Struct):
    """A response, as the events carry it that begin and end it."""

    id: str = ""
    model: str = ""
    status: str = ""
    usage: Tokens | None = None
    error: object = None
    incomplete_details: object = None
    output: list[msgspec.Raw] = msgspec.field(default_factory=list)


class Frame(msgspec.Struct):
    type: str = ""
    output_index: int = 0
    delta: str = ""
    arguments: str = ""
    input: str = ""
    message: str = ""
    error: object = None
    item: msgspec.Raw = msgspec.Raw(b"null")
    response: msgspec.Raw = msgspec.Raw(b"null")


_PREFIX = "antwort:"
"""Of what the standard does not have, where a server writes to its letter."""


def read_frame(payload: bytes) -> Frame:
    frame = _read(payload, Frame)
    frame.type = frame.type.removeprefix(_PREFIX)
    return frame


def item_of(frame: Frame) -> Item:
    item = _read(frame.item, Item)
    item.type = item.type.removeprefix(_PREFIX)
    return item


def response_of(frame: Frame) -> Ending:
    return _read(frame.response, Ending)


def message_in(error: object) -> str:
    """The words of an error in any of the shapes that there are; empty where it has none."""
    if isinstance(error, dict):
        said = error.get("message")
        return said if isinstance(said, str) else text_of(error.get("content")) or message_in(error.get("error"))
    return error if isinstance(error, str) else ""


def text_of(content: object) -> str:
    """The text of content parts, or of what a tool answered; what is no text is named."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(_part_text(part) for part in parts if isinstance(part, dict))


def _part_text(part: dict[str, object]) -> str:
    for field in ("text", "refusal"):
        if isinstance(said := part.get(field), str):
            return said
    return f"[{part.get('type', 'something')}]"


def _read(told: bytes | msgspec.Raw, to: type[T]) -> T:
    try:
        return msgspec.json.decode(told, type=to)
    except (ValueError, RecursionError):
        return _field_by_field(told, to)


def _field_by_field(told: bytes | msgspec.Raw, to: type[T]) -> T:
    try:
        values = msgspec.json.decode(told, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        return to()
    known: dict[str, object] = {}
    for field in msgspec.structs.fields(to):
        if field.name in values:
            with contextlib.suppress(ValueError, RecursionError):
                known[field.name] = msgspec.json.decode(values[field.name], type=field.type)
    return to(**known)
