"""Executors of somebody else's making: a class with the three members of the contract runs declared functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from antwort import Engine, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, check_frames, say
from antwort.toolsets import load_tools
from engine_kit import CLOCK, SERVER, WEATHER, ask, function_calls, kinds, outputs, replies, server_calls
from serving import RESPONSES, serving

KINDS = [ToolKind.LOCAL, ToolKind.MCP, ToolKind.SANDBOX]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Box:
    """Three members and no base class: the whole contract."""

    def __init__(self, kind: Any, *names: str) -> None:
        self.kind = kind
        self.names = names
        self.calls: list[ToolCall] = []

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind is ToolKind.FUNCTION and tool.name in self.names

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        return ToolResult(call.id, "sunny")


class ByParameters(Box):
    """Claims by the whole definition: functions that take a city, whatever they are called."""

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind is ToolKind.FUNCTION and "city" in str(tool.parameters)


def asks_for_the_weather() -> ScriptedProvider:
    return ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny")))


@pytest.mark.proves("RULING-1", "FR-001", "FR-002", "FR-003", "FR-004")
@every_kind
async def test_an_executor_of_any_kind_runs_the_declared_functions_that_it_claims(kind: ToolKind) -> None:
    box = Box(kind, "weather")
    async with Engine(asks_for_the_weather(), executors=[box]) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert response.status == "completed"
    assert kinds(response) == ["function_call", "function_call_output", "message"]
    assert [item.output for item in outputs(response)] == ["sunny"]
    assert [made.arguments for made in box.calls] == ['{"city":"Paris"}']


@pytest.mark.proves("RULING-1")
@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@every_kind
async def test_over_http_it_is_the_same(kind: ToolKind, is_streamed: bool) -> None:
    body = {"model": "scripted", "input": "Weather?", "tools": [WEATHER], "stream": is_streamed}
    async with serving(Engine(asks_for_the_weather(), executors=[Box(kind, "weather")])) as server:
        reply = await server.ask("POST", RESPONSES, body)
    if is_streamed:
        assert kinds(check_frames(reply.body)) == ["function_call", "function_call_output", "message"]
    else:
        types = [item["type"] for item in reply.json()["output"]]
        assert types == ["function_call", "function_call_output", "message"]


@pytest.mark.proves("FR-018", "FR-004")
@pytest.mark.parametrize(
    ("kind", "status"),
    [(ToolKind.LOCAL, "requires_action"), (ToolKind.SANDBOX, "requires_action"), (ToolKind.MCP, "completed")],
)
async def test_a_function_that_it_does_not_claim_is_the_clients(kind: ToolKind, status: str) -> None:
    """An executor of kind `MCP` counts as registered only where the request reaches one of its tools."""
    box = Box(kind, "clock")
    async with Engine(asks_for_the_weather(), executors=[box]) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert (response.status, kinds(response), box.calls) == (status, ["function_call"], [])


@pytest.mark.proves("FR-004")
async def test_an_executor_of_kind_function_claims_nothing_whatever_it_says() -> None:
    box = Box(ToolKind.FUNCTION, "weather")
    async with Engine(asks_for_the_weather(), executors=[box]) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert (response.status, kinds(response), box.calls) == ("completed", ["function_call"], [])


@pytest.mark.proves("MISTAKE-26", "RULING-1")
async def test_a_tool_server_with_a_tool_of_that_name_does_not_run_the_declared_function() -> None:
    class Careless(ToolServerFake):
        def can_execute(self, tool: ToolDefinition) -> bool:
            return tool.own_name == "weather"

    server, box = Careless("depot", weather=replies("from the server")), Box(ToolKind.MCP, "weather")
    async with Engine(asks_for_the_weather(), executors=[server]) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert (response.status, kinds(response), server.calls) == ("completed", ["function_call"], [])

    provider = ScriptedProvider(answer(call("weather", city="Paris"), call("depot__weather")), answer(say("Sunny")))
    async with Engine(provider, executors=[server, box]) as engine:
        response = await engine.create(ask(tools=[WEATHER, SERVER]))
    assert [item.output for item in outputs(response)] == ["sunny"]
    assert [item.output for item in server_calls(response)] == ["from the server"]


@pytest.mark.proves("RULING-3")
@every_kind
async def test_a_paused_call_is_run_by_an_executor_that_looks_at_the_whole_definition(kind: ToolKind) -> None:
    box = ByParameters(kind)
    script = answer(call("weather", city="Paris"), call("clock")), answer(say("Sunny at nine"))
    async with Engine(ScriptedProvider(*script), executors=[box]) as engine:
        paused = await engine.create(ask(tools=[WEATHER, CLOCK]))
        assert (paused.status, box.calls) == ("requires_action", [])
        (clock,) = [item for item in function_calls(paused) if item.name == "clock"]
        told = {"type": "function_call_output", "call_id": clock.call_id, "output": "nine"}
        response = await engine.create(ask([told], tools=[WEATHER, CLOCK], previous_response_id=paused.id))
    assert (response.status, [made.name for made in box.calls]) == ("completed", ["weather"])


async def test_a_module_of_tools_may_hold_one(tmp_path: Path) -> None:
    module = tmp_path / "boxes.py"
    module.write_text(
        "from antwort import ToolKind, ToolResult\n"
        "class Box:\n"
        "    kind = ToolKind.SANDBOX\n"
        "    def can_execute(self, tool):\n"
        "        return tool.name == 'weather'\n"
        "    async def execute(self, call, context):\n"
        "        return ToolResult(call.id, 'sunny')\n"
        "box = Box()\n"
    )
    loaded = load_tools([str(module)], entry_points=False)
    async with Engine(asks_for_the_weather(), executors=loaded.executors) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert kinds(response) == ["function_call", "function_call_output", "message"]


# ---- what is wrong is said when the engine is built ----


class Waits(Box):
    async def can_execute(self, tool: ToolDefinition) -> bool:  # type: ignore[override]
        return True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (Box("sandbox"), "The kind of a Box is 'sandbox'; it must be ToolKind.LOCAL, "),
        (Box(ToolKind.CUSTOM), "The kind of a Box is <ToolKind.CUSTOM: 'custom'>; it must be ToolKind.LOCAL, "),
        (Waits(ToolKind.LOCAL), "The can_execute of a Waits is async; it must return True or False."),
    ],
    ids=["kind as text", "kind of a definition", "async can_execute"],
)
def test_an_executor_that_could_never_be_asked_is_refused(given: Any, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        Engine(ScriptedProvider(), executors=[given])
    assert str(caught.value).startswith(said)


@pytest.mark.proves("FR-004")
async def test_none_stands_for_no_executors_and_nobody_to_tell() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    async with Engine(provider, executors=None, on_end=None, on_call=None) as engine:
        response = await engine.create(ask(tools=[WEATHER]))
    assert (response.status, kinds(response)) == ("completed", ["function_call"])
