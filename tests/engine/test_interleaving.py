"""Backends that write several calls at the same time: the stream shows one item after the other, and every call runs
with all of its arguments.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antwort.api.events import McpArgumentsDone, OutputItemAdded, OutputItemDone
from antwort.api.items import CustomToolCall, FunctionCall, McpApprovalRequest
from antwort.engine.history.refusals import NOT_BEGUN
from antwort.errors import BackendError
from antwort.providers.base import CallDelta, Delta, Finished, ReasoningDelta, TextDelta
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext
from antwort.tools.local import LocalExecutor, tool
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    outputs,
    sent,
    server_calls,
    shape_of,
    stream,
)
from plan_kit import STEADY

pytestmark = pytest.mark.proves("RULING-3b")

PATCH = {"type": "custom", "name": "patch"}


async def weather(city: str) -> str:
    return f"sunny in {city}"


async def _found(asked: ToolCall, _: ToolContext) -> str:
    await asyncio.sleep(0)
    return f"found {asked.arguments}"


def depot() -> ToolServerFake:
    return ToolServerFake("depot", lookup=_found)


def interleaved(*calls: tuple[str, str], between: tuple[Delta, ...] = ()) -> list[Delta]:
    """Calls, each of a name and its arguments, whose characters come in turns; then `between` in the middle."""
    pieces: list[Delta] = []
    for at in range(max(len(arguments) for _, arguments in calls)):
        for number, (name, arguments) in enumerate(calls):
            if at < len(arguments):
                pieces.append(CallDelta(number, "" if at else name, arguments[at]))
    middle = len(pieces) // 2
    return [*pieces[:middle], *between, *pieces[middle:]]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.proves("FR-016", "FR-027")
async def test_calls_that_interleave_run_with_all_of_their_arguments(eager: bool, is_streamed: bool) -> None:
    said = interleaved(
        ("lookup", '{"n": 1}'), ("weather", '{"city": "Oslo"}'), ("lookup", '{"n": 22}'), between=(TextDelta("So."),)
    )
    provider = ScriptedProvider(answer(said), answer(say("Ok.")))
    engine = engine_of(provider, depot(), LocalExecutor(weather), eager=eager)
    request = ask(tools=[SERVER, WEATHER])
    response = (await stream(engine, request)).response if is_streamed else await engine.create(request)
    assert response.status == "completed"
    assert [item.output for item in server_calls(response)] == ['found {"n": 1}', 'found {"n": 22}']
    assert [(item.name, item.arguments) for item in function_calls(response)] == [("weather", '{"city": "Oslo"}')]
    assert [item.output for item in outputs(response)] == ["sunny in Oslo"]
    assert kinds(response)[-6:] == [
        "mcp_call",
        "function_call",
        "mcp_call",
        "message",
        "function_call_output",
        "message",
    ]


@pytest.mark.parametrize("eager", [True, False])
async def test_calls_for_the_client_that_interleave_are_its_whole_calls(eager: bool) -> None:
    said = interleaved(("clock", '{"zone": "UTC"}'), ("patch", '{"input": "a b"}'), ("clock", "{}"))
    engine = engine_of(ScriptedProvider(answer(said)), LocalExecutor(weather), eager=eager)
    response = (await stream(engine, ask(tools=[WEATHER, CLOCK, PATCH]))).response
    assert response.status == "requires_action"
    assert [item.arguments for item in response.output if isinstance(item, FunctionCall)] == ['{"zone": "UTC"}', "{}"]
    assert [item.input for item in response.output if isinstance(item, CustomToolCall)] == ["a b"]


async def test_a_call_that_is_to_be_approved_comes_behind_the_others() -> None:
    @tool(require_approval=True)
    def wipe(disk: str) -> str:
        return f"wiped {disk}"

    said = interleaved(("clock", '{"zone": "UTC"}'), ("wipe", '{"disk": "sda"}'), ("clock", "{}"))
    engine = engine_of(ScriptedProvider(answer(said)), LocalExecutor(wipe))
    response = (await stream(engine, ask(tools=[CLOCK, {"type": "function", "name": "wipe"}]))).response
    assert kinds(response) == ["function_call", "mcp_approval_request", "function_call"]
    (request,) = [item for item in response.output if isinstance(item, McpApprovalRequest)]
    assert request.arguments == '{"disk": "sda"}'


async def test_the_arguments_of_a_servers_call_are_done_before_the_next_call_is_added_and_its_result_comes_later() -> (
    None
):
    provider = ScriptedProvider(answer(call("lookup", n=1), call("lookup", n=2)), answer(say("Ok.")))
    events = (await stream(engine_of(provider, depot()), ask(tools=[SERVER]))).events
    marks = [event for event in events if isinstance(event, OutputItemAdded | McpArgumentsDone | OutputItemDone)]
    order = [(type(event).__name__, event.output_index) for event in marks if event.output_index in (1, 2)]
    assert order[:4] == [(kind, at) for at in (1, 2) for kind in ("OutputItemAdded", "McpArgumentsDone")]
    assert order[4:] == [("OutputItemDone", 1), ("OutputItemDone", 2)]


async def test_a_call_begins_while_the_model_writes_what_stands_behind_it() -> None:
    begun = asyncio.Event()

    async def weather(city: str) -> str:
        begun.set()
        return f"sunny in {city}"

    pieces: list[Delta] = [CallDelta(0, "weather", '{"city":'), CallDelta(1, "weather", '{"city": "Rome"}')]
    script: Answer = answer(pieces, [CallDelta(0, "", '"Oslo"}')], begun, [CallDelta(2, "weather", '{"city": "Bonn"}')])
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), LocalExecutor(weather))
    async with asyncio.timeout(5):
        response = (await stream(engine, ask(tools=[WEATHER]))).response
    assert [item.output for item in outputs(response)] == ["sunny in Oslo", "sunny in Rome", "sunny in Bonn"]


@pytest.mark.parametrize("eager", [True, False])
@pytest.mark.parametrize("is_streamed", [True, False])
async def test_more_of_a_call_that_is_done_fails_the_response_and_no_call_is_run_later(
    eager: bool, is_streamed: bool
) -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    calls: list[Any] = [
        call("weather", city="Oslo"),
        [CallDelta(1, "weather", '{"ci')],
        [CallDelta(0, "", '{"city": "Bonn"}')],
    ]
    provider = ScriptedProvider(answer(*calls), answer(say("Ok.")))
    engine = engine_of(provider, LocalExecutor(weather), eager=eager)
    request = ask(tools=[WEATHER])
    response = (await stream(engine, request)).response if is_streamed else await engine.create(request)
    assert (response.status, response.error and response.error.code) == ("failed", "backend_error")
    assert [item.status for item in function_calls(response)] == ["completed", "incomplete"]
    before = [*ran]
    assert [item.output for item in outputs(response)] == (["sunny"] if before else [NOT_BEGUN])
    await engine.create(ask("Go on.", previous_response_id=response.id, tools=[WEATHER]))
    assert ran == before


async def test_a_function_that_has_not_begun_when_the_answer_breaks_off_is_never_run_and_the_model_is_told() -> None:
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        return "sunny"

    script = answer(call("weather", city="Oslo"), call("clock"), say("And"), BackendError("gone"))
    provider = ScriptedProvider(script, answer(say("Ok.")))
    engine = engine_of(provider, LocalExecutor(weather))
    failed = (await stream(engine, ask(tools=[WEATHER, CLOCK]))).response
    assert (failed.status, [item.output for item in outputs(failed)]) == ("failed", [NOT_BEGUN])
    await engine.create(ask("Go on.", previous_response_id=failed.id, tools=[WEATHER, CLOCK]))
    told = [message["content"] for message in sent(provider.requests[1])["messages"] if message["role"] == "tool"]
    assert (ran, told[0]) == ([], NOT_BEGUN)


# ---- any interleaving ----

_CALLS = st.lists(
    st.sampled_from(
        [
            ("lookup", '{"n": 1}'),
            ("lookup", "{}"),
            ("weather", '{"city": "Oslo"}'),
            ("weather", "no JSON"),
            ("weather", ""),
            ("nobody", "{}"),
        ]
    ),
    min_size=1,
    max_size=5,
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[list[tuple[str, str]], list[list[Delta]]]:
    """Calls, and the reads of an answer in which the pieces of these calls come in any order of the calls."""
    calls = draw(_CALLS)
    queues: list[list[Delta]] = []
    for number, (name, arguments) in enumerate(calls):
        cut = draw(st.integers(0, len(arguments)))
        queues.append([CallDelta(number, name, arguments[:cut]), CallDelta(number, "", arguments[cut:])])
    queues.append(draw(st.lists(st.sampled_from([TextDelta("x"), ReasoningDelta("hm")]), max_size=3)))
    reads: list[list[Delta]] = [[]]
    while waiting := [queue for queue in queues if queue]:
        if draw(st.booleans()):
            reads.append([])
        reads[-1].append(draw(st.sampled_from(waiting)).pop(0))
    return calls, [*reads, [Finished("tool_calls")]]


@STEADY
@given(answers(), st.booleans())
async def test_any_interleaving_runs_the_same_calls(
    said: tuple[list[tuple[str, str]], list[list[Delta]]], eager: bool
) -> None:
    calls, reads = said
    shown = []
    for is_streamed in (True, False):
        provider = ScriptedProvider([*reads], answer(say("Ok.")))
        engine = engine_of(provider, depot(), LocalExecutor(weather), eager=eager)
        request = ask(tools=[SERVER, WEATHER])
        response = (await stream(engine, request)).response if is_streamed else await engine.create(request)
        assert response.status == "completed"
        shown.append(shape_of(response))
    assert shown[0] == shown[1]
    assert sorted(_run(shown[0])) == sorted(_expected(*each) for each in calls)


def _run(shape: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """The calls of a response: the name, the arguments, and whether it went well."""
    items = shape["output"]
    failed = [bool(item.get("is_error")) for item in items if item["type"] == "function_call_output"]
    functions = [item for item in items if item["type"] == "function_call"]
    servers = [item for item in items if item["type"] == "mcp_call"]
    return [
        *((item["name"], item["arguments"], not bad) for item, bad in zip(functions, failed, strict=True)),
        *((item["name"], item["arguments"], item["status"] == "completed") for item in servers),
    ]


def _expected(name: str, arguments: str) -> tuple[str, str, bool]:
    return name, arguments, name == "lookup" or (name == "weather" and arguments.startswith("{"))
