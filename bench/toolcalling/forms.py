"""Ways to ask a model that has no tool calls for calls: what it is told, what its answer may be, what was meant. Pure.

`Form()` is the way of `antwort.providers.tool_emulation.prompt`; every other one differs from it in its fields.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from toolcalling.engine import NAME
from toolcalling.judge import Call

from antwort.providers.base import ChatTool
from antwort.providers.tool_emulation.prompt import describe_tools

Schema: TypeAlias = dict[str, Any]
Body: TypeAlias = dict[str, Any]

TOKENS = 160
MOST = 8
"""Calls in one answer, as in `antwort.providers.tool_emulation.tool_choice.AnswerOptions`."""

_CALLS = re.compile(r'\s*\{\s*"calls"')

EXAMPLES: tuple[tuple[str, tuple[tuple[str, dict[str, Any]], ...], str], ...] = (
    ("Is there a copy of Dracula?", (("find_book", {"title": "Dracula"}),), ""),
    ("Good evening!", (), "Good evening! How can I help you?"),
    (
        "Please renew my card and look for books by Jane Austen.",
        (("renew_card", {}), ("find_author", {"name": "Jane Austen"})),
        "",
    ),
    ("What is a sonnet?", (), "A sonnet is a poem of fourteen lines."),
)
"""Of a library's desk, whose tools are not offered: the form is to be learned, not the tools."""


class Form(NamedTuple):
    lists_schemas: bool = False
    """The tools as JSON schemas, not as signatures."""
    examples: int = 0
    ends_in_call: bool = False
    """The last example is one that calls."""
    arguments_first: bool = False
    """An answer names a call's arguments before its tool."""
    answer_first: bool = False
    """The form of an answer in words is told before that of calls."""
    temperature: float = 0.0

    def body(self, tools: Sequence[ChatTool], ask: str) -> Body:
        """A request for one answer."""
        return {
            "messages": [{"role": "system", "content": self.told(tools)}, *self._shown(), said("user", ask)],
            "response_format": constrained(self.schema(tools)),
            **sampled(self.temperature),
        }

    def told(self, tools: Sequence[ChatTool]) -> str:
        listed = "\n".join(map(_as_schema, tools)) if self.lists_schemas else describe_tools(tools)
        return f"You can call these functions:\n{listed}\n\n{self._asked()}"

    def _asked(self) -> str:
        call = '"arguments": {...}, "name": "..."' if self.arguments_first else '"name": "...", "arguments": {...}'
        calls, answer = f'{{"calls": [{{{call}}}]}}', '{"answer": "..."}'
        if self.answer_first:
            first = f"If no function is needed, or you have the results, answer: {answer}"
            return f"Reply with one JSON object. {first}\nIf a function helps, call it: {calls}"
        first = f"If a function helps, call it: {calls}"
        return f"Reply with one JSON object. {first}\nIf none is needed, or you have the results, answer: {answer}"

    def _shown(self) -> list[dict[str, str]]:
        shown = EXAMPLES[: self.examples]
        ordered = shown[::-1] if self.ends_in_call else shown
        turns = ((said("user", ask), self._replied(calls, text)) for ask, calls, text in ordered)
        return [message for turn in turns for message in turn]

    def _replied(self, calls: Sequence[tuple[str, dict[str, Any]]], text: str) -> dict[str, str]:
        made = [self._ordered({"name": name, "arguments": arguments}) for name, arguments in calls]
        return said("assistant", json.dumps({"calls": made} if calls else {"answer": text}))

    def _ordered(self, call: dict[str, Any]) -> dict[str, Any]:
        return dict(reversed(call.items())) if self.arguments_first else call

    def schema(self, tools: Sequence[ChatTool]) -> Schema:
        calls = {
            "type": "array",
            "items": {"anyOf": [self._call(tool) for tool in tools]},
            "minItems": 1,
            "maxItems": MOST,
        }
        return {"anyOf": [_object({"calls": calls}), _object({"answer": {"type": "string"}})]}

    def _call(self, tool: ChatTool) -> Schema:
        return _object(self._ordered({"name": {"const": tool.function.name}, "arguments": tool.function.parameters}))


def sampled(temperature: float = 0.0) -> Body:
    return {"model": NAME, "max_tokens": TOKENS, "temperature": temperature, "seed": 1}


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def constrained(schema: Schema) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "strict": True, "schema": schema}}


def _object(properties: Mapping[str, object]) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _as_schema(tool: ChatTool) -> str:
    function = tool.function
    return json.dumps({"name": function.name, "description": function.description, "parameters": function.parameters})


def read(text: str) -> tuple[Call, ...]:
    """The calls of an answer; one that is cut off while it calls is one call that is cut off."""
    try:
        answer = json.loads(text)
    except ValueError:
        return (Call("", None, is_cut=True),) if _CALLS.match(text) else ()
    if not isinstance(answer, dict):
        return ()
    return tuple(call_of(call.get("name", ""), call.get("arguments")) for call in answer.get("calls", ()))


def call_of(name: str, arguments: object) -> Call:
    return Call(name, arguments if isinstance(arguments, dict) else None)
