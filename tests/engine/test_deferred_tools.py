"""More tools than the model is told of at once: it looks for them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from antwort.api.items import FunctionCall, McpApprovalRequest, McpCall, McpListTools
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.settings import HostedPolicy
from antwort.errors import InvalidField
from antwort.providers.base import Capabilities
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from engine_kit import CLOCK, SERVER, WEATHER, ask, engine_of, kinds, only, replies, sent, server_calls, stream
from plan_kit import plan_of

SERVED = [f"tool_{n}" for n in range(10)]


def big(label: str = "depot", names: Sequence[str] = SERVED, about: str | None = None) -> ToolServerFake:
    return ToolServerFake(label, "", instructions=about, **{name: replies(f"{name} ran") for name in names})


def offered(provider: ScriptedProvider, at: int = -1) -> list[str]:
    return [tool["function"]["name"] for tool in sent(provider.requests[at]).get("tools", [])]


def found(response: Response) -> list[list[str]]:
    """What each search has found."""
    calls = [item for item in server_calls(response) if item.server_label == "antwort"]
    return [[tool["name"] for tool in json.loads(str(item.output))["tools"]] for item in calls]


def deferred(tool: dict[str, Any]) -> dict[str, Any]:
    return {**tool, "defer_loading": True}


# ---- when ----


async def test_as_many_tools_as_the_model_may_be_told_of_are_told() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    await engine_of(provider, big(), max_in_prompt=11).create(ask(tools=[SERVER, CLOCK]))
    assert offered(provider) == [*SERVED, "clock"]


async def test_beyond_that_the_servers_tools_are_to_be_looked_for() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    response = await engine_of(provider, big(), max_in_prompt=10).create(ask(tools=[SERVER, CLOCK]))
    assert offered(provider) == ["clock", "tool_search"]
    assert [tool.name for tool in only(response, McpListTools).tools] == SERVED


async def test_the_requests_own_functions_are_told_however_many() -> None:
    functions = [{**CLOCK, "name": f"own_{n}"} for n in range(6)]
    provider = ScriptedProvider(answer(say("Hi.")), answer(say("Hi.")))
    engine = engine_of(provider, big(), max_in_prompt=5)
    await engine.create(ask(tools=functions))
    assert offered(provider) == [f"own_{n}" for n in range(6)]
    await engine.create(ask(tools=[*functions, SERVER]))
    assert offered(provider) == [*(f"own_{n}" for n in range(6)), "tool_search"]


@pytest.mark.parametrize(
    ("tools", "seen"),
    [
        ([deferred(CLOCK), WEATHER], ["weather", "tool_search"]),
        ([{"type": "custom", "name": "note", "defer_loading": True}, WEATHER], ["weather", "tool_search"]),
        ([{"type": "namespace", "name": "crm", "tools": [deferred(CLOCK), WEATHER]}], ["crm__weather", "tool_search"]),
        (
            [{"type": "namespace", "name": "crm", "tools": [CLOCK], "defer_loading": True}, WEATHER],
            ["weather", "tool_search"],
        ),
        ([deferred(SERVER), WEATHER], ["weather", "tool_search"]),
        ([{**CLOCK, "defer_loading": False}], ["clock"]),
        ([{**CLOCK, "defer_loading": None}], ["clock"]),
        ([CLOCK, {"type": "tool_search"}], ["clock"]),
        ([deferred(CLOCK), {"type": "tool_search", "execution": "server"}], ["tool_search"]),
    ],
)
async def test_a_request_may_say_which_tools_are_to_be_looked_for(tools: list[dict[str, Any]], seen: list[str]) -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    response = await engine_of(provider, big()).create(ask(tools=tools))
    assert offered(provider) == seen
    assert [tool["type"] for tool in response.tools] == [tool["type"] for tool in tools]
    assert [tool.get("defer_loading") for tool in response.tools] == [tool.get("defer_loading") for tool in tools]


async def test_only_what_would_be_told_counts_for_the_limit() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    small = big("small", ["one", "two"])
    tools = [deferred(SERVER), {"type": "mcp", "server_label": "small"}]
    await engine_of(provider, big(), small, max_in_prompt=4).create(ask(tools=tools))
    assert offered(provider) == ["one", "two", "tool_search"]


async def test_the_model_is_told_what_there_is_to_be_found() -> None:
    provider = ScriptedProvider(answer(say("Hi.")))
    servers = big("one", about="Keeps the\nstock."), big("two", ["alone"])
    described = {"type": "mcp", "server_label": "two", "server_description": "Tells prices. " * 50}
    namespace = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [deferred(CLOCK)]}
    tools = [{"type": "mcp", "server_label": "one"}, described, namespace, deferred(WEATHER)]
    await engine_of(provider, *servers, max_in_prompt=3).create(ask(tools=tools))
    _, *hints = sent(provider.requests[0])["tools"][0]["function"]["description"].splitlines()
    assert hints[0] == "- one: Keeps the stock. (10 tools)"
    assert hints[1].startswith("- two: Tells prices. Tells prices.")
    assert hints[1].endswith("… (1 tool)")
    assert hints[2:] == ["- crm: Customers. (1 tool)", "- others: functions of this conversation (1 tool)"]


# ---- finding ----


@pytest.mark.parametrize("streamed", [True, False])
async def test_what_is_found_joins_the_next_turn_and_can_be_called(streamed: bool) -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_7", limit=1)), answer(call("tool_7")), answer(say("Done."))
    )
    engine, request = engine_of(provider, big(), max_in_prompt=5), ask(tools=[SERVER])
    response = (await stream(engine, request)).response if streamed else await engine.create(request)
    assert (response.status, kinds(response)) == ("completed", ["mcp_list_tools", "mcp_call", "mcp_call", "message"])
    search, run = server_calls(response)
    assert (search.server_label, search.name, search.status) == ("antwort", "tool_search", "completed")
    assert found(response) == [["tool_7"]]
    assert (run.server_label, run.output) == ("depot", "tool_7 ran")
    assert [offered(provider, at) for at in range(3)] == [
        ["tool_search"],
        ["tool_search", "tool_7"],
        ["tool_search", "tool_7"],
    ]
    assert [message["role"] for message in sent(provider.requests[1])["messages"]] == ["user", "assistant", "tool"]


async def test_a_tool_that_was_not_looked_for_is_run_all_the_same_and_joins() -> None:
    provider = ScriptedProvider(answer(call("tool_3")), answer(say("Done.")))
    response = await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER]))
    assert only(response, McpCall).output == "tool_3 ran"
    assert offered(provider) == ["tool_search", "tool_3"]


async def test_a_tool_that_waits_for_approval_has_joined_when_it_is_approved() -> None:
    provider = ScriptedProvider(answer(call("tool_3")), answer(say("Done.")))
    engine = engine_of(provider, big(), max_in_prompt=5)
    tools = [{**SERVER, "require_approval": "always"}]
    first = await engine.create(ask(tools=tools))
    (asked,) = [item for item in first.output if isinstance(item, McpApprovalRequest)]
    given = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}
    second = await engine.create(ask([given], tools=tools, previous_response_id=first.id))
    assert only(second, McpCall).output == "tool_3 ran"
    assert offered(provider) == ["tool_search", "tool_3"]


async def test_what_was_found_is_known_in_the_next_response() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_7", limit=1)), answer(say("Found.")), answer(say("Yes."))
    )
    store = MemoryStore()
    engine = engine_of(provider, big(), store=store, max_in_prompt=5)
    first = await engine.create(ask(tools=[SERVER]))
    await engine.create(ask("Still there?", tools=[SERVER], previous_response_id=first.id))
    assert offered(provider) == ["tool_search", "tool_7"]


async def test_what_was_found_is_known_to_a_client_that_keeps_what_was_said_itself() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_7", limit=1)),
        answer(call("tool_2")),
        answer(say("Found.")),
        answer(say("Yes.")),
    )
    engine = engine_of(provider, big(), max_in_prompt=5)
    first = await engine.create(ask(tools=[SERVER], store=False))
    said = [{"role": "user", "content": "Hello"}, *to_plain(first.output), {"role": "user", "content": "Still there?"}]
    await engine.create(ask(said, tools=[SERVER], store=False))
    assert offered(provider) == ["tool_search", "tool_7", "tool_2"]


async def test_of_too_many_finds_the_latest_count_in_the_order_they_came_in() -> None:
    names = [f"tool_{n}" for n in range(60)]
    searches = [answer(call("tool_search", query=f"tool_{n}", limit=1)) for n in range(30)]
    again = answer(call("tool_search", query="tool_0", limit=1))
    provider = ScriptedProvider(*searches, again, answer(say("Enough.")))
    engine = engine_of(provider, big(names=names), max_in_prompt=23, max_turns=50)
    response = await engine.create(ask(tools=[SERVER]))
    assert response.status == "completed"
    assert offered(provider) == ["tool_search", "tool_0", *(f"tool_{n}" for n in range(9, 30))]


async def test_what_is_gone_from_the_server_is_not_found_any_more() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_7", limit=1)), answer(say("Found.")), answer(say("Gone."))
    )
    store = MemoryStore()
    first = await engine_of(provider, big(), store=store, max_in_prompt=5).create(ask(tools=[SERVER]))
    left = engine_of(provider, big(names=SERVED[:7]), store=store, max_in_prompt=5)
    await left.create(ask(tools=[SERVER], previous_response_id=first.id))
    assert offered(provider) == ["tool_search"]


async def test_tools_of_one_name_are_found_by_the_names_that_tell_them_apart() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="stock of the west", limit=1)),
        answer(call("west__stock")),
        answer(say("Done.")),
    )
    servers = big("east", ["stock", "price"]), big("west", ["stock", "price"])
    tools = [{"type": "mcp", "server_label": label} for label in ("east", "west")]
    response = await engine_of(provider, *servers, max_in_prompt=3).create(ask(tools=tools))
    assert found(response) == [["west__stock"]]
    assert [(item.server_label, item.name) for item in server_calls(response)][1:] == [("west", "stock")]


# ---- the client's own ----


async def test_a_function_of_the_clients_is_found_and_is_the_clients_to_run() -> None:
    provider = ScriptedProvider(answer(call("tool_search", query="clock")), answer(call("clock")))
    response = await engine_of(provider).create(ask(tools=[deferred(CLOCK), WEATHER]))
    assert response.status == "requires_action"
    assert kinds(response) == ["mcp_call", "function_call"]
    assert only(response, FunctionCall).name == "clock"
    assert offered(provider) == ["weather", "tool_search", "clock"]


async def test_a_search_beside_a_clients_call_is_answered_at_once() -> None:
    provider = ScriptedProvider(answer(call("tool_search", query="clock"), call("weather", city="Oslo")))
    response = await engine_of(provider).create(ask(tools=[deferred(CLOCK), WEATHER]))
    assert response.status == "requires_action"
    assert found(response) == [["clock"]]


async def test_a_clients_tool_search_keeps_its_name() -> None:
    own = {**CLOCK, "name": "tool_search"}
    provider = ScriptedProvider(answer(call("tool_search_2", query="tool_7", limit=1)), answer(call("tool_search")))
    response = await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER, own]))
    assert offered(provider) == ["tool_search", "tool_search_2", "tool_7"]
    assert (only(response, McpCall).name, only(response, FunctionCall).name) == ("tool_search_2", "tool_search")


async def test_a_clients_tool_search_that_is_not_allowed_is_refused_and_not_run_as_ours() -> None:
    own = {**CLOCK, "name": "tool_search"}
    provider = ScriptedProvider(answer(call("tool_search")), answer(say("Well.")))
    engine = engine_of(provider, big(), max_in_prompt=5)
    response = await engine.create(ask(tools=[SERVER, own], allowed_tools=[SERVER]))
    assert only(response, McpCall).error_text == "The tool 'tool_search' is not allowed in this request."


# ---- choices and limits ----


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "mcp", "server_label": "depot", "name": "tool_4"}},
        {"allowed_tools": [{"type": "mcp", "server_label": "depot", "name": "tool_4"}]},
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "tool_4"}]}},
    ],
)
async def test_a_tool_that_is_named_need_not_be_looked_for(fields: dict[str, Any]) -> None:
    provider = ScriptedProvider(answer(call("tool_4")), answer(say("Done.")))
    await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER], **fields))
    assert offered(provider, 0) == ["tool_4", "tool_search"]


async def test_a_forced_tool_that_was_deferred_is_forced() -> None:
    provider = ScriptedProvider(answer(call("clock")))
    choice = {"type": "function", "name": "clock"}
    await engine_of(provider).create(ask(tools=[deferred(CLOCK), deferred(WEATHER)], tool_choice=choice))
    assert offered(provider) == ["clock", "tool_search"]
    assert sent(provider.requests[0])["tool_choice"] == {"type": "function", "function": {"name": "clock"}}


async def test_a_forced_server_with_too_many_tools_is_searched_and_then_called() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_7", limit=1)), answer(call("tool_7")), answer(say("Done."))
    )
    choice = {"type": "mcp", "server_label": "depot"}
    await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER], tool_choice=choice))
    assert [sent(request).get("tool_choice") for request in provider.requests] == ["required", "required", None]


async def test_required_does_not_hold_for_ever_where_nothing_is_found() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="zebra")),
        answer(call("tool_search", query="zebra")),
        answer(say("There is none.")),
    )
    response = await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER], tool_choice="required"))
    assert response.status == "completed"
    assert [sent(request).get("tool_choice") for request in provider.requests] == ["required", "required", None]


async def test_only_what_is_allowed_is_found() -> None:
    provider = ScriptedProvider(answer(call("tool_search", query="tool price", limit=20)), answer(say("Done.")))
    tools = [SERVER, {"type": "mcp", "server_label": "shop"}]
    allowed = [{"type": "mcp", "server_label": "shop"}]
    engine = engine_of(provider, big(), big("shop", ["price"]), max_in_prompt=5)
    response = await engine.create(ask(tools=tools, allowed_tools=allowed))
    assert found(response) == [["price"]]


async def test_where_nothing_that_is_allowed_is_hidden_searches_are_refused() -> None:
    provider = ScriptedProvider(answer(call("tool_search", query="tool")), answer(say("Done.")))
    engine = engine_of(provider, big(), max_in_prompt=5)
    response = await engine.create(ask(tools=[SERVER, CLOCK], allowed_tools=["clock"]))
    assert only(response, McpCall).error_text == "The tool 'tool_search' is not allowed in this request."


async def test_a_backend_that_takes_an_allowed_list_is_told_what_it_can_see_of_it() -> None:
    provider = ScriptedProvider(answer(say("Hi.")), capabilities=Capabilities(allowed_tools=True))
    await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER], allowed_tools=[SERVER]))
    choice = sent(provider.requests[0])["tool_choice"]["allowed_tools"]
    assert [tool["function"]["name"] for tool in choice["tools"]] == ["tool_search"]


async def test_searches_do_not_count_as_tool_calls() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_1", limit=1), call("tool_search", query="tool_2", limit=1)),
        answer(call("tool_1")),
        answer(call("tool_search", query="tool_3", limit=1)),
        answer(say("Done.")),
    )
    engine = engine_of(provider, big(), max_in_prompt=5)
    response = await engine.create(ask(tools=[SERVER], max_tool_calls=1))
    assert response.status == "completed"
    assert [item.error_text for item in server_calls(response)] == [None] * 4


async def test_without_a_choice_nothing_is_searched() -> None:
    provider = ScriptedProvider(answer(call("tool_search", query="tool_1")))
    response = await engine_of(provider, big(), max_in_prompt=5).create(ask(tools=[SERVER], tool_choice="none"))
    assert (response.status, found_any(response)) == ("completed", False)


def found_any(response: Response) -> bool:
    return any(isinstance(item.output, str) for item in server_calls(response))


# ---- the hosted type ----


async def test_what_the_operator_says_of_the_hosted_type_holds() -> None:
    with pytest.raises(InvalidField, match="tool_search"):
        await plan_of(ask(tools=[{"type": "tool_search"}]), hosted={"tool_search": HostedPolicy(do="refuse")})
    searched_by_the_client = {"type": "tool_search", "execution": "client"}
    with pytest.raises(InvalidField, match="tool_search"):
        await plan_of(ask(tools=[searched_by_the_client]), unknown_tools="refuse")
    await plan_of(ask(tools=[{"type": "tool_search"}]), unknown_tools="refuse")


async def test_what_was_found_and_is_not_allowed_any_more_is_not_told() -> None:
    provider = ScriptedProvider(
        answer(call("tool_search", query="tool_3 tool_4", limit=2)), answer(say("Ok.")), answer(say("Hi."))
    )
    engine = engine_of(provider, big(), max_in_prompt=5)
    response = await engine.create(ask(tools=[SERVER]))
    assert offered(provider) == ["tool_search", "tool_3", "tool_4"]
    allowed = {
        "type": "allowed_tools",
        "mode": "auto",
        "tools": [{"type": "mcp", "server_label": "depot", "name": "tool_4"}],
    }
    await engine.create(ask(tools=[SERVER], tool_choice=allowed, previous_response_id=response.id))
    assert "tool_3" not in offered(provider)
    assert "tool_4" in offered(provider)
