"""The loop: turns, tools, and the ways a response ends by itself."""

from __future__ import annotations

import logging

import pytest

from antwort.api.events import TERMINAL, ResponseCompleted, ResponseRequiresAction
from antwort.api.items import FunctionCallOutput, McpCall, Reasoning
from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.api.wire import UNSET
from antwort.errors import BackendError
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think, tokens
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    FunctionExecutor,
    ask,
    engine_of,
    function_calls,
    items_of,
    kinds,
    only,
    outputs,
    replies,
    sent,
    sent_messages,
    shape_of,
    stream,
    text_of,
    weather_tool,
)

CLOCK_TOOL = ToolDefinition(name="clock", kind=ToolKind.FUNCTION)


async def test_an_answer_without_calls_is_the_end() -> None:
    provider = ScriptedProvider(answer(say("Hello there"), usage=tokens(3, 2)))
    response = await engine_of(provider).create(ask())
    assert (response.status, text_of(response), kinds(response)) == ("completed", "Hello there", ["message"])
    assert response.usage == tokens(3, 2)
    assert len(provider.requests) == 1


@pytest.mark.proves("FR-011", "FR-012", "FR-017", "RULING-1")
async def test_calls_are_run_and_fed_back_until_the_model_has_its_answer() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="Paris")), answer(call("weather", city="Rome")), answer(say("Sunny in both."))
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert response.status == "completed"
    assert kinds(response) == [
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert [item.output for item in outputs(response)] == ["sunny in Paris", "sunny in Rome"]
    assert [item.call_id for item in outputs(response)] == [item.call_id for item in function_calls(response)]
    assert sent_messages(provider.requests[2])[-1] == ("tool", "sunny in Rome")


@pytest.mark.proves("FR-004", "FR-018")
async def test_without_executors_calls_go_back_in_one_shot() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(provider).create(ask(tools=[WEATHER]))
    assert (response.status, kinds(response)) == ("completed", ["function_call"])


@pytest.mark.proves("FR-004")
async def test_the_function_executor_never_counts_as_registered() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(provider, FunctionExecutor()).create(ask(tools=[WEATHER]))
    assert response.status == "completed"


@pytest.mark.proves("FR-004", "MISTAKE-25")
async def test_a_tool_server_counts_only_where_the_request_reaches_one_of_its_tools() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    alone = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(alone, depot).create(ask(tools=[WEATHER]))
    assert response.status == "completed"
    assert [tool["function"]["name"] for tool in sent(alone.requests[0])["tools"]] == ["weather"]
    reached = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(reached, depot).create(ask(tools=[WEATHER, SERVER]))
    assert response.status == "requires_action"


@pytest.mark.proves("FR-018", "FR-019", "FR-020", "FR-026", "EDGE-1")
async def test_a_call_nobody_here_can_run_hands_the_turn_to_the_client() -> None:
    provider = ScriptedProvider(answer(call("clock")))
    outcome = await stream(engine_of(provider, weather_tool()), ask(tools=[CLOCK]))
    assert outcome.response.status == "requires_action"
    assert kinds(outcome.response) == ["function_call"]
    last = outcome.events[-1]
    assert isinstance(last, ResponseCompleted)
    assert last.response.status == "requires_action"


@pytest.mark.proves("FR-002", "FR-018", "FR-019")
async def test_an_executor_can_hand_a_call_to_the_client_after_all() -> None:
    class Choosy:
        kind = ToolKind.LOCAL

        def can_execute(self, tool: ToolDefinition) -> bool:
            return tool.name in ("weather", "clock")

        async def execute(self, asked: ToolCall, context: ToolContext) -> ToolResult:
            if asked.name == "clock":
                raise ClientsTurn(asked)
            return ToolResult(asked.id, "sunny")

    provider = ScriptedProvider(answer(call("clock"), call("weather", city="Paris")), answer(say("Noon, and sunny.")))
    engine = engine_of(provider, Choosy())
    first = (await stream(engine, ask(tools=[WEATHER, CLOCK]))).response
    assert first.status == "requires_action"
    assert [item.output for item in outputs(first)] == ["sunny"]
    noon = {"type": "function_call_output", "call_id": function_calls(first)[0].call_id, "output": "noon"}
    second = await engine.create(ask([noon], previous_response_id=first.id))
    assert (second.status, kinds(second)) == ("completed", ["message"])
    assert [content for role, content in sent_messages(provider.requests[1]) if role == "tool"] == ["noon", "sunny"]


async def test_a_call_handed_on_again_in_a_follow_up_does_not_hold_it_up() -> None:
    async def clock() -> str:
        raise ClientsTurn(ToolCall(id="c", name="clock", arguments="{}", definition=CLOCK_TOOL))

    provider = ScriptedProvider(answer(call("clock")), answer(say("Never mind.")))
    engine = engine_of(provider, LocalExecutor(clock))
    first = await engine.create(ask(tools=[CLOCK]))
    assert first.status == "requires_action"
    second = await engine.create(ask("Forget it.", previous_response_id=first.id))
    assert (second.status, text_of(second)) == ("completed", "Never mind.")


@pytest.mark.proves("FR-019")
async def test_requires_action_can_be_an_event_of_its_own() -> None:
    provider = ScriptedProvider(answer(call("clock")))
    outcome = await stream(engine_of(provider, weather_tool(), requires_action="event"), ask(tools=[CLOCK]))
    assert isinstance(outcome.events[-1], ResponseRequiresAction)
    assert outcome.response.status == "requires_action"


@pytest.mark.proves("FR-019")
async def test_requires_action_can_be_written_as_plain_completed() -> None:
    provider = ScriptedProvider(answer(call("clock")))
    outcome = await stream(engine_of(provider, weather_tool(), requires_action="completed"), ask(tools=[CLOCK]))
    assert isinstance(outcome.events[-1], ResponseCompleted)
    assert outcome.response.status == "completed"


# ---- unknown names, bad arguments, failures ----


@pytest.mark.proves("EDGE-2", "RULING-1")
async def test_a_call_to_an_unknown_name_is_answered_with_an_error() -> None:
    provider = ScriptedProvider(answer(call("teleport")), answer(say("I cannot.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    item = only(response, McpCall)
    assert (item.server_label, item.status) == ("antwort", "failed")
    assert "teleport" in str(item.error)


@pytest.mark.proves("EDGE-2")
async def test_without_executors_a_call_to_an_unknown_name_passes_to_the_client() -> None:
    provider = ScriptedProvider(answer(call("teleport")))
    response = await engine_of(provider).create(ask(tools=[WEATHER]))
    assert (kinds(response), response.status) == (["function_call"], "completed")


@pytest.mark.proves("RULING-1")
async def test_a_setting_shows_refused_calls_as_function_calls_with_an_output() -> None:
    provider = ScriptedProvider(answer(call("teleport")), answer(say("I cannot.")))
    engine = engine_of(provider, weather_tool(), refused_calls="function_call")
    response = await engine.create(ask(tools=[WEATHER]))
    assert kinds(response) == ["function_call", "function_call_output", "message"]
    assert only(response, FunctionCallOutput).is_error is True


@pytest.mark.proves("EDGE-4", "FR-029")
async def test_arguments_that_are_not_json_come_back_as_an_error_where_we_would_run_the_call() -> None:
    provider = ScriptedProvider(answer(call("weather", '{"city":')), answer(say("Sorry.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    output = only(response, FunctionCallOutput)
    assert output.is_error is True
    assert "JSON" in str(output.output)
    assert response.status == "completed"


@pytest.mark.proves("EDGE-4")
async def test_arguments_that_are_not_json_pass_to_the_client_as_they_are() -> None:
    provider = ScriptedProvider(answer(call("clock", '{"a":')))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[CLOCK]))
    assert [item.arguments for item in function_calls(response)] == ['{"a":']
    assert response.status == "requires_action"


@pytest.mark.proves("FR-029", "FR-030", "FR-031", "MISTAKE-22")
async def test_when_all_tools_fail_the_model_is_told_and_the_loop_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async def weather(city: str) -> str:
        raise SystemExit(f"no weather in {city}")

    async def clock() -> str:
        raise ValueError("the clock stopped")

    provider = ScriptedProvider(answer(call("weather", city="Paris"), call("clock")), answer(say("Both failed.")))
    with caplog.at_level(logging.WARNING, "antwort"):
        response = await engine_of(provider, LocalExecutor(weather, clock)).create(ask(tools=[WEATHER, CLOCK]))
    assert response.status == "completed"
    assert [item.is_error for item in outputs(response)] == [True, True]
    assert "the clock stopped" in str(outputs(response)[1].output)
    assert sent_messages(provider.requests[1])[-1] == ("tool", outputs(response)[1].output)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) >= 2


@pytest.mark.proves("FR-030", "EN-036", "RULING-11")
async def test_a_backend_that_fails_in_a_later_turn_ends_the_response_as_failed() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="Paris")), answer(say("It is"), BackendError("The backend failed."))
    )
    outcome = await stream(engine_of(provider, weather_tool()), ask(tools=[WEATHER]))
    response = outcome.response
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.message == "The backend failed."
    assert [item.status for item in response.output] == ["completed", "completed", "incomplete"]
    assert text_of(response) == "It is"


# ---- text, reasoning, usage ----


@pytest.mark.proves("EDGE-3", "MISTAKE-14")
async def test_text_beside_calls_is_kept_and_seen_by_the_model_next_turn() -> None:
    provider = ScriptedProvider(answer(say("Let me look."), call("weather", city="Paris")), answer(say("Sunny.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert kinds(response) == ["message", "function_call", "function_call_output", "message"]
    assistant = sent(provider.requests[1])["messages"][1]
    assert assistant["content"] == "Let me look."
    assert len(assistant["tool_calls"]) == 1


@pytest.mark.proves("EN-021", "MISTAKE-11")
async def test_each_turns_reasoning_has_an_item_of_its_own_and_goes_back_to_the_backend() -> None:
    provider = ScriptedProvider(
        answer(think("first thought"), call("weather", city="Paris")), answer(think("second"), say("Sunny."))
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    texts = [[part.text for part in item.content or ()] for item in items_of(response, Reasoning)]
    assert texts == [["first thought"], ["second"]]
    assert sent(provider.requests[1])["messages"][1]["reasoning_content"] == "first thought"


@pytest.mark.proves("RULING-14")
async def test_a_summary_that_is_asked_for_is_the_raw_reasoning_in_summary_events() -> None:
    provider = ScriptedProvider(answer(think("deep thought"), say("42")))
    outcome = await stream(engine_of(provider), ask(reasoning={"summary": "auto"}))
    item = only(outcome.response, Reasoning)
    assert [part.text for part in item.summary] == ["deep thought"]
    assert item.content is UNSET
    assert "response.reasoning_summary_text.delta" in outcome.names
    assert "response.reasoning_text.delta" not in outcome.names


@pytest.mark.proves("FR-028")
async def test_usage_is_summed_over_the_turns_with_its_details() -> None:
    def used(read: int, written: int, cached: int, thought: int) -> Usage:
        return Usage(
            input_tokens=read,
            output_tokens=written,
            total_tokens=read + written,
            input_tokens_details=InputTokensDetails(cached_tokens=cached),
            output_tokens_details=OutputTokensDetails(reasoning_tokens=thought),
        )

    provider = ScriptedProvider(
        answer(call("weather", city="Paris"), usage=used(10, 5, 4, 2)), answer(say("Sunny."), usage=used(20, 7, 8, 3))
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert response.usage == used(30, 12, 12, 5)


@pytest.mark.proves("RULING-4")
async def test_usage_is_null_when_no_turn_reported_any() -> None:
    response = await engine_of(ScriptedProvider(answer(say("Hi")))).create(ask())
    assert response.usage is None


@pytest.mark.proves("EDGE-6")
async def test_an_answer_with_nothing_in_it_is_completed_and_the_model_is_not_asked_again() -> None:
    provider = ScriptedProvider(answer())
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    assert (response.status, response.output) == ("completed", ())
    assert len(provider.requests) == 1


# ---- the stream ----


@pytest.mark.proves("FR-022", "FR-023", "FR-024", "FR-025", "CP-028", "RULING-13")
async def test_one_stream_over_all_turns_with_one_beginning_and_one_end() -> None:
    provider = ScriptedProvider(
        answer(say("Looking."), call("weather", city="Paris")), answer(call("weather", city="Rome")), answer(say("Ok"))
    )
    outcome = await stream(engine_of(provider, weather_tool()), ask(tools=[WEATHER]))
    assert outcome.names[:2] == ["response.created", "response.in_progress"]
    assert outcome.names.count("response.created") == outcome.names.count("response.in_progress") == 1
    assert sum(isinstance(event, TERMINAL) for event in outcome.events) == 1
    lifecycle = {"created", "queued", "in_progress", "completed", "failed", "incomplete", "requires_action"}
    between = outcome.names[2:-1]
    assert not [name for name in between if name.removeprefix("response.") in lifecycle]


@pytest.mark.proves("FR-027")
async def test_what_is_not_streamed_has_the_same_items() -> None:
    def script() -> ScriptedProvider:
        return ScriptedProvider(
            answer(think("hm"), say("Looking."), call("weather", city="Paris"), usage=tokens(2, 2)),
            answer(say("Sunny."), usage=tokens(4, 1)),
        )

    whole = await engine_of(script(), weather_tool()).create(ask(tools=[WEATHER]))
    streamed = await stream(engine_of(script(), weather_tool()), ask(tools=[WEATHER]))
    assert shape_of(whole) == shape_of(streamed.response)


@pytest.mark.proves("RULING-2")
async def test_call_ids_are_ours_and_never_repeat() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="a"), call("weather", city="b")),
        answer(call("weather", city="c")),
        answer(say(".")),
    )
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER]))
    ids = [item.call_id for item in function_calls(response)]
    assert len(set(ids)) == 3
    assert all(call_id.startswith("call_") for call_id in ids)


@pytest.mark.proves("CP-003")
async def test_every_item_has_id_type_and_status() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(
        answer(think("hm"), say("Looking."), call("weather", city="Paris"), call("lookup")), answer(say("Ok"))
    )
    response = await engine_of(provider, depot, weather_tool()).create(ask(tools=[SERVER, WEATHER]))
    assert len({item.id for item in response.output}) == len(response.output) == 7
    for item in response.output:
        assert item.id
        assert item.status == "completed"
