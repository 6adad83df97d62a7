"""Tools of labelled servers, and turns that call the client's and the server's tools together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antwort.api.items import FunctionCallOutput, McpCall, McpListTools
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.engine.history.calls import call_id_of
from antwort.errors import InvalidField
from antwort.identity import Identity
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    only,
    outputs,
    replies,
    sent,
    sent_messages,
    stream,
    weather_tool,
)

# ---- tool servers ----


@pytest.mark.proves("FR-002", "RULING-1")
async def test_a_servers_tools_are_listed_and_its_calls_show_as_mcp_calls() -> None:
    depot = ToolServerFake("depot", prefix="depot_", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("depot_lookup", key="k")), answer(say("Found it.")))
    response = await engine_of(provider, depot).create(ask(tools=[SERVER]))
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    assert [info.name for info in only(response, McpListTools).tools] == ["lookup"]
    item = only(response, McpCall)
    assert (item.name, item.output, item.status) == ("lookup", "found", "completed")
    replayed = sent(provider.requests[1])["messages"][1]["tool_calls"][0]
    assert (replayed["function"]["name"], replayed["id"]) == ("depot_lookup", item.call_id)


@pytest.mark.proves("FR-003")
async def test_a_servers_call_is_run_by_the_server_behind_an_executor_that_claims_every_name() -> None:
    class Greedy:
        kind = ToolKind.LOCAL

        def can_execute(self, tool: ToolDefinition) -> bool:
            return True

        async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
            return ToolResult(call.id, "sunny")

    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup"), call("weather", city="Oslo")), answer(say("Done.")))
    response = await engine_of(provider, Greedy(), depot).create(ask(tools=[SERVER, WEATHER]))
    assert only(response, McpCall).output == "found"
    assert [each.output for each in outputs(response)] == ["sunny"]


@pytest.mark.parametrize("fault", ["raises", "hangs"])
async def test_a_server_that_cannot_be_asked_shows_a_failed_list_and_the_response_goes_on(fault: str) -> None:
    class Broken(ToolServerFake):
        async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
            if fault == "raises":
                raise ConnectionError("no route to 10.0.0.7")
            await asyncio.Event().wait()
            return None

    provider = ScriptedProvider(answer(say("Without tools, then.")))
    outcome = await stream(engine_of(provider, Broken("depot"), discovery=0.01), ask(tools=[SERVER]))
    listing = only(outcome.response, McpListTools)
    assert isinstance(listing.error, str)
    assert "10.0.0.7" not in listing.error
    assert "response.mcp_list_tools.failed" in outcome.names
    assert outcome.response.status == "completed"
    assert "tools" not in sent(provider.requests[0])


async def test_a_label_that_nobody_offers_is_a_fault_of_the_request() -> None:
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider(), weather_tool()).create(ask(tools=[WEATHER, SERVER]))
    assert caught.value.param == "tools[1].server_label"


@pytest.mark.proves("MISTAKE-26")
async def test_a_function_of_the_request_is_never_run_by_a_server_that_has_a_tool_of_that_name() -> None:
    depot = ToolServerFake("depot", weather=replies("from the depot"))
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(provider, depot, weather_tool(answer="never")).create(ask(tools=[CLOCK, WEATHER]))
    assert depot.calls == []
    assert response.status == "completed" or response.status == "failed"


# ---- mixed turns ----


@pytest.mark.proves("MIXED-1")
async def test_a_mixed_turn_pauses_whole_and_runs_nothing() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup", key="k"), call("weather", city="Rome"), call("clock")))
    engine = engine_of(provider, depot, weather_tool())
    outcome = await stream(engine, ask(tools=[SERVER, WEATHER, CLOCK]))
    response = outcome.response
    assert response.status == "requires_action"
    assert depot.calls == []
    assert outputs(response) == []
    paused = only(response, McpCall)
    assert (paused.status, paused.output, paused.error) == ("completed", None, None)
    assert [(item.name, item.status) for item in function_calls(response)] == [
        ("weather", "completed"),
        ("clock", "completed"),
    ]


@pytest.mark.proves("MIXED-2", "RULING-3", "FR-021")
async def test_the_follow_up_of_a_mixed_turn_runs_the_servers_calls_first_under_the_parents_tools() -> None:
    depot = ToolServerFake("depot", prefix="d_", lookup=replies("found"))
    provider = ScriptedProvider(
        answer(call("d_lookup", key="k"), call("weather", city="Rome"), call("clock")), answer(say("All is well."))
    )
    engine = engine_of(provider, depot, weather_tool())
    first = await engine.create(ask(tools=[SERVER, WEATHER, CLOCK]))
    clock_call = function_calls(first)[1]
    noon = {"type": "function_call_output", "call_id": clock_call.call_id, "output": "noon"}
    outcome = await stream(engine, ask([noon], previous_response_id=first.id))
    second = outcome.response
    assert kinds(second) == ["mcp_call", "function_call_output", "message"]
    shown, before = only(second, McpCall), only(first, McpCall)
    assert (shown.output, shown.call_id, call_id_of(shown)) == ("found", UNSET, before.call_id)
    assert shown.id != before.id
    assert [content for role, content in sent_messages(provider.requests[1]) if role == "tool"] == [
        "found",
        "sunny in Rome",
        "noon",
    ]
    assert [role for role, _ in sent_messages(provider.requests[1])] == ["user", "assistant", "tool", "tool", "tool"]


@pytest.mark.proves("MIXED-2")
async def test_a_third_response_finds_the_servers_calls_answered() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Well.")), answer(say("Bye.")))
    engine = engine_of(provider, depot)
    first = await engine.create(ask(tools=[SERVER, CLOCK]))
    noon = {"type": "function_call_output", "call_id": function_calls(first)[0].call_id, "output": "noon"}
    second = await engine.create(ask([noon], previous_response_id=first.id))
    third = await engine.create(ask("Thanks", previous_response_id=second.id))
    assert kinds(third) == ["message"]
    assert len(depot.calls) == 1
    roles = [role for role, _ in sent_messages(provider.requests[2])]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "user"]


@pytest.mark.proves("MIXED-3")
async def test_under_execute_the_servers_calls_run_at_once_and_only_the_clients_stay_open() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Rome"), call("clock")))
    engine = engine_of(provider, weather_tool(), mixed_turns="execute")
    response = await engine.create(ask(tools=[WEATHER, CLOCK]))
    assert response.status == "requires_action"
    assert kinds(response) == ["function_call", "function_call", "function_call_output"]
    assert only(response, FunctionCallOutput).call_id == function_calls(response)[0].call_id


async def test_words_between_and_behind_a_servers_calls_are_of_the_same_turn() -> None:
    """Backends that take no last message of the assistant's would refuse anything else."""
    turn = answer(say("One."), call("lookup", n=1), say("Two."), call("lookup", n=2), say("Three."))
    provider = ScriptedProvider(turn, answer(say("Done.")), answer(say("Again.")))
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("found")))
    first = await engine.create(ask(tools=[SERVER]))
    await engine.create(ask("And?", previous_response_id=first.id, tools=[SERVER]))
    said = [("user", "Hello"), ("assistant", "One.\nTwo.\nThree."), ("tool", "found"), ("tool", "found")]
    assert sent_messages(provider.requests[1]) == said
    assert sent_messages(provider.requests[2]) == [*said, ("assistant", "Done."), ("user", "And?")]
