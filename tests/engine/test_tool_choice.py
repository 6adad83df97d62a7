"""What a request says about the use of its tools: tool_choice and allowed_tools."""

from __future__ import annotations

import pytest

from antwort.api.items import McpCall
from antwort.errors import InvalidField
from antwort.providers.base import CallDelta, Capabilities, Finished
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.local import LocalExecutor
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
    server_calls,
    text_of,
    weather_tool,
)

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
    assert (response.status, item.status, item.output, item.error) == ("completed", "completed", None, None)
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
    assert item.error_text is not None
    assert "not allowed" in item.error_text
    assert (ran, response.status) == ([], "completed")
    assert sent_messages(provider.requests[1])[-1] == ("tool", item.error_text)
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


def two_depots() -> tuple[ToolServerFake, ToolServerFake]:
    """Both have a `lookup`, so that the model sees neither by that name."""
    return ToolServerFake("depot", lookup=replies("found")), ToolServerFake("attic", lookup=replies("found, too"))


ATTIC = {"type": "mcp", "server_label": "attic"}


@pytest.mark.proves("FR-007", "CP-036")
@pytest.mark.parametrize(
    ("forced", "param"),
    [
        ({"type": "mcp", "server_label": "depot", "name": "lookup"}, "tool_choice.name"),
        ({"type": "mcp", "server_label": "depot"}, "tool_choice.server_label"),
    ],
    ids=["a tool", "a server"],
)
async def test_a_forced_servers_tool_outside_the_allowed_list_is_refused(forced: dict[str, str], param: str) -> None:
    provider = ScriptedProvider()
    engine = engine_of(provider, *two_depots())
    with pytest.raises(InvalidField, match="is not one of the allowed tools") as caught:
        await engine.create(ask(tools=[SERVER, ATTIC], tool_choice=forced, allowed_tools=[ATTIC]))
    assert (caught.value.param, caught.value.code) == (param, "unknown_tool")
    assert provider.requests == []


async def test_a_name_that_several_servers_have_allows_the_tool_of_each() -> None:
    provider = ScriptedProvider(answer(call("depot__lookup"), call("attic__lookup"), call("drop")), answer(say("")))
    depot = ToolServerFake("depot", lookup=replies("found"), drop=replies("dropped"))
    _, attic = two_depots()
    await engine_of(provider, depot, attic).create(ask(tools=[SERVER, ATTIC], allowed_tools=["lookup"]))
    assert ([made.definition.own_name for made in depot.calls], len(attic.calls)) == (["lookup"], 1)


async def test_a_name_that_the_model_sees_allows_that_tool_and_no_other_servers() -> None:
    """The function keeps its name, and the server's tool of the same name does not."""
    lookup = {"type": "function", "name": "lookup"}
    provider = ScriptedProvider(answer(call("depot__lookup")), answer(say("")))
    depot = ToolServerFake("depot", lookup=replies("found"))
    await engine_of(provider, depot).create(ask(tools=[lookup, SERVER], allowed_tools=["lookup"]))
    assert depot.calls == []
