"""An executor of your own: anything that can run calls, here one that keeps a journal of all it is asked.

python examples/custom_executor.py

prints:
    completed: Noted.
    journal: ['note({"text":"buy tea"})']

`antwort.testing.ExecutorContract` is the suite of tests that any executor must pass.
"""

import asyncio

from antwort import Engine, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.testing import ScriptedProvider, answer, call, say


class Journal:
    """Answers for a function `note` that a request declares."""

    kind = ToolKind.LOCAL  # where calls run: LOCAL, MCP or SANDBOX; each may run the functions that requests declare

    def __init__(self) -> None:
        self.lines: list[str] = []

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind is ToolKind.FUNCTION and tool.name == "note"

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        """It may raise, or take too long, or be cancelled: the call ends in exactly one result whatever happens."""
        context.progress("writing it down")
        self.lines.append(f"{call.name}({call.arguments})")
        return ToolResult(call.id, "written down")


async def main() -> None:
    journal = Journal()
    provider = ScriptedProvider(answer(call("note", text="buy tea")), answer(say("Noted.")))
    async with Engine(provider, executors=[journal]) as engine:
        response = await engine.create(input="Remember the tea.", tools=[{"type": "function", "name": "note"}])
    print(f"{response.status}: {response.output_text}")
    print("journal:", journal.lines)


if __name__ == "__main__":
    asyncio.run(main())
