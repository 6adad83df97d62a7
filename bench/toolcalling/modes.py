"""The ways of asking that are compared: each takes a question to the engine and brings the calls back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from toolcalling.engine import HERMES, Engine
from toolcalling.forms import Form, call_of, constrained, read, said, sampled
from toolcalling.judge import Call

from antwort.local.demo import TEMPLATE
from antwort.providers.base import ChatTool


class Reply(NamedTuple):
    calls: tuple[Call, ...]
    raw: object
    """What the model said, for those who look into the results."""


class Mode(Protocol):
    @property
    def template(self) -> str:
        """The chat template that the engine is started with."""

    def ask(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> Reply: ...


class Native:
    """The tools are the backend's to tell of and to read back."""

    template = HERMES

    def ask(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> Reply:
        message = engine.ask({
            "messages": [said("user", question)], "tools": [msgspec.to_builtins(tool) for tool in tools], **sampled()
        })  # fmt: skip
        calls = tuple(_native_call(call["function"]) for call in message.get("tool_calls") or ())
        return Reply(calls, message)


def _native_call(function: dict[str, Any]) -> Call:
    try:
        return call_of(function["name"], json.loads(function["arguments"] or "{}"))
    except ValueError:
        return call_of(function["name"], None)


class Formed:
    """Told in one of the forms, in one request."""

    template = TEMPLATE

    def __init__(self, form: Form) -> None:
        self._form = form

    def ask(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> Reply:
        text = engine.ask(self._form.body(tools, question))["content"]
        return Reply(read(text), text)


class InTwoSteps:
    """First the names of the tools, out of all; then, for each, its arguments."""

    template = TEMPLATE

    def ask(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> Reply:
        names = self._names(engine, tools, question)
        chosen = [tool for name in names for tool in tools if tool.function.name == name]
        return Reply(tuple(self._call(engine, tool, question) for tool in chosen), names)

    def _names(self, engine: Engine, tools: Sequence[ChatTool], question: str) -> list[str]:
        form = Form()
        listed = form.told(tools).partition("\n\nReply")[0]
        told = f'{listed}\n\nReply with the names of the functions that help, or with none: {{"functions": [...]}}'
        schema = {
            "type": "object",
            "properties": {
                "functions": {"type": "array", "items": {"enum": [tool.function.name for tool in tools]}, "maxItems": 2}
            },
            "required": ["functions"],
            "additionalProperties": False,
        }
        return list((_json(engine, told, question, schema) or {}).get("functions", ()))

    def _call(self, engine: Engine, tool: ChatTool, question: str) -> Call:
        told = f"You call this function:\n{Form().told([tool]).splitlines()[1]}\n\nReply with its arguments as JSON."
        parameters = tool.function.parameters
        schema = parameters if isinstance(parameters, dict) else {"type": "object"}
        arguments = _json(engine, told, question, schema)
        return Call(tool.function.name, arguments, is_cut=arguments is None)


def _json(engine: Engine, told: str, question: str, schema: dict[str, Any]) -> dict[str, Any] | None:
    """None where the answer is cut off."""
    messages = [said("system", told), said("user", question)]
    text = engine.ask({"messages": messages, "response_format": constrained(schema), **sampled()})["content"]
    try:
        answer = json.loads(text)
    except ValueError:
        return None
    return answer if isinstance(answer, dict) else None
