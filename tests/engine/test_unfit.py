"""Inputs of free-form tools that do not fit their grammar: the model hears of it once, and the client is spared."""

from __future__ import annotations

import json
import time
from itertools import count
from typing import Any

import pytest

from antwort.api.events import CustomInputDelta
from antwort.api.items import CustomToolCall, McpCall
from antwort.api.responses import Response
from antwort.engine.loop.call_display import display_of
from antwort.engine.loop.fold import Finish
from antwort.engine.loop.steps import Infer, Refused, RunTools, next_step
from antwort.engine.plan import Plan
from antwort.engine.prompt.messages import NO_RESULT
from antwort.ids import new_id
from antwort.testing import ScriptedProvider, answer, call, say, tokens
from antwort.tools.grammar import Checks, read_grammar
from engine_kit import (
    CLOCK,
    WEATHER,
    ask,
    engine_of,
    kinds,
    only,
    sent,
    server_calls,
    stream,
    weather_tool,
)
from plan_kit import called, ended, plan_of, run_of, server_called


def grammar(syntax: str, definition: str) -> dict[str, Any]:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


DIAL: dict[str, Any] = {"type": "custom", "name": "dial", "format": grammar("regex", "[0-9]+")}
GREET: dict[str, Any] = {
    "type": "custom",
    "name": "greet",
    "format": grammar("lark", 'start: ("hello" | "bye") " " NAME\nNAME: /[a-z]+/'),
}
NOTE: dict[str, Any] = {"type": "custom", "name": "note"}
ALL = [DIAL, GREET, NOTE, CLOCK]

HELLO: dict[str, Any] = {"role": "user", "content": "Hello"}
WRONG = call("dial", input="seven")
RIGHT = call("dial", input="7")


def inputs(response: Response) -> list[tuple[str, str]]:
    return [(item.name, item.input) for item in response.output if isinstance(item, CustomToolCall)]


def messages(provider: ScriptedProvider, at: int = -1) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = sent(provider.requests[at])["messages"]
    return found


# ---- once ----


@pytest.mark.parametrize("has_executors", [False, True])
async def test_a_wrong_input_is_answered_and_the_model_asked_again(has_executors: bool) -> None:
    provider = ScriptedProvider(answer(WRONG), answer(RIGHT))
    executors = [weather_tool()] if has_executors else []
    outcome = await stream(engine_of(provider, *executors), ask(tools=[*ALL, WEATHER]))
    refused = only(outcome.response, McpCall)
    assert (refused.server_label, refused.name, refused.status) == ("antwort", "dial", "failed")
    assert refused.arguments == '{"input":"seven"}'
    assert inputs(outcome.response) == [("dial", "7")]
    assert outcome.response.status == ("requires_action" if has_executors else "completed")
    deltas = [event.delta for event in outcome.events if isinstance(event, CustomInputDelta)]
    assert deltas == ["7"], "nothing of a wrong input shows as one of the client's"


async def test_the_model_is_told_where_it_went_wrong() -> None:
    provider = ScriptedProvider(answer(call("greet", input="hello Bob")), answer(say("Never mind.")))
    await engine_of(provider).create(ask(tools=ALL))
    asked, told = messages(provider)[-2:]
    (made,) = asked["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": "hello Bob"}
    assert told == {
        "role": "tool",
        "tool_call_id": made["id"],
        "content": "The input does not match the grammar of the tool 'greet'. It stops matching at line 1, column 7, "
        'at "Bob". Call it again with one that does.',
    }


async def test_what_is_no_json_is_sent_again_as_json() -> None:
    provider = ScriptedProvider(answer(call("dial", "seven, please")), answer(say("Never mind.")))
    await engine_of(provider).create(ask(tools=ALL))
    (made,) = messages(provider)[-2]["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"input": "seven, please"}


async def test_a_second_wrong_input_goes_to_the_client_as_it_is() -> None:
    provider = ScriptedProvider(answer(WRONG), answer(call("dial", input="eight")))
    response = await engine_of(provider).create(ask(tools=ALL))
    assert kinds(response) == ["mcp_call", "custom_tool_call"]
    assert inputs(response) == [("dial", "eight")]


async def test_each_tool_has_its_own_second_chance() -> None:
    provider = ScriptedProvider(answer(WRONG), answer(call("greet", input="hm")), answer(call("greet", input="bye jo")))
    response = await engine_of(provider).create(ask(tools=ALL))
    assert [refused.name for refused in server_calls(response)] == ["dial", "greet"]
    assert inputs(response) == [("greet", "bye jo")]


async def test_two_wrong_inputs_of_one_turn_are_answered_together() -> None:
    provider = ScriptedProvider(answer(WRONG, call("dial", input="nine")), answer(RIGHT))
    response = await engine_of(provider).create(ask(tools=ALL))
    assert kinds(response) == ["mcp_call", "mcp_call", "custom_tool_call"]
    assert [message["role"] for message in messages(provider)[-3:]] == ["assistant", "tool", "tool"]


# ---- beside other calls ----


@pytest.mark.parametrize("mixed_turns", ["pause", "execute"])
async def test_beside_a_clients_call_it_goes_to_the_client_in_its_place(mixed_turns: str) -> None:
    """The client's own error reaches the model with its other results, also where it keeps the history itself."""
    provider = ScriptedProvider(answer(WRONG, call("clock")))
    engine = engine_of(provider, weather_tool(), mixed_turns=mixed_turns)
    response = await engine.create(ask(tools=[*ALL, WEATHER]))
    assert kinds(response) == ["custom_tool_call", "function_call"]
    assert inputs(response) == [("dial", "seven")]
    assert response.status == "requires_action"


async def test_beside_a_call_that_is_run_here_both_are_answered() -> None:
    provider = ScriptedProvider(answer(WRONG, call("weather", city="Rome")), answer(RIGHT))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[*ALL, WEATHER]))
    assert kinds(response) == ["mcp_call", "function_call", "function_call_output", "custom_tool_call"]


async def test_a_free_form_call_beside_a_call_that_is_run_here_pauses_the_turn() -> None:
    provider = ScriptedProvider(answer(call("note", input="x"), call("weather", city="Rome")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[*ALL, WEATHER]))
    assert kinds(response) == ["custom_tool_call", "function_call"]
    assert response.status == "requires_action"


# ---- when the model is not asked again ----


async def test_where_nothing_may_be_called_an_input_is_not_held_against_anything() -> None:
    provider = ScriptedProvider(answer(WRONG))
    response = await engine_of(provider, weather_tool()).create(ask(tools=ALL, tool_choice="none"))
    assert inputs(response) == [("dial", "seven")]
    assert response.status == "completed"


async def test_in_the_last_turn_an_input_goes_to_the_client_as_it_is() -> None:
    provider = ScriptedProvider(answer(WRONG))
    response = await engine_of(provider, max_turns=1).create(ask(tools=ALL))
    assert (response.status, inputs(response)) == ("completed", [("dial", "seven")])


async def test_a_call_that_is_cut_is_never_handed_out_whole() -> None:
    provider = ScriptedProvider(answer(call("dial", '{"input": "7'), finish="length"))
    response = await engine_of(provider, weather_tool()).create(ask(tools=ALL))
    assert only(response, CustomToolCall).status == "incomplete"
    assert response.status == "incomplete"


async def test_when_the_tokens_are_used_up_the_response_is_incomplete() -> None:
    provider = ScriptedProvider(answer(WRONG, usage=tokens(1, 5)))
    response = await engine_of(provider).create(ask(tools=ALL, max_output_tokens=5))
    assert response.status == "incomplete"
    assert kinds(response) == ["mcp_call"]


async def test_a_wrong_input_is_no_call_that_was_run() -> None:
    provider = ScriptedProvider(answer(WRONG), answer(call("weather", city="Rome")), answer(say("Sunny.")))
    response = await engine_of(provider, weather_tool()).create(ask(tools=[*ALL, WEATHER], max_tool_calls=1))
    assert response.status == "completed"
    assert kinds(response) == ["mcp_call", "function_call", "function_call_output", "message"]


# ---- the choice, and the allowed list ----


@pytest.mark.parametrize("choice", ["required", {"type": "custom", "name": "dial"}])
async def test_a_model_that_must_call_must_call_again(choice: Any) -> None:
    provider = ScriptedProvider(answer(WRONG), answer(RIGHT))
    await engine_of(provider).create(ask(tools=ALL, tool_choice=choice))
    first, second = (sent(request)["tool_choice"] for request in provider.requests)
    assert first == second


async def test_a_model_that_has_called_need_not_call_again() -> None:
    provider = ScriptedProvider(answer(WRONG, call("weather", city="Rome")), answer(say("Sunny.")))
    await engine_of(provider, weather_tool()).create(ask(tools=[*ALL, WEATHER], tool_choice="required"))
    assert "tool_choice" not in sent(provider.requests[1])


async def test_a_tool_that_is_not_allowed_is_refused_for_that() -> None:
    provider = ScriptedProvider(answer(WRONG), answer(say("No.")))
    await engine_of(provider).create(ask(tools=ALL, allowed_tools=["note"]))
    assert messages(provider)[-1]["content"] == "The tool 'dial' is not allowed in this request."


# ---- what comes next, by table ----


async def plan_with_dial(**fields: Any) -> Plan:
    return await plan_of(ask(tools=[*ALL, WEATHER], **fields), weather_tool())


async def test_a_refused_call_is_answered_before_the_model_is_asked() -> None:
    plan = await plan_with_dial()
    wrong = server_called(1, "dial", label="antwort", arguments='{"input":"x"}')
    step = next_step(run_of(plan, wrong, ended()), plan)
    assert isinstance(step, RunTools)
    (refused,) = step.calls
    assert isinstance(refused, Refused)
    assert refused.message.startswith("The input does not match the grammar of the tool 'dial'.")
    assert refused.grammar is plan.toolbox.tools["dial"].grammar
    answered = server_called(1, "dial", label="antwort", status="failed", error=refused.message)
    assert next_step(run_of(plan, answered, ended()), plan) == Infer()


async def test_an_open_free_form_call_is_the_clients() -> None:
    plan = await plan_with_dial()
    item = CustomToolCall(id="ctc_1", call_id="call_1", name="note", input="x")
    assert next_step(run_of(plan, item, ended()), plan) == Finish("requires_action")
    wrong = server_called(2, "dial", label="antwort", status="failed", error="no")
    assert next_step(run_of(plan, item, wrong, ended()), plan) == Finish("requires_action")
    assert next_step(run_of(plan, called(3, "clock"), wrong, ended()), plan) == Finish("requires_action")


# ---- the time it takes ----


async def test_what_was_found_is_not_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first check uses up the time for all of them: each look at the clock takes 50 ms."""
    ticks = count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks) / 20)
    provider = ScriptedProvider(answer(WRONG), answer(RIGHT))
    await engine_of(provider).create(ask(tools=ALL))
    assert 'It stops matching at line 1, column 1, at "seven".' in messages(provider)[-1]["content"]


async def test_a_request_keeps_the_grammars_it_was_read_with() -> None:
    """Reading one again would keep everybody waiting."""
    plan = await plan_with_dial()
    read_grammar.cache_clear()
    fits = display_of(plan, "dial", run_of(plan), Checks()).fits
    assert fits is not None
    assert not fits("seven")
    assert read_grammar.cache_info().misses == 0


async def test_when_the_time_for_checks_is_used_up_inputs_go_to_the_client() -> None:
    plan = await plan_with_dial()
    fits = display_of(plan, "dial", run_of(plan), Checks(seconds=0)).fits
    assert fits is not None
    assert fits("seven")


# ---- sent back by a client ----


@pytest.mark.parametrize("name", ["dial", "clock", "weather", "nobody"])
@pytest.mark.parametrize("call_id", [None, "call_" + "0123456789abcdef" * 2])
async def test_a_refused_call_without_its_error_is_not_run_and_no_tool_is_said_to_be_gone(
    name: str, call_id: str | None
) -> None:
    refused = {"type": "mcp_call", "id": new_id("mcp"), "server_label": "antwort", "name": name, "arguments": "{}"}
    sent_back = refused | ({} if call_id is None else {"call_id": call_id})
    provider = ScriptedProvider(answer(say("Never mind.")))
    response = await engine_of(provider, weather_tool()).create(ask([HELLO, sent_back], tools=[*ALL, WEATHER]))
    assert kinds(response) == ["message"]
    assert messages(provider)[-1]["content"] == NO_RESULT
