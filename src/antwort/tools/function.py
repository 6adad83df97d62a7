"""The executor of the functions that the client runs: it runs nothing."""

from __future__ import annotations

from typing import NoReturn

from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind


class ClientsTurn(Exception):
    """The call is the client's: the turn ends here and goes to it."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(f"The call to {call.name!r} is the client's to run.")
        self.call = call


class FunctionExecutor:
    """Stands for the client. It claims no tool, and so it never counts as registered."""

    kind = ToolKind.FUNCTION

    def can_execute(self, tool: ToolDefinition) -> bool:  # noqa: ARG002 - the answer is the same for every tool
        return False

    async def execute(self, call: ToolCall, context: ToolContext) -> NoReturn:  # noqa: ARG002 - the contract's
        raise ClientsTurn(call)
