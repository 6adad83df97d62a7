"""The loop: turns, tools, limits and the ways a response ends by itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from antwort.api.events import TERMINAL, OutputItemDone, ResponseCompleted, ResponseIncomplete, ResponseRequiresAction
from antwort.api.items import FunctionCallOutput, McpCall, McpListTools, Reasoning
from antwort.api.responses import InputTokensDetails, OutputTokensDetails, Usage
from antwort.api.tools import McpTool
from antwort.api.wire import UNSET
from antwort.engine.settings import EngineSettings
from antwort.errors import BackendError, InvalidField
from antwort.identity import Identity
from antwort.providers.base import CallDelta, Capabilities, Finished
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say, think, tokens
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition
from antwort.tools.function import FunctionExecutor
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
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
    server_calls,
    shape_of,
    stream,
    text_of,
    weather_tool,
)


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


# ---- tool_choice ----


@pytest.mark.proves("FR-005", "MISTAKE-20", "EN-023")
async def test_a_forced_tool_is_asked_for_in_the_backends_shape_and_only_once() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny.")))
    forced = {"type": "function", "name": "weather"}
    await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], tool_choice=forced))
    first, second = (sent(request).get("tool_choice") for request in provider.requests)
    assert first == {"type": "function", "function": {"name": "weather"}}
    assert second is None


@pytest.mark.proves("FR-005")
async def test_required_is_best_effort_and_an_answer_without_calls_stands() -> None:
    provider = ScriptedProvider(answer(say("I would rather not.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], tool_choice="required"))
    assert (response.status, text_of(response)) == ("completed", "I would rather not.")
    assert sent(provider.requests[0])["tool_choice"] == "required"


@pytest.mark.proves("FR-006")
async def test_with_none_tools_are_sent_and_calls_made_anyway_stay_unrun() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], tool_choice="none"))
    assert (response.status, kinds(response)) == ("completed", ["function_call"])
    assert sent(provider.requests[0])["tool_choice"] == "none"
    assert len(sent(provider.requests[0])["tools"]) == 1


@pytest.mark.proves("FR-006", "RULING-1")
async def test_with_none_a_servers_call_shows_as_the_servers_and_is_not_run() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(answer(call("lookup")))
    response = await engine_of(provider, depot).create(ask(tools=[SERVER], tool_choice="none"))
    item = only(response, McpCall)
    assert (response.status, item.status, item.output, item.error) == ("completed", "completed", UNSET, UNSET)
    assert depot.calls == []


@pytest.mark.proves("FR-007", "CP-036")
async def test_a_forced_tool_that_was_not_declared_is_refused_before_any_work() -> None:
    provider = ScriptedProvider()
    with pytest.raises(InvalidField) as caught:
        await engine_of(provider).create(ask(tools=[WEATHER], tool_choice={"type": "function", "name": "clock"}))
    assert (caught.value.status, caught.value.param) == (400, "tool_choice.name")
    assert provider.requests == []


# ---- allowed_tools ----


ALLOW_CLOCK = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}]}


@pytest.mark.proves("FR-008", "FR-009", "RULING-1")
@pytest.mark.parametrize("fields", [{"tool_choice": ALLOW_CLOCK}, {"allowed_tools": ["clock"]}])
async def test_a_call_outside_the_allowed_list_is_not_run_and_gets_an_error(fields: dict[str, object]) -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Not allowed, it seems.")))
    response = await engine_of(provider, LocalExecutor(weather)).create(ask(tools=[WEATHER, CLOCK], **fields))
    item = only(response, McpCall)
    assert (item.status, item.server_label) == ("failed", "antwort")
    assert isinstance(item.error, str)
    assert "not allowed" in item.error
    assert (ran, response.status) == ([], "completed")
    assert sent_messages(provider.requests[1])[-1] == ("tool", item.error)
    assert len(sent(provider.requests[0])["tools"]) == 2
    assert "tool_choice" not in sent(provider.requests[0])


@pytest.mark.proves("FR-009", "MISTAKE-23")
async def test_without_executors_a_call_outside_the_list_is_refused_and_not_handed_to_the_client() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(call("clock")))
    response = await engine_of(provider).create(ask(tools=[WEATHER, CLOCK], tool_choice=ALLOW_CLOCK))
    assert kinds(response) == ["mcp_call", "function_call"]
    assert response.status == "completed"
    assert len(provider.requests) == 2


@pytest.mark.proves("FR-009")
async def test_a_refused_call_beside_a_clients_call_is_answered_and_the_clients_stays_open() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris"), call("clock")))
    response = await engine_of(provider).create(ask(tools=[WEATHER, CLOCK], tool_choice=ALLOW_CLOCK))
    assert [item.status for item in server_calls(response)] == ["failed"]
    assert [item.name for item in function_calls(response)] == ["clock"]
    assert len(provider.requests) == 1


@pytest.mark.proves("FR-009", "FR-006")
async def test_under_none_a_call_outside_the_list_is_refused_without_asking_again() -> None:
    choice = {**ALLOW_CLOCK, "mode": "none"}
    provider = ScriptedProvider(answer(call("weather", city="Paris")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER, CLOCK], tool_choice=choice))
    assert [item.status for item in server_calls(response)] == ["failed"]
    assert response.status == "completed"


@pytest.mark.proves("FR-008", "MISTAKE-23")
async def test_a_list_that_names_none_of_the_tools_allows_not_even_a_call_without_a_name() -> None:
    provider = ScriptedProvider([CallDelta(0, "", '{"a":1}'), Finished("tool_calls")], answer(say("Oh.")))
    response = await engine_of(provider).create(ask(tools=[WEATHER], allowed_tools=["nope"]))
    assert [item.status for item in server_calls(response)] == ["failed"]
    assert function_calls(response) == []


async def test_a_forced_tool_outside_the_allowed_list_is_refused() -> None:
    forced = {"type": "function", "name": "weather"}
    request = ask(tools=[WEATHER, CLOCK], allowed_tools=["clock"], tool_choice=forced)
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider()).create(request)
    assert caught.value.param == "tool_choice.name"


@pytest.mark.proves("CP-022")
async def test_the_allowed_list_is_echoed_in_one_form() -> None:
    response = await engine_of(ScriptedProvider(answer(say("Hi")))).create(
        ask(tools=[WEATHER, CLOCK], allowed_tools=["clock"])
    )
    assert response.tool_choice == ALLOW_CLOCK


@pytest.mark.proves("FR-010")
async def test_an_empty_allowed_list_allows_all() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[WEATHER], allowed_tools=[]))
    assert [item.output for item in outputs(response)] == ["sunny in Paris"]


@pytest.mark.proves("FR-008")
async def test_a_backend_that_takes_the_allowed_list_gets_it_and_the_filter_stays_ours() -> None:
    capabilities = Capabilities(allowed_tools=True)
    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Oh.")), capabilities=capabilities)
    response = await engine_of(provider).create(ask(tools=[WEATHER, CLOCK], tool_choice=ALLOW_CLOCK))
    assert sent(provider.requests[0])["tool_choice"] == {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "clock"}}]},
    }
    assert [item.status for item in server_calls(response)] == ["failed"]


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
    provider = ScriptedProvider(*[answer(call("weather", city="x")) for _ in range(11)])
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


async def test_approvals_that_cannot_be_asked_for_are_refused_and_not_skipped() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider(), depot).create(ask(tools=[{**SERVER, "require_approval": "always"}]))
    assert caught.value.param == "tools[0].require_approval"


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
    assert (paused.status, paused.output, paused.error) == ("completed", UNSET, UNSET)
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
    assert (shown.output, shown.call_id) == ("found", before.call_id)
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


@pytest.mark.proves("FR-001")
async def test_a_running_call_knows_for_whom_until_when_and_under_which_key() -> None:
    seen: list[ToolContext] = []

    async def look(asked: ToolCall, context: ToolContext) -> str:
        seen.append(context)
        return "ok"

    provider = ScriptedProvider(answer(call("look")), answer(say("Ok")))
    response = await engine_of(provider, ToolServerFake("depot", look=look)).create(ask(tools=[SERVER]))
    (context,) = seen
    assert context.response_id == response.id
    assert context.idempotency_key == only(response, McpCall).call_id
    assert context.identity.tenant == "default"
    assert context.deadline is not None
    assert not context.cancelled.is_set()
