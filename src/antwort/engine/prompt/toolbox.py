"""Build the toolbox of a request: its own tools, those of servers, and toolsets in place of hosted tools."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple, TypeAlias

import msgspec

from antwort.api.items import CustomToolCall, FunctionCall, InputItem, McpApprovalRequest, McpCall, McpListTools
from antwort.api.requests import CreateRequest
from antwort.api.tool_parsing import own_tools
from antwort.api.tools import CustomTool, FunctionTool, McpTool, NamespaceTool, OpaqueTool, may_be_called
from antwort.api.wire import UNSET, replace
from antwort.caching import Cache
from antwort.concurrency import side_by_side
from antwort.engine.prompt.declared_tools import (
    asks_to_search,
    definitions,
    grammar_instructions,
    note_dropped,
    read_grammars,
    shortened_text,
    stand_in,
)
from antwort.engine.prompt.discovery import (
    Discovery,
    ToolOffer,
    ask_server,
    listing,
    offered_tools,
    shortened,
    standing,
)
from antwort.engine.prompt.tool_choice import allowed_names, check_allowed, check_choice, forced_names
from antwort.engine.prompt.tool_names import OWN, Tools, called_name, free_name, model_name, named_apart
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.ids import new_id
from antwort.schema.normalize import normalize_all
from antwort.tools.base import HOUSE_LABEL, ToolDefinition
from antwort.tools.routing import Toolbox, is_registered
from antwort.tools.search import MOST_FOUND, SEARCH, ToolSearch, found_in

_MAX_CACHED, _MAX_CACHED_BYTES = 64, 256 * 1024
"""Toolboxes that are cached. Their bytes are what requests say of their tools, and what servers list that requests name
by address.
"""
_tool_of = attrgetter("tool")


class CachedToolbox(NamedTuple):
    """A toolbox, the lists that are shown with it, and the offers that they were built from."""

    toolbox: Toolbox
    lists: tuple[McpListTools, ...]
    offers: Sequence[ToolOffer]
    is_steady: bool
    """Whether its executors can run the same tools at any time."""


ToolboxKey: TypeAlias = tuple[object, ...]
ToolboxCache: TypeAlias = Cache[ToolboxKey, CachedToolbox]
"""Toolboxes of one engine, which have the same settings and executors. A cached one takes 8 µs; one with a server of 20
tools is built in 113, and with one tool in 38.
"""


def toolbox_cache() -> ToolboxCache:
    return Cache(_MAX_CACHED, _MAX_CACHED_BYTES)


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
    has_tools = request.tools or request.additional or joining
    offers = await _offers_to(request, discovery, joining) if has_tools else ()
    key = None if cache is None else _cache_key(request, discovery, joining, offers)
    cached = None if cache is None or key is None else cache.get(key)
    if cached is None:
        toolbox, lists = _toolbox(request, offers, discovery)
    else:
        toolbox, lists = cached.toolbox, cached.lists
        if lists:
            lists = tuple([replace(each, id=new_id("mcpl")) for each in lists])
        if not cached.is_steady:  # its executors may be able to run other tools by now
            may_run = _may_run(request, toolbox.tools, toolbox.deferred, discovery)
            toolbox = toolbox if may_run == toolbox.may_run else replace(toolbox, may_run=may_run)
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
            cache.put(key, CachedToolbox(toolbox, lists, offers, is_steady), _request_bytes(key, offers))
    return toolbox, lists


async def rebuild_toolbox(request: CreateRequest, discovery: Discovery) -> Toolbox:
    """Return the toolbox of an earlier request. A server that is gone has no tools; that is no error now."""
    offers = await _offers_to(request, discovery, standing(discovery), is_again=True)
    return _toolbox(request, offers, discovery)[0]


async def _offers_to(
    request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool], *, is_again: bool = False
) -> list[ToolOffer]:
    """Return the tools that the request declares, and those of its servers and of the `joining` ones, which are asked
    concurrently. An error in what was declared before, or is read again, is no error of this request. Raises
    `InvalidField`.
    """
    settings = discovery.settings
    offers: list[ToolOffer] = []
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
                offers.append(ToolOffer(found=definitions(tool, discovery, grammars)))
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
            offers.append(ToolOffer(server, each.path if server is tool and not is_earlier else None))
        elif not is_earlier:
            raise _uncallable(each.path)
    if dropped and not is_again:
        note_dropped(dropped)
    if joining:
        named = {offer.server.server_label for offer in offers if offer.server is not None}
        offers += (ToolOffer(server) for server in joining if server.server_label not in named)
    asked: list[int] = []
    answering: list[Coroutine[None, None, ToolOffer]] = []
    for at, offer in enumerate(offers):
        if offer.server is not None:
            asked.append(at)
            answering.append(ask_server(offer, discovery))
    answers = await side_by_side(answering)
    for at, answer in zip(asked, answers, strict=True):
        offers[at] = answer
    return offers


def _uncallable(path: str) -> InvalidField:
    """Return the error for a tool that only programs may call: here, only the model calls tools."""
    problem = "programs do not call tools here, and the model may not call it: allow 'direct' or leave it out."
    return InvalidField(f"{path}.allowed_callers", problem, code="unsupported_tool")


def _toolbox(
    request: CreateRequest, offers: Sequence[ToolOffer], discovery: Discovery
) -> tuple[Toolbox, tuple[McpListTools, ...]]:
    found: list[ToolDefinition] = []
    instructions: dict[str, str] = {}
    """By the label of the server."""
    lists: dict[str, McpListTools] = {}
    """One for each server, however often it is declared or stands in for hosted tools."""
    silent: dict[str, str] = {}
    for offer in offers:
        tools = offered_tools(offer)
        found += tools
        if offer.server is None:
            continue
        label = offer.server.server_label
        if offer.is_silent:
            silent[label] = offer.problem or ""
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
        silent=silent,
    )
    if hidden:
        toolbox = with_search(toolbox, hidden, request, instructions)
    return toolbox, tuple(map(shortened, lists.values()))


def _may_run(request: CreateRequest, tools: Tools, hidden: frozenset[str], discovery: Discovery) -> bool:
    return request.choice_mode != "none" and (bool(hidden) or is_registered(discovery.executors, tools))


# ---- the cache ----


def _cache_key(
    request: CreateRequest, discovery: Discovery, joining: Sequence[McpTool], offers: Sequence[ToolOffer]
) -> ToolboxKey | None:
    """Return all that a toolbox is built from; None for a request with credentials or tools of its own, whose toolbox
    is not cached. Lists of tools count by identity: a cached toolbox refers to its own.
    """
    identity, owner, additional = discovery.identity, None, request.additional
    if offers:
        for tool in (*request.tools, *map(_tool_of, additional), *joining):
            if not isinstance(tool, McpTool) or not (tool.authorization is tool.headers is UNSET):
                return None
            if tool.server_url is not UNSET:
                owner = (identity.tenant, identity.owner)
    key: ToolboxKey = (
        *(owner, request.tools, tuple(additional), request.tool_choice, request.allowed_tools),
        *(tuple(joining), discovery.capabilities),
        *[(id(offer.found), offer.instructions, offer.problem, offer.is_silent) for offer in offers],
    )
    try:
        hash(key)
    except TypeError:  # a program may use lists where a parsed request has tuples
        return None
    return key


def _request_bytes(key: ToolboxKey, offers: Sequence[ToolOffer]) -> int:
    """Return the size of what a request, and the servers that it names by address, decide of a toolbox."""
    found = [] if key[0] is None else [offer.found for offer in offers]
    try:
        return len(msgspec.json.encode((key[1:5], found)))
    except (TypeError, ValueError, RecursionError):  # a server may list anything
        return sys.maxsize


_LONGEST_DESCRIPTION, _MOST_HINTS = 160, 64


def hidden_names(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """Return the tools that stay out of the prompt until they are found: those that are declared so, and all of
    servers if the others are too many. The request's own tools stay in unless it says otherwise, and so do those that
    the choice or the allowed list names.
    """
    declared = [each.tool for each in request.declarations]
    labels = {tool.server_label for tool in declared if isinstance(tool, McpTool) and tool.defer_loading is True}
    hidden = {name for name, tool in tools.items() if tool.is_deferred or tool.server_label in labels}
    if len(tools) - len(hidden) > settings.max_in_prompt:
        hidden |= {name for name, tool in tools.items() if tool.kind not in OWN}
    return frozenset(hidden - _named(request, tools, settings)) if hidden else frozenset()


def _named(request: CreateRequest, tools: Tools, settings: EngineSettings) -> frozenset[str]:
    """Return the tools that are named one by one. A server with more tools than fit the prompt is searched."""
    entries = tuple(entry for entry in request.allowed_tools or () if isinstance(entry.name, str))
    named = allowed_names(entries, tools, settings) or frozenset()
    choice = request.choice_mode
    forced = [] if isinstance(choice, str) else forced_names(choice, tools, settings)
    return named | frozenset(forced) if len(forced) <= settings.max_in_prompt else named


def with_search(
    toolbox: Toolbox, hidden: frozenset[str], request: CreateRequest, instructions: Mapping[str, str]
) -> Toolbox:
    """Return the toolbox with a search function for the hidden tools. It finds allowed ones, and is allowed if there
    are any. `instructions` are those of the servers, by their labels.
    """
    found = [toolbox.tools[name] for name in toolbox.tools if name in hidden]
    allowed = toolbox.allowed
    catalogue = found if allowed is None else [tool for tool in found if tool.name in allowed]
    search = ToolSearch(free_name(SEARCH, toolbox.tools), catalogue, [*_hints(found, request, instructions)])
    name = search.definition.name
    return replace(
        toolbox,
        tools={**toolbox.tools, name: search.definition},
        executors=(*toolbox.executors, search),
        allowed=allowed | {name} if allowed is not None and catalogue else allowed,
        deferred=hidden,
    )


def _hints(hidden: Sequence[ToolDefinition], request: CreateRequest, instructions: Mapping[str, str]) -> Iterator[str]:
    """Return a line for each server or namespace: its name, what it is for, and how many tools it has.

    What it is for is said by its declaration, else by the server's instructions.
    """
    known = dict(instructions)
    for tool in (*(each.tool for each in request.declarations), *(tool.declared for tool in hidden)):
        if isinstance(tool, McpTool) and isinstance(tool.server_description, str):
            known[tool.server_label] = tool.server_description
        elif isinstance(tool, NamespaceTool) and tool.description:
            known[tool.name] = tool.description
    numbers = Counter(tool.server_label or tool.namespace for tool in hidden)
    for label, number in [*numbers.items()][:_MOST_HINTS]:
        text = shortened_text(known.get(label, ""), _LONGEST_DESCRIPTION) if label else "functions of this conversation"
        yield f"- {label or 'others'}{': ' if text else ''}{text} ({number} {'tool' if number == 1 else 'tools'})"
    if len(numbers) > _MOST_HINTS:
        yield f"- and {len(numbers) - _MOST_HINTS} more servers"


# ---- found tools ----


def in_prompt(toolbox: Toolbox, stretches: Iterable[Sequence[InputItem]], most: int) -> list[ToolDefinition]:
    """Return the tools of the next inference. Found tools stand behind the others, in the order of first finds; if they
    are too many, the latest stay.
    """
    tools, hidden = toolbox.tools, toolbox.deferred
    shown = [tool for name, tool in tools.items() if name not in hidden]
    found: dict[str, int] = {}
    """The hidden tools that were found or called, the latest last, numbered in the order of first finds."""
    for item in chain.from_iterable(stretches):
        for name in _names_in(item, toolbox):
            if name in hidden and (toolbox.allowed is None or name in toolbox.allowed):
                found[name] = found.pop(name, len(found))
    limit = max(most - len(shown), MOST_FOUND)  # one search must be able to show all that it finds
    latest = set([*found][-limit:])
    return shown + [tools[name] for name in sorted(latest, key=found.__getitem__)]


def _names_in(item: InputItem, toolbox: Toolbox) -> Iterable[str]:
    match item:
        case McpCall(server_label=label) if label == HOUSE_LABEL:
            return found_in(item.output) if item.output is not None else ()
        case McpCall() | McpApprovalRequest():
            return (model_name(toolbox, item.server_label, item.name),)
        case FunctionCall() | CustomToolCall():
            return (called_name(toolbox, item),)
        case _:
            return ()
