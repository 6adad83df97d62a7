"""What a request offers the model: its own tools, those of the servers it names, and what stands in for others."""

from __future__ import annotations

from collections.abc import Sequence

from antwort.api.items import CustomToolCall, FunctionCall, McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tools import McpTool, OpaqueTool, Tool
from antwort.api.wire import UNSET, replace
from antwort.engine.chosen import allowed_names, check_choice, find_own
from antwort.engine.declared import definitions, grammars_told, read_grammars
from antwort.engine.hosted import note_dropped, policy_for, stand_in
from antwort.engine.naming import free_name, labelled_name, legal_name, named_apart
from antwort.engine.servers import Offer, Shelf, check_labels, list_tools, listing, offer_behind, offer_declared
from antwort.tools.base import HOUSE_LABEL
from antwort.tools.routing import Toolbox, is_registered

__all__ = ["Shelf", "build_toolbox", "called_name", "check_labels", "list_tools", "model_name", "rebuild_toolbox"]


async def build_toolbox(request: CreateRequest, shelf: Shelf) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """What the request offers the model, and the lists of the servers it names."""
    grammars = await read_grammars(request.tools)
    offers: list[Offer] = []
    lists: dict[str, McpListTools] = {}
    dropped: list[str] = []
    for i, tool in enumerate(request.tools):
        server: McpTool | None = None
        match tool:
            case McpTool():
                server, offer = tool, await offer_declared(tool, f"tools[{i}]", shelf)
            case OpaqueTool():
                if (server := stand_in(tool, shelf.settings)) is None:
                    dropped.append(tool.type)
                    continue
                offer = await offer_behind(server, shelf)
            case _:
                offer = Offer(definitions(tool, shelf, grammars))
        offers.append(offer)
        if server is not None:
            _add_list(listing(server, offer), lists)
    note_dropped(dropped)
    toolbox = _toolbox(request, offers, shelf)
    check_choice(request, toolbox, shelf.settings)
    return toolbox, tuple(lists.values())


async def rebuild_toolbox(request: CreateRequest, shelf: Shelf) -> Toolbox:
    """The toolbox of an earlier request. A server that is not there any more has no tools; nobody is to blame now."""
    return _toolbox(request, [await _offered_again(tool, shelf) for tool in request.tools], shelf)


async def _offered_again(tool: Tool, shelf: Shelf) -> Offer:
    match tool:
        case McpTool():
            return Offer() if tool.server_label == HOUSE_LABEL else await offer_behind(tool, shelf)
        case OpaqueTool():
            is_run = policy_for(tool.type, shelf.settings).do == "run"
            server = stand_in(tool, shelf.settings) if is_run else None
            return Offer() if server is None else await offer_behind(server, shelf)
        case _:
            return Offer(definitions(tool, shelf, grammars={}))  # what the client runs is not checked again


def _add_list(new: McpListTools, lists: dict[str, McpListTools]) -> None:
    """A server shows its tools once, however often it is declared or stands in for others."""
    known = lists.setdefault(new.server_label, new)
    names = {tool.name for tool in known.tools}
    more = tuple(tool for tool in new.tools if tool.name not in names)
    lists[new.server_label] = replace(known, tools=(*known.tools, *more)) if more else known


def _toolbox(request: CreateRequest, offers: Sequence[Offer], shelf: Shelf) -> Toolbox:
    tools = named_apart(tool for offer in offers for tool in offer.tools)
    said = dict.fromkeys(offer.instructions for offer in offers if offer.instructions)
    return Toolbox(
        tools=tools,
        executors=shelf.executors,
        allowed=allowed_names(request.allowed_tools, tools, shelf.settings),
        may_run=request.choice_mode != "none" and is_registered(shelf.executors, tools),
        instructions=(*said, *grammars_told(tools, shelf.capabilities)),
    )


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
    for definition in toolbox.tools.values():
        if definition.server_label == label and definition.own_name == name:
            return definition.name
    if label == HOUSE_LABEL:
        return name  # what the model itself wrote
    # A tool of a server that this request does not name; what it was called must not mean another one now.
    return labelled_name(label, name) if name in toolbox.tools else legal_name(name)
