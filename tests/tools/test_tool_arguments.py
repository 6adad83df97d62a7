"""Which schema the arguments of a call are validated against, and where."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from antwort.api.tools import McpTool
from antwort.testing.executors import context
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import Limited

PATTERN = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^b"}}}


@pytest.mark.parametrize(
    ("definition", "is_checked"),
    [
        (ToolDefinition(name="f", kind=ToolKind.MCP, declared=McpTool(server_label="s"), parameters=PATTERN), False),
        (ToolDefinition(name="f", kind=ToolKind.MCP, server_label="own", parameters=PATTERN), True),
        (ToolDefinition(name="f", kind=ToolKind.FUNCTION, parameters=PATTERN), False),
        (ToolDefinition(name="own", kind=ToolKind.FUNCTION, parameters=dict(PATTERN)), True),
    ],
    ids=["a server's", "a toolset's", "a request's words", "the function's own words"],
)
async def test_patterns_are_checked_where_the_operator_wrote_them(definition: ToolDefinition, is_checked: bool) -> None:
    call = ToolCall(id="call_1", name=definition.name, arguments='{"x": "a"}', definition=definition)
    result = await Limited(Anything()).execute(call, context())
    assert result.is_error is is_checked


class Anything:
    """Runs everything, and describes one function itself."""

    kind = ToolKind.LOCAL

    def can_execute(self, tool: ToolDefinition) -> bool:
        return bool(tool.name)

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        own = ToolDefinition(name="own", kind=ToolKind.LOCAL, parameters=PATTERN)
        return own if tool.name == own.name else None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        assert not context.cancelled.is_set()
        return ToolResult(call.id, "ran")


@pytest.mark.parametrize(
    ("schema", "threads"),
    [(PATTERN, []), ({"$ref": "#/$defs/x", "$defs": {"x": PATTERN}}, ["antwort-arguments"])],
    ids=["without references", "with references"],
)
async def test_a_schema_with_references_is_validated_beside_the_event_loop(
    schema: dict[str, Any], threads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    class Thread(threading.Thread):
        def start(self) -> None:
            started.append(self.name)
            super().start()

    monkeypatch.setattr(threading, "Thread", Thread)
    definition = ToolDefinition(name="f", kind=ToolKind.MCP, server_label="own", parameters=schema)
    call = ToolCall(id="call_1", name="f", arguments='{"x": "a"}', definition=definition)
    result = await Limited(Anything()).execute(call, context())
    assert (result.is_error, started) == (True, threads)
