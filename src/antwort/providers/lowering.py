"""A request with tools, said to a model that has no tool calls: the tools in words, the past in the form that answers
have, the answer as one JSON object. Pure.

The words are part of what the embedded model's adapter was trained on: who changes them trains and measures anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
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


_HEAD = "You can call these functions:"
_CALL = '{"calls": [{"name": "...", "arguments": {...}}]}'
_ANSWER = '{"answer": "..."}'
_EITHER = (
    f"Reply with one JSON object. If a function helps, call it: {_CALL}\n"
    f"If none is needed, or you have the results, answer: {_ANSWER}"
)
_CALLS_ONLY = f"Reply with one JSON object that calls a function: {_CALL}"


def instructions(choice: Choice) -> str:
    """What is said of the tools and of the form of an answer."""
    return f"{_HEAD}\n{listing(choice.tools)}\n\n{_EITHER if choice.may_answer else _CALLS_ONLY}"


def lowered(messages: Sequence[ChatMessage], choice: Choice) -> list[ChatMessage]:
    """The same conversation without tool calls and tool results in it, the tools told of at its beginning."""
    told = instructions(choice)
    rest = list(messages)
    if rest and rest[0].role in ("system", "developer") and _is_text(rest[0].content):
        told = f"{_text(rest.pop(0).content)}\n\n{told}"
    return [ChatMessage(role="system", content=told), *_told(rest, _said)]


def told_plainly(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """The same for an answer that is to be words, and is not held to a form: only what was called is told in one."""
    return list(_told(messages, _said_plainly))


def _told(messages: Sequence[ChatMessage], said: Callable[[ChatMessage], ChatMessage]) -> Iterator[ChatMessage]:
    """Results of one turn come as one message of the user, who alone speaks besides the model in most templates."""
    names: dict[str, str] = {}
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            call_id = message.tool_call_id if isinstance(message.tool_call_id, str) else ""
            results.append(f"{names.get(call_id, 'function')}: {_text(message.content)}")
            continue
        if results:
            yield _gathered(results)
            results = []
        names.update((call.id, call.function.name) for call in _calls(message))
        yield said(message) if message.role == "assistant" else message
    if results:
        yield _gathered(results)


def _gathered(results: Sequence[str]) -> ChatMessage:
    return ChatMessage(role="user", content="Results:\n" + "\n".join(results))


def _calls(message: ChatMessage) -> Sequence[ChatCall]:
    return message.tool_calls if isinstance(message.tool_calls, list) else ()


def _said(message: ChatMessage) -> ChatMessage:
    """What the model said, in the form that it is to answer in."""
    return _with_calls(message) if _calls(message) else replace(message, content=answer_form(_text(message.content)))


def _said_plainly(message: ChatMessage) -> ChatMessage:
    return _with_calls(message) if _calls(message) else message


def _with_calls(message: ChatMessage) -> ChatMessage:
    """Words that came with the calls stand before them, as templates with tool calls have it."""
    parts = (_text(message.content), calls_form(_calls(message)))
    return replace(message, content="\n".join(filter(None, parts)), tool_calls=UNSET)


def calls_form(calls: Sequence[ChatCall]) -> str:
    made = [{"name": call.function.name, "arguments": _arguments(call)} for call in calls]
    return json.dumps({"calls": made}, ensure_ascii=False)


def answer_form(text: str) -> str:
    return json.dumps({"answer": text}, ensure_ascii=False)


def _arguments(call: ChatCall) -> object:
    try:
        return json.loads(call.function.arguments or "{}")
    except (ValueError, RecursionError):
        return {}


def _is_text(content: object) -> bool:
    """Whether words say all of it: a picture cannot be told of."""
    parts = content if isinstance(content, list) else []
    return isinstance(content, str) or all(isinstance(part.get("text"), str) for part in parts)


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    parts: list[Any] = content if isinstance(content, list) else []
    return "\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))
