"""The tools that a request allows and forces: `allowed_tools` and `tool_choice`. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from antwort.api.requests import CreateRequest
from antwort.api.tools import AllowedTools, Forced, ForcedCustom, ForcedHosted, ForcedServer, NamedTool
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.prompt.declared_tools import stands_in
from antwort.engine.prompt.tool_names import Tools, find_own
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField, shown
from antwort.tools.base import ToolKind
from antwort.tools.routing import Toolbox

# ---- the allowed list ----


def allowed_names(named: tuple[NamedTool, ...] | None, tools: Tools, settings: EngineSettings) -> frozenset[str] | None:
    """Return the names that may be called; a list that names none of the tools allows none."""
    if named is None:
        return None
    return frozenset(name for entry in named for name in _meant(entry, tools, settings))


def _meant(entry: NamedTool, tools: Tools, settings: EngineSettings) -> Iterator[str]:
    if isinstance(entry.name, str) and entry.server_label is UNSET and entry.type != "namespace":
        yield from _by_name(entry.name, entry.namespace, tools)
        return
    for tool in tools.values():
        if entry.server_label is not UNSET:
            is_meant = entry.server_label == tool.server_label and entry.name in (UNSET, tool.own_name)
        elif entry.type == "namespace":
            is_meant = entry.name == tool.namespace
        else:
            is_meant = stands_in(tool, entry.type, settings)
        if is_meant:
            yield tool.name


def _by_name(name: str, namespace: str | UnsetType, tools: Tools) -> Iterator[str]:
    """Return the tools of a name: the request's own name or the model's, or else the names of servers."""
    if namespace is not UNSET:
        own = find_own(tools, namespace, name)
        yield from () if own is None else (own.name,)
    elif (found := find_own(tools, None, name) or tools.get(name)) is not None:
        yield found.name
    else:
        yield from (tool.name for tool in tools.values() if tool.own_name == name)


# ---- the choice ----


def forced_names(choice: Forced, tools: Tools, settings: EngineSettings) -> list[str]:
    """Return the tools that a forced choice means."""
    match choice:
        case ForcedServer():
            return [
                tool.name
                for tool in tools.values()
                if tool.server_label == choice.server_label and choice.name in (UNSET, tool.own_name)
            ]
        case ForcedHosted():
            return [tool.name for tool in tools.values() if stands_in(tool, choice.type, settings)]
        case _:
            namespace = None if choice.namespace is UNSET else choice.namespace
            found = find_own(tools, namespace, choice.name) or (tools.get(choice.name) if namespace is None else None)
            is_custom = isinstance(choice, ForcedCustom)
            return [] if found is None or (found.kind is ToolKind.CUSTOM) != is_custom else [found.name]


def check_choice(request: CreateRequest, toolbox: Toolbox, settings: EngineSettings) -> None:
    """Raise `InvalidField` for a choice that means no tool, or none that is allowed."""
    choice = request.choice_mode
    if isinstance(choice, str):
        return
    meant = forced_names(choice, toolbox.tools, settings)
    field, word = _named_by(choice, toolbox.tools)
    if not meant:
        raise _not_a_tool(field, f"{shown(word)} is not {_AMONG.get(field, 'one of the tools')}.")
    if toolbox.allowed is not None and toolbox.allowed.isdisjoint(meant):
        raise _not_a_tool(field, f"{shown(word)} is not one of the allowed tools.")


def check_allowed(request: CreateRequest, toolbox: Toolbox) -> None:
    """Raise `InvalidField` if a call is required, and no tool is allowed."""
    if request.choice_mode != "required" or toolbox.allowed is None or toolbox.allowed:
        return
    field = "tool_choice.tools" if isinstance(request.tool_choice, AllowedTools) else "allowed_tools"
    raise InvalidField(field, "a call is required, and names none of the tools.", code="unknown_tool")


_AMONG = {
    "namespace": "a namespace of the tools",
    "server_label": "the label of one of the tools",
    "type": "the type of a tool that is run here",
}


def _named_by(choice: Forced, tools: Tools) -> tuple[str, str]:
    """Return the field of the choice that names the tools, or the first wrong one, and its value."""
    match choice:
        case ForcedHosted():
            return "type", choice.type
        case ForcedServer():
            is_there = any(tool.server_label == choice.server_label for tool in tools.values())
            if is_there and isinstance(choice.name, str):
                return "name", choice.name
            return "server_label", choice.server_label
        case _:
            if isinstance(choice.namespace, str) and all(tool.namespace != choice.namespace for tool in tools.values()):
                return "namespace", choice.namespace
            return "name", choice.name


def _not_a_tool(field: str, problem: str) -> InvalidField:
    return InvalidField(f"tool_choice.{field}", problem, code="unknown_tool")
