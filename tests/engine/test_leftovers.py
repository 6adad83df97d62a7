"""Calls that a response left open, and who answers them later: by the policy they were asked under."""

from __future__ import annotations

from typing import Any

import pytest

from antwort.api.items import McpCall
from antwort.api.responses import Response
from antwort.api.wire import to_plain
from antwort.engine.history.refusals import OVER_LIMIT
from antwort.engine.prompt.messages import NO_RESULT
from antwort.identity import ANONYMOUS
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
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
    sent_messages,
    server_calls,
    stream,
    text_of,
    weather_tool,
)
from jumping_time import jumping_time
from takeover_kit import DEPOT, Depot, Log, begin, engine_on


def noon(response: Response) -> dict[str, Any]:
    """The client's answer to its call of the clock."""
    (asked,) = [item for item in function_calls(response) if item.name == "clock"]
    return {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}


def tool_results(provider: ScriptedProvider, at: int) -> list[Any]:
    return [content for role, content in sent_messages(provider.requests[at]) if role == "tool"]


@pytest.mark.proves("MIXED-2", "RULING-3")
async def test_a_server_that_is_gone_answers_its_call_with_an_error_and_the_chain_lives_on() -> None:
    store = MemoryStore()
    mixed = ScriptedProvider(answer(call("lookup"), call("clock")))
    first = await engine_of(mixed, ToolServerFake("depot", lookup=replies("found")), store=store).create(
        ask(tools=[SERVER, CLOCK])
    )
    provider = ScriptedProvider(answer(say("Half of it.")))
    second = await engine_of(provider, store=store).create(ask([noon(first)], previous_response_id=first.id))
    assert text_of(second) == "Half of it."
    assert "not available" in tool_results(provider, 0)[0]
    assert only(second, McpCall).status == "failed"


@pytest.mark.proves("FR-021")
async def test_a_clients_open_call_needs_nobody_to_be_asked_about_the_parents_tools() -> None:
    asked: list[str] = []

    class Counting(ToolServerFake):
        async def discover(self, declared: Any, identity: Any) -> Any:
            asked.append(declared.server_label)
            return await super().discover(declared, identity)

    provider = ScriptedProvider(answer(call("clock")), answer(say("Never mind.")))
    engine = engine_of(provider, Counting("depot", lookup=replies("found")))
    first = await engine.create(ask(tools=[SERVER, CLOCK]))
    await engine.create(ask("Forget it.", previous_response_id=first.id))
    assert asked == ["depot"]
    assert tool_results(provider, 1) == [NO_RESULT]


@pytest.mark.proves("MIXED-2", "FR-016")
async def test_the_parents_limits_hold_for_its_calls() -> None:
    running, most = 0, 0

    async def weather(city: str) -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        running -= 1
        return city

    turn = answer(*[call("weather", city=name) for name in "abc"], call("clock"))
    provider = ScriptedProvider(turn, answer(say("Enough.")))
    engine = engine_of(provider, LocalExecutor(weather))
    first = await engine.create(ask(tools=[WEATHER, CLOCK], max_tool_calls=2, parallel_tool_calls=False))
    assert [item.output for item in outputs(first)] == [OVER_LIMIT], "what is over the limit is refused at once"
    second = await engine.create(ask([noon(first)], previous_response_id=first.id))
    assert [item.output for item in outputs(second)] == ["a", "b"]
    assert most == 1


@pytest.mark.proves("MIXED-2", "LIMIT-1")
async def test_what_the_parent_has_run_already_counts_for_its_calls() -> None:
    provider = ScriptedProvider(
        answer(call("weather", city="a")),
        answer(call("weather", city="b"), call("clock")),
        answer(say("Enough.")),
    )
    engine = engine_of(provider, weather_tool())
    first = await engine.create(ask(tools=[WEATHER, CLOCK], max_tool_calls=1))
    assert [item.output for item in outputs(first)] == ["sunny in a", OVER_LIMIT]
    second = await engine.create(ask([noon(first)], previous_response_id=first.id))
    assert kinds(second) == ["message"]


@pytest.mark.proves("RULING-3", "MIXED-2")
async def test_a_mixed_turn_can_be_continued_by_a_client_that_keeps_its_history_itself() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    provider = ScriptedProvider(
        answer(call("lookup", key="k"), call("weather", city="Rome"), call("clock")), answer(say("All is well."))
    )
    engine = engine_of(provider, depot, weather_tool())
    tools = [SERVER, WEATHER, CLOCK]
    first = await engine.create(ask(tools=tools, store=False))
    items = [{"role": "user", "content": "Hello"}, *[to_plain(item) for item in first.output], noon(first)]
    second = await engine.create(ask(items, tools=tools, store=False))
    assert text_of(second) == "All is well."
    assert tool_results(provider, 1) == ["found", "sunny in Rome", "noon"]


@pytest.mark.proves("MIXED-2")
async def test_a_call_left_open_far_back_in_the_chain_is_found() -> None:
    depot = ToolServerFake("depot", lookup=replies("found"))
    store = MemoryStore()
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Later.")), answer(say("Now.")))
    gone = engine_of(provider, depot, store=store)
    first = await gone.create(ask(tools=[SERVER, CLOCK]))
    cancelled = await gone.start(ask([noon(first)], previous_response_id=first.id, tools=[SERVER], stream=True))
    cancelled.leave()
    assert server_calls(await cancelled.result()) == []
    last = await gone.create(ask([], previous_response_id=cancelled.response_id, tools=[SERVER]))
    assert [item.output for item in server_calls(last)] == ["found"]


async def test_call_ids_that_repeat_in_a_clients_history_are_paired_in_order() -> None:
    def turn(said: str) -> list[dict[str, Any]]:
        return [
            {"role": "user", "content": "What time is it?"},
            {"type": "function_call", "call_id": "call_0", "name": "clock", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_0", "output": said},
            {"role": "assistant", "content": f"It is {said}."},
        ]

    provider = ScriptedProvider(answer(say("Late.")))
    await engine_of(provider).create(ask([*turn("one"), *turn("two")]))
    assert tool_results(provider, 0) == ["one", "two"]


async def test_a_servers_call_in_a_clients_history_stands_before_what_was_said_of_it() -> None:
    def found(key: str) -> dict[str, Any]:
        return {
            "type": "mcp_call", "id": f"mcp_{key}", "server_label": "depot", "name": "lookup",
            "arguments": "{}", "output": key,
        }  # fmt: skip

    provider = ScriptedProvider(answer(say("Ok")))
    items = [{"role": "user", "content": "a"}, found("k1"), found("k2"), {"role": "assistant", "content": "Both."}]
    await engine_of(provider).create(ask([*items, {"role": "user", "content": "b"}]))
    assert sent_messages(provider.requests[0]) == [
        ("user", "a"), ("assistant", None), ("tool", "k1"), ("tool", "k2"), ("assistant", "Both."), ("user", "b"),
    ]  # fmt: skip


@jumping_time
async def test_a_run_picked_up_amid_leftovers_goes_on_with_the_items_it_has_shown() -> None:
    async def lookup(asked: ToolCall, context: ToolContext) -> str:
        return f"found {asked.arguments}"

    died, at = True, 0
    while died:
        at += 1
        log, depot = Log(), Depot(look=lookup)
        asked = answer(call("look", k=1), call("look", k=2), call("clock"))
        async with engine_on(log, ScriptedProvider(asked, answer(say("Ok."))), depot) as engine:
            first = await engine.create(ask(tools=[DEPOT, CLOCK]))
            follow_up = ask([noon(first)], previous_response_id=first.id, stream=True)
            response_id = await begin(engine, follow_up, dies_at=at)
            died = log.died.is_set()
            async with engine_on(log, ScriptedProvider(answer(say("Ok."))), depot) as other:
                response = await other.ended(response_id)
        assert [item.output for item in server_calls(response)] == ['found {"k":1}', 'found {"k":2}']
        assert response.status == "completed"
    assert at > 8


async def test_streams_of_follow_ups_pass_the_grammar_too() -> None:
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(say("Ok.")))
    engine = engine_of(provider, ToolServerFake("depot", lookup=replies("found")))
    first = await engine.create(ask(tools=[SERVER, CLOCK]))
    outcome = await stream(engine, ask([noon(first)], previous_response_id=first.id), ANONYMOUS)
    assert kinds(outcome.response) == ["mcp_call", "message"]
