"""Whose a call is: the client's, ours, or nobody's.

The allowed list comes first, before client and server are told apart: a call outside it is not handed to the client
either. A tool is claimed by its whole definition: a function that the request declares is run by the first executor, of
any kind, whose `can_execute` says so. Tool servers, which list tools of their own (`discover`), are not asked about it:
a server with a tool of the same name does not run it. The tools that servers list are run by servers alone. Free-form
tools and those in a namespace are always the client's.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Generic, Protocol, TypeAlias, TypeVar

import msgspec

from antwort.tools.base import BaseExecutor, ToolDefinition, ToolKind

_log = logging.getLogger("antwort.tools")


class Named(Protocol):
    """Anything that says which tool it calls, by the name the model sees."""

    @property
    def name(self) -> str: ...


Call = TypeVar("Call", bound=Named)


class Toolbox(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What a request offers the model, and who is there to run it."""

    tools: Mapping[str, ToolDefinition]
    executors: tuple[BaseExecutor, ...] = ()
    allowed: frozenset[str] | None = None
    """None: all. An empty set allows none."""
    may_run: bool
    """Whether the loop is on: some executor counts as registered, and tool_choice is not `none`."""
    instructions: tuple[str, ...] = ()
    """What the model is told about the tools beside their descriptions, by the servers that the request names too."""
    deferred: frozenset[str] = frozenset()
    """The tools that the model is not told of until it has found them; it may call them all the same."""
    silent: Mapping[str, str] = {}
    """The servers that could not be asked for their tools, by their labels, each with what is to be said of that."""

    @cached_property
    def ways(self) -> dict[str, Way]:
        """Where calls of its tools go, as far as that was asked and would be answered the same again."""
        return {}


class Route(enum.Enum):
    """Where a call goes."""

    CLIENT = "client"
    SERVER = "server"
    HELD = "held"  # ours, but nothing is run in this request: shown as it is
    REJECTED = "rejected"  # declared, but outside the allowed list
    UNKNOWN = "unknown"  # not declared, or declared and nobody is there to run it


Way: TypeAlias = tuple[Route, BaseExecutor | None]
"""Where a call goes, and who runs it if it is ours."""


class Routed(msgspec.Struct, Generic[Call], frozen=True, kw_only=True):
    """Calls by where they go, each in exactly one place, in the order they were made."""

    client: tuple[Call, ...] = ()
    server: tuple[Call, ...] = ()
    refused: tuple[Call, ...] = ()
    """Rejected and unknown ones; `refusal` says why."""
    held: tuple[Call, ...] = ()


def find_executor(definition: ToolDefinition, executors: Iterable[BaseExecutor]) -> BaseExecutor | None:
    """The first executor that runs this tool."""
    for executor in executors:
        if _claims(executor, definition):
            return executor
    return None


def may_claim_function(definition: ToolDefinition, executors: Iterable[BaseExecutor]) -> bool:
    """Return whether an executor might run a declared function of which only the name is known. One that describes its
    functions knows them by name; any other may look at the whole definition.
    """
    return any(
        _claims(executor, definition) or (_is_asked(executor, definition) and not executor.describes_functions)
        for executor in executors
    )


def is_registered(executors: Iterable[BaseExecutor], tools: Mapping[str, ToolDefinition]) -> bool:
    """Whether there is somebody here to run tools for a request that offers `tools`."""
    return any(_counts(executor, tools) for executor in executors)


def route(name: str, toolbox: Toolbox) -> Route:
    return (toolbox.ways.get(name) or routed(name, toolbox))[0]


def routed(name: str, toolbox: Toolbox) -> Way:
    """It is asked several times for each call, and looked for once where all who may run it hold to their word."""
    if (known := toolbox.ways.get(name)) is not None:
        return known
    definition = toolbox.tools.get(name)
    if definition is None and toolbox.may_run:
        return Route.UNKNOWN, None
    if toolbox.allowed is not None and name not in toolbox.allowed:
        return Route.REJECTED, None
    if definition is None:
        return Route.CLIENT, None
    way = _way_of(definition, toolbox)
    if all(executor.is_steady for executor in toolbox.executors):
        toolbox.ways[name] = way
    return way


def _way_of(definition: ToolDefinition, toolbox: Toolbox) -> Way:
    executor = find_executor(definition, toolbox.executors)
    if executor is not None and toolbox.may_run:
        return Route.SERVER, executor
    if definition.kind in (ToolKind.FUNCTION, ToolKind.CUSTOM):
        return Route.CLIENT, None
    return (Route.UNKNOWN if executor is None else Route.HELD), executor


def route_calls(calls: Iterable[Call], toolbox: Toolbox) -> Routed[Call]:
    ways = [(route(call.name, toolbox), call) for call in calls]
    return Routed(
        client=tuple([call for way, call in ways if way is Route.CLIENT]),
        server=tuple([call for way, call in ways if way is Route.SERVER]),
        refused=tuple([call for way, call in ways if way is Route.REJECTED or way is Route.UNKNOWN]),
        held=tuple([call for way, call in ways if way is Route.HELD]),
    )


def refusal(name: str, toolbox: Toolbox) -> str:
    """Why a call to `name` is refused, in words the model can use."""
    if name not in toolbox.tools:
        return f"There is no tool named {name!r}."
    if toolbox.allowed is not None and name not in toolbox.allowed:
        return f"The tool {name!r} is not allowed in this request."
    return f"The tool {name!r} is not available at the moment."


def _is_asked(executor: BaseExecutor, definition: ToolDefinition) -> bool:
    """Return whether the executor may claim a tool of this sort at all."""
    if executor.kind is ToolKind.FUNCTION or definition.kind is ToolKind.CUSTOM or definition.namespace is not None:
        return False
    return definition.is_search or executor.is_server is (definition.kind is not ToolKind.FUNCTION)


def _claims(executor: BaseExecutor, definition: ToolDefinition) -> bool:
    if not _is_asked(executor, definition):
        return False
    try:
        return executor.can_execute(definition)
    except Exception:
        _log.warning("%s could not say whether it runs a tool", type(executor).__name__, exc_info=True)
        return False


def _counts(executor: BaseExecutor, tools: Mapping[str, ToolDefinition]) -> bool:
    """What the program or the operator put here counts always; a server only where the request can reach it."""
    match executor.kind:
        case ToolKind.FUNCTION:
            return False
        case ToolKind.MCP:
            return any(_claims(executor, definition) for definition in tools.values())
        case _:
            return True
