"""What an MCP server answers a call with, as the output of a tool. Pure; the server may have sent anything."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from antwort.api.items import InputFile, InputImage, InputText, ResultPart
from antwort.tools.base import Output
from antwort.tools.mcp.base import CallOutcome

IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""The kinds of pictures that models take."""
_FILES = frozenset({"application/pdf"})
_BASE64 = (string.ascii_letters + string.digits + "+/").encode()
_MOST_PARTS = 256
_LONGEST_WORD = 200
_SILENT_FAILURE = "The tool failed, and did not say why."


def output_of(outcome: CallOutcome) -> Output:
    """Text alone is text; where there is more, parts in the order they came in.

    What the server says for programs (`structuredContent`) counts where there is no text: a server that has both says
    the same twice. What models do not take is named in brackets.
    """
    if len(outcome.content) == 1 and isinstance(only := outcome.content[0], dict) and only.get("type") == "text":
        text = only.get("text")
        if isinstance(text, str) and text and (not outcome.is_error or text.strip()):
            return text  # as nearly all are
    parts = [part for content in _bounded(outcome.content) for part in _parts(content)]
    if outcome.structured is not None and not any(isinstance(part, InputText) for part in parts):
        parts.insert(0, InputText(text=_json(outcome.structured)))
    if outcome.is_error and not any(_is_said(part) for part in parts):
        parts.insert(0, InputText(text=_SILENT_FAILURE))
    texts = [part.text for part in parts if isinstance(part, InputText)]
    return "\n".join(texts) if len(texts) == len(parts) else tuple(parts)


def _bounded(content: object) -> Iterable[object]:
    if not isinstance(content, list | tuple):
        return ()
    more = len(content) - _MOST_PARTS
    if more <= 0:
        return content
    return [*content[:_MOST_PARTS], {"type": "text", "text": f"[{more} more parts left out]"}]


def _is_said(part: ResultPart) -> bool:
    return not isinstance(part, InputText) or bool(part.text.strip())


def _parts(content: object) -> list[ResultPart]:
    if not isinstance(content, dict) and not isinstance(content, Mapping):  # what is no dict takes long to tell
        return [_left_out("a part that is none")]
    match content.get("type"):
        case "text":
            text = content.get("text")
            return [InputText(text=text)] if isinstance(text, str) else [_left_out("text that is none")]
        case "image":
            return [_media(content.get("data"), content.get("mimeType"), "image")]
        case "audio":
            return [_left_out(f"audio{_kind(content.get('mimeType'))}")]
        case "resource_link":
            return [InputText(text=_link(content))]
        case "resource":
            return _resource(content.get("resource"))
        case other:
            return [_left_out(f"content of the type {_word(other)!r}")]


def _resource(resource: object) -> list[ResultPart]:
    """One that is in the answer; its text, or its bytes where models take such."""
    if not isinstance(resource, Mapping):
        return [_left_out("a resource that is none")]
    if isinstance(text := resource.get("text"), str):
        return [InputText(text=text)]
    return [_media(resource.get("blob"), resource.get("mimeType"), "resource", _word(resource.get("uri")))]


def _link(link: Mapping[str, Any]) -> str:
    """One that is elsewhere: the model is told of it, and nobody fetches it."""
    name = _word(link.get("title") or link.get("name"))
    about = f": {said}" if isinstance(said := link.get("description"), str) and said else ""
    return f"[resource {name!r}{_kind(link.get('mimeType'))} at {_word(link.get('uri'))}]{about}"


def _media(data: object, kind: object, what: str, uri: str = "") -> ResultPart:
    kind = _essence(kind)
    encoded = "".join(data.split()) if isinstance(data, str) else ""
    named = f"{what}{f' {uri}' if uri else ''}"
    if not _is_base64(encoded):
        return _left_out(f"{named} that cannot be read")
    url = f"data:{kind};base64,{encoded}"
    if kind in IMAGES:
        return InputImage(image_url=url)
    if kind in _FILES:
        return InputFile(filename=uri.rpartition("/")[2] or "file", file_data=url)
    return _left_out(f"{named}{_kind(kind)}, {len(encoded.rstrip('=')) * 3 // 4} bytes")


def _is_base64(text: str) -> bool:
    """Not by a pattern: of 16 MiB that takes a tenth of a second, in which nobody else has a turn."""
    bare = text.rstrip("=")
    is_whole = bool(bare) and len(text) % 4 == 0 and len(text) - len(bare) <= 2
    return is_whole and bare.isascii() and not bare.encode().translate(None, _BASE64)


def _essence(kind: object) -> str:
    """A media type without its parameters."""
    return _word(kind).partition(";")[0].strip().lower()


def _kind(kind: object) -> str:
    return f" ({essence})" if (essence := _essence(kind)) else ""


def _left_out(what: str) -> InputText:
    return InputText(text=f"[{what}: left out]")


def _word(value: object) -> str:
    """What a server calls something, fit to stand in a sentence."""
    text = value if isinstance(value, str) else ""
    return "".join(character if character.isprintable() else " " for character in text[:_LONGEST_WORD]).strip()


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
