"""The requests that examine a backend. Pure."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import Literal

from antwort.api.wire import Plain, Wire, replace

MALFORMED = b'{"messages": ['
"""A body that every server must refuse."""
NAMED_FUNCTION = "get_weather"
COLOUR = "red"
TEXT_TOKENS = 64
CALL_TOKENS = 160
THINKING_TOKENS = 1024
"""For the calls and the JSON of a model that thinks first."""
FEW_TOKENS = 48
"""For a model that is not told of the tools: enough to see that it calls none."""
IMAGE_TOKENS = 32
TOO_MANY_TOKENS = 10**9


class RequestStyle(Wire):
    """Which fields a backend takes, as its refusals show, and how long its answers get."""

    model: str
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    has_usage: bool = True
    has_temperature: bool = True
    call_tokens: int = CALL_TOKENS


def adapted(style: RequestStyle, refusal: str) -> RequestStyle | None:
    """Return the style that a refusal asks for; None if it asks for no other."""
    message = refusal.lower()
    if style.has_usage and "stream_options" in message:
        return replace(style, has_usage=False)
    if style.limit == "max_tokens" and "max_completion_tokens" in message:
        return replace(style, limit="max_completion_tokens")
    if style.has_temperature and "temperature" in message:
        return replace(style, has_temperature=False)
    return None


def text(style: RequestStyle) -> Plain:
    """Ask for an answer that is long enough to measure the speed."""
    return _question(style, "Count from one to fifty in words, separated by commas.", TEXT_TOKENS)


def auto(style: RequestStyle) -> Plain:
    return _with_tools(style, "What is the weather in Paris? Use the function.", "auto")


def required(style: RequestStyle, *, is_streamed: bool = True) -> Plain:
    """Require a call with words that do not suggest one, so that only the choice can cause it."""
    asked = _with_tools(style, "Say hello.", "required")
    return asked if is_streamed else {name: value for name, value in asked.items() if not name.startswith("stream")}


def named(style: RequestStyle) -> Plain:
    return _with_tools(style, "Say hello.", {"type": "function", "function": {"name": NAMED_FUNCTION}})


def parallel(style: RequestStyle) -> Plain:
    asked = "What is the weather in Paris, and what is it in Rome? Look both up at the same time."
    return {**_with_tools(style, asked, "required"), "parallel_tool_calls": True}


def schema(style: RequestStyle) -> Plain:
    """Ask with a schema and without a word about JSON, so that only the schema can cause it."""
    form = {"name": "city", "strict": True, "schema": CITY}
    return {
        **_question(style, "What is the capital of France?", max(style.call_tokens, CALL_TOKENS)),
        "response_format": {"type": "json_schema", "json_schema": form},
    }


def image(style: RequestStyle) -> Plain:
    url = f"data:image/png;base64,{b64encode(red_square()).decode()}"
    parts = [
        {"type": "text", "text": "Which colour is this picture? Answer with one word."},
        {"type": "image_url", "image_url": {"url": url}},
    ]
    return {**_question(style, "", IMAGE_TOKENS), "messages": [{"role": "user", "content": parts}]}


def overlong(style: RequestStyle) -> Plain:
    """Ask for more than any context holds: the refusal often says how much that is."""
    return _question(style, "Hi.", TOO_MANY_TOKENS)


def _question(style: RequestStyle, words: str, tokens: int) -> Plain:
    return {
        "model": style.model,
        "messages": [{"role": "user", "content": words}],
        style.limit: tokens,
        "stream": True,
        **({"stream_options": {"include_usage": True}} if style.has_usage else {}),
        **({"temperature": 0} if style.has_temperature else {}),
    }


def _with_tools(style: RequestStyle, words: str, choice: str | Plain) -> Plain:
    return {**_question(style, words, style.call_tokens), "tools": TOOLS, "tool_choice": choice}


def _tool(name: str, description: str, argument: str) -> Plain:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool(NAMED_FUNCTION, "Get the current weather in a city", "city"),
    _tool("calculate", "Evaluate an arithmetic expression", "expression"),
]
_SHORT = {"type": "string", "maxLength": 20}
CITY: Plain = {
    "type": "object",
    "properties": {"city": _SHORT, "country": _SHORT},
    "required": ["city", "country"],
    "additionalProperties": False,
}


def red_square(side: int = 64) -> bytes:
    """Return a PNG that is large enough for models that look at patches of a picture."""
    row = b"\0" + b"\xff\0\0" * side
    blocks = (
        (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(row * side)),
        (b"IEND", b""),
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in blocks
    )
