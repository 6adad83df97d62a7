"""What a request offers the model: its own tools, those of the servers it names, and what stands in for others."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from itertools import repeat
from typing import Any

from antwort.api.additional_tools import Declaration
from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tool_declarations import own_tools
from antwort.api.tools import McpTool, OpaqueTool, Tool, may_be_called
from antwort.api.wire import replace
from antwort.concurrency import side_by_side
from antwort.engine.prompt.declared_tools import Grammars, definitions, grammars_told, read_grammars
from antwort.engine.prompt.deferred_tools import abouts_of, hidden_names, with_search
from antwort.engine.prompt.discovery import (
    Offer,
    Shelf,
    check_labels,
    list_tools,
    listing,
    offer_behind,
    offer_declared,
    standing,
)
from antwort.engine.prompt.hosted_tools import asks_to_search, note_dropped, policy_for, stand_in
from antwort.engine.prompt.listings import shortened
from antwort.engine.prompt.tool_choice import Tools, allowed_names, called_name, check_allowed, check_choice, model_name
from antwort.engine.prompt.tool_names import OWN, named_apart
from antwort.engine.prompt.toolbox_cache import Boxes, Made, Source, made_of
from antwort.errors import InvalidField
from antwort.schema.normalize import normalize_all
from antwort.tools.base import HOUSE_LABEL
from antwort.tools.routing import Toolbox, are_steady, is_registered

__all__ = ["Shelf", "build_toolbox", "called_name", "check_labels", "list_tools", "model_name", "rebuild_toolbox"]


async def build_toolbox(
    request: CreateRequest,
    shelf: Shelf,
    *,
    with_standing: bool = True,
    is_all: bool = True,
    boxes: Boxes | None = None,
) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """What the request offers the model, and the lists of the servers it names or the operator has put into it. One of
    `boxes` is taken where it comes to the same. Where that may not be all, `is_all` is false, and the choice is not
    held against it.
    """
    is_checked = is_all and request.tool_choice != "auto"
    joining = standing(shelf) if with_standing else []
    of = None if boxes is None else made_of(request, shelf, joining)
    alike = [] if boxes is None or of is None else boxes.like(of)
    dropped: list[str] = []
    sources = alike[0].sources if alike else await _sources_of(request, shelf, joining, dropped)
    offers = await _offers(sources, shelf, alike[0].offers if alike else None)
    if dropped:
        note_dropped(dropped)
    for made in alike:
        if made.has(offers):
            if is_checked:
                _check_choice(request, made.toolbox, offers, shelf)
            return _checked_anew(made, request, shelf), made.shown()
    toolbox = _toolbox(request, offers, shelf)
    if is_checked:
        _check_choice(request, toolbox, offers, shelf)
    await normalize_all(_of_servers(toolbox))
    lists = _lists(sources, offers)
    if boxes is not None and of is not None:
        boxes.keep(Made(of, sources, offers, toolbox, are_steady(shelf.executors), lists))
    return toolbox, lists


def _check_choice(request: CreateRequest, toolbox: Toolbox, offers: Sequence[Offer], shelf: Shelf) -> None:
    check_choice(request, toolbox, shelf.settings)
    if not any(offer.problem for offer in offers):  # else what is allowed may be there another time
        check_allowed(request, toolbox)


def _checked_anew(made: Made, request: CreateRequest, shelf: Shelf) -> Toolbox:
    """The toolbox as it would be made now: there may be somebody to run its tools who was not there then, or could not
    say so.
    """
    toolbox = made.toolbox
    if made.holds:
        return toolbox
    may_run = _may_run(request, toolbox.tools, toolbox.deferred, shelf)
    return toolbox if may_run == toolbox.may_run else replace(toolbox, may_run=may_run)


def _may_run(request: CreateRequest, tools: Tools, hidden: frozenset[str], shelf: Shelf) -> bool:
    return request.choice_mode != "none" and (bool(hidden) or is_registered(shelf.executors, tools))


def _lists(sources: Sequence[Source], offers: Sequence[Offer]) -> tuple[McpListTools, ...]:
    lists: dict[str, McpListTools] = {}
    for source, offer in zip(sources, offers, strict=True):
        if source.server is not None:
            _add_list(listing(source.server, offer), lists)
    return tuple(map(shortened, lists.values()))


def _of_servers(toolbox: Toolbox) -> Iterator[dict[str, Any]]:
    """What the tools of servers take that the model is told of."""
    for name, tool in toolbox.tools.items():
        if tool.kind not in OWN and tool.parameters is not None and name not in toolbox.deferred:
            yield tool.parameters


async def _sources_of(
    request: CreateRequest, shelf: Shelf, joining: Sequence[McpTool], dropped: list[str]
) -> list[Source]:
    declared = request.declarations
    _check_addresses(declared)
    grammars = await read_grammars(declared)
    sources = [*_sources(declared, shelf, grammars, dropped)]
    return sources + _standing(sources, joining)


def _sources(declared: Sequence[Declaration], shelf: Shelf, grammars: Grammars, dropped: list[str]) -> Iterator[Source]:
    for each in declared:
        if not (each.is_inherited or isinstance(each.tool, OpaqueTool)):
            _check_callers(each)
        match tool := each.tool:
            case McpTool() if not may_be_called(tool):
                continue
            case McpTool():
                yield Source(tool, None if each.is_inherited else each.path)
            case OpaqueTool() if asks_to_search(tool, shelf.settings):
                continue
            case OpaqueTool():
                is_refused = each.is_inherited and policy_for(tool.type, shelf.settings).do == "refuse"
                server = None if is_refused else stand_in(tool, shelf.settings)
                if server is None:
                    dropped.append(tool.type)
                    continue
                if not each.is_inherited:
                    _check_callers(each)
                if may_be_called(tool):
                    yield Source(server)
            case _:
                yield Source(own=Offer(definitions(tool, shelf, grammars)))


def _check_callers(declared: Declaration) -> None:
    """Refuse a tool that only a program may call: nobody could call it here."""
    tool, path = declared.tool, declared.path
    own = (
        [(path, tool)]
        if isinstance(tool, McpTool | OpaqueTool)
        else [(at, one) for at, _, one in own_tools(tool, path)]
    )
    for where, one in own:
        if not may_be_called(one):
            problem = "programs do not call tools here, and the model may not call it: allow 'direct' or leave it out."
            raise InvalidField(f"{where}.allowed_callers", problem, code="unsupported_tool")


def _standing(sources: Sequence[Source], joining: Sequence[McpTool]) -> list[Source]:
    """What the request names itself is not there twice."""
    named = {source.server.server_label for source in sources if source.server is not None}
    return [Source(server) for server in joining if server.server_label not in named]


async def _offers(sources: Sequence[Source], shelf: Shelf, known: Sequence[Offer] | None = None) -> list[Offer]:
    """What each has; `known` are what they had before. Servers are asked side by side: one that is slow holds up no
    other.
    """
    if not sources:
        return []
    before = known or repeat(None)
    asked = [
        _ask(source.server, source.path, shelf, offer)
        for source, offer in zip(sources, before, strict=False)
        if source.server is not None
    ]
    if len(asked) == len(sources):
        return await side_by_side(asked)
    found = iter(await side_by_side(asked))
    return [source.own if source.server is None else next(found) for source in sources]


def _ask(server: McpTool, path: str | None, shelf: Shelf, known: Offer | None) -> Coroutine[None, None, Offer]:
    return offer_behind(server, shelf, known) if path is None else offer_declared(server, path, shelf, known)


def _check_addresses(declared: Sequence[Declaration]) -> None:
    """A server may be declared twice, with one address."""
    known: dict[str, McpTool] = {}
    for each in declared:
        if (
            isinstance(tool := each.tool, McpTool)
            and known.setdefault(tool.server_label, tool).server_url != tool.server_url
        ):
            problem = f"{tool.server_label!r} is declared twice, with different addresses."
            raise InvalidField(f"{each.path}.server_label", problem, code="duplicate_tool")


async def rebuild_toolbox(request: CreateRequest, shelf: Shelf) -> Toolbox:
    """The toolbox of an earlier request. A server that is not there any more has no tools; nobody is to blame now."""
    sources = [_source_again(each.tool, shelf) for each in request.declarations]
    sources += _standing(sources, standing(shelf))
    return _toolbox(request, await _offers(sources, shelf), shelf)


def _source_again(tool: Tool, shelf: Shelf) -> Source:
    match tool:
        case McpTool():
            return Source() if tool.server_label == HOUSE_LABEL or not may_be_called(tool) else Source(tool)
        case OpaqueTool():
            is_run = policy_for(tool.type, shelf.settings).do == "run" and may_be_called(tool)
            return Source(stand_in(tool, shelf.settings) if is_run else None)
        case _:
            own = definitions(tool, shelf, grammars={})  # what the client runs is not checked again
            return Source(own=Offer(own))


def _add_list(new: McpListTools, lists: dict[str, McpListTools]) -> None:
    """A server shows its tools once, however often it is declared or stands in for others."""
    known = lists.setdefault(new.server_label, new)
    names = {tool.name for tool in known.tools}
    more = tuple(tool for tool in new.tools if tool.name not in names)
    lists[new.server_label] = replace(known, tools=(*known.tools, *more)) if more else known


def _toolbox(request: CreateRequest, offers: Sequence[Offer], shelf: Shelf) -> Toolbox:
    tools = named_apart(tool for offer in offers for tool in offer.tools)
    said = dict.fromkeys(offer.instructions for offer in offers if offer.instructions)
    hidden = hidden_names(request, tools, shelf.settings)
    toolbox = Toolbox(
        tools=tools,
        executors=shelf.executors,
        allowed=allowed_names(request.allowed_tools, tools, shelf.settings),
        may_run=_may_run(request, tools, hidden, shelf),
        instructions=(*said, *grammars_told(tools, shelf.capabilities)),
        silent={offer.silent: offer.problem or "" for offer in offers if offer.silent is not None},
    )
    return with_search(toolbox, hidden, abouts_of(request, _told_by(offers))) if hidden else toolbox


def _told_by(offers: Sequence[Offer]) -> dict[str, str]:
    """What servers say of themselves, by their labels."""
    return {
        offer.tools[0].server_label: offer.instructions
        for offer in offers
        if offer.instructions and offer.tools and offer.tools[0].server_label
    }
