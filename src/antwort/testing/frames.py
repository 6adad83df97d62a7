"""The frames of a streamed answer, read back strictly: what a client could be lenient about is a fault here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import msgspec

from antwort.api.events import StreamEvent
from antwort.api.standard import OPENAI, STANDARD, own_kind
from antwort.testing.rules import GrammarError

_DONE = "data: [DONE]"
_OWN = {STANDARD.name(kind): OPENAI.name(kind) for kind in get_args(StreamEvent)}
"""The names of events, by those that the strict setting writes."""
_AROUND = ("sequence_number", "stream_id")
"""What an event is sent with."""


def read_frames(body: str | bytes, *, strict: bool = False) -> Iterator[tuple[int, StreamEvent]]:
    """The events of the body, each with the number it carries. Comments are passed over.

    With `strict`, all must be in the standard's words.
    """
    *frames, last = [*_split(_text(body))] or [""]
    for place, frame in enumerate(frames):
        yield _event(place, frame, strict=strict)
    if last != _DONE:
        raise GrammarError(None, None, f"its last frame is data: [DONE], not {last!r}")


def _text(body: str | bytes) -> str:
    try:
        text = body.decode() if isinstance(body, bytes) else body
    except UnicodeDecodeError as fault:
        raise GrammarError(None, None, f"it is not UTF-8: {fault}") from None
    if "\r" in text:
        raise GrammarError(text.partition("\r")[0].count("\n\n"), None, "lines end with LF alone")
    if not text.endswith("\n\n"):
        raise GrammarError(text.count("\n\n"), None, "every frame ends with an empty line")
    return text


def _split(text: str) -> Iterator[str]:
    for frame in text.split("\n\n"):
        if fields := "\n".join(line for line in frame.split("\n") if line[:1] != ":"):
            yield fields


def _event(place: int, frame: str, *, strict: bool) -> tuple[int, StreamEvent]:
    lines = frame.split("\n")
    if [line.partition(": ")[0] for line in lines] != ["event", "data"]:
        raise GrammarError(place, None, f"a frame is an event line and a data line, not {lines}")
    name, data = (line.partition(": ")[2] for line in lines)
    try:
        plain = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.DecodeError as fault:
        raise GrammarError(place, name, f"the data is no event: {fault}") from None
    read = read_event(plain, place, name, strict=strict)
    if plain["type"] != name:
        raise GrammarError(place, name, f"the event line and the type in the data ({plain['type']}) differ")
    return read


def read_event(
    plain: dict[str, Any], place: int | None = None, name: str | None = None, *, strict: bool = False
) -> tuple[int, StreamEvent]:
    """The number and the event that a frame, or a message of a WebSocket, carries. `place` and `name` are for the words
    of a fault.
    """
    try:
        event: StreamEvent = msgspec.convert(_in_own_words(plain) if strict else plain, StreamEvent)
    except msgspec.ValidationError as fault:
        raise GrammarError(place, name, f"the data is no event: {fault}") from None
    if type(number := plain.get("sequence_number")) is not int:
        raise GrammarError(place, name, "the data carries no sequence_number")
    around = {key: plain[key] for key in _AROUND if key in plain}
    if strict and msgspec.json.decode(STANDARD.encode(event)) | around != plain:
        raise GrammarError(place, name, "the data is not in the standard's words")
    return number, event


def _in_own_words(plain: dict[str, Any]) -> dict[str, Any]:
    own = {**plain, "type": _OWN.get(plain.get("type", ""), plain.get("type"))}
    own |= {key: _own(plain[key]) for key in ("item", "part", "annotation") if key in plain}
    if isinstance(response := plain.get("response"), dict):
        said = {key: _own(response[key]) for key in ("output", "tools", "tool_choice") if key in response}
        own["response"] = {**response, **said}
    return own


_HOLDING = ("content", "annotations", "tools")
"""The fields of items, parts, tools and choices that hold more of what has a type."""


def _own(value: Any) -> Any:
    """By the types that are known inside."""
    match value:
        case list():
            return [_own(each) for each in value]
        case {"type": str(kind)}:
            return {**value, "type": own_kind(kind), **{key: _own(value[key]) for key in _HOLDING if key in value}}
    return value
