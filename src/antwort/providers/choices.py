"""What a request says of tools, in whichever of its fields: which may be called, whether one must, how many. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias

from antwort.api.wire import UNSET
from antwort.providers.base import ChatMessage, ChatRequest, ChatTool
from antwort.providers.lowering import MOST_CALLS, Choice

Kind: TypeAlias = Literal["auto", "required", "named", "none"]
"""What sort of choice a request makes: backends that follow one do not follow another."""


def kind_of(request: ChatRequest) -> Kind:
    """A request without tools leaves none to choose."""
    if not offered(request):
        return "none"
    choice = request.tool_choice
    if isinstance(choice, dict):
        if choice.get("type") != "allowed_tools":
            return "named"
        choice = "required" if _allowed(choice).get("mode") == "required" else "auto"
    if choice == "none":
        return "none"
    return "required" if choice == "required" else "auto"


def choice_of(request: ChatRequest) -> Choice:
    """All of it taken together. A choice of nothing that is on offer leaves no tools, and words."""
    kind, tools = kind_of(request), _callable(request)
    is_single = kind == "named" or request.parallel_tool_calls is False
    may_answer = kind in ("auto", "none") or not tools
    return Choice(tools=tools, may_answer=may_answer, most=1 if is_single else MOST_CALLS)


def offered(request: ChatRequest) -> Sequence[ChatTool]:
    return request.tools if isinstance(request.tools, list) else ()


def names_allowed(request: ChatRequest) -> frozenset[str] | None:
    """The only tools that the choice lets through; None: any."""
    choice = request.tool_choice
    if not isinstance(choice, dict):
        return None
    if choice.get("type") == "allowed_tools":
        tools = _allowed(choice).get("tools")
        return frozenset(map(_name, tools if isinstance(tools, list) else []))
    return frozenset({_name(choice)})


def has_calls(messages: Sequence[ChatMessage]) -> bool:
    """Whether tools were called, or answered, in what was said so far."""
    return any(message.role == "tool" or message.tool_calls is not UNSET for message in messages)


def _callable(request: ChatRequest) -> tuple[ChatTool, ...]:
    if request.tool_choice == "none":
        return ()
    names = names_allowed(request)
    return tuple(tool for tool in offered(request) if names is None or tool.function.name in names)


def _allowed(choice: dict[str, Any]) -> dict[str, Any]:
    """Chat Completions has the list in an object of its own, Responses in the choice itself."""
    inner = choice.get("allowed_tools")
    return inner if isinstance(inner, dict) else choice


def _name(named: object) -> str:
    """Likewise the name: `{"function": {"name": …}}` or `{"name": …}`."""
    fields = named if isinstance(named, dict) else {}
    function = fields.get("function")
    name = (function if isinstance(function, dict) else fields).get("name")
    return name if isinstance(name, str) else ""
