"""Describe tools, past calls and their results in the prompt of a model that has no tool calls. Pure.

The prompt's text is part of the training data of the demo model's adapter: a change of it requires a new training.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from antwort.api.wire import UNSET, replace
from antwort.providers.base import ChatCall, ChatMessage, ChatTool
from antwort.providers.tool_emulation.tool_choice import AnswerOptions
from antwort.schema.references import lookup, merge_all_of

_SURROGATES = re.compile("[\ud800-\udfff]")
_HEAD = "You can call these functions:"
_CALL = '{"calls": [{"name": "...", "arguments": {...}}]}'
_ANSWER = '{"answer": "..."}'
_EITHER = (
    f"Reply with one JSON object. If a function helps, call it: {_CALL}\n"
    f"If none is needed, or you have the results, answer: {_ANSWER}"
)
_ANSWER_ONLY = f"Reply with one JSON object: {_ANSWER}"
_CALLS_ONLY = f"Reply with one JSON object that calls a function: {_CALL}"


def instructions(options: AnswerOptions) -> str:
    """Return the description of the tools and of the form of an answer."""
    if not options.tools:
        return _ANSWER_ONLY
    return f"{_HEAD}\n{describe_tools(options.tools)}\n\n{_EITHER if options.may_answer else _CALLS_ONLY}"


# ---- messages ----


def rewrite_messages(messages: Sequence[ChatMessage], options: AnswerOptions) -> list[ChatMessage]:
    """Return the messages with tool calls and results as text, and the instructions at the beginning."""
    system = instructions(options)
    rest = list(messages)
    if rest and rest[0].role in ("system", "developer") and _is_text(rest[0].content):
        system = f"{_text(rest.pop(0).content)}\n\n{system}"
    return [ChatMessage(role="system", content=system), *_joined(rest)]


def _joined(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """Join results with what the user says right behind them, pictures included: some templates require that roles
    alternate.
    """
    block: ChatMessage | None = None
    for message, is_results in _as_text(messages):
        if message.role == "user" and (block is not None or is_results):
            block = message if block is None else _join(block, message)
            continue
        if block is not None:
            yield block
            block = None
        yield message
    if block is not None:
        yield block


def _join(one: ChatMessage, other: ChatMessage) -> ChatMessage:
    if isinstance(one.content, str) and isinstance(other.content, str):
        return replace(one, content=f"{one.content}\n\n{other.content}")
    return replace(one, content=[*_parts(one.content), *_parts(other.content)])


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _as_text(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, bool]]:
    """Yield each message without calls, and whether it consists of results. The results of one turn are one message of
    the user, the only other role in most templates.
    """
    names: dict[str, str] = {}
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            call_id = message.tool_call_id if isinstance(message.tool_call_id, str) else ""
            results.append(f"{names.get(call_id, 'function')}: {_text(message.content)}")
            continue
        if results:
            yield _results_message(results), True
            results = []
        names.update((call.id, call.function.name) for call in _calls(message))
        yield _assistant_message(message) if message.role == "assistant" else message, False
    if results:
        yield _results_message(results), True


def _results_message(results: Sequence[str]) -> ChatMessage:
    return ChatMessage(role="user", content="Results:\n" + "\n".join(results))


def _assistant_message(message: ChatMessage) -> ChatMessage:
    """Return the message in the form of an answer. Text comes before calls, as in templates with tool calls."""
    calls = _calls(message)
    if not calls:
        return replace(message, content=f'{{"answer": {_json(_text(message.content))}}}')
    made = (f'{{"name": {_json(call.function.name)}, "arguments": {_arguments(call)}}}' for call in calls)
    parts = (_text(message.content), f'{{"calls": [{", ".join(made)}]}}')
    return replace(message, content="\n".join(filter(None, parts)), tool_calls=UNSET)


def _calls(message: ChatMessage) -> Sequence[ChatCall]:
    return message.tool_calls if isinstance(message.tool_calls, list) else ()


def _arguments(call: ChatCall) -> str:
    try:
        return _json(json.loads(call.function.arguments or "{}"))
    except (ValueError, RecursionError):
        return "{}"


def _json(value: object) -> str:
    """Serialize to JSON. A lone surrogate remains an escape, as it cannot be encoded."""
    return _SURROGATES.sub(lambda half: f"\\u{ord(half.group()):04x}", json.dumps(value, ensure_ascii=False))


def _is_text(content: object) -> bool:
    parts = content if isinstance(content, list) else []
    return isinstance(content, str) or all(isinstance(part.get("text"), str) for part in parts)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


# ---- tools ----

MAX_TYPE_DEPTH = 4
"""Deeper types are `any`, like types without a short name: the schema of the answer has the whole."""
MAX_SCHEMA_NODES = 2_000
"""For one tool, beyond which types are `any`: alternatives and references can make a small schema large."""
MAX_SIGNATURES = 8
"""Of one tool, whose arguments may have alternatives."""
MAX_PART_DESCRIPTIONS = 16
"""Of parts of one tool's parameters."""
MAX_PART_DESCRIPTION_CHARACTERS = 80


def describe_tools(tools: Sequence[ChatTool]) -> str:
    """Return a line for each tool, like `get_weather(city: string, unit?: "C" | "F")`, and for each parameter that has
    a description.
    """
    return "\n".join(line for tool in tools for line in _lines(tool))


def _lines(tool: ChatTool) -> Iterator[str]:
    function = tool.function
    schema = function.parameters if isinstance(function.parameters, dict) else {}
    about = f" - {_one_line(function.description)}" if isinstance(function.description, str) else ""
    roots, types = _roots(schema), _TypeNames(schema)
    yield " or ".join(dict.fromkeys(f"{function.name}({_parameters(root, types)})" for root in roots)) + about
    yield from dict.fromkeys(line for root in roots for line in _parameter_lines(root, types))


def _roots(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of the arguments, with references and `allOf` resolved."""
    root = merge_all_of(schema, schema) if "$ref" in schema or "allOf" in schema else schema
    for word in ("anyOf", "oneOf"):
        if isinstance(choices := root.get(word), list):
            rest = {key: value for key, value in root.items() if key != word}
            made = [merge_all_of({"allOf": [rest, choice]}, schema) for choice in choices[:MAX_SIGNATURES]]
            return [each for each in made if each.get("type") == "object" or _properties(each)] or [root]
    return [root]


def _parameters(root: Mapping[str, Any], types: _TypeNames) -> str:
    try:
        return types.fields(root, 0)
    except RecursionError:  # endlessly nested alternatives
        return "..."


def _parameter_lines(root: Mapping[str, Any], types: _TypeNames) -> Iterator[str]:
    """Yield the description of each parameter, and the short ones of its parts."""
    left = MAX_PART_DESCRIPTIONS
    for name, field in _properties(root).items():
        if description := _description(field):
            yield f"  {name}: {description}"
        for path, part in islice(types.part_descriptions(field, name, 1), left):
            left -= 1
            yield f"  {path}: {part}"


def _description(field: object) -> str:
    description = field.get("description") if isinstance(field, Mapping) else None
    return _one_line(description) if isinstance(description, str) else ""


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    given = schema.get("properties")
    return given if isinstance(given, Mapping) else {}


class _TypeNames:
    """The names of types in one schema. A reference is resolved once for each depth, as references may multiply."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._referenced: dict[tuple[str, int], str] = {}
        self._nodes = 0

    def fields(self, schema: Mapping[str, Any], depth: int) -> str:
        required = schema.get("required")
        needed = required if isinstance(required, list) else []
        return ", ".join(
            f"{name}{'' if name in needed else '?'}: {self._name(field, depth + 1)}"
            for name, field in _properties(schema).items()
        )

    def _name(self, schema: object, depth: int) -> str:
        if not isinstance(schema, Mapping) or depth > MAX_TYPE_DEPTH:
            return "any"
        if isinstance(reference := schema.get("$ref"), str):
            key = (reference, depth + 1)
            name = self._referenced.get(key)
            if name is None:
                name = self._referenced[key] = self._name(lookup(reference, self._root), depth + 1)
            return name
        if self._is_over_limit():
            return "any"
        if "allOf" in schema:
            return self._name(self._merged(schema), depth + 1)
        if "const" in schema:
            return json.dumps(schema["const"], ensure_ascii=False)
        if isinstance(values := schema.get("enum"), list):
            return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
        for word in ("anyOf", "oneOf"):
            if isinstance(choices := schema.get(word), list):
                return " | ".join(dict.fromkeys(self._name(choice, depth) for choice in choices))
        kind = schema.get("type")
        if isinstance(kind, list):
            return " | ".join(self._name({**schema, "type": one}, depth) for one in kind)
        if kind == "array":
            inner = self._name(schema.get("items"), depth + 1)
            return f"({inner})[]" if " | " in inner else f"{inner}[]"
        if kind == "object" or _properties(schema):
            return f"{{{self.fields(schema, depth)}}}" if _properties(schema) else "object"
        return kind if isinstance(kind, str) else "any"

    def part_descriptions(self, field: object, path: str, depth: int) -> Iterator[tuple[str, str]]:
        """Yield the paths of a parameter's parts, and their descriptions if they are short."""
        if not isinstance(field, Mapping) or depth > MAX_TYPE_DEPTH or self._is_over_limit():
            return
        schema = self._merged(field) if "$ref" in field or "allOf" in field else field
        for word in ("anyOf", "oneOf"):
            for choice in schema[word] if isinstance(schema.get(word), list) else ():
                yield from self.part_descriptions(choice, path, depth + 1)
        yield from self.part_descriptions(schema.get("items"), f"{path}[]", depth + 1)
        for name, part in _properties(schema).items():
            if (description := _description(part)) and len(description) <= MAX_PART_DESCRIPTION_CHARACTERS:
                yield f"{path}.{name}", description
            yield from self.part_descriptions(part, f"{path}.{name}", depth + 1)

    def _merged(self, schema: Mapping[str, Any]) -> dict[str, Any]:
        one = merge_all_of(dict(schema), self._root)
        self._nodes += len(_properties(one))  # copied properties are work, too
        return one

    def _is_over_limit(self) -> bool:
        self._nodes += 1
        return self._nodes > MAX_SCHEMA_NODES
