"""Calls of the tools that a request declares itself: how they come back to the client, and to the model again."""

from __future__ import annotations

import re
from typing import Any

import pytest

from antwort.api.events import ArgumentsDone, CustomInputDelta, CustomInputDone, OutputItemAdded
from antwort.api.items import CustomToolCall, FunctionCall, McpCall
from antwort.api.wire import UNSET
from antwort.engine.prompt.chat_request import chat_request
from antwort.providers.responses import responses_request
from antwort.testing import ScriptedProvider, answer, call, say
from antwort.tools.local import LocalExecutor
from codex_kit import AGENTS, APPLY_PATCH, CODEX_TOOLS, PATCH
from engine_kit import ask, engine_of, function_calls, kinds, only, outputs, sent, stream
from plan_kit import plan_of, run_of

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")
NOTE: dict[str, Any] = {"type": "custom", "name": "note", "description": "Takes a note."}


def function(name: str) -> dict[str, Any]:
    return {"type": "function", "name": name}


def offered(provider: ScriptedProvider) -> list[str]:
    return [tool["function"]["name"] for tool in sent(provider.requests[0])["tools"]]


# ---- what Codex sends ----


@pytest.mark.parametrize("streamed", [True, False])
async def test_codex_gets_its_calls_back_as_it_declared_the_tools(streamed: bool) -> None:
    provider = ScriptedProvider(
        answer(
            call("multi_agent_v1__spawn_agent", message="Go."),
            call("apply_patch", input=PATCH),
            call("exec_command", cmd="ls"),
        )
    )
    engine, request = engine_of(provider), ask(tools=CODEX_TOOLS, tool_choice="auto", store=False)
    response = (await stream(engine, request)).response if streamed else await engine.create(request)
    assert offered(provider) == [
        "exec_command",
        "multi_agent_v1__spawn_agent",
        "multi_agent_v1__close_agent",
        "apply_patch",
    ]
    assert [tool["type"] for tool in response.tools] == ["function", "namespace", "custom"]
    assert response.status == "completed"
    spawn, run = function_calls(response)
    assert (spawn.namespace, spawn.name, spawn.arguments) == ("multi_agent_v1", "spawn_agent", '{"message":"Go."}')
    assert (run.namespace, run.name) == (UNSET, "exec_command")
    patch = only(response, CustomToolCall)
    assert (patch.name, patch.namespace, patch.input) == ("apply_patch", UNSET, PATCH)


async def test_the_events_of_a_call_carry_the_clients_names() -> None:
    provider = ScriptedProvider(answer(call("multi_agent_v1__close_agent", "{}"), call("note", input="one two")))
    outcome = await stream(engine_of(provider), ask(tools=[AGENTS, NOTE]))
    first, second = [event.item for event in outcome.events if isinstance(event, OutputItemAdded)]
    assert isinstance(first, FunctionCall)
    assert (first.name, first.namespace, first.arguments) == ("close_agent", "multi_agent_v1", "")
    assert [event.name for event in outcome.events if isinstance(event, ArgumentsDone)] == ["close_agent"]
    assert isinstance(second, CustomToolCall)
    assert "".join(event.delta for event in outcome.events if isinstance(event, CustomInputDelta)) == "one two"
    assert [event.input for event in outcome.events if isinstance(event, CustomInputDone)] == ["one two"]


async def test_a_wrong_patch_is_fed_back_once_and_never_the_clients() -> None:
    provider = ScriptedProvider(answer(call("apply_patch", input="nonsense")), answer(call("apply_patch", input=PATCH)))
    outcome = await stream(engine_of(provider), ask(tools=CODEX_TOOLS))
    assert kinds(outcome.response) == ["mcp_call", "custom_tool_call"]
    failed = only(outcome.response, McpCall)
    assert (failed.server_label, failed.name, failed.status) == ("antwort", "apply_patch", "failed")
    assert only(outcome.response, CustomToolCall).input == PATCH
    messages = sent(provider.requests[1])["messages"]
    assert messages[-2]["tool_calls"][0]["function"]["name"] == "apply_patch"
    assert messages[-1]["role"] == "tool"


# ---- calls of history ----


def called_names(provider: ScriptedProvider, at: int = -1) -> list[str]:
    messages = sent(provider.requests[at])["messages"]
    return [made["function"]["name"] for message in messages for made in message.get("tool_calls", [])]


SPAWNED = {
    "type": "function_call",
    "call_id": "c1",
    "name": "spawn_agent",
    "namespace": "multi_agent_v1",
    "arguments": "{}",
}
PATCHED = {"type": "custom_tool_call", "call_id": "c2", "name": "apply_patch", "input": PATCH}
RESULTS = [
    {"type": "function_call_output", "call_id": "c1", "output": "spawned"},
    {"type": "custom_tool_call_output", "call_id": "c2", "output": "patched"},
]


@pytest.mark.parametrize(
    ("tools", "names"),
    [
        ([AGENTS, APPLY_PATCH], ["multi_agent_v1__spawn_agent", "apply_patch"]),
        ([], ["multi_agent_v1__spawn_agent", "apply_patch"]),
        (
            [AGENTS, function("multi_agent_v1__spawn_agent"), APPLY_PATCH],
            ["multi_agent_v1__spawn_agent_2", "apply_patch"],
        ),
        ([function("multi_agent_v1__spawn_agent")], ["multi_agent_v1__spawn_agent_2", "apply_patch"]),
    ],
    ids=["declared", "not declared any more", "numbered", "the name is another's now"],
)
async def test_calls_of_history_go_by_the_names_that_the_model_sees_now(
    tools: list[dict[str, Any]], names: list[str]
) -> None:
    provider = ScriptedProvider(answer(say("Done.")))
    await engine_of(provider).create(ask([SPAWNED, PATCHED, *RESULTS], tools=tools))
    assert called_names(provider) == names
    messages = sent(provider.requests[0])["messages"]
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["spawned", "patched"]


@pytest.mark.parametrize(
    "fields", [{"namespace": "c/d" * 40}, {"namespace": None}, {"type": "custom_tool_call", "input": ""}]
)
async def test_a_call_of_history_whose_name_no_backend_takes_gets_another(fields: dict[str, Any]) -> None:
    provider = ScriptedProvider(answer(say("Done.")))
    await engine_of(provider).create(ask([{**SPAWNED, "name": "a b", **fields}, RESULTS[0]]))
    assert all(LEGAL.fullmatch(name) for name in called_names(provider))


async def test_a_name_that_nobody_offered_is_refused_as_the_model_wrote_it() -> None:
    provider = ScriptedProvider(answer(call("fly away")), answer(say("No.")))
    engine = engine_of(provider, LocalExecutor(weather), refused_calls="function_call")
    response = await engine.create(ask(tools=[NOTE]))
    assert outputs(response)[0].output == "There is no tool named 'fly away'."
    assert all(LEGAL.fullmatch(name) for name in called_names(provider))


def weather() -> str:
    return "sunny"


async def test_a_backend_that_speaks_responses_gets_functions_like_any_other() -> None:
    plan = await plan_of(ask(tools=CODEX_TOOLS))
    asked = responses_request(chat_request(run_of(plan), plan))
    assert {tool["type"] for tool in asked["tools"]} == {"function"}
    assert asked["tools"][-1]["parameters"]["required"] == ["input"]


async def test_the_chain_brings_calls_back_to_the_model_under_its_names() -> None:
    provider = ScriptedProvider(
        answer(call("multi_agent_v1__spawn_agent"), call("apply_patch", input=PATCH)), answer(say("Done."))
    )
    engine = engine_of(provider)
    first = await engine.create(ask(tools=[AGENTS, APPLY_PATCH]))
    ids = [item.call_id for item in first.output if isinstance(item, FunctionCall | CustomToolCall)]
    # Either kind of output answers either kind of call.
    results = [
        {"type": "custom_tool_call_output", "call_id": ids[0], "output": "spawned"},
        {"type": "function_call_output", "call_id": ids[1], "output": "patched"},
    ]
    await engine.create(ask(results, tools=[AGENTS, APPLY_PATCH], previous_response_id=first.id))
    assert called_names(provider) == ["multi_agent_v1__spawn_agent", "apply_patch"]
    messages = sent(provider.requests[1])["messages"]
    assert messages[1]["tool_calls"][1]["function"]["arguments"] == sent_input(PATCH)
    assert [message["content"] for message in messages if message["role"] == "tool"] == ["spawned", "patched"]


def sent_input(text: str) -> str:
    return '{"input":"' + text.replace("\n", "\\n") + '"}'


async def test_item_references_bring_calls_back_too() -> None:
    provider = ScriptedProvider(answer(call("multi_agent_v1__spawn_agent")), answer(say("Done.")))
    engine = engine_of(provider)
    first = await engine.create(ask(tools=[AGENTS]))
    (item,) = function_calls(first)
    again = [
        {"type": "item_reference", "id": item.id},
        {"type": "function_call_output", "call_id": item.call_id, "output": "spawned"},
    ]
    await engine.create(ask(again, tools=[AGENTS]))
    assert called_names(provider) == ["multi_agent_v1__spawn_agent"]


@pytest.mark.parametrize("by_chain", [True, False])
async def test_an_open_call_in_a_namespace_is_never_run_here(by_chain: bool) -> None:
    """The function of the same bare name is another one."""

    def spawn_agent() -> str:
        raise AssertionError

    provider = ScriptedProvider(answer(call("multi_agent_v1__spawn_agent")), answer(say("Done.")))
    engine = engine_of(provider, LocalExecutor(spawn_agent))
    first = await engine.create(ask(tools=[AGENTS]))
    assert first.status == "requires_action"
    if by_chain:
        second = await engine.create(ask(tools=[AGENTS], previous_response_id=first.id))
    else:
        second = await engine.create(ask([SPAWNED], tools=[AGENTS]))
    assert kinds(second) == ["message"]
