"""A request with tools, said to a model that has no tool calls: the tools in words, the past in the form that answers
have, the answer as one JSON object. Pure.

The words are part of what the embedded model's adapter was trained on: who changes them trains and measures anew.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from antwort.api.wire import UNSET, replace
from antwort.providers.base import ChatCall, ChatMessage, ChatTool
from antwort.providers.signatures import listing

MOST_CALLS = 8
"""In one answer."""


class Choice(msgspec.Struct, frozen=True):
    """What an answer may be, all that a request says of tools taken together."""

    tools: tuple[ChatTool, ...]
    """Those that may be called now."""
    may_answer: bool = True
    """Whether words will do, too."""
    most: int = MOST_CALLS
    """How many calls at most."""


_HALVES = re.compile("[\ud800-\udfff]")
_HEAD = "You can call these functions:"
_CALL = '{"calls": [{"name": "...", "arguments": {...}}]}'
_ANSWER = '{"answer": "..."}'
_EITHER = (
    f"Reply with one JSON object. If a function helps, call it: {_CALL}\n"
    f"If none is needed, or you have the results, answer: {_ANSWER}"
)
_ANSWER_ONLY = f"Reply with one JSON object: {_ANSWER}"
_CALLS_ONLY = f"Reply with one JSON object that calls a function: {_CALL}"


def instructions(choice: Choice) -> str:
    """What is said of the tools and of the form of an answer."""
    if not choice.tools:
        return _ANSWER_ONLY
    return f"{_HEAD}\n{listing(choice.tools)}\n\n{_EITHER if choice.may_answer else _CALLS_ONLY}"


def lowered(messages: Sequence[ChatMessage], choice: Choice) -> list[ChatMessage]:
    """The same conversation without tool calls and tool results in it, the tools told of at its beginning."""
    told = instructions(choice)
    rest = list(messages)
    if rest and rest[0].role in ("system", "developer") and _is_text(rest[0].content):
        told = f"{_text(rest.pop(0).content)}\n\n{told}"
    return [ChatMessage(role="system", content=told), *_told(rest)]


def _told(messages: Sequence[ChatMessage]) -> Iterator[ChatMessage]:
    """What the user says right behind results is in one message with them, pictures of theirs, too: there are
    templates in which nobody speaks twice in a row.
    """
    block: ChatMessage | None = None
    for message, is_results in _spoken(messages):
        if message.role == "user" and (block is not None or is_results):
            block = message if block is None else _joined(block, message)
            continue
        if block is not None:
            yield block
            block = None
        yield message
    if block is not None:
        yield block


def _spoken(messages: Sequence[ChatMessage]) -> Iterator[tuple[ChatMessage, bool]]:
    """Results of one turn come as one message of the user, who alone speaks besides the model in most templates: each
    message, and whether it is one of results.
    """
    names: dict[str, str] = {}
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            call_id = message.tool_call_id if isinstance(message.tool_call_id, str) else ""
            results.append(f"{names.get(call_id, 'function')}: {_text(message.content)}")
            continue
        if results:
            yield _gathered(results), True
            results = []
        names.update((call.id, call.function.name) for call in _calls(message))
        yield _said(message) if message.role == "assistant" else message, False
    if results:
        yield _gathered(results), True


def _gathered(results: Sequence[str]) -> ChatMessage:
    return ChatMessage(role="user", content="Results:\n" + "\n".join(results))


def _joined(one: ChatMessage, other: ChatMessage) -> ChatMessage:
    if isinstance(one.content, str) and isinstance(other.content, str):
        return replace(one, content=f"{one.content}\n\n{other.content}")
    return replace(one, content=[*_parts(one.content), *_parts(other.content)])


def _parts(content: object) -> list[dict[str, Any]]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _calls(message: ChatMessage) -> Sequence[ChatCall]:
    return message.tool_calls if isinstance(message.tool_calls, list) else ()


def _said(message: ChatMessage) -> ChatMessage:
    """What the model said, in the form that it is to answer in. Words that came with calls stand before them, as
    templates with tool calls have it.
    """
    if not _calls(message):
        return replace(message, content=answer_form(_text(message.content)))
    parts = (_text(message.content), calls_form(_calls(message)))
    return replace(message, content="\n".join(filter(None, parts)), tool_calls=UNSET)


def calls_form(calls: Sequence[ChatCall]) -> str:
    made = (f'{{"name": {_json(call.function.name)}, "arguments": {_arguments(call)}}}' for call in calls)
    return f'{{"calls": [{", ".join(made)}]}}'


def answer_form(text: str) -> str:
    return f'{{"answer": {_json(text)}}}'


def _arguments(call: ChatCall) -> str:
    try:
        return _json(json.loads(call.function.arguments or "{}"))
    except (ValueError, RecursionError):
        return "{}"


def _json(value: object) -> str:
    """Half a pair of surrogates stays an escape: it is no character, and cannot be sent."""
    return _HALVES.sub(lambda half: f"\\u{ord(half.group()):04x}", json.dumps(value, ensure_ascii=False))


def _is_text(content: object) -> bool:
    """Whether words say all of it: a picture cannot be told of."""
    parts = content if isinstance(content, list) else []
    return isinstance(content, str) or all(isinstance(part.get("text"), str) for part in parts)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
