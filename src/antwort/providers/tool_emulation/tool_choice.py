"""Read from a request which tools may be called, whether one must be, and how many calls are allowed. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from antwort.api.wire import UNSET
from antwort.providers.base import ChatMessage, ChatRequest, ChatTool

MAX_CALLS = 8
"""Calls in one answer."""

ChoiceKind: TypeAlias = Literal["auto", "required", "named", "none"]
"""The kind of `tool_choice`: a backend that follows one kind need not follow another."""


class AnswerOptions(msgspec.Struct, frozen=True):
    """What an answer may consist of, by all fields of a request together."""

    tools: tuple[ChatTool, ...]
    """The tools that may be called."""
    may_answer: bool = True
    """Whether the model may answer without a call."""
    max_calls: int = MAX_CALLS


def answer_options(request: ChatRequest) -> AnswerOptions:
    """Return what the answer may consist of. A choice of tools that are not offered leaves none, and text."""
    kind, names = choice_kind(request), allowed_names(request)
    tools = tuple(
        tool
        for tool in (() if request.tool_choice == "none" else offered_tools(request))
        if names is None or tool.function.name in names
    )
    is_single = kind == "named" or request.parallel_tool_calls is False
    return AnswerOptions(
        tools=tools,
        may_answer=kind in ("auto", "none") or not tools,
        max_calls=1 if is_single else MAX_CALLS,
    )


def choice_kind(request: ChatRequest) -> ChoiceKind:
    """Return the kind of choice; a request without tools has `none`."""
    if not request.tools:
        return "none"
    choice = request.tool_choice
    if isinstance(choice, dict):
        if choice.get("type") != "allowed_tools":
            return "named"
        return "required" if _allowed_tools(choice).get("mode") == "required" else "auto"
    if choice == "none":
        return "none"
    return "required" if choice == "required" else "auto"


def names_allowed_tools(choice: object) -> bool:
    """Whether a `tool_choice` has a list of allowed tools."""
    return isinstance(choice, dict) and choice.get("type") == "allowed_tools"


def offered_tools(request: ChatRequest) -> Sequence[ChatTool]:
    return request.tools if isinstance(request.tools, list) else ()


def allowed_names(request: ChatRequest) -> frozenset[str] | None:
    """Return the names of the tools that `tool_choice` allows; None: all of them."""
    choice = request.tool_choice
    if not isinstance(choice, dict):
        return None
    if choice.get("type") == "allowed_tools":
        tools = _allowed_tools(choice).get("tools")
        return frozenset(map(_name, tools if isinstance(tools, list) else []))
    return frozenset({_name(choice)})


def has_calls(messages: Sequence[ChatMessage]) -> bool:
    """Whether there are tool calls or tool results in the messages."""
    for message in messages:  # noqa: SIM110 - every inference asks; a generator takes three times as long
        if message.role == "tool" or message.tool_calls is not UNSET:
            return True
    return False


def _allowed_tools(choice: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `allowed_tools`: in an object in Chat Completions, in the choice itself in Responses."""
    inner = choice.get("allowed_tools")
    return inner if isinstance(inner, dict) else choice


def _name(tool: object) -> str:
    """Return a tool's name: `{"function": {"name": …}}` in Chat Completions, `{"name": …}` in Responses."""
    fields = tool if isinstance(tool, dict) else {}
    function = fields.get("function")
    name = (function if isinstance(function, dict) else fields).get("name")
    return name if isinstance(name, str) else ""
