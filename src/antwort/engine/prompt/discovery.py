"""Tool servers: who is there by a label, and what they offer a request."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence

import msgspec

from antwort.api.items import McpListTools, McpToolInfo
from antwort.api.tools import McpTool, McpToolFilter
from antwort.api.wire import UNSET
from antwort.concurrency import within
from antwort.engine.history.approval_policy import with_approvals
from antwort.engine.settings import EngineSettings
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.ids import new_id
from antwort.providers.base import Capabilities
from antwort.tools.base import (
    HOUSE_LABEL,
    Hosting,
    Instructing,
    Labelled,
    Refreshing,
    Standing,
    ToolDefinition,
    ToolExecutor,
    ToolServer,
    Unanswered,
)
from antwort.tools.limits import offers

_tools_log = logging.getLogger("antwort.tools")  # what a tool says in an exception is not for the log


_SHARE = 0.9
"""Of the time that a response has left, what its tool servers may take to say what they offer."""


class Shelf(msgspec.Struct, frozen=True):
    """Who is there to run tools, for whom, and what the model's backend can take."""

    executors: tuple[ToolExecutor, ...]
    identity: Identity
    settings: EngineSettings
    capabilities: Capabilities = Capabilities()
    model: str = ""
    """What the request asks for: some servers stand in the requests for some models."""
    deadline: float | None = None
    """When the response has to be done, by the clock of the event loop."""
    fresh: frozenset[str] = frozenset()
    """The labels of servers that are asked for their tools now, whatever they said before."""

    def patience(self) -> float:
        """Seconds that a tool server gets to say what it offers. Something is left of what the response has, so that it
        can begin, and say why it ends.
        """
        if self.deadline is None:
            return self.settings.discovery
        left = self.deadline - asyncio.get_running_loop().time()
        return min(self.settings.discovery, max(0.0, left) * _SHARE)


class Offer(msgspec.Struct, frozen=True):
    """What a server has for a request."""

    tools: Sequence[ToolDefinition] = ()
    instructions: str | None = None
    problem: str | None = None
    """Why it could not be asked."""
    silent: str | None = None
    """The label of a server that may answer another time."""
    found: Sequence[ToolDefinition] | None = None
    """All that it has, of which the `tools` are what the declaration leaves in; None where nobody was asked."""


def check_labels(executors: Sequence[object]) -> tuple[str, ...]:
    """The labels that there are. The first of two would answer for both, and nobody would notice."""
    labels = Counter(label for executor in executors for label in _labels(executor))
    for label, number in labels.items():
        if number > 1:
            raise ValueError(f"There are two tool servers labelled {label!r}.")
    return tuple(labels)


def _labels(executor: object) -> Sequence[str]:
    if isinstance(executor, Hosting):
        return executor.labels
    return (executor.label,) if isinstance(executor, Labelled) else ()


async def list_tools(label: str, shelf: Shelf) -> McpListTools:
    """What a request that names the label, and nothing else of it, is offered."""
    tool = McpTool(server_label=label)
    return listing(tool, await offer_behind(tool, shelf))


def standing(shelf: Shelf) -> list[McpTool]:
    """The servers that the operator has put into the request."""
    return [
        tool
        for executor in shelf.executors
        if offers(executor, Standing)
        for tool in executor.standing(shelf.model, shelf.identity)
    ]


async def offer_declared(tool: McpTool, path: str, shelf: Shelf, known: Offer | None = None) -> Offer:
    """What is behind a declaration. Raises `InvalidField` when nobody goes by its label, or it is wrong otherwise.
    `known` is what was behind it before, and is given again where it is the same.
    """
    _check_server(tool, path)
    try:
        offer = await _ask(tool, shelf, known)
    except InvalidField as fault:
        raise fault.within(path) from fault
    if offer is None:
        raise _no_server(tool, path)
    return offer


async def offer_behind(tool: McpTool, shelf: Shelf, known: Offer | None = None) -> Offer:
    """The same of a declaration that is not the request's, or not this request's: nobody is to blame now."""
    try:
        return await _ask(tool, shelf, known) or Offer()
    except InvalidField as fault:
        return Offer(problem=fault.message)


def listing(tool: McpTool, offer: Offer) -> McpListTools:
    infos = tuple(
        McpToolInfo(
            name=definition.own_name,
            input_schema=definition.parameters or {"type": "object", "properties": {}},
            description=UNSET if definition.description is None else definition.description,
            annotations=definition.annotations or UNSET,
        )
        for definition in offer.tools
    )
    error = UNSET if offer.problem is None else offer.problem
    return McpListTools(id=new_id("mcpl"), server_label=tool.server_label, tools=infos, error=error)


def _check_server(tool: McpTool, path: str) -> None:
    if tool.server_label == HOUSE_LABEL:  # a refused call would be taken for one of this server's
        raise InvalidField(f"{path}.server_label", f"{HOUSE_LABEL!r} is a label of our own.", code="reserved_label")


def _no_server(tool: McpTool, path: str) -> InvalidField:
    problem = f"no tool server is offered here under the label {tool.server_label!r}."
    return InvalidField(f"{path}.server_label", problem, code="unknown_tool_server")


async def _ask(tool: McpTool, shelf: Shelf, known: Offer | None) -> Offer | None:
    """None: nobody goes by that label."""
    for executor in shelf.executors:
        if offers(executor, ToolServer):
            try:
                offer = await within(shelf.patience, _offered(tool, executor, shelf, known))
                if offer is not None:
                    return offer
            except InvalidField:
                raise
            except Unanswered as news:
                return Offer(problem=str(news), silent=tool.server_label)
            except TimeoutError:
                _tools_log.warning("the tool server %r did not list its tools in time", tool.server_label)
                problem = f"The tool server {tool.server_label!r} did not list its tools in time."
                return Offer(problem=problem, silent=tool.server_label)
            except Exception:
                _tools_log.warning(
                    "the tool server %r could not be asked for its tools", tool.server_label, exc_info=True
                )
                problem = f"The tool server {tool.server_label!r} could not be asked for its tools."
                return Offer(problem=problem, silent=tool.server_label)
    return None


async def _offered(tool: McpTool, server: ToolServer, shelf: Shelf, known: Offer | None) -> Offer | None:
    """A server of which no tool is used has nothing to say."""
    identity = shelf.identity
    if tool.server_label in shelf.fresh and offers(server, Refreshing):
        await server.refresh(tool, identity)
    found = await server.discover(tool, identity)
    if found is None:
        return None
    is_known = known is not None and known.found is found and isinstance(found, tuple)
    tools = known.tools if known is not None and is_known else with_approvals(tool, _chosen(tool, found))
    told = await server.instruct(tool, identity) if tools and offers(server, Instructing) else None
    if known is not None and is_known and told == known.instructions:
        return known
    return Offer(tools, told, found=found)


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
