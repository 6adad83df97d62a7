"""What a backend is asked. Pure."""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from typing import Literal

from antwort.api.wire import Plain, Wire, replace

MALFORMED = b'{"messages": ['
"""A body that every server must refuse."""
FORCED = "get_weather"
"""The function that the named choice names."""
COLOUR = "red"

_TEXT_TOKENS = 64
CALL_TOKENS = 160
THINKING_TOKENS = 1024
"""For the calls and the JSON of a model that thinks first."""
FEW_TOKENS = 48
"""For a model that is not told of the tools: enough to see that it calls none."""
_WORDS_TOKENS = 32
_MOST = 10**9


class Manner(Wire):
    """How a backend wants to be asked. It is learned from its refusals."""

    model: str
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    has_usage: bool = True
    has_temperature: bool = True
    call_tokens: int = CALL_TOKENS


def adapted(manner: Manner, refusal: str) -> Manner | None:
    """The manner that a refusal asks for; None where it asks for nothing of the kind."""
    told = refusal.lower()
    if manner.has_usage and "stream_options" in told:
        return replace(manner, has_usage=False)
    if manner.limit == "max_tokens" and "max_completion_tokens" in told:
        return replace(manner, limit="max_completion_tokens")
    if manner.has_temperature and "temperature" in told:
        return replace(manner, has_temperature=False)
    return None


def text(manner: Manner) -> Plain:
    """Long enough to measure by."""
    return _question(manner, "Count from one to fifty in words, separated by commas.", _TEXT_TOKENS)


def auto(manner: Manner) -> Plain:
    return _with_tools(manner, "What is the weather in Paris? Use the function.", "auto")


def required(manner: Manner, *, is_streamed: bool = True) -> Plain:
    """Nothing in the words calls for a function: one that is called is called because it must be."""
    asked = _with_tools(manner, "Say hello.", "required")
    return asked if is_streamed else {name: value for name, value in asked.items() if not name.startswith("stream")}


def named(manner: Manner) -> Plain:
    return _with_tools(manner, "Say hello.", {"type": "function", "function": {"name": FORCED}})


def parallel(manner: Manner) -> Plain:
    asked = "What is the weather in Paris, and what is it in Rome? Look both up at the same time."
    return {**_with_tools(manner, asked, "required"), "parallel_tool_calls": True}


def schema(manner: Manner) -> Plain:
    """The words do not speak of JSON: whoever answers with it was held to it."""
    form = {"name": "city", "strict": True, "schema": CITY}
    return {
        **_question(manner, "What is the capital of France?", max(manner.call_tokens, CALL_TOKENS)),
        "response_format": {"type": "json_schema", "json_schema": form},
    }


def image(manner: Manner) -> Plain:
    parts = [
        {"type": "text", "text": "Which colour is this picture? Answer with one word."},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{b64encode(red_square()).decode()}"}},
    ]
    return {**_question(manner, "", _WORDS_TOKENS), "messages": [{"role": "user", "content": parts}]}


def overlong(manner: Manner) -> Plain:
    """More than any context holds is asked for: the refusal often says how much that is."""
    return _question(manner, "Hi.", _MOST)


def _question(manner: Manner, words: str, most: int) -> Plain:
    return {
        "model": manner.model,
        "messages": [{"role": "user", "content": words}],
        manner.limit: most,
        "stream": True,
        **({"stream_options": {"include_usage": True}} if manner.has_usage else {}),
        **({"temperature": 0} if manner.has_temperature else {}),
    }


def _with_tools(manner: Manner, words: str, choice: str | Plain) -> Plain:
    return {**_question(manner, words, manner.call_tokens), "tools": TOOLS, "tool_choice": choice}


def _tool(name: str, description: str, argument: str) -> Plain:
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _tool("get_weather", "Get the current weather in a city", "city"),
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
    """A PNG: large enough for models that look at patches of a picture."""
    row = b"\0" + b"\xff\0\0" * side
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _block(b"IHDR", head) + _block(b"IDAT", zlib.compress(row * side)) + _block(b"IEND", b"")
    )


def _block(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
