"""Build the toolbox of a request: its own tools, those of servers, and toolsets in place of hosted tools."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from antwort.api.additional_tools import Declaration
from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tool_declarations import own_tools
from antwort.api.tools import McpTool, OpaqueTool, Tool, may_be_called
from antwort.api.wire import UNSET, replace
from antwort.concurrency import side_by_side
from antwort.engine.prompt.declared_tools import Grammars, definitions, grammar_instructions, read_grammars
from antwort.engine.prompt.deferred_tools import descriptions_of, hidden_names, with_search
from antwort.engine.prompt.discovery import (
    Discovery,
    ToolOffer,
    listing,
    offer_behind,
    offer_declared,
    shortened,
    standing,
)
from antwort.engine.prompt.hosted_tools import asks_to_search, note_dropped, policy_for, stand_in
from antwort.engine.prompt.tool_choice import allowed_names, check_allowed, check_choice
from antwort.engine.prompt.tool_names import OWN, Tools, named_apart
from antwort.errors import InvalidField
from antwort.ids import new_id
from antwort.schema.normalize import normalize_all
from antwort.tools.base import HOUSE_LABEL, BaseExecutor
from antwort.tools.routing import Toolbox, is_registered

_CACHED_TOOLBOXES = 8
_tool_of = attrgetter("tool")
_LARGEST_CACHED_BYTES = 64 * 1024
"""The most that a request says of its tools, and that a client's own server lists, in a cached toolbox."""


class ToolSource(NamedTuple):
    """Where some of the tools come from: a server to ask, or the request itself."""

    server: McpTool | None = None
    path: str | None = None
    """Where the request declares the server; None: an error of the server is no error of the request."""
    own: ToolOffer = ToolOffer()


async def build_toolbox(
    request: CreateRequest,
    discovery: Discovery,
    *,
    with_standing: bool = True,
    is_complete: bool = True,
    cache: ToolboxCache | None = None,
) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    """Return the toolbox, and the lists of the servers that the request names or the operator has added to it.

    Where items of the history may declare more tools, the request is not complete: its choice is not checked yet.
    """
    is_checked = is_complete and request.tool_choice != "auto"
    joining = standing(discovery) if with_standing else []
    key = None if cache is None else toolbox_key(request, discovery, joining)
    cached = [] if cache is None or key is None else cache.find(key)
    dropped: list[str] = []
    sources = cached[0].sources if cached else await _sources_of(request, discovery, joining, dropped)
    found = await _offers(sources, discovery, cached[0].offers if cached else None)
    if dropped:
        note_dropped(dropped)
    is_hit = False
    for each in cached:
        if is_hit := each.is_made_of(found):
            toolbox, lists = _checked_anew(each, request, discovery), each.new_lists()
            break
    else:
        toolbox, lists = _toolbox(request, found, discovery), _lists(sources, found)
    if is_checked:
        check_choice(request, toolbox, discovery.settings)
        if not any(offer.problem for offer in found):  # else an allowed tool may be there another time
            check_allowed(request, toolbox)
    if not is_hit:
        await normalize_all(_server_schemas(toolbox))
        if cache is not None and key is not None:
            is_steady = all(executor.is_steady for executor in discovery.executors)
            cache.add(CachedToolbox(key, sources, found, toolbox, is_steady, lists))
    return toolbox, lists


async def rebuild_toolbox(request: CreateRequest, discovery: Discovery) -> Toolbox:
    """Return the toolbox of an earlier request. A server that is gone has no tools; that is no error now."""
    sources = [_source_again(each.tool, discovery) for each in request.declarations]
    sources += _standing_sources(sources, standing(discovery))
    return _toolbox(request, await _offers(sources, discovery), discovery)


def _toolbox(request: CreateRequest, found: Sequence[ToolOffer], discovery: Discovery) -> Toolbox:
    tools = named_apart(tool for offer in found for tool in offer.tools)
    instructions = dict.fromkeys(offer.instructions for offer in found if offer.instructions)
    hidden = hidden_names(request, tools, discovery.settings)
    toolbox = Toolbox(
        tools=tools,
        executors=discovery.executors,
        allowed=allowed_names(request.allowed_tools, tools, discovery.settings),
        may_run=_may_run(request, tools, hidden, discovery),
        instructions=(*instructions, *grammar_instructions(tools, discovery.capabilities)),
        silent={offer.silent: offer.problem or "" for offer in found if offer.silent is not None},
    )
    if not hidden:
        return toolbox
    by_label = {
        offer.tools[0].server_label: offer.instructions
        for offer in found
        if offer.instructions and offer.tools and offer.tools[0].server_label
    }
    return with_search(toolbox, hidden, descriptions_of(request, by_label))


def _may_run(request: CreateRequest, tools: Tools, hidden: frozenset[str], discovery: Discovery) -> bool:
    return request.choice_mode != "none" and (bool(hidden) or is_registered(discovery.executors, tools))


def _checked_anew(cached: CachedToolbox, request: CreateRequest, discovery: Discovery) -> Toolbox:
    """Return a cached toolbox as it would be built now: other executors may be able to run its tools."""
    toolbox = cached.toolbox
    if cached.is_steady:
        return toolbox
    may_run = _may_run(request, toolbox.tools, toolbox.deferred, discovery)
    return toolbox if may_run == toolbox.may_run else replace(toolbox, may_run=may_run)


def _server_schemas(toolbox: Toolbox) -> Iterator[dict[str, Any]]:
    """Return the parameters of the servers' tools that the model is shown."""
    for name, tool in toolbox.tools.items():
        if tool.kind not in OWN and tool.parameters is not None and name not in toolbox.deferred:
            yield tool.parameters


def _lists(sources: Sequence[ToolSource], found: Sequence[ToolOffer]) -> tuple[McpListTools, ...]:
    """Return one list for each server, however often it is declared or stands in for hosted tools."""
    lists: dict[str, McpListTools] = {}
    for source, offer in zip(sources, found, strict=True):
        if source.server is not None:
            new = listing(source.server, offer)
            known = lists.setdefault(new.server_label, new)
            names = {tool.name for tool in known.tools}
            more = tuple(tool for tool in new.tools if tool.name not in names)
            lists[new.server_label] = replace(known, tools=(*known.tools, *more)) if more else known
    return tuple(map(shortened, lists.values()))


# ---- sources ----


async def _sources_of(
    request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool], dropped: list[str]
) -> list[ToolSource]:
    declared = request.declarations
    _check_addresses(declared)
    grammars = await read_grammars(declared)
    sources = [*_declared_sources(declared, discovery, grammars, dropped)]
    return sources + _standing_sources(sources, joining)


def _declared_sources(
    declared: Sequence[Declaration], discovery: Discovery, grammars: Grammars, dropped: list[str]
) -> Iterator[ToolSource]:
    settings = discovery.settings
    for each in declared:
        if not (each.is_inherited or isinstance(each.tool, OpaqueTool)):
            _check_callers(each)
        match tool := each.tool:
            case McpTool() if not may_be_called(tool):
                continue
            case McpTool():
                yield ToolSource(tool, None if each.is_inherited else each.path)
            case OpaqueTool() if asks_to_search(tool, settings):
                continue
            case OpaqueTool():
                is_refused = each.is_inherited and policy_for(tool.type, settings).do == "refuse"
                server = None if is_refused else stand_in(tool, settings)
                if server is None:
                    dropped.append(tool.type)
                    continue
                if not each.is_inherited:
                    _check_callers(each)
                if may_be_called(tool):
                    yield ToolSource(server)
            case _:
                yield ToolSource(own=ToolOffer(definitions(tool, discovery, grammars)))


def _source_again(tool: Tool, discovery: Discovery) -> ToolSource:
    match tool:
        case McpTool():
            return ToolSource() if tool.server_label == HOUSE_LABEL or not may_be_called(tool) else ToolSource(tool)
        case OpaqueTool():
            is_run = policy_for(tool.type, discovery.settings).do == "run" and may_be_called(tool)
            return ToolSource(stand_in(tool, discovery.settings) if is_run else None)
        case _:  # the grammars of the client's tools are not checked again
            return ToolSource(own=ToolOffer(definitions(tool, discovery, grammars={})))


def _standing_sources(sources: Sequence[ToolSource], joining: Sequence[McpTool]) -> list[ToolSource]:
    """Return the servers of the operator that the request does not name itself."""
    named = {source.server.server_label for source in sources if source.server is not None}
    return [ToolSource(server) for server in joining if server.server_label not in named]


def _check_callers(declared: Declaration) -> None:
    """Raise `InvalidField` for a tool that only programs may call: here, only the model calls tools."""
    tool, path = declared.tool, declared.path
    if isinstance(tool, McpTool | OpaqueTool):
        own: list[tuple[str, Any]] = [(path, tool)]
    else:
        own = [(at, one) for at, _, one in own_tools(tool, path)]
    for where, one in own:
        if not may_be_called(one):
            problem = "programs do not call tools here, and the model may not call it: allow 'direct' or leave it out."
            raise InvalidField(f"{where}.allowed_callers", problem, code="unsupported_tool")


def _check_addresses(declared: Sequence[Declaration]) -> None:
    """Raise `InvalidField` for a server that is declared twice with different addresses."""
    known: dict[str, McpTool] = {}
    for each in declared:
        tool = each.tool
        if isinstance(tool, McpTool) and known.setdefault(tool.server_label, tool).server_url != tool.server_url:
            problem = f"{tool.server_label!r} is declared twice, with different addresses."
            raise InvalidField(f"{each.path}.server_label", problem, code="duplicate_tool")


async def _offers(
    sources: Sequence[ToolSource], discovery: Discovery, known: Sequence[ToolOffer] | None = None
) -> list[ToolOffer]:
    """Return the offer of each source. Servers are asked concurrently; `known` are their offers from before."""
    if not sources:
        return []
    asked = [
        offer_behind(source.server, discovery, before)
        if source.path is None
        else offer_declared(source.server, source.path, discovery, before)
        for source, before in zip(sources, known or repeat(None), strict=False)
        if source.server is not None
    ]
    found = iter(await side_by_side(asked))
    return [source.own if source.server is None else next(found) for source in sources]


# ---- the cache ----


class ToolboxKey(NamedTuple):
    """All that a toolbox is built from but the offers of the servers."""

    tools: tuple[object, ...]
    owner: tuple[str, str] | None
    """The tenant and the owner, if the client brings a server of its own."""
    choice: object
    allowed: object
    standing: Sequence[McpTool]
    capabilities: object
    settings: object
    executors: tuple[BaseExecutor, ...]


class CachedToolbox(NamedTuple):
    """A toolbox, the lists that are shown with it, and all that they were built from."""

    key: ToolboxKey
    sources: Sequence[ToolSource]
    offers: Sequence[ToolOffer]
    toolbox: Toolbox
    is_steady: bool
    """Whether its executors can run the same tools at any time."""
    lists: tuple[McpListTools, ...]

    def new_lists(self) -> tuple[McpListTools, ...]:
        """Return the lists for another response."""
        return tuple([replace(each, id=new_id("mcpl")) for each in self.lists])

    def is_made_of(self, offers: Sequence[ToolOffer]) -> bool:
        return len(self.offers) == len(offers) and all(map(_is_same_offer, self.offers, offers))


class ToolboxCache:
    """The last few toolboxes: with one server of 20 tools, a cached one takes 21 µs in place of 82.

    Those with servers that clients bring are small, and do not push out the operator's.
    """

    def __init__(self) -> None:
        self._of_operator: deque[CachedToolbox] = deque(maxlen=_CACHED_TOOLBOXES)
        self._of_clients: deque[CachedToolbox] = deque(maxlen=_CACHED_TOOLBOXES)

    def __len__(self) -> int:
        return len(self._of_operator) + len(self._of_clients)

    def find(self, key: ToolboxKey) -> list[CachedToolbox]:
        """Return the toolboxes of a key, whatever the servers offered then."""
        toolboxes = self._of_operator if key.owner is None else self._of_clients
        return [cached for cached in toolboxes if cached.key == key]

    def add(self, new: CachedToolbox) -> None:
        """Add a toolbox, once if several requests have built it at the same time."""
        if any(cached.is_made_of(new.offers) for cached in self.find(new.key)):
            return
        if _client_bytes(new) <= _LARGEST_CACHED_BYTES:
            (self._of_operator if new.key.owner is None else self._of_clients).appendleft(new)


def toolbox_key(request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool]) -> ToolboxKey | None:
    """Return the key; None for a request with credentials, or tools of its own, whose toolbox is not cached. `joining`
    are the servers that the operator adds.
    """
    owner = None
    for tool in (*request.tools, *map(_tool_of, request.additional)):
        if not isinstance(tool, McpTool) or tool.authorization is not UNSET or tool.headers is not UNSET:
            return None
        if tool.server_url is not UNSET:
            owner = (discovery.identity.tenant, discovery.identity.owner)
    return ToolboxKey(
        (*request.tools, *request.additional),
        owner,
        request.tool_choice,
        request.allowed_tools,
        joining,
        discovery.capabilities,
        discovery.settings,
        discovery.executors,
    )


def _client_bytes(cached: CachedToolbox) -> float:
    """Return the size of what clients and their servers decide."""
    key, found = cached.key, [offer.found for offer in cached.offers if cached.key.owner is not None]
    try:
        return len(msgspec.json.encode((key.tools, key.choice, key.allowed, found)))
    except (TypeError, ValueError, RecursionError):  # a server may list anything
        return math.inf


def _is_same_offer(known: ToolOffer, offer: ToolOffer) -> bool:
    """Whether two offers were made of the same list, if that is one that cannot change."""
    return known is offer or (
        known.found is offer.found
        and isinstance(known.found, tuple | None)
        and known.instructions == offer.instructions
        and known.problem == offer.problem
        and known.silent == offer.silent
    )
