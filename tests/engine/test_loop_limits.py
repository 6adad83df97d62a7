"""The limits of the loop, and calls that run side by side."""

from __future__ import annotations

import asyncio

import pytest

from antwort.api.events import OutputItemDone, ResponseIncomplete
from antwort.api.items import McpCall
from antwort.engine.settings import EngineSettings
from antwort.providers.base import CallDelta, Finished
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, tokens
from antwort.tools.base import ToolCall, ToolContext
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    outputs,
    replies,
    sent,
    sent_messages,
    server_calls,
    stream,
    text_of,
    weather_tool,
)

# ---- limits ----


@pytest.mark.proves("FR-013")
async def test_at_the_turn_limit_the_last_tools_still_run_and_the_response_is_incomplete() -> None:
    provider = ScriptedProvider(*[answer(call("weather", city=f"city {i}")) for i in range(3)])
    outcome = await stream(engine_of(provider, weather_tool(), max_turns=3), ask(tools=[WEATHER]))
    response = outcome.response
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_turns",
    )
    assert isinstance(outcome.events[-1], ResponseIncomplete)
    assert len(outputs(response)) == 3
    assert {item.status for item in response.output} == {"completed"}


@pytest.mark.proves("FR-015")
async def test_the_turn_limit_is_ten_unless_set() -> None:
    assert EngineSettings().max_turns == 10
    provider = ScriptedProvider(*[answer(call("weather", city=f"city {i}")) for i in range(11)])
    await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert len(provider.requests) == 10


@pytest.mark.proves("FR-013", "FR-021")
async def test_a_follow_up_goes_on_after_the_turn_limit_without_loose_ends() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny.")))
    engine = engine_of(provider, weather_tool(), max_turns=1)
    first = await engine.create(ask(tools=[WEATHER]))
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=[WEATHER]))
    assert text_of(second) == "Sunny."
    assert [role for role, _ in sent_messages(provider.requests[1])] == ["user", "assistant", "tool", "user"]


@pytest.mark.proves("LIMIT-1", "MISTAKE-19")
async def test_max_tool_calls_counts_calls_and_then_asks_for_a_final_answer() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="a"), call("weather", city="b"), call("weather", city="c")),
        answer(say("Two will do.")),
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_tool_calls=2))
    assert [bool(item.is_error) and item.is_error is True for item in outputs(response)] == [False, False, True]
    assert response.status == "completed"
    assert sent(provider.requests[1])["tool_choice"] == "none"


@pytest.mark.proves("LIMIT-1")
async def test_a_model_that_keeps_calling_past_the_limit_ends_the_response_incomplete() -> None:
    provider = ScriptedProvider(*[answer(call("weather", city=str(i))) for i in range(3)])
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_tool_calls=1))
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_tool_calls"
    assert len(provider.requests) == 3
    assert len(outputs(response)) == len(function_calls(response)) == 3


@pytest.mark.proves("LIMIT-1")
async def test_the_limit_of_calls_is_used_up_without_a_word_when_the_model_stops_by_itself() -> None:
    provider = ScriptedProvider(answer(call("weather", city="a")), answer(say("Done.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_tool_calls=1))
    assert response.status == "completed"
    assert "tool_choice" not in sent(provider.requests[1])


@pytest.mark.proves("EDGE-5", "MISTAKE-07")
async def test_a_call_cut_by_length_is_never_run() -> None:
    provider = ScriptedProvider(answer(call("weather", '{"ci'), finish="length"))
    outcome = await stream(engine_of(provider, weather_tool()), ask(tools=[WEATHER]))
    response = outcome.response
    assert (response.status, response.incomplete_details and response.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert [(item.status, item.arguments) for item in function_calls(response)] == [("incomplete", '{"ci')]
    assert outputs(response) == []


@pytest.mark.proves("EDGE-5")
async def test_a_servers_call_cut_by_length_is_closed_and_never_run() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup", "{}"), call("lookup", '{"k'), finish="length"))
    outcome = await stream(engine_of(provider, depot), ask(tools=[SERVER]))
    assert [item.status for item in server_calls(outcome.response)] == ["completed", "incomplete"]
    assert depot.calls == []


async def test_the_token_limit_holds_for_the_response_and_not_for_each_turn() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="a"), usage=tokens(1, 30)), answer(call("weather", city="b"), usage=tokens(1, 70))
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_output_tokens=100))
    assert [sent(request)["max_tokens"] for request in provider.requests] == [100, 70]
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_content_filter_makes_the_response_incomplete() -> None:
    provider = ScriptedProvider(answer(say("Well, first you"), finish="content_filter"))
    response = await engine_of(provider).create(ask())
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "content_filter"
    assert [item.status for item in response.output] == ["incomplete"]


@pytest.mark.proves("LIMIT-1")
async def test_past_the_limit_any_further_call_ends_the_response() -> None:
    script = [answer(call("weather", city="a"), call("weather", city="b")), *[answer(call("nobody"))] * 5]
    provider = ScriptedProvider(*script)
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], max_tool_calls=1))
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_tool_calls"
    assert len(provider.requests) == 2


@pytest.mark.proves("EDGE-5", "MISTAKE-07")
async def test_of_interleaved_calls_the_one_being_written_is_cut_and_what_was_begun_after_it() -> None:
    pieces = [CallDelta(0, "weather", '{"ci'), CallDelta(1, "clock", "{}"), CallDelta(0, "", 'ty":"Pa')]
    provider = ScriptedProvider([*pieces, Finished("length")])
    outcome = await stream(engine_of(provider), ask(tools=[WEATHER, CLOCK]))
    assert [(item.name, item.status) for item in function_calls(outcome.response)] == [
        ("weather", "incomplete"),
        ("clock", "incomplete"),
    ]


# ---- side by side ----


@pytest.mark.proves("FR-016", "MISTAKE-12", "MISTAKE-13", "CP-028")
async def test_calls_run_at_the_same_time_and_results_come_in_the_order_of_the_calls() -> None:
    started: list[str] = []
    gates = {name: asyncio.Event() for name in "abc"}

    async def weather(city: str) -> str:
        started.append(city)
        if len(started) == 3:
            gates["c"].set()
        await gates[city].wait()
        order = {"c": "b", "b": "a"}
        if city in order:
            gates[order[city]].set()
        return f"done {city}"

    provider = ScriptedProvider(
        answer(*[call("weather", city=name) for name in "abc"]), answer(say("All three are in."))
    )
    outcome = await stream(engine_of(provider, LocalExecutor(weather)), ask(tools=[WEATHER]))
    assert started == ["a", "b", "c"]
    assert [item.output for item in outputs(outcome.response)] == ["done a", "done b", "done c"]
    assert [content for role, content in sent_messages(provider.requests[1]) if role == "tool"] == [
        "done a",
        "done b",
        "done c",
    ]


@pytest.mark.proves("FR-016")
async def test_server_calls_may_finish_in_any_order_but_the_model_sees_the_order_of_the_calls() -> None:
    second_is_shown = asyncio.Event()

    async def slow(asked: ToolCall, context: ToolContext) -> str:
        await second_is_shown.wait()
        return "slow"

    depot = ToolServerFake("depot", slow=slow, fast=replies("fast"))
    provider = ScriptedProvider(answer(call("slow"), call("fast")), answer(say("Both.")))
    finished: list[str] = []
    async for event in engine_of(provider, depot).respond(ask(tools=[SERVER])):
        if isinstance(event, OutputItemDone) and isinstance(event.item, McpCall):
            finished.append(event.item.name)
            second_is_shown.set()
    assert finished == ["fast", "slow"]
    assert [content for role, content in sent_messages(provider.requests[1]) if role == "tool"] == ["slow", "fast"]


@pytest.mark.proves("FR-016")
async def test_without_parallel_calls_tools_run_one_by_one_and_the_backend_is_told() -> None:
    running = 0
    most = 0

    async def weather(city: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return city

    provider = ScriptedProvider(answer(*[call("weather", city=name) for name in "abc"]), answer(say("Done.")))
    request = ask(tools=[WEATHER], parallel_tool_calls=False)
    response = await engine_of(provider, LocalExecutor(weather)).create(request)
    assert most == 1
    assert [item.output for item in outputs(response)] == ["a", "b", "c"]
    assert sent(provider.requests[0])["parallel_tool_calls"] is False
