"""The executor of the functions that the client runs: it runs nothing."""

from __future__ import annotations

from typing import NoReturn

from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolKind

__all__ = ["ClientsTurn", "FunctionExecutor"]


class FunctionExecutor:
    """Stands for the client. It claims no tool, and so it never counts as registered."""

    kind = ToolKind.FUNCTION

    def can_execute(self, tool: ToolDefinition) -> bool:  # noqa: ARG002 - the answer is the same for every tool
        return False

    async def execute(self, call: ToolCall, context: ToolContext) -> NoReturn:  # noqa: ARG002 - the contract's
        raise ClientsTurn(call)
