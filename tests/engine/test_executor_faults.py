"""What an executor raises when it is asked about a tool costs a call at most, never the response."""

from __future__ import annotations

import pytest

from antwort.api.items import FunctionCallOutput
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import ToolLimits, limited
from engine_kit import ask, engine_of

WEATHER = {"type": "function", "name": "weather"}


class Sunny:
    kind = ToolKind.LOCAL

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name == "weather"

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult(call.id, "sunny")


class Untimed(Sunny):
    def timeout_of(self, tool: ToolDefinition) -> float | None:
        raise KeyError("no time is known")


class Unlimited(Sunny):
    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        raise KeyError("no limits are known")


class Undescribed(Sunny):
    """Fails once the request has been planned."""

    times = 0

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        self.times += 1
        if self.times > 1:
            raise KeyError("it is being reloaded")
        return None


@pytest.mark.proves("FR-029")
@pytest.mark.parametrize("kind", [Untimed, Unlimited, Undescribed])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_fault_in_what_is_asked_about_a_tool_is_an_error_result_and_the_model_goes_on(
    kind: type[Sunny], calls: int
) -> None:
    provider = ScriptedProvider(answer(*[call("weather", day=str(day)) for day in range(calls)]), answer(say("well")))
    response = await engine_of(provider, limited(kind()), eager=False).create(ask(tools=[WEATHER]))
    assert response.status == "completed"
    results = [item.output for item in response.output if isinstance(item, FunctionCallOutput)]
    assert len(results) == calls
    assert all("known" in str(result) or "reloaded" in str(result) for result in results)
