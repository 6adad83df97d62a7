"""What a request offers the model: its own functions, and the tools of the servers it names."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

import msgspec

from antwort.api.items import McpListTools, McpToolInfo
from antwort.api.requests import CreateRequest
from antwort.api.tools import (
    ForcedFunction,
    ForcedServer,
    FunctionTool,
    McpTool,
    McpToolFilter,
    NamedTool,
    OpaqueTool,
)
from antwort.api.wire import UNSET
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.tools.base import ToolDefinition, ToolExecutor, ToolKind, ToolServer
from antwort.tools.routing import Toolbox, is_registered

_log = logging.getLogger("antwort.engine")

HOUSE_LABEL = "antwort"
"""The server label of calls for which no server is meant: refused ones, and names nobody offered."""


class Shelf(msgspec.Struct, frozen=True):
    """Who is there to run tools, and for whom."""

    executors: tuple[ToolExecutor, ...]
    identity: Identity
    settings: EngineSettings


async def build_toolbox(request: CreateRequest, shelf: Shelf) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """What the request offers the model, and the lists of the servers it names."""
    listings: list[McpListTools] = []
    found: list[ToolDefinition] = []
    for i, tool in enumerate(request.tools):
        if isinstance(tool, FunctionTool):
            found.append(_function(tool))
        elif isinstance(tool, McpTool):
            _check_server(tool, f"tools[{i}]")
            tools, problem = await _discover(tool, shelf)
            if tools is None:
                raise _no_server(tool, f"tools[{i}]")
            found += tools
            listings.append(_listing(tool, tools, problem))
        else:
            _refuse_or_drop(tool, i, shelf.settings)
    toolbox = _toolbox(request, found, shelf)
    _check_choice(request, toolbox)
    return toolbox, tuple(listings)


async def rebuild_toolbox(request: CreateRequest, shelf: Shelf) -> Toolbox:
    """The toolbox of an earlier request. A server that is not there any more has no tools; nobody is to blame now."""
    found: list[ToolDefinition] = []
    for tool in request.tools:
        if isinstance(tool, FunctionTool):
            found.append(_function(tool))
        elif isinstance(tool, McpTool) and tool.server_label != HOUSE_LABEL:
            tools, _ = await _discover(tool, shelf)
            found += tools or ()
    return _toolbox(request, found, shelf)


def _toolbox(request: CreateRequest, found: Sequence[ToolDefinition], shelf: Shelf) -> Toolbox:
    functions = {tool.name for tool in found if tool.kind is ToolKind.FUNCTION}
    tools: dict[str, ToolDefinition] = {}
    for tool in found:  # the request's own function goes before a server's tool of that name
        if tool.kind is ToolKind.FUNCTION or tool.name not in functions:
            tools.setdefault(tool.name, tool)
    return Toolbox(
        tools=tools,
        executors=shelf.executors,
        allowed=_allowed(request.allowed_tools, tools),
        may_run=request.choice_mode != "none" and is_registered(shelf.executors, tools),
    )


def model_name(toolbox: Toolbox, label: str, name: str) -> str:
    """What the model calls the tool that its server calls `name`."""
    for definition in toolbox.tools.values():
        if definition.server_label == label and own_name(definition) == name:
            return definition.name
    return name


def own_name(definition: ToolDefinition) -> str:
    """What its server calls the tool."""
    return definition.server_tool or definition.name


def _function(tool: FunctionTool) -> ToolDefinition:
    return ToolDefinition(
        name=tool.name,
        kind=ToolKind.FUNCTION,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


# ---- tool servers ----


def _check_server(tool: McpTool, path: str) -> None:
    if tool.server_label == HOUSE_LABEL:  # a refused call would be taken for one of this server's
        raise InvalidField(f"{path}.server_label", f"{HOUSE_LABEL!r} is a label of our own.", code="reserved_label")
    if tool.require_approval not in (UNSET, "never"):
        problem = "approvals are not offered by this server; say 'never'."
        raise InvalidField(f"{path}.require_approval", problem, code="unsupported_parameter")


async def _discover(tool: McpTool, shelf: Shelf) -> tuple[Sequence[ToolDefinition] | None, str | None]:
    """The server's tools (None: nobody goes by that label), and what went wrong in asking for them."""
    for executor in shelf.executors:
        if isinstance(executor, ToolServer):
            try:
                async with asyncio.timeout(shelf.settings.discovery):
                    found = await executor.discover(tool, shelf.identity)
            except Exception:
                _log.warning("the tool server %r could not be asked for its tools", tool.server_label, exc_info=True)
                return (), f"The tool server {tool.server_label!r} could not be asked for its tools."
            if found is not None:
                return _chosen(tool, found), None
    return None, None


def _no_server(tool: McpTool, path: str) -> InvalidField:
    problem = f"no tool server is offered here under the label {tool.server_label!r}."
    return InvalidField(f"{path}.server_label", problem, code="unknown_tool_server")


def _chosen(tool: McpTool, found: Sequence[ToolDefinition]) -> Sequence[ToolDefinition]:
    """The server's tools, less those that the declaration leaves out."""
    wanted = tool.allowed_tools
    if isinstance(wanted, McpToolFilter):
        if wanted.read_only is True:
            found = [definition for definition in found if definition.read_only]
        wanted = wanted.tool_names if isinstance(wanted.tool_names, tuple) else UNSET
    if isinstance(wanted, tuple):
        found = [definition for definition in found if own_name(definition) in wanted]
    return found


def _listing(tool: McpTool, found: Sequence[ToolDefinition], problem: str | None) -> McpListTools:
    infos = tuple(
        McpToolInfo(
            name=own_name(definition),
            input_schema=definition.parameters or {"type": "object", "properties": {}},
            description=UNSET if definition.description is None else definition.description,
        )
        for definition in found
    )
    error = UNSET if problem is None else problem
    return McpListTools(id=new_id("mcpl"), server_label=tool.server_label, tools=infos, error=error)


def _refuse_or_drop(tool: OpaqueTool, at: int, settings: EngineSettings) -> None:
    if settings.unknown_tools == "refuse":
        problem = f"tools of type {tool.type!r} are not offered here."
        raise InvalidField(f"tools[{at}].type", problem, code="unsupported_tool")
    _log.info("dropped tools[%d]: nobody here runs tools of its type", at)


# ---- the allowed list, and the choice ----


def _allowed(named: tuple[NamedTool, ...] | None, tools: Mapping[str, ToolDefinition]) -> frozenset[str] | None:
    """The names that may be called; a list that names none of the tools allows none."""
    if named is None:
        return None
    return frozenset(
        definition.name for definition in tools.values() if any(_names(entry, definition) for entry in named)
    )


def _names(entry: NamedTool, definition: ToolDefinition) -> bool:
    if entry.server_label is not UNSET:
        return entry.server_label == definition.server_label and entry.name in (UNSET, own_name(definition))
    return entry.name == definition.name


def _check_choice(request: CreateRequest, toolbox: Toolbox) -> None:
    choice = request.choice_mode
    if isinstance(choice, ForcedFunction):
        if choice.name not in toolbox.tools:
            raise _not_a_tool("name", f"{choice.name!r} is not one of the tools.")
        if toolbox.allowed is not None and choice.name not in toolbox.allowed:
            raise _not_a_tool("name", f"{choice.name!r} is not one of the allowed tools.")
    elif isinstance(choice, ForcedServer):
        _check_forced_server(choice, toolbox)


def _check_forced_server(choice: ForcedServer, toolbox: Toolbox) -> None:
    names = [own_name(tool) for tool in toolbox.tools.values() if tool.server_label == choice.server_label]
    if not names:
        raise _not_a_tool("server_label", f"{choice.server_label!r} is not the label of one of the tools.")
    if isinstance(choice.name, str) and choice.name not in names:
        raise _not_a_tool("name", f"{choice.name!r} is not one of the server's tools.")


def _not_a_tool(field: str, problem: str) -> InvalidField:
    return InvalidField(f"tool_choice.{field}", problem, code="unknown_tool")
