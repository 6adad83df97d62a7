"""A stand-in for a model: it follows three rules and understands nothing. Good for seeing the wire and the loop."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from antwort.api.responses import Model, Usage
from antwort.api.wire import UNSET, encode
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatMessage,
    ChatRequest,
    Delta,
    Finished,
    ReasoningDelta,
    TextDelta,
)
from antwort.testing.scripted import say

DEMO_MODEL = "scripted"
_ZERO: dict[str, Any] = {"string": "example", "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}}


class DemoProvider:
    """Calls the first tool it is offered, repeats what the tool answered, and otherwise repeats what was said. With
    `reasons`, it thinks aloud before.
    """

    def __init__(self, *, reasons: bool = False) -> None:
        self._thoughts: list[Delta] = [ReasoningDelta("Let me"), ReasoningDelta(" see.")] if reasons else []

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        yield []
        pieces = [*self._thoughts, *_reply(request)]
        for piece in pieces:
            yield [piece]
        yield [Finished("tool_calls" if isinstance(pieces[-1], CallDelta) else "stop", _usage(request, len(pieces)))]

    async def models(self) -> Sequence[Model]:
        return [Model(id=DEMO_MODEL)]

    def capabilities(self, model: str) -> Capabilities:  # noqa: ARG002 - the contract's
        return Capabilities()

    async def check(self) -> None:
        """It is always there."""

    async def close(self) -> None:
        """It holds nothing."""


def demo_provider() -> DemoProvider:
    return DemoProvider()


def _reply(request: ChatRequest) -> list[Delta]:
    last = request.messages[-1] if request.messages else ChatMessage(role="user", content="")
    text = _text(last)
    if last.role == "tool":
        return _words(f"The tool answered: {text}")
    if request.tools is not UNSET and request.tool_choice != "none":
        function = request.tools[0].function
        return [CallDelta(0, function.name, encode(_example(function.parameters)).decode())]
    return _words(f"You said: {text}")


def _words(text: str) -> list[Delta]:
    return [piece for piece in say(text) if isinstance(piece, TextDelta)]


def _text(message: ChatMessage) -> str:
    if isinstance(message.content, str):
        return message.content
    parts = message.content if isinstance(message.content, list) else []
    return " ".join(str(part.get("text", f"[{part.get('type')}]")) for part in parts)


def _example(schema: Any) -> dict[str, Any]:
    """Arguments of the right types for what the schema requires."""
    if not isinstance(schema, dict):
        return {}
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {})) for name in schema.get("required", [])}


def _value(schema: dict[str, Any]) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kind = schema.get("type", "string")
    return _ZERO.get(kind if isinstance(kind, str) else "string", "example")


def words_in(request: ChatRequest) -> int:
    """Words, not tokens: there is no tokenizer here."""
    return sum(len(_text(message).split()) for message in request.messages)


def _usage(request: ChatRequest, written: int) -> Usage:
    read = words_in(request)
    return Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
