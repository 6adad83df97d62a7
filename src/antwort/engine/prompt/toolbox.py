"""Build the toolbox of a request: its own tools, those of servers, and toolsets in place of hosted tools."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from antwort.api.items import McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tool_parsing import own_tools
from antwort.api.tools import CustomTool, FunctionTool, McpTool, NamespaceTool, OpaqueTool, may_be_called
from antwort.api.wire import UNSET, replace
from antwort.concurrency import side_by_side
from antwort.engine.prompt.declared_tools import (
    asks_to_search,
    definitions,
    grammar_instructions,
    note_dropped,
    read_grammars,
    stand_in,
)
from antwort.engine.prompt.deferred_tools import hidden_names, with_search
from antwort.engine.prompt.discovery import (
    Discovery,
    ToolOffer,
    ask_server,
    listing,
    offered_tools,
    shortened,
    standing,
)
from antwort.engine.prompt.tool_choice import allowed_names, check_allowed, check_choice
from antwort.engine.prompt.tool_names import OWN, Tools, named_apart
from antwort.errors import InvalidField
from antwort.ids import new_id
from antwort.schema.normalize import normalize_all
from antwort.tools.base import BaseExecutor, ToolDefinition
from antwort.tools.routing import Toolbox, is_registered

_CACHED_TOOLBOXES = 8
_LARGEST_CACHED_BYTES = 64 * 1024
"""The most that a request says of its tools, and that servers list which it names by address, in a cached toolbox."""
_tool_of = attrgetter("tool")


class ToolSource(NamedTuple):
    """Where some of the tools come from: a server to ask, or the request itself."""

    server: McpTool | None = None
    path: str | None = None
    """Where the request declares the server; None: an error of the server is no error of the request."""
    own: Sequence[ToolDefinition] = ()


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
    joining = standing(discovery) if with_standing else []
    key = None if cache is None else toolbox_key(request, discovery, joining)
    known = () if cache is None or key is None else cache.find_all(key)
    sources = known[0].sources if known else await _sources_of(request, discovery, joining)
    offers = await _offers(sources, discovery) if sources else []
    cached = _made_of(offers, known)
    if cached is not None:
        toolbox, lists = cached.toolbox, cached.lists
        if lists:
            lists = tuple([replace(each, id=new_id("mcpl")) for each in lists])
        if not cached.is_steady:  # other executors may be able to run its tools by now
            may_run = _may_run(request, toolbox.tools, toolbox.deferred, discovery)
            toolbox = toolbox if may_run == toolbox.may_run else replace(toolbox, may_run=may_run)
    else:
        toolbox, lists = _toolbox(request, sources, offers, discovery)
    if is_complete and request.tool_choice != "auto":
        check_choice(request, toolbox, discovery.settings)
        if not any(offer.problem for offer in offers):  # else an allowed tool may be there another time
            check_allowed(request, toolbox)
    if cached is None:
        # The parameters of the servers' tools that the model is shown.
        shown = (tool for name, tool in toolbox.tools.items() if name not in toolbox.deferred)
        await normalize_all(tool.parameters for tool in shown if tool.kind not in OWN and tool.parameters is not None)
        if cache is not None and key is not None:
            is_steady = all(executor.is_steady for executor in discovery.executors)
            cache.add(CachedToolbox(key, sources, offers, toolbox, lists, is_steady))
    return toolbox, lists


async def rebuild_toolbox(request: CreateRequest, discovery: Discovery) -> Toolbox:
    """Return the toolbox of an earlier request. A server that is gone has no tools; that is no error now."""
    sources = await _sources_of(request, discovery, standing(discovery), is_again=True)
    return _toolbox(request, sources, await _offers(sources, discovery), discovery)[0]


async def _sources_of(
    request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool], *, is_again: bool = False
) -> list[ToolSource]:
    """Return where the tools of a request come from, those of the `joining` servers last. An error in what was declared
    before, or is read again, is no error of this request. Raises `InvalidField`.
    """
    settings = discovery.settings
    sources: list[ToolSource] = []
    servers: dict[str, McpTool] = {}
    dropped: list[str] = []
    server: McpTool | None
    for each in request.declarations:
        tool, is_earlier = each.tool, each.is_inherited or is_again
        match tool:
            case FunctionTool() | CustomTool() | NamespaceTool():
                for path, _, own in () if is_earlier else own_tools(tool, each.path):
                    if not may_be_called(own):
                        raise _uncallable(path)
                grammars = {} if is_again else await read_grammars(each)
                sources.append(ToolSource(own=definitions(tool, discovery, grammars)))
                continue
            case McpTool():
                if servers.setdefault(tool.server_label, tool).server_url != tool.server_url and not is_again:
                    problem = f"{tool.server_label!r} is declared twice, with different addresses."
                    raise InvalidField(f"{each.path}.server_label", problem, code="duplicate_tool")
                server = tool
            case OpaqueTool() if asks_to_search(tool, settings):
                continue
            case OpaqueTool():
                if (server := stand_in(tool, settings, is_earlier=is_earlier)) is None:
                    dropped.append(tool.type)
                    continue
        if may_be_called(tool):
            sources.append(ToolSource(server, each.path if server is tool and not is_earlier else None))
        elif not is_earlier:
            raise _uncallable(each.path)
    if dropped and not is_again:
        note_dropped(dropped)
    if not joining:
        return sources
    named = {source.server.server_label for source in sources if source.server is not None}
    return sources + [ToolSource(server) for server in joining if server.server_label not in named]


def _uncallable(path: str) -> InvalidField:
    """Return the error for a tool that only programs may call: here, only the model calls tools."""
    problem = "programs do not call tools here, and the model may not call it: allow 'direct' or leave it out."
    return InvalidField(f"{path}.allowed_callers", problem, code="unsupported_tool")


async def _offers(sources: Sequence[ToolSource], discovery: Discovery) -> list[ToolOffer]:
    """Return the offer of each source. Servers are asked concurrently."""
    asked = [ask_server(source.server, source.path, discovery) for source in sources if source.server is not None]
    found = iter(await side_by_side(asked))
    return [ToolOffer(source.own) if source.server is None else next(found) for source in sources]


def _toolbox(
    request: CreateRequest, sources: Sequence[ToolSource], offers: Sequence[ToolOffer], discovery: Discovery
) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    found: list[ToolDefinition] = []
    instructions: dict[str, str] = {}
    """By the label of the server."""
    lists: dict[str, McpListTools] = {}
    """One for each server, however often it is declared or stands in for hosted tools."""
    for source, offer in zip(sources, offers, strict=True):
        tools = offered_tools(source.server, offer)
        found += tools
        if source.server is None:
            continue
        label = source.server.server_label
        if offer.instructions and tools:  # those of a server without tools are of no use
            instructions[label] = offer.instructions
        new = listing(label, tools, offer.problem)
        known = lists.setdefault(label, new)
        names = {tool.name for tool in known.tools}
        if more := tuple(tool for tool in new.tools if tool.name not in names):
            lists[label] = replace(known, tools=(*known.tools, *more))
    named = named_apart(found)
    hidden = hidden_names(request, named, discovery.settings)
    toolbox = Toolbox(
        tools=named,
        executors=discovery.executors,
        allowed=allowed_names(request.allowed_tools, named, discovery.settings),
        may_run=_may_run(request, named, hidden, discovery),
        instructions=(
            *dict.fromkeys(instructions.values()),
            *grammar_instructions(named, discovery.capabilities),
        ),
        silent={offer.silent: offer.problem or "" for offer in offers if offer.silent is not None},
    )
    if hidden:
        toolbox = with_search(toolbox, hidden, request, instructions)
    return toolbox, tuple(map(shortened, lists.values()))


def _may_run(request: CreateRequest, tools: Tools, hidden: frozenset[str], discovery: Discovery) -> bool:
    return request.choice_mode != "none" and (bool(hidden) or is_registered(discovery.executors, tools))


# ---- the cache ----


class ToolboxKey(NamedTuple):
    """All that a toolbox is built from but the offers of the servers."""

    tools: tuple[object, ...]
    owner: tuple[str, str] | None
    """The tenant and the owner, if the request names a server by its address."""
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
    lists: tuple[McpListTools, ...]
    is_steady: bool
    """Whether its executors can run the same tools at any time."""


class ToolboxCache:
    """The last few toolboxes: with one server of 20 tools, a cached one takes 21 µs in place of 82.

    Those with servers that requests name by address are small, and do not evict the others.
    """

    def __init__(self) -> None:
        self._of_operator: deque[CachedToolbox] = deque(maxlen=_CACHED_TOOLBOXES)
        self._of_requests: deque[CachedToolbox] = deque(maxlen=_CACHED_TOOLBOXES)

    def __len__(self) -> int:
        return len(self._of_operator) + len(self._of_requests)

    def find_all(self, key: ToolboxKey) -> Sequence[CachedToolbox]:
        """Return the toolboxes of a key, whatever the servers offered."""
        toolboxes = self._of_operator if key.owner is None else self._of_requests
        return [cached for cached in toolboxes if cached.key == key]

    def add(self, new: CachedToolbox) -> None:
        """Add a toolbox, once if several requests have built it at the same time."""
        if _request_bytes(new) <= _LARGEST_CACHED_BYTES and _made_of(new.offers, self.find_all(new.key)) is None:
            (self._of_operator if new.key.owner is None else self._of_requests).appendleft(new)


def toolbox_key(request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool]) -> ToolboxKey | None:
    """Return the key; None for a request with credentials or tools of its own, whose toolbox is not cached. `joining`
    are the servers that the operator adds.
    """
    identity, owner, additional = discovery.identity, None, request.additional
    for tool in (*request.tools, *map(_tool_of, additional)) if additional else request.tools:
        if not isinstance(tool, McpTool) or not (tool.authorization is tool.headers is UNSET):
            return None
        if tool.server_url is not UNSET:
            owner = (identity.tenant, identity.owner)
    return ToolboxKey(
        (*request.tools, *additional),
        owner,
        request.tool_choice,
        request.allowed_tools,
        joining,
        discovery.capabilities,
        discovery.settings,
        discovery.executors,
    )


def _request_bytes(cached: CachedToolbox) -> float:
    """Return the size of what a request and the servers that it names by address decide."""
    key, found = cached.key, [offer.found for offer in cached.offers if cached.key.owner is not None]
    try:
        return len(msgspec.json.encode((key.tools, key.choice, key.allowed, found)))
    except (TypeError, ValueError, RecursionError):  # a server may list anything
        return math.inf


def _made_of(offers: Sequence[ToolOffer], toolboxes: Sequence[CachedToolbox]) -> CachedToolbox | None:
    """Return the toolbox that was built from the same offers."""
    for cached in toolboxes:
        if all(map(_is_same_offer, cached.offers, offers)):
            return cached
    return None


def _is_same_offer(known: ToolOffer, offer: ToolOffer) -> bool:
    """Whether two offers were made of the same list. A list that could change is another one each time."""
    if known is offer:
        return True
    is_same_list = known.found is offer.found and isinstance(known.found, tuple)
    return is_same_list and known.instructions == offer.instructions and known.problem == offer.problem
