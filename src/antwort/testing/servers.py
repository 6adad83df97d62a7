"""A labelled tool server made of plain functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from antwort.api.tools import McpTool
from antwort.identity import Identity
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult

Run: TypeAlias = Callable[[ToolCall, ToolContext], Awaitable[ToolResult | str]]


class ToolServerFake:
    """What an MCP server is to the engine: reached by its label, running its own tools and no others."""

    kind = ToolKind.MCP

    def __init__(self, label: str, prefix: str = "", *, instructions: str | None = None, **tools: Run) -> None:
        self.calls: list[ToolCall] = []
        self._label = label
        self._instructions = instructions
        self._tools = {
            name: (
                ToolDefinition(
                    name=prefix + name, kind=ToolKind.MCP, server_label=label, server_tool=name if prefix else None
                ),
                run,
            )
            for name, run in tools.items()
        }

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind is ToolKind.MCP and tool.server_label == self._label and tool.own_name in self._tools

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:  # noqa: ARG002
        if declared.server_label != self._label:
            return None
        return [definition for definition, _ in self._tools.values()]

    async def instruct(self, declared: McpTool, identity: Identity) -> str | None:  # noqa: ARG002 - the contract's
        return self._instructions if declared.server_label == self._label else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        _, run = self._tools[call.definition.own_name]
        result = await run(call, context)
        return result if isinstance(result, ToolResult) else ToolResult(call.id, result)
