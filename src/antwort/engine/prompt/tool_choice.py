"""Which of the tools are meant: by an earlier call, by the list of allowed ones, and by the choice. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from antwort.api.items import CustomToolCall, FunctionCall
from antwort.api.requests import CreateRequest
from antwort.api.tools import AllowedTools, Forced, ForcedCustom, ForcedHosted, ForcedServer, NamedTool
from antwort.api.wire import UNSET, UnsetType
from antwort.engine.prompt.hosted_tools import stands_in
from antwort.engine.prompt.tool_names import OWN, free_name, labelled_name, legal_name
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField, shown
from antwort.tools.base import HOUSE_LABEL, ToolDefinition, ToolKind
from antwort.tools.routing import Toolbox

Tools = Mapping[str, ToolDefinition]


def find_own(tools: Tools, namespace: str | None, name: str) -> ToolDefinition | None:
    """The tool that the request declares itself under that name."""
    likely = tools.get(name if namespace is None else labelled_name(namespace, name))
    if likely is not None and _is_own(likely, namespace, name):
        return likely
    return next((tool for tool in tools.values() if _is_own(tool, namespace, name)), None)


def _is_own(tool: ToolDefinition, namespace: str | None, name: str) -> bool:
    return tool.kind in OWN and tool.namespace == namespace and tool.own_name == name


# ---- what the model calls what clients and servers call otherwise ----


def called_name(toolbox: Toolbox, call: FunctionCall | CustomToolCall) -> str:
    """What the model calls the tool that the client knows by this name and namespace."""
    namespace = None if call.namespace is UNSET else call.namespace
    if (own := find_own(toolbox.tools, namespace, call.name)) is not None:
        return own.name
    if namespace is None:
        return call.name
    # Not declared any more; what it was called must not mean another one now.
    return free_name(labelled_name(namespace, call.name), toolbox.tools)


def model_name(toolbox: Toolbox, label: str, name: str) -> str:
    """What the model calls the tool that its server calls `name`."""
    tool = toolbox.tools.get(name)
    if tool is not None and tool.server_label == label and name == (tool.server_tool or tool.name):
        return name  # as mostly
    if (tool := _of_server(toolbox.tools, label, name)) is not None:
        return tool.name
    if label == HOUSE_LABEL:
        return name  # what the model itself wrote
    # A tool of a server that this request does not name; what it was called must not mean another one now.
    return labelled_name(label, name) if name in toolbox.tools else legal_name(name)


def _of_server(tools: Tools, label: str, name: str) -> ToolDefinition | None:
    """By the names that it goes by if they are free; else it is looked for among all of them."""
    tool = tools.get(legal_name(name))
    if tool is not None and tool.server_label == label and tool.own_name == name:
        return tool
    tool = tools.get(labelled_name(label, name))
    if tool is not None and tool.server_label == label and tool.own_name == name:
        return tool
    return next((tool for tool in tools.values() if tool.server_label == label and tool.own_name == name), None)


# ---- the allowed list ----


def allowed_names(named: tuple[NamedTool, ...] | None, tools: Tools, settings: EngineSettings) -> frozenset[str] | None:
    """The names that may be called; a list that names none of the tools allows none."""
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
    """A name alone is what the request or the model calls it; one that neither knows is what others call theirs, each
    of them.
    """
    if namespace is not UNSET:
        own = find_own(tools, namespace, name)
        yield from () if own is None else (own.name,)
    elif (found := find_own(tools, None, name) or tools.get(name)) is not None:
        yield found.name
    else:
        yield from (tool.name for tool in tools.values() if tool.own_name == name)


# ---- the choice ----


def forced_names(choice: Forced, tools: Tools, settings: EngineSettings) -> list[str]:
    """What the model may call where it must."""
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
    """Raises `InvalidField` for a choice of what is not there, or not allowed."""
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
    """Raises `InvalidField` where a call is required, and none that the model could make is allowed."""
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
    """The field of the choice that what is meant goes by, or the first that is wrong, and what stands there."""
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
