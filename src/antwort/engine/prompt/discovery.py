"""Discover the tools of servers: which server has a label, what it offers a request, and the list that is shown."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, takewhile

import msgspec

from antwort.api.items import McpListTools, McpToolInfo
from antwort.api.tools import McpTool, McpToolFilter
from antwort.api.wire import UNSET, replace
from antwort.concurrency import within
from antwort.engine.history.approvals import with_approvals
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.providers.base import Capabilities
from antwort.suggestions import among
from antwort.tools.base import HOUSE_LABEL, BaseExecutor, ToolDefinition, Unanswered, labels_of

_tools_log = logging.getLogger("antwort.tools")  # an exception of a tool is not for the engine's log

_DISCOVERY_SHARE = 0.9
"""The share of a response's remaining time in which its tool servers must list their tools."""
_LONGEST_LIST_BYTES = 256 * 1024
"""A list is sent twice with each response, and stored with it."""
_LONGEST_DESCRIPTION = 200
"""Characters of a description in a shortened list."""


class Discovery(msgspec.Struct, frozen=True):
    """The executors and the identity that tools are discovered for, and what the model's backend can take."""

    executors: tuple[BaseExecutor, ...]
    identity: Identity
    settings: EngineSettings
    capabilities: Capabilities = Capabilities()
    model: str = ""
    """The model that the request names: some servers join the requests for some models."""
    deadline: float | None = None
    """When the response must have ended, by the clock of the event loop."""
    fresh: frozenset[str] = frozenset()
    """The labels of servers whose cached lists are not used."""

    def patience(self) -> float:
        """Return the seconds that a tool server gets to list its tools. The response keeps some of its time, to begin
        and to say why it ends.
        """
        if self.deadline is None:
            return self.settings.discovery
        left = self.deadline - asyncio.get_running_loop().time()
        return min(self.settings.discovery, max(0.0, left) * _DISCOVERY_SHARE)


class ToolOffer(msgspec.Struct, frozen=True):
    """What a server offers a request, or the tools that the request declares itself."""

    server: McpTool | None = None
    """The declaration of the server; None: the request's own tools."""
    path: str | None = None
    """Where the request declares the server; None: an error of the server is no error of the request."""
    found: Sequence[ToolDefinition] = ()
    """All tools of the server, whatever the declaration leaves in."""
    instructions: str | None = None
    problem: str | None = None
    """Why the server could not be asked."""
    is_silent: bool = False
    """Whether the server did not answer, and may answer another time."""


# ---- labels ----


def check_labels(executors: Sequence[object]) -> tuple[str, ...]:
    """Return the labels of the tool servers. Raises `ValueError` for one that two have: the first would hide the
    second.
    """
    labels = Counter(label for executor in executors for label in labels_of(executor))
    for label, number in labels.items():
        if number > 1:
            raise ValueError(f"There are two tool servers labelled {label!r}.")
    return tuple(labels)


def standing(discovery: Discovery) -> list[McpTool]:
    """Return the servers that the operator has added to the request."""
    found: list[McpTool] = []
    for executor in discovery.executors:
        found += executor.standing(discovery.model, discovery.identity)
    return found


# ---- what a server offers ----


async def list_tools(label: str, discovery: Discovery) -> McpListTools:
    """Return the list that a request is shown which declares the label and nothing else."""
    offer = await ask_server(ToolOffer(McpTool(server_label=label)), discovery)
    return listing(label, offered_tools(offer), offer.problem)


async def ask_server(offer: ToolOffer, discovery: Discovery) -> ToolOffer:
    """Return the offer with what its server answers. Raises `InvalidField` if no server has the label, or the
    declaration is wrong otherwise; not where it has no `path`.
    """
    server, path = offer.server, offer.path
    assert server is not None, "the request's own tools are known"
    label = server.server_label
    if path is not None and label == HOUSE_LABEL:  # a refused call would be taken for one of this server's
        raise InvalidField(f"{path}.server_label", f"{HOUSE_LABEL!r} is a label of our own.", code="reserved_label")
    for executor in discovery.executors:
        if not executor.is_server:
            continue
        try:
            answered = await within(discovery.patience, _answer_of(executor, offer, server, discovery))
        except InvalidField as fault:
            if path is None:
                return replace(offer, problem=fault.message)
            raise fault.within(path) from fault
        except Unanswered as news:
            return replace(offer, problem=str(news), is_silent=True)
        except TimeoutError:
            _tools_log.warning("the tool server %r did not list its tools in time", label)
            problem = f"The tool server {label!r} did not list its tools in time."
            return replace(offer, problem=problem, is_silent=True)
        except Exception:
            _tools_log.warning("the tool server %r could not be asked for its tools", label, exc_info=True)
            problem = f"The tool server {label!r} could not be asked for its tools."
            return replace(offer, problem=problem, is_silent=True)
        if answered is not None:
            return answered
    if path is None:
        return offer
    labels = [each for executor in discovery.executors if executor.is_server for each in labels_of(executor)]
    problem = f"no tool server is offered here under the label {label!r}. {among(label, labels)}"
    raise InvalidField(f"{path}.server_label", problem.rstrip(), code="unknown_tool_server")


async def _answer_of(
    executor: BaseExecutor, offer: ToolOffer, server: McpTool, discovery: Discovery
) -> ToolOffer | None:
    """Return the offer with the tools of the executor, or None if it does not have the server."""
    identity = discovery.identity
    if server.server_label in discovery.fresh:
        await executor.refresh(server, identity)
    found = await executor.discover(server, identity)
    if found is None:
        return None
    instructions = await executor.instruct(server, identity) if found else None
    return replace(offer, found=tuple(found), instructions=instructions)


def offered_tools(offer: ToolOffer) -> Sequence[ToolDefinition]:
    """Return the tools that the declaration of the server leaves in, with their policy settled."""
    server, found = offer.server, offer.found
    if server is None:
        return found
    wanted = server.allowed_tools
    if isinstance(wanted, McpToolFilter):
        if wanted.read_only is True:
            found = [definition for definition in found if definition.read_only]
        wanted = wanted.tool_names if isinstance(wanted.tool_names, tuple) else UNSET
    if isinstance(wanted, tuple):
        found = [definition for definition in found if definition.own_name in wanted]
    return with_approvals(server, found)


# ---- the list that is shown ----


def listing(label: str, tools: Sequence[ToolDefinition], problem: str | None) -> McpListTools:
    infos = tuple(
        McpToolInfo(
            name=definition.own_name,
            input_schema=definition.parameters or {"type": "object", "properties": {}},
            description=UNSET if definition.description is None else definition.description,
            annotations=definition.annotations or UNSET,
        )
        for definition in tools
    )
    return McpListTools(id=new_id("mcpl"), server_label=label, tools=infos, error=UNSET if problem is None else problem)


def shortened(listing: McpListTools) -> McpListTools:
    """Return the list as it fits: whole, or without schemas and long descriptions, or as many names as there is room
    for.
    """
    if len(msgspec.json.encode(listing.tools)) <= _LONGEST_LIST_BYTES:
        return listing
    brief = tuple(_brief(tool, tool.description or "") for tool in listing.tools)
    if len(msgspec.json.encode(brief)) <= _LONGEST_LIST_BYTES:
        return replace(listing, tools=brief)
    names = [_brief(tool, "") for tool in listing.tools]
    ends = accumulate(len(msgspec.json.encode(name)) + 1 for name in names)
    fitting = sum(1 for _ in takewhile(lambda end: end <= _LONGEST_LIST_BYTES, ends))
    return replace(listing, tools=tuple(names[:fitting]))


def _brief(tool: McpToolInfo, text: str) -> McpToolInfo:
    description = text if len(text) <= _LONGEST_DESCRIPTION else f"{text[:_LONGEST_DESCRIPTION]}…"
    return McpToolInfo(name=tool.name, input_schema={"type": "object"}, description=description or UNSET)
