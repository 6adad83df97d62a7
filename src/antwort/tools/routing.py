"""Decide where a call goes: to the client, to an executor, or nowhere.

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
from typing import TypeAlias

import msgspec

from antwort.tools.base import BaseExecutor, ToolDefinition, ToolKind

_log = logging.getLogger("antwort.tools")


class Toolbox(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The tools that a request offers the model, and the executors that may run them."""

    tools: Mapping[str, ToolDefinition]
    executors: tuple[BaseExecutor, ...] = ()
    allowed: frozenset[str] | None = None
    """None: all. An empty set allows none."""
    may_run: bool
    """Whether the loop is on: some executor counts as registered, and tool_choice is not `none`."""
    instructions: tuple[str, ...] = ()
    """The instructions of the servers that the request names, and the grammars that descriptions cannot hold."""
    deferred: frozenset[str] = frozenset()
    """The tools that are not in the prompt until the model has found them. It may call them all the same."""
    silent: Mapping[str, str] = {}
    """The labels of servers that did not list their tools, each with a message about it."""

    @cached_property
    def ways(self) -> Mapping[str, Way]:
        """Where a call to each of the tools goes; empty where an executor may change its answers."""
        if not all(executor.is_steady for executor in self.executors):
            return {}
        return {name: _find_way(name, self) for name in self.tools}


class Route(enum.Enum):
    """Where a call goes."""

    CLIENT = "client"
    SERVER = "server"
    HELD = "held"  # ours, but nothing is run in this request: shown as it is
    REJECTED = "rejected"  # declared, but outside the allowed list
    UNKNOWN = "unknown"  # not declared, or no executor runs it


Way: TypeAlias = tuple[Route, BaseExecutor | None]
"""Where a call goes, and who runs it if it is ours."""


def find_executor(definition: ToolDefinition, executors: Iterable[BaseExecutor]) -> BaseExecutor | None:
    """Return the first executor that runs this tool."""
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
    """Return whether an executor counts as registered for a request that offers `tools`."""
    return any(_counts(executor, tools) for executor in executors)


def route(name: str, toolbox: Toolbox) -> Route:
    return (toolbox.ways.get(name) or _find_way(name, toolbox))[0]


def routed(name: str, toolbox: Toolbox) -> Way:
    """Return where a call goes and which executor runs it."""
    return toolbox.ways.get(name) or _find_way(name, toolbox)


def _find_way(name: str, toolbox: Toolbox) -> Way:
    definition = toolbox.tools.get(name)
    if definition is None and toolbox.may_run:
        return Route.UNKNOWN, None
    if toolbox.allowed is not None and name not in toolbox.allowed:
        return Route.REJECTED, None
    if definition is None:
        return Route.CLIENT, None
    executor = find_executor(definition, toolbox.executors)
    if executor is not None and toolbox.may_run:
        return Route.SERVER, executor
    if definition.kind in (ToolKind.FUNCTION, ToolKind.CUSTOM):
        return Route.CLIENT, None
    return (Route.UNKNOWN if executor is None else Route.HELD), executor


def refusal(name: str, toolbox: Toolbox) -> str:
    """Return why a call to `name` is refused, in words that the model can use."""
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
    """Return whether an executor counts as registered: MCP only where it runs a tool of the request, others always."""
    match executor.kind:
        case ToolKind.FUNCTION:
            return False
        case ToolKind.MCP:
            return any(_claims(executor, definition) for definition in tools.values())
        case _:
            return True
