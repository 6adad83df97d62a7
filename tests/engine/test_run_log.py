"""What the log says of a run that failed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.errors import AntwortError, BackendError, BackendRefused, ContextTooLong
from antwort.identity import Identity
from antwort.telemetry.logging import JsonFormatter
from antwort.testing import ScriptedProvider, answer, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult


@pytest.mark.parametrize("error", [BackendRefused("Bad prompt: PRIVATE"), ContextTooLong("Too long: PRIVATE")])
async def test_of_a_request_that_the_backend_refused_only_the_code_is_logged(
    error: AntwortError, caplog: pytest.LogCaptureFixture
) -> None:
    """What a backend says of a request may have the prompt in it; the client is told, and nobody else."""
    async with Engine(ScriptedProvider([error])) as engine:
        with pytest.raises(AntwortError, match="PRIVATE"):
            await engine.create(input="PRIVATE")
    [line] = [record.getMessage() for record in caplog.records]
    assert line.startswith("the run resp_")
    assert line.endswith(f" failed: {error.code}")


async def test_of_a_backend_that_failed_the_reason_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(ScriptedProvider([BackendError("The backend failed to answer.")])) as engine:
        with pytest.raises(BackendError):
            await engine.create(input="Hello")
    [line] = [record.getMessage() for record in caplog.records]
    assert line.endswith(" failed: backend_error: The backend failed to answer.")


TROUBLE = "PRIVATE WORDS"  # a traceback shows the line that raises, and so not there


class Talkative:
    """A tool server whose exceptions say too much."""

    kind = ToolKind.MCP

    def can_execute(self, _: ToolDefinition) -> bool:
        return True

    async def execute(self, _: ToolCall, __: ToolContext) -> ToolResult:
        raise ValueError(TROUBLE)

    async def discover(self, _: McpTool, __: Identity) -> Sequence[ToolDefinition]:
        raise ValueError(TROUBLE)


async def test_what_a_tool_server_says_in_an_exception_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(ScriptedProvider(answer(say("Hi"))), executors=[Talkative()]) as engine:
        await engine.create(input="Hello", tools=[{"type": "mcp", "server_label": "depot"}])
    [line] = [JsonFormatter().format(record) for record in caplog.records]
    assert "could not be asked for its tools" in line
    assert "ValueError" in line
    assert TROUBLE not in line
