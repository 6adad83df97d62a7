"""Offer functions of this process under a label.

calc = Toolset("calc", instructions="Use these for every sum, however small.")

@calc.tool
def add(a: int, b: int) -> int:
    \"\"\"Add two numbers.\"\"\"
    return a + b
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec, Self, TypeVar, overload

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from antwort.api.tools import McpTool
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.tools.base import HOUSE_LABEL, BaseExecutor, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.local import NAME, LocalExecutor, LocalTool

P = ParamSpec("P")
R = TypeVar("R")


class ToolsetInfo(msgspec.Struct, frozen=True):
    """What the operator sees of a toolset."""

    label: str
    tools: tuple[str, ...]
    origin: str
    """The module, file or installed package that it is from."""


class Toolset(BaseExecutor):
    """A labelled tool server made of functions of this process.

    A request reaches it by `{"type": "mcp", "server_label": name}`, and only so: a function that a request declares
    itself is never run here, whatever its name. Raises `ValueError` for a name that no label can have.
    """

    kind = ToolKind.LOCAL  # it is the operator's or the program's own, so it counts as registered in every request
    is_steady = True

    def __init__(
        self, name: str, *tools: LocalTool[..., Any] | Callable[..., Any], instructions: str | None = None
    ) -> None:
        """`instructions` are told to the model, after the request's own, in every request that uses the toolset."""
        self.label = _checked_label(name)
        self.instructions = instructions
        self._functions = LocalExecutor()
        for each in tools:
            self.add(each if isinstance(each, LocalTool) else LocalTool(each))

    def __repr__(self) -> str:
        return f"Toolset({self.label!r}: {', '.join(local.definition.name for local in self.tools)})"

    @property
    def tools(self) -> tuple[LocalTool[..., Any], ...]:
        return self._functions.tools

    @overload
    def tool(self, function: Callable[P, R], /) -> LocalTool[P, R]: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        read_only: bool = False,
        idempotent: bool = False,
        parallel: bool = True,
        require_approval: bool = False,
    ) -> Callable[[Callable[P, R]], LocalTool[P, R]]: ...

    def tool(self, function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Make a tool of a function, as `antwort.tool` does, and add it to the toolset."""
        return partial(self._add, **options) if function is None else self._add(function, **options)

    def _add(self, function: Callable[P, R], **options: Any) -> LocalTool[P, R]:
        local = LocalTool(function, **options)
        self.add(local)
        return local

    def add(self, local: LocalTool[..., Any]) -> None:
        """Raises `ValueError` when there is one of that name already."""
        self._functions.add(local)
        local.is_bare = False

    def joined_by(self, others: Sequence[LocalTool[..., Any]]) -> Self:
        """Return a copy of the toolset with more functions.

        Raises `ValueError` when two of them have the same name.
        """
        joined = copy.copy(self)
        joined._functions = LocalExecutor(*self.tools, *others)  # noqa: SLF001 - of a copy
        return joined

    def info(self, origin: str) -> ToolsetInfo:
        return ToolsetInfo(self.label, tuple(local.definition.name for local in self.tools), origin)

    # ---- what the engine asks ----

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:  # noqa: ARG002
        if declared.server_label != self.label:
            return None
        for field, fits in (("server_url", UNSET), ("connector_id", self.label)):  # some clients must say one of them
            if getattr(declared, field) not in (UNSET, fits):
                problem = f"{self.label!r} is a toolset of this server and has no other address; leave it out."
                raise InvalidField(field, problem, code="unexpected_parameter")
        return [self._labelled(local) for local in self.tools]

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:  # noqa: ARG002 - the contract's
        return self.instructions if declared.server_label == self.label else None

    def can_execute(self, tool: ToolDefinition) -> bool:
        return self._own(tool) is not None

    def timeout_of(self, tool: ToolDefinition) -> float | None:
        own = self._own(tool)
        return None if own is None else own.timeout

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        own = self._own(call.definition)
        if own is None:
            raise LookupError(f"There is no function named {call.name!r} here.")
        return await own.execute(call, context)

    def _labelled(self, local: LocalTool[..., Any]) -> ToolDefinition:
        return replace(local.definition, kind=ToolKind.MCP, server_label=self.label)

    def _own(self, tool: ToolDefinition) -> LocalTool[..., Any] | None:
        """Return the function of a tool that `discover` has returned."""
        if tool.kind is not ToolKind.MCP or tool.server_label != self.label:
            return None
        return self._functions.find(tool.own_name)


def _checked_label(name: str) -> str:
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot be the name of a toolset: 1 to 64 letters, digits, '_' or '-'.")
    if name == HOUSE_LABEL:
        raise ValueError(f"{name!r} cannot be the name of a toolset: calls that are refused show under it.")
    return name
