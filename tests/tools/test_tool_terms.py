"""What holds for the calls of a tool: asked of its executor, each time where the answer may be another."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.testing.executors import call, context
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult
from antwort.tools.limits import Limited, ToolLimits
from antwort.tools.local import LocalExecutor, tool
from antwort.tools.mcp.executor import McpExecutor
from antwort.tools.toolset import Toolset

ASKED = call("far", kind=ToolKind.FUNCTION)


class Knowing:
    """Has a word on limits, times and functions. It raises what it is told to, where it is told to."""

    kind = ToolKind.LOCAL

    def __init__(self, fault: BaseException | None = None, at: str = "") -> None:
        self.fault, self.at = fault, at
        self.limits = ToolLimits()
        self.asked: list[str] = []

    def _asked(self, what: str) -> None:
        self.asked.append(what)
        if self.fault is not None and self.at == what:
            raise self.fault

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name == "far"

    def limits_of(self, tool: ToolDefinition) -> ToolLimits | None:
        self._asked("limits_of")
        return self.limits

    def timeout_of(self, tool: ToolDefinition) -> float | None:
        self._asked("timeout_of")
        return None

    def describe(self, tool: ToolDefinition) -> ToolDefinition | None:
        self._asked("describe")
        return None

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult(call.id, "x" * 100)


@pytest.mark.proves("FR-029")
@pytest.mark.parametrize("at", ["limits_of", "timeout_of", "describe"])
@pytest.mark.parametrize("fault", [KeyError("nothing known"), SystemExit("nothing known")], ids=repr)
async def test_whatever_an_executor_raises_when_it_is_asked_about_a_tool_is_an_error_result(
    at: str, fault: BaseException
) -> None:
    result = await Limited(Knowing(fault, at)).execute(ASKED, context())
    assert result.is_error
    assert "nothing known" in str(result.output)


class Wishing(Knowing):
    def __init__(self, wish: Any) -> None:
        super().__init__()
        self.wish = wish

    def timeout_of(self, tool: ToolDefinition) -> float | None:
        wish: float | None = self.wish
        return wish


@pytest.mark.parametrize("wish", ["soon", math.nan])
async def test_a_time_that_is_none_is_an_error_result(wish: object) -> None:
    assert (await Limited(Wishing(wish)).execute(ASKED, context())).is_error


async def test_limits_that_change_hold_for_the_next_call() -> None:
    knowing = Knowing()
    executor = Limited(knowing)
    assert len(str((await executor.execute(ASKED, context())).output)) == 100
    knowing.limits = ToolLimits(output_bytes=10)
    assert str((await executor.execute(ASKED, context())).output).startswith("x" * 10 + "\n")


class Steady(Knowing):
    is_steady = True


class Derived(Steady):
    """Says nothing of itself."""


class SteadyByOldName(Knowing):
    holds_to_its_word = True


def test_our_own_executors_say_that_their_word_holds() -> None:
    @tool
    def far() -> str:
        return ""

    ours: list[ToolExecutor] = [LocalExecutor(far), Toolset("maps", far), McpExecutor()]
    assert [Limited(each).is_steady for each in ours] == [True, True, True]
    assert Limited(SteadyByOldName()).is_steady
    assert not Limited(Knowing()).is_steady
    assert not Limited(Derived()).is_steady


async def test_what_was_said_of_a_tool_holds_for_no_other_and_for_no_other_executor() -> None:
    short, long = Steady(), Steady()
    short.limits = ToolLimits(output_bytes=10)
    made = replace(ASKED, definition=replace(ASKED.definition, description="of another request"))
    for asked in (ASKED, made, ASKED):
        assert str((await Limited(long).execute(asked, context())).output) == "x" * 100
        assert str((await Limited(short).execute(asked, context())).output).startswith("x" * 10 + "\n")
