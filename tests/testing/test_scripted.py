"""The scripted provider plays what it was given and keeps what it saw; so does the fake of a tool server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from antwort.api.responses import Usage
from antwort.api.tools import McpTool
from antwort.errors import BackendCut, BackendUnavailable
from antwort.identity import ANONYMOUS
from antwort.providers.base import (
    CallDelta,
    Capabilities,
    ChatMessage,
    ChatRequest,
    Delta,
    Finished,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, refuse, say, think, tokens
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult, is_tool_server
from engine_kit import ask, engine_of, replies, text_of


def request(text: str = "Hi") -> ChatRequest:
    return ChatRequest(model="scripted", messages=[ChatMessage(role="user", content=text)])


async def played(provider: ScriptedProvider) -> list[list[Delta]]:
    async with aclosing(provider.infer(request())) as batches:
        return [batch async for batch in batches]


# ---- the words of a script ----


def test_say_is_one_delta_a_word_and_loses_nothing() -> None:
    assert say("It  is sunny.") == [TextDelta("It"), TextDelta(" "), TextDelta(" is"), TextDelta(" sunny.")]
    assert say("") == [TextDelta("")]


def test_think_and_refuse_say_it_in_their_own_deltas() -> None:
    assert think("Let me see") == [ReasoningDelta("Let"), ReasoningDelta(" me"), ReasoningDelta(" see")]
    assert refuse("I cannot.") == [RefusalDelta("I cannot.")]


def test_a_call_comes_in_two_pieces_and_is_numbered_by_its_answer() -> None:
    assert answer(say("Hm."), call("weather", city="Rome"), call("clock")) == [
        TextDelta("Hm."),
        CallDelta(0, "weather", '{"city"'),
        CallDelta(0, "", ':"Rome"}'),
        CallDelta(1, "clock", "{"),
        CallDelta(1, "", "}"),
        Finished("tool_calls"),
    ]


def test_a_call_may_have_exactly_this_text() -> None:
    assert answer(call("weather", "{oops"))[:2] == [CallDelta(0, "weather", "{o"), CallDelta(0, "", "ops")]


def test_an_answer_ends_as_its_content_suggests_unless_told() -> None:
    assert answer(say("Hi"))[-1] == Finished("stop")
    assert answer()[-1] == Finished("stop")
    assert answer(call("clock"))[-1] == Finished("tool_calls")
    assert answer(call("clock"), finish="length", usage=tokens(2, 3))[-1] == Finished("length", tokens(2, 3))


def test_an_answer_that_says_how_it_ends_keeps_that() -> None:
    own = Finished("content_filter", tokens(1, 1))
    assert answer(say("Hi"), [own]) == [TextDelta("Hi"), own]


def test_deltas_that_are_numbered_already_stay_so() -> None:
    assert answer([CallDelta(7, "clock", "{}")])[0] == CallDelta(7, "clock", "{}")


def test_tokens_add_up() -> None:
    assert tokens(3, 4) == Usage(input_tokens=3, output_tokens=4, total_tokens=7)


# ---- playing ----


async def test_the_headers_come_first_and_then_each_delta_alone() -> None:
    assert await played(ScriptedProvider(answer(say("Hi there")))) == [
        [],
        [TextDelta("Hi")],
        [TextDelta(" there")],
        [Finished("stop")],
    ]


async def test_a_list_in_a_script_is_one_read() -> None:
    both: list[Delta] = [TextDelta("Hm."), CallDelta(0, "clock", "{}")]
    assert await played(ScriptedProvider([both, Finished("tool_calls")])) == [[], both, [Finished("tool_calls")]]


async def test_each_inference_plays_the_next_answer_and_is_kept() -> None:
    provider = ScriptedProvider(answer(say("one")), answer(say("two")))
    for text in ("one", "two"):
        async with aclosing(provider.infer(request(text))) as batches:
            assert [batch async for batch in batches][1] == [TextDelta(text)]
    assert provider.requests == [request("one"), request("two")]


async def test_a_script_that_is_over_fails_loudly() -> None:
    provider = ScriptedProvider()
    with pytest.raises(AssertionError, match="no answer left"):
        await played(provider)
    assert len(provider.requests) == 1


async def test_an_event_is_waited_for() -> None:
    go = asyncio.Event()
    provider = ScriptedProvider(answer(say("one"), go, say("two")))
    async with aclosing(provider.infer(request())) as batches:
        assert [await anext(batches), await anext(batches)] == [[], [TextDelta("one")]]
        later = asyncio.ensure_future(anext(batches))
        await asyncio.sleep(0)
        assert not later.done()
        go.set()
        assert await later == [TextDelta("two")]


async def test_an_exception_is_raised_where_it_stands() -> None:
    provider = ScriptedProvider(answer(say("one"), BackendCut("cut")))
    batches = provider.infer(request())
    assert [await anext(batches), await anext(batches)] == [[], [TextDelta("one")]]
    with pytest.raises(BackendCut):
        await anext(batches)
    assert provider.under_way == 0


async def test_an_exception_at_the_start_comes_instead_of_the_headers() -> None:
    with pytest.raises(BackendUnavailable):
        await anext(ScriptedProvider([BackendUnavailable("no")]).infer(request()))


async def test_what_is_under_way_is_counted_until_it_is_closed() -> None:
    provider = ScriptedProvider(answer(asyncio.Event()))
    assert provider.under_way == 0
    batches = provider.infer(request())
    await anext(batches)
    assert provider.under_way == 1
    await batches.aclose()
    assert provider.under_way == 0


async def test_it_keeps_the_contract_of_a_provider() -> None:
    capabilities = Capabilities(vision=False)
    provider = ScriptedProvider(models=("a", "b"), capabilities=capabilities)
    assert [model.id for model in await provider.models()] == ["a", "b"]
    assert provider.capabilities("a") is capabilities
    await provider.check()
    assert not provider.is_closed
    await provider.close()
    assert provider.is_closed


async def test_the_example_of_its_documentation_runs() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("It is sunny in Paris.")))
    engine = engine_of(provider, ToolServerFake("depot", weather=replies("sunny")))
    response = await engine.create(ask(tools=[{"type": "mcp", "server_label": "depot"}]))
    assert (response.status, text_of(response)) == ("completed", "It is sunny in Paris.")


# ---- the fake of a tool server ----


def context() -> ToolContext:
    return ToolContext(response_id="resp_1", idempotency_key="call_1", cancelled=asyncio.Event())


async def test_a_fake_server_is_found_by_its_label_and_names_its_tools() -> None:
    server = ToolServerFake("depot", "depot_", stock=replies("3"))
    assert is_tool_server(server)
    assert await server.discover(McpTool(server_label="shop"), ANONYMOUS) is None
    assert await server.discover(McpTool(server_label="depot"), ANONYMOUS) == [
        ToolDefinition(name="depot_stock", kind=ToolKind.MCP, server_label="depot", server_tool="stock")
    ]


async def test_without_a_prefix_a_tool_has_one_name() -> None:
    found = await ToolServerFake("depot", stock=replies("3")).discover(McpTool(server_label="depot"), ANONYMOUS)
    assert found == [ToolDefinition(name="stock", kind=ToolKind.MCP, server_label="depot", server_tool=None)]


@pytest.mark.parametrize(
    ("definition", "claims"),
    [
        (ToolDefinition(name="stock", kind=ToolKind.MCP, server_label="depot"), True),
        (ToolDefinition(name="stock", kind=ToolKind.MCP, server_label="shop"), False),
        (ToolDefinition(name="stock", kind=ToolKind.FUNCTION), False),
        (ToolDefinition(name="price", kind=ToolKind.MCP, server_label="depot"), False),
    ],
)
def test_a_fake_server_runs_its_own_tools_and_no_others(definition: ToolDefinition, claims: bool) -> None:
    assert ToolServerFake("depot", stock=replies("3")).can_execute(definition) is claims


async def test_a_fake_server_keeps_its_calls_and_answers_with_text_or_a_result() -> None:
    async def broken(call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult(call.id, "It broke.", is_error=True)

    server = ToolServerFake("depot", stock=replies("3"), broken=broken)
    definitions = await server.discover(McpTool(server_label="depot"), ANONYMOUS)
    assert definitions is not None
    calls = [ToolCall(id="call_1", name=each.name, arguments="{}", definition=each) for each in definitions]
    assert [await server.execute(each, context()) for each in calls] == [
        ToolResult("call_1", "3"),
        ToolResult("call_1", "It broke.", is_error=True),
    ]
    assert server.calls == calls
