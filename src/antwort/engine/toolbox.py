"""What a request offers the model: its own functions, and the tools of the servers it names."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

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
from antwort.engine.naming import labelled_name, legal_name, named_apart
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.tools.base import (
    HOUSE_LABEL,
    Describing,
    Instructing,
    Labelled,
    ToolDefinition,
    ToolExecutor,
    ToolKind,
    ToolServer,
)
from antwort.tools.routing import Toolbox, find_executor, is_registered

_log = logging.getLogger("antwort.engine")
_tools_log = logging.getLogger("antwort.tools")  # what a tool says in an exception is not for the log


class Shelf(msgspec.Struct, frozen=True):
    """Who is there to run tools, and for whom."""

    executors: tuple[ToolExecutor, ...]
    identity: Identity
    settings: EngineSettings


def check_labels(executors: Sequence[object]) -> tuple[str, ...]:
    """The labels that there are. The first of two would answer for both, and nobody would notice."""
    labels = Counter(executor.label for executor in executors if isinstance(executor, Labelled))
    for label, number in labels.items():
        if number > 1:
            raise ValueError(f"There are two tool servers labelled {label!r}.")
    return tuple(labels)


async def list_tools(label: str, shelf: Shelf) -> McpListTools:
    """What a request that names the label, and nothing else of it, is offered."""
    tool = McpTool(server_label=label)
    try:
        offer = await _ask(tool, shelf) or _Offer()
    except InvalidField as fault:
        offer = _Offer(problem=fault.message)
    return _listing(tool, offer)


class _Offer(msgspec.Struct, frozen=True):
    """What a server has for a request."""

    tools: Sequence[ToolDefinition] = ()
    instructions: str | None = None
    problem: str | None = None
    """Why it could not be asked."""


async def build_toolbox(request: CreateRequest, shelf: Shelf) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """What the request offers the model, and the lists of the servers it names."""
    listings: list[McpListTools] = []
    offers: list[_Offer] = []
    for i, tool in enumerate(request.tools):
        if isinstance(tool, FunctionTool):
            offers.append(_Offer((_function(tool, shelf),)))
        elif isinstance(tool, McpTool):
            offers.append(await _declared(tool, f"tools[{i}]", shelf))
            listings.append(_listing(tool, offers[-1]))
        elif isinstance(tool, OpaqueTool):
            _refuse_or_drop(tool, i, shelf.settings)
    toolbox = _toolbox(request, offers, shelf)
    _check_choice(request, toolbox)
    return toolbox, tuple(listings)


async def rebuild_toolbox(request: CreateRequest, shelf: Shelf) -> Toolbox:
    """The toolbox of an earlier request. A server that is not there any more has no tools; nobody is to blame now."""
    offers: list[_Offer] = []
    for tool in request.tools:
        if isinstance(tool, FunctionTool):
            offers.append(_Offer((_function(tool, shelf),)))
        elif isinstance(tool, McpTool) and tool.server_label != HOUSE_LABEL:
            with contextlib.suppress(InvalidField):
                offers.append(await _ask(tool, shelf) or _Offer())
    return _toolbox(request, offers, shelf)


def _toolbox(request: CreateRequest, offers: Sequence[_Offer], shelf: Shelf) -> Toolbox:
    tools = named_apart(tool for offer in offers for tool in offer.tools)
    return Toolbox(
        tools=tools,
        executors=shelf.executors,
        allowed=_allowed(request.allowed_tools, tools),
        may_run=request.choice_mode != "none" and is_registered(shelf.executors, tools),
        instructions=tuple(dict.fromkeys(offer.instructions for offer in offers if offer.instructions)),
    )


def model_name(toolbox: Toolbox, label: str, name: str) -> str:
    """What the model calls the tool that its server calls `name`."""
    for definition in toolbox.tools.values():
        if definition.server_label == label and definition.own_name == name:
            return definition.name
    if label == HOUSE_LABEL:
        return name  # what the model itself wrote
    # A tool of a server that this request does not name; what it was called must not mean another one now.
    return labelled_name(label, name) if name in toolbox.tools else legal_name(name)


def _function(tool: FunctionTool, shelf: Shelf) -> ToolDefinition:
    """What the declaration leaves out is what the function that runs here says of itself."""
    declared = ToolDefinition(
        name=tool.name,
        kind=ToolKind.FUNCTION,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )
    executor = find_executor(declared, shelf.executors)
    if executor is None or not isinstance(executor, Describing) or (own := executor.describe(declared)) is None:
        return declared
    return replace(
        declared,
        description=own.description if tool.description is None else tool.description,
        parameters=own.parameters if tool.parameters is None else tool.parameters,
    )


# ---- tool servers ----


def _check_server(tool: McpTool, path: str) -> None:
    if tool.server_label == HOUSE_LABEL:  # a refused call would be taken for one of this server's
        raise InvalidField(f"{path}.server_label", f"{HOUSE_LABEL!r} is a label of our own.", code="reserved_label")
    if tool.require_approval not in (UNSET, "never"):
        problem = "approvals are not offered by this server; say 'never'."
        raise InvalidField(f"{path}.require_approval", problem, code="unsupported_parameter")


async def _declared(tool: McpTool, path: str, shelf: Shelf) -> _Offer:
    """What is behind a declaration. Raises `InvalidField` when nobody goes by its label, or it is wrong otherwise."""
    _check_server(tool, path)
    try:
        offer = await _ask(tool, shelf)
    except InvalidField as fault:
        raise fault.within(path) from fault
    if offer is None:
        raise _no_server(tool, path)
    return offer


async def _ask(tool: McpTool, shelf: Shelf) -> _Offer | None:
    """None: nobody goes by that label."""
    for executor in shelf.executors:
        if isinstance(executor, ToolServer):
            try:
                async with asyncio.timeout(shelf.settings.discovery):
                    found = await executor.discover(tool, shelf.identity)
                    if found is not None:
                        return await _offer(tool, _chosen(tool, found), executor, shelf.identity)
            except InvalidField:
                raise
            except Exception:
                _tools_log.warning(
                    "the tool server %r could not be asked for its tools", tool.server_label, exc_info=True
                )
                return _Offer(problem=f"The tool server {tool.server_label!r} could not be asked for its tools.")
    return None


async def _offer(tool: McpTool, tools: Sequence[ToolDefinition], server: ToolServer, identity: Identity) -> _Offer:
    """A server of which no tool is used has nothing to say."""
    if tools and isinstance(server, Instructing):
        return _Offer(tools, await server.instruct(tool, identity))
    return _Offer(tools)


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
        found = [definition for definition in found if definition.own_name in wanted]
    return found


def _listing(tool: McpTool, offer: _Offer) -> McpListTools:
    infos = tuple(
        McpToolInfo(
            name=definition.own_name,
            input_schema=definition.parameters or {"type": "object", "properties": {}},
            description=UNSET if definition.description is None else definition.description,
        )
        for definition in offer.tools
    )
    error = UNSET if offer.problem is None else offer.problem
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
        definition.name for definition in tools.values() if any(_names(entry, definition, tools) for entry in named)
    )


def _names(entry: NamedTool, definition: ToolDefinition, tools: Mapping[str, ToolDefinition]) -> bool:
    """A name alone is what the model sees; one that it does not see is what servers call theirs, each of them."""
    if entry.server_label is not UNSET:
        return entry.server_label == definition.server_label and entry.name in (UNSET, definition.own_name)
    return entry.name == (definition.name if entry.name in tools else definition.own_name)


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
    tools = [tool for tool in toolbox.tools.values() if tool.server_label == choice.server_label]
    if not tools:
        raise _not_a_tool("server_label", f"{choice.server_label!r} is not the label of one of the tools.")
    meant = [tool for tool in tools if choice.name in (UNSET, tool.own_name)]
    if not meant:
        raise _not_a_tool("name", f"{choice.name!r} is not one of the server's tools.")
    if toolbox.allowed is not None and not any(tool.name in toolbox.allowed for tool in meant):
        field, word = ("server_label", choice.server_label) if choice.name is UNSET else ("name", choice.name)
        raise _not_a_tool(field, f"{word!r} is not one of the allowed tools.")


def _not_a_tool(field: str, problem: str) -> InvalidField:
    return InvalidField(f"tool_choice.{field}", problem, code="unknown_tool")
