"""An operator's toolsets through the whole engine: by label, with instructions, and with what a tool is told."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from antwort.api.events import StreamEvent
from antwort.api.items import FunctionCallOutput, McpCall, McpListTools
from antwort.engine.runs.subscription import Subscription
from antwort.errors import InvalidField
from antwort.identity import ANONYMOUS, Identity
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolContext
from antwort.tools.local import LocalExecutor
from antwort.tools.toolset import Toolset
from engine_kit import (
    SERVER,
    ask,
    engine_of,
    function_calls,
    kinds,
    name_of,
    only,
    replies,
    sent,
    sent_messages,
    server_calls,
    stream,
)

CALC = {"type": "mcp", "server_label": "calc"}
ADD: dict[str, Any] = {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {}}}
SUMS = "Use calc for every sum."


def calc() -> Toolset:
    toolset = Toolset("calc", instructions=SUMS)

    @toolset.tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    return toolset


def maths() -> Toolset:
    def add(a: int, b: int) -> str:
        return f"maths says {a + b}"

    return Toolset("maths", add, instructions="Ask maths when in doubt.")


def offered(provider: ScriptedProvider, at: int = 0) -> list[str]:
    return [tool["function"]["name"] for tool in sent(provider.requests[at]).get("tools", [])]


# ---- by label ----


@pytest.mark.proves("FR-002", "FR-004", "RULING-1")
async def test_a_request_uses_a_toolset_by_its_label() -> None:
    provider = ScriptedProvider(answer(call("add", a=2, b=3)), answer(say("It is 5.")))
    response = await engine_of(provider, calc()).create(ask("2 + 3?", tools=[CALC]))
    assert kinds(response) == ["mcp_list_tools", "mcp_call", "message"]
    (listed,) = only(response, McpListTools).tools
    assert (listed.name, listed.description) == ("add", "Add two numbers.")
    assert listed.input_schema["required"] == ["a", "b"]
    made = only(response, McpCall)
    assert (made.server_label, made.name, made.output, made.status) == ("calc", "add", "5", "completed")


@pytest.mark.proves("MISTAKE-25")
async def test_a_request_that_names_no_toolset_is_offered_none_of_its_tools() -> None:
    provider = ScriptedProvider(answer(say("Hello.")))
    await engine_of(provider, calc()).create(ask())
    assert offered(provider) == []
    assert sent_messages(provider.requests[0]) == [("user", "Hello")]


@pytest.mark.proves("MISTAKE-26", "FR-018")
async def test_a_function_of_the_request_is_the_clients_even_where_a_toolset_has_one_of_that_name() -> None:
    provider = ScriptedProvider(answer(call("add")))
    response = await engine_of(provider, calc()).create(ask(tools=[ADD]))
    assert response.status == "requires_action"
    assert [item.name for item in function_calls(response)] == ["add"]


async def test_the_declarations_list_of_tools_leaves_the_others_out() -> None:
    toolset = calc()
    toolset.tool(lambda_free)
    provider = ScriptedProvider(answer(say("Well.")))
    response = await engine_of(provider, toolset).create(ask(tools=[{**CALC, "allowed_tools": ["lambda_free"]}]))
    assert offered(provider) == ["lambda_free"]
    assert [info.name for info in only(response, McpListTools).tools] == ["lambda_free"]


def lambda_free() -> str:
    return "free"


async def test_an_address_beside_a_toolsets_label_is_a_fault_of_the_request() -> None:
    with pytest.raises(InvalidField) as caught:
        await engine_of(ScriptedProvider(), calc()).create(
            ask(tools=[ADD, {**CALC, "server_url": "https://example.com"}])
        )
    assert (caught.value.param, caught.value.code) == ("tools[1].server_url", "unexpected_parameter")


# ---- names ----


async def test_tools_of_one_name_are_told_apart_for_the_model_and_keep_their_own_in_the_items() -> None:
    provider = ScriptedProvider(
        answer(call("calc__add", a=1, b=2), call("maths__add", a=1, b=2)),
        answer(call("add", a=1)),
        answer(say("Done.")),
    )
    engine = engine_of(provider, calc(), maths())
    tools = [CALC, {"type": "mcp", "server_label": "maths"}, ADD]
    first = await engine.create(ask(tools=tools))
    assert offered(provider) == ["calc__add", "maths__add", "add"]
    assert [(item.server_label, item.name, item.output) for item in server_calls(first)] == [
        ("calc", "add", "3"),
        ("maths", "add", "maths says 3"),
    ]
    replayed = sent(provider.requests[1])["messages"][2]["tool_calls"]
    assert [made["function"]["name"] for made in replayed] == ["calc__add", "maths__add"]
    (clients,) = function_calls(first)
    assert (first.status, clients.name) == ("requires_action", "add")
    output = {"type": "function_call_output", "call_id": clients.call_id, "output": "7"}
    second = await engine.create(ask([output], previous_response_id=first.id, tools=tools))
    assert kinds(second) == ["message"], "what the servers offer was shown before"


async def test_calls_of_a_paused_turn_are_run_later_under_the_name_they_were_made_by() -> None:
    provider = ScriptedProvider(answer(call("calc__add", a=1, b=2), call("add")), answer(say("Done.")))
    engine = engine_of(provider, calc())
    first = await engine.create(ask(tools=[CALC, ADD]))
    (clients,) = function_calls(first)
    output = {"type": "function_call_output", "call_id": clients.call_id, "output": "7"}
    second = await engine.create(ask([output], previous_response_id=first.id))
    assert (only(second, McpCall).name, only(second, McpCall).output) == ("add", "3")


@pytest.mark.proves("RULING-3")
async def test_a_call_left_open_at_a_server_whose_label_is_a_toolsets_now_is_answered_with_an_error() -> None:
    """The toolset would refuse the address that the earlier request gave; the request of today gave none."""
    store = MemoryStore()
    provider = ScriptedProvider(answer(call("lookup"), call("add")), answer(say("Done.")))
    elsewhere = {**CALC, "server_url": "https://example.com"}
    first = await engine_of(provider, ToolServerFake("calc", lookup=replies("found")), store=store).create(
        ask(tools=[elsewhere, ADD])
    )
    output = {"type": "function_call_output", "call_id": function_calls(first)[0].call_id, "output": "7"}
    second = await engine_of(provider, calc(), store=store).create(ask([output], previous_response_id=first.id))
    assert second.status == "completed"
    assert only(second, McpCall).error_text == "The tool 'lookup' is not available any more."


async def test_one_of_two_tools_of_one_name_can_be_forced_and_the_other_forbidden() -> None:
    provider = ScriptedProvider(
        answer(call("maths__add", a=1, b=1)), answer(say("2")), answer(call("calc__add")), answer(say("No."))
    )
    engine = engine_of(provider, calc(), maths())
    tools = [CALC, {"type": "mcp", "server_label": "maths"}]
    forced = {"type": "mcp", "server_label": "maths", "name": "add"}
    await engine.create(ask(tools=tools, tool_choice=forced))
    assert sent(provider.requests[0])["tool_choice"]["function"]["name"] == "maths__add"
    response = await engine.create(ask(tools=tools, allowed_tools=[forced]))
    refused = only(response, McpCall)
    assert (refused.server_label, refused.name) == ("calc", "add")
    assert "not allowed" in str(refused.error_text)


# ---- instructions ----


@pytest.mark.proves("RULING-5", "EN-015")
async def test_the_instructions_of_a_toolset_follow_the_requests_own_and_are_not_echoed() -> None:
    provider = ScriptedProvider(answer(say("5")), answer(say("Bye")), answer(say("Hm")), answer(say("Again")))
    engine = engine_of(provider, calc(), maths())
    first = await engine.create(ask("2 + 3?", instructions="Be kind.", tools=[CALC]))
    assert sent_messages(provider.requests[0])[0] == ("system", f"Be kind.\n\n{SUMS}")
    assert first.instructions == "Be kind."
    again = await engine.create(ask("And now?", previous_response_id=first.id, tools=[CALC, {**CALC}]))
    systems = [said for role, said in sent_messages(provider.requests[1]) if role == "system"]
    assert systems == [SUMS]
    assert again.instructions is None
    await engine.create(ask("Without", previous_response_id=again.id))
    assert "system" not in [role for role, _ in sent_messages(provider.requests[2])]
    await engine.create(ask("Both", tools=[CALC, {"type": "mcp", "server_label": "maths"}]))
    assert sent_messages(provider.requests[3])[0] == ("system", f"{SUMS}\n\nAsk maths when in doubt.")


async def test_a_toolset_of_which_no_tool_is_used_has_nothing_to_say() -> None:
    provider = ScriptedProvider(answer(say("5")))
    await engine_of(provider, calc()).create(ask(tools=[{**CALC, "allowed_tools": []}]))
    assert sent_messages(provider.requests[0]) == [("user", "Hello")]


async def test_any_tool_server_can_have_instructions() -> None:
    provider = ScriptedProvider(answer(say("Well.")))
    depot = ToolServerFake("depot", instructions="Ask the depot.", lookup=replies("found"))
    await engine_of(provider, depot).create(ask(tools=[SERVER]))
    assert sent_messages(provider.requests[0])[0] == ("system", "Ask the depot.")


def test_two_toolsets_under_one_label_are_an_error() -> None:
    with pytest.raises(ValueError, match="two tool servers labelled 'calc'"):
        engine_of(ScriptedProvider(), calc(), calc())


# ---- what a tool is told ----


async def test_a_tool_knows_for_whom_it_runs() -> None:
    def whoami(context: ToolContext) -> str:
        return f"{context.identity.owner} of {context.identity.tenant}, {context.response_id}"

    provider = ScriptedProvider(answer(call("whoami")), answer(say("I see.")))
    engine = engine_of(provider, Toolset("me", whoami))
    request = ask(tools=[{"type": "mcp", "server_label": "me"}])
    response = await engine.create(request, Identity(tenant="acme", owner="ada"))
    assert only(response, McpCall).output == f"ada of acme, {response.id}"


async def test_the_progress_of_a_function_in_a_thread_is_a_sign_of_life_on_the_stream() -> None:
    report, go = threading.Event(), threading.Event()

    def work(context: ToolContext) -> str:
        report.wait(10)
        context.progress("half way")
        return "done" if go.wait(10) else "never told"

    provider = ScriptedProvider(answer(call("work")), answer(say("Done.")))
    engine = engine_of(provider, Toolset("jobs", work), keepalive_interval=600)
    run = await engine.start(ask(tools=[{"type": "mcp", "server_label": "jobs"}], stream=True))
    async with asyncio.timeout(5):
        while "response.mcp_call_arguments.done" not in [name_of(event) for event in await read(run)]:
            pass
        report.set()
        assert [name_of(event) for event in await read(run)] == ["response.mcp_call.in_progress"]
    go.set()
    assert only(await run.result(), McpCall).output == "done"


async def read(run: Subscription) -> list[StreamEvent]:
    return [event for batch in await run.read() for event in batch.events]


@pytest.mark.proves("TR-021", "FR-014")
async def test_a_cancelled_response_tells_a_function_in_a_thread_to_stop() -> None:
    begun, told = threading.Event(), threading.Event()

    def dig(context: ToolContext) -> None:
        begun.set()
        while not context.cancelled.is_set():
            threading.Event().wait(0.001)
        told.set()

    provider = ScriptedProvider(answer(call("dig")))
    engine = engine_of(provider, Toolset("jobs", dig))
    run = await engine.start(ask(tools=[{"type": "mcp", "server_label": "jobs"}], stream=True))
    assert await asyncio.to_thread(begun.wait, 5)
    cancelled = await engine.cancel(ANONYMOUS, run.response_id)
    assert cancelled.status == "cancelled"
    assert await asyncio.to_thread(told.wait, 5)


async def test_a_function_that_hangs_is_an_error_for_the_model_and_holds_up_nobody() -> None:
    hanging = threading.Event()
    toolset = Toolset("jobs")

    @toolset.tool(timeout=0.05)
    def hang() -> None:
        hanging.wait()

    provider = ScriptedProvider(answer(call("hang")), answer(say("It hangs.")))
    outcome = await stream(engine_of(provider, toolset), ask(tools=[{"type": "mcp", "server_label": "jobs"}]))
    hanging.set()
    assert "did not answer within 0.05 s" in str(only(outcome.response, McpCall).error_text)
    assert outcome.response.status == "completed"


# ---- by declaration ----


def told(provider: ScriptedProvider) -> dict[str, Any]:
    (tool,) = sent(provider.requests[0])["tools"]
    function: dict[str, Any] = tool["function"]
    return function


async def test_what_a_declaration_leaves_out_the_function_says_itself() -> None:
    provider = ScriptedProvider(answer(call("add", a=2, b="x")), answer(say("Hm.")))
    declared = {"type": "function", "name": "add"}
    response = await engine_of(provider, LocalExecutor(*calc().tools)).create(ask(tools=[declared]))
    assert told(provider)["description"] == "Add two numbers."
    assert told(provider)["parameters"]["required"] == ["a", "b"]
    assert 'is not of type "integer"' in str(only(response, FunctionCallOutput).output)
    (echoed,) = response.tools
    assert (echoed["description"], echoed["parameters"]) == (None, None)


async def test_what_a_declaration_says_holds() -> None:
    provider = ScriptedProvider(answer(say("Hello.")))
    declared = {**ADD, "description": "Mine."}
    await engine_of(provider, LocalExecutor(*calc().tools)).create(ask(tools=[declared]))
    assert (told(provider)["description"], told(provider)["parameters"]) == ("Mine.", ADD["parameters"])


async def test_a_function_of_the_clients_is_not_described_by_a_toolset() -> None:
    provider = ScriptedProvider(answer(say("Hello.")))
    await engine_of(provider, calc()).create(ask(tools=[{"type": "function", "name": "add"}]))
    assert "description" not in told(provider)
