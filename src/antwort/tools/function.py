"""Hand the calls of declared functions to the client."""

from __future__ import annotations

from typing import NoReturn

from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolKind

__all__ = ["ClientsTurn", "FunctionExecutor"]


class FunctionExecutor:
    """Claims no tool, so it never counts as registered."""

    kind = ToolKind.FUNCTION

    def can_execute(self, tool: ToolDefinition) -> bool:  # noqa: ARG002 - the answer is the same for every tool
        return False

    async def execute(self, call: ToolCall, context: ToolContext) -> NoReturn:  # noqa: ARG002 - the contract's
        raise ClientsTurn(call)
