"""Calls that the client must approve: how they are asked for, and how the turn ends."""

from __future__ import annotations

import pytest

from antwort.api.events import McpCallInProgress, OutputItemAdded, OutputItemDone
from antwort.api.items import FunctionCall, McpApprovalRequest, McpCall
from antwort.engine.history.refusals import OVER_LIMIT
from antwort.errors import Interrupted
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.local import LocalExecutor, tool
from antwort.tools.toolset import Toolset
from approval_kit import GUARDED, ONE_GUARDED, asked, decision, depot, told
from engine_kit import CLOCK, WEATHER, ask, engine_of, items_of, kinds, only, server_calls, stream

SHIP = answer(call("ship", box="7"))


@pytest.mark.proves("RULING-16", "FR-019")
async def test_a_call_that_needs_approval_is_asked_for_whole_and_ends_the_turn() -> None:
    server = depot()
    outcome = await stream(engine_of(ScriptedProvider(SHIP), server), ask(tools=[GUARDED]))
    assert outcome.response.status == "requires_action"
    assert kinds(outcome.response) == ["mcp_list_tools", "mcp_approval_request"]
    request = asked(outcome.response)
    assert (request.server_label, request.name, request.arguments) == ("depot", "ship", '{"box":"7"}')
    assert request.id.startswith("mcpr_")
    shown = [event for event in outcome.events if isinstance(event, OutputItemAdded | OutputItemDone)][-2:]
    assert [event.item for event in shown] == [request, request]
    assert not any(isinstance(event, McpCallInProgress) for event in outcome.events)
    assert server.calls == []


@pytest.mark.proves("RULING-16", "FR-020", "FR-026")
@pytest.mark.parametrize(
    ("setting", "status", "last"),
    [
        ("status", "requires_action", "response.completed"),
        ("event", "requires_action", "response.requires_action"),
        ("completed", "completed", "response.completed"),
    ],
)
async def test_approvals_pause_under_the_same_settings_as_client_calls(setting: str, status: str, last: str) -> None:
    engine = engine_of(ScriptedProvider(SHIP), depot(), requires_action=setting)
    outcome = await stream(engine, ask(tools=[GUARDED]))
    assert (outcome.response.status, outcome.names[-1]) == (status, last)


async def test_a_call_without_arguments_is_asked_for_with_an_empty_object() -> None:
    response = await engine_of(ScriptedProvider(answer(call("ship", ""))), depot()).create(ask(tools=[GUARDED]))
    assert asked(response).arguments == "{}"


async def test_calls_of_the_same_turn_that_need_no_approval_have_run() -> None:
    server = depot()
    provider = ScriptedProvider(answer(call("ship"), call("lookup")))
    outcome = await stream(engine_of(provider, server), ask(tools=[ONE_GUARDED]))
    assert kinds(outcome.response) == ["mcp_list_tools", "mcp_approval_request", "mcp_call"]
    assert only(outcome.response, McpCall).output == "found"
    assert outcome.response.status == "requires_action"
    assert [each.name for each in server.calls] == ["lookup"]


@pytest.mark.proves("MIXED-1")
@pytest.mark.parametrize(("mixed", "ran"), [("pause", []), ("execute", ["lookup"])])
async def test_beside_a_clients_call_nothing_runs_and_approvals_are_asked_for_at_once(
    mixed: str, ran: list[str]
) -> None:
    server = depot()
    provider = ScriptedProvider(answer(call("clock"), call("ship"), call("lookup")))
    response = await engine_of(provider, server, mixed_turns=mixed).create(ask(tools=[ONE_GUARDED, CLOCK]))
    assert kinds(response) == ["mcp_list_tools", "function_call", "mcp_approval_request", "mcp_call"]
    assert response.status == "requires_action"
    assert [each.name for each in server.calls] == ran


async def test_a_call_that_is_refused_anyway_is_answered_and_not_asked_for() -> None:
    provider = ScriptedProvider(answer(call("ship", '{"box"'), call("dance")), answer(say("Well.")))
    response = await engine_of(provider, depot()).create(ask(tools=[GUARDED]))
    broken, unknown = server_calls(response)
    assert (broken.server_label, broken.name, broken.status) == ("depot", "ship", "failed")
    assert "not valid JSON" in (broken.error_text or "")
    assert (unknown.server_label, unknown.name) == ("antwort", "dance")
    assert response.status == "completed"


async def test_a_call_outside_the_allowed_list_is_refused_and_not_asked_for() -> None:
    allowed = {"type": "allowed_tools", "tools": [{"type": "mcp", "server_label": "depot", "name": "lookup"}]}
    provider = ScriptedProvider(SHIP, answer(say("Well.")))
    response = await engine_of(provider, depot()).create(ask(tools=[GUARDED], tool_choice=allowed))
    assert "not allowed" in (only(response, McpCall).error_text or "")


@pytest.mark.proves("LIMIT-1")
async def test_a_call_beyond_the_limit_is_refused_and_not_asked_for() -> None:
    server = depot()
    provider = ScriptedProvider(answer(call("lookup"), call("ship", box="1"), call("ship", box="2"), call("lookup")))
    response = await engine_of(provider, server).create(ask(tools=[ONE_GUARDED], max_tool_calls=2))
    assert [item.arguments for item in items_of(response, McpApprovalRequest)] == ['{"box":"1"}']
    assert [item.error_text for item in server_calls(response)] == [None, OVER_LIMIT, OVER_LIMIT]
    assert [each.name for each in server.calls] == ["lookup"]


async def test_nothing_is_asked_for_where_nothing_is_run() -> None:
    response = await engine_of(ScriptedProvider(SHIP), depot()).create(ask(tools=[GUARDED], tool_choice="none"))
    assert kinds(response) == ["mcp_list_tools", "mcp_call"]
    assert response.status == "completed"


async def test_a_call_that_was_cut_off_is_not_asked_for() -> None:
    provider = ScriptedProvider(answer(call("ship", '{"box":'), finish="length"))
    outcome = await stream(engine_of(provider, depot()), ask(tools=[GUARDED]))
    assert kinds(outcome.response) == ["mcp_list_tools", "mcp_call"]
    assert only(outcome.response, McpCall).status == "incomplete"
    assert outcome.response.status == "incomplete"


async def test_of_a_turn_that_was_cut_off_what_is_whole_is_asked_for() -> None:
    provider = ScriptedProvider(answer(call("ship", box="1"), call("ship", '{"box"'), finish="length"))
    outcome = await stream(engine_of(provider, depot()), ask(tools=[GUARDED]))
    assert kinds(outcome.response) == ["mcp_list_tools", "mcp_approval_request", "mcp_call"]
    assert outcome.response.status == "incomplete"


async def test_a_turn_that_breaks_off_asks_for_nothing() -> None:
    provider = ScriptedProvider([*call("ship", box="1"), Interrupted()])
    response = (await stream(engine_of(provider, depot()), ask(tools=[GUARDED]))).response
    assert kinds(response) == ["mcp_list_tools"]


# ---- functions of this process ----


async def test_a_function_of_a_toolset_can_demand_approval_whatever_a_request_says() -> None:
    ran: list[str] = []
    calc = Toolset("calc")

    @calc.tool(require_approval=True)
    def wipe(disk: str) -> str:
        ran.append(disk)
        return "wiped"

    provider = ScriptedProvider(answer(call("wipe", disk="c")), answer(say("Done.")))
    engine = engine_of(provider, calc)
    declared = {"type": "mcp", "server_label": "calc", "require_approval": "never"}
    first = await engine.create(ask(tools=[declared]))
    assert (asked(first).server_label, ran) == ("calc", [])
    await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert ran == ["c"]


async def test_a_request_can_ask_for_the_approval_of_a_toolsets_calls() -> None:
    def add(a: int, b: int) -> int:
        return a + b

    calc = Toolset("calc", add)
    declared = {"type": "mcp", "server_label": "calc", "require_approval": "always"}
    response = await engine_of(ScriptedProvider(answer(call("add", a=1, b=2))), calc).create(ask(tools=[declared]))
    assert asked(response).name == "add"


async def test_a_function_that_demands_approval_is_asked_for_where_a_request_declares_it_itself() -> None:
    @tool(require_approval=True)
    def weather(city: str) -> str:
        return f"sunny in {city}"

    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Sunny.")))
    engine = engine_of(provider, LocalExecutor(weather))
    first = await engine.create(ask(tools=[WEATHER]))
    assert (asked(first).server_label, asked(first).name) == ("antwort", "weather")
    assert items_of(first, FunctionCall) == []
    second = await engine.create(ask([decision(first)], previous_response_id=first.id))
    assert only(second, McpCall).output == "sunny in Rome"
    assert told(provider)[1:] == [("assistant", ["weather"]), ("tool", "sunny in Rome")]
