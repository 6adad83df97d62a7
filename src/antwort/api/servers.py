"""Reading what tool servers offered and answered, as clients send it back: by other servers' habits, too."""

from __future__ import annotations

import msgspec

from antwort.api.faults import convert, without_nulls
from antwort.api.items import ResultPart, ToolError, text_of
from antwort.api.wire import Plain, encode


def normalise_listing(plain: Plain) -> None:
    """A list that could not be had may be null; so may all that is said of a tool but its name."""
    tools = plain.setdefault("tools", [])
    if isinstance(tools, list):
        plain["tools"] = [_tool(tool) if isinstance(tool, dict) else tool for tool in tools]
    _normalise_error(plain)


def _tool(value: Plain) -> Plain:
    tool = without_nulls(value)
    tool.setdefault("input_schema", {})
    if not isinstance(tool.get("annotations"), dict):
        tool.pop("annotations", None)
    return tool


def normalise_server_call(plain: Plain, path: str) -> None:
    """An output that came in parts is kept in parts, and as text."""
    if not _is_ours(plain.get("error")):
        _normalise_error(plain)
    if isinstance(parts := plain.get("output"), list):
        content: tuple[ResultPart, ...] = convert(parts, tuple[ResultPart, ...], f"{path}.output")
        plain["output"], plain["content"] = text_of(content), parts


def _is_ours(error: object) -> bool:
    """Whether it is the one form that is written here."""
    try:
        return isinstance(msgspec.convert(error, ToolError), ToolError)
    except msgspec.ValidationError:
        return False


def _normalise_error(plain: Plain) -> None:
    """OpenAI's errors are objects: what they say is what counts."""
    error = plain.get("error")
    if isinstance(error, dict):
        plain["error"] = _message(error)


def _message(error: Plain) -> str:
    match error:
        case {"message": str(message)}:
            return message
        case {"content": list(parts)}:
            texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            return "\n".join(texts) or encode(parts).decode()
        case {"content": str(text)}:
            return text
        case _:
            return encode(error).decode()
