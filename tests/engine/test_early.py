"""Calls that begin while the model is still writing: when, and that nothing else changes by it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.api.events import McpCallCompleted, OutputItemAdded
from antwort.api.items import FunctionCall, FunctionCallOutput
from antwort.api.wire import UNSET
from antwort.engine.engine import Engine
from antwort.engine.loop.call_display import display_of
from antwort.engine.loop.fold import Run
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.loop.tool_runner import CallRecord, early_calls, may_begin_early
from antwort.engine.loop.turn import Turn
from antwort.engine.plan import Plan
from antwort.engine.runs.subscription import LiveSubscription
from antwort.errors import BackendError
from antwort.identity import ANONYMOUS
from antwort.providers.base import CallDelta, Finished
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ClientsTurn, ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolResult
from antwort.tools.grammar import Checks
from antwort.tools.limits import ToolLimits
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    outputs,
    replies,
    sent,
    server_calls,
    shape_of,
    stream,
)
from plan_kit import plan_of

OFF = {"eager": False}
PATIENT = ToolLimits(grace=30)


class Reports:
    """An engine that tells of each call when it has been answered; the event is set at the first."""

    def __init__(self) -> None:
        self.called: list[CallRecord] = []
        self.first = asyncio.Event()

    def engine(self, provider: ScriptedProvider, *executors: ToolExecutor) -> Engine:
        return Engine(provider, store=MemoryStore(), executors=executors, on_call=[self._note])

    def _note(self, called: CallRecord) -> None:
        self.called.append(called)
        self.first.set()


class Depot(ToolServerFake):
    """A server whose tool says when it is called, and answers when it may."""

    def __init__(self, *, is_open: bool = True) -> None:
        super().__init__("depot", lookup=self._lookup, other=replies("other"))
        self.begun = asyncio.Event()
        self.gate = asyncio.Event()
        self.stopped: list[str] = []
        if is_open:
            self.gate.set()

    async def _lookup(self, call: ToolCall, context: ToolContext) -> str:
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.stopped.append(call.id)
            raise
        return f"found {call.arguments}"


def lookups(*arguments: str) -> list[Any]:
    return [call("lookup", each) for each in arguments]


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def begun_before(gate: asyncio.Event, engine: Engine, depot: Depot, **fields: Any) -> bool:
    """Whether the tool has begun when the model comes to the gate in what it writes; the run is read to its end."""
    run = await engine.start(ask(stream=True, **fields))
    await settle()
    has_begun = depot.begun.is_set()
    gate.set()
    depot.gate.set()
    while await run.read():
        pass
    return has_begun


# ---- when ----


async def test_a_call_begins_while_the_model_writes_the_next_one() -> None:
    depot = Depot()
    # The model goes on when the tool has begun: nothing else would ever end this stream.
    script = answer(call("lookup", '{"n": 1}'), [CallDelta(1, "lookup", "")], depot.begun, [CallDelta(1, "", "{}")])
    async with asyncio.timeout(5):
        outcome = await stream(engine_of(ScriptedProvider(script, answer(say("Ok."))), depot), ask(tools=[SERVER]))
    assert outcome.response.status == "completed"
    assert [item.output for item in server_calls(outcome.response)] == ['found {"n": 1}', "found {}"]
    assert len(depot.calls) == 2


async def test_a_function_of_this_process_begins_early_as_well_and_what_is_said_behind_a_call_is_enough() -> None:
    begun = asyncio.Event()

    async def weather(city: str) -> str:
        begun.set()
        return f"sunny in {city}"

    script = answer(call("weather", city="Paris"), say("Wait"), begun, say(" a moment."))
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), LocalExecutor(weather))
    async with asyncio.timeout(5):
        outcome = await stream(engine, ask(tools=[WEATHER]))
    assert kinds(outcome.response) == ["function_call", "message", "function_call_output", "message"]


async def test_results_are_shown_when_the_turn_has_ended_and_not_before() -> None:
    depot, gate = Depot(), asyncio.Event()
    script = answer(*lookups("{}"), [CallDelta(1, "lookup", "{")], gate, [CallDelta(1, "", "}")])
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), depot)
    run = await engine.start(ask(stream=True, tools=[SERVER]))
    await settle()
    assert depot.calls
    events = [event for batch in await run.read() for event in batch.events]
    assert sum(isinstance(event, OutputItemAdded) for event in events) == 3
    assert not any(isinstance(event, McpCallCompleted) for event in events)
    gate.set()
    await run.result()


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"tools": [SERVER]}, OFF),
        ({"tools": [SERVER], "parallel_tool_calls": False}, {}),
        ({"tools": [SERVER, CLOCK]}, {}),
        ({"tools": [SERVER], "tool_choice": "none"}, {}),
        ({"tools": [SERVER], "allowed_tools": [{"type": "mcp", "server_label": "depot", "name": "other"}]}, {}),
    ],
    ids=["off", "one by one", "a function of the client's", "none may be run", "it is not allowed"],
)
async def test_no_call_begins_early_where_the_end_of_the_turn_may_say_otherwise(
    fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    depot, gate = Depot(), asyncio.Event()
    script = answer(*lookups("{}"), [CallDelta(1, "lookup", "{")], gate, [CallDelta(1, "", "}")])
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), depot, **settings)
    assert not await begun_before(gate, engine, depot, **fields)


@pytest.mark.parametrize(
    "pieces",
    [
        ["{}"],
        ["{", '"n"', ": ", "1", "}"],
        ['{"n": {"a": {}', "}", " }\n", " "],
        ['{"code": "if (x) { \\"', '}{\\\\"', ', "more": "', '}"', "}"],
        ['{"code": "\\', '"{{{"', "}"],
    ],
)
async def test_the_only_call_of_a_turn_begins_when_its_object_closes(pieces: list[str]) -> None:
    depot = Depot()
    deltas = [[CallDelta(0, "" if at else "lookup", piece)] for at, piece in enumerate(pieces)]
    # The answer ends when the tool has begun, and not before.
    provider = ScriptedProvider(answer(*deltas, depot.begun), answer(say("Ok.")))
    async with asyncio.timeout(5):
        outcome = await stream(engine_of(provider, depot), ask(tools=[SERVER]))
    (done,) = server_calls(outcome.response)
    assert str(done.output).rstrip() == "found " + "".join(pieces).rstrip()
    assert len(depot.calls) == 1


async def test_a_call_that_comes_with_the_end_of_its_turn_has_nothing_to_begin_before() -> None:
    depot = Depot()
    provider = ScriptedProvider([[CallDelta(0, "lookup", "{}"), Finished("length", None)]])
    outcome = await stream(engine_of(provider, depot), ask(tools=[SERVER]))
    assert (outcome.response.status, depot.calls) == ("incomplete", [])


@pytest.mark.parametrize("written", ["", "{", '{"n": 1', "[1]", "1", "null", '{"n": }', "{}{"])
async def test_a_call_that_may_yet_grow_does_not_begin(written: str) -> None:
    depot, gate = Depot(), asyncio.Event()
    script = answer([CallDelta(0, "lookup", written)], [CallDelta(1, "lookup", "{")], gate)
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), depot)
    assert not await begun_before(gate, engine, depot, tools=[SERVER])


async def test_calls_that_are_written_in_turns_run_with_all_of_their_arguments() -> None:
    depot = Depot()
    pieces = [(0, '{"n":'), (1, '{"n"'), (0, " 1"), (1, ": 2}"), (0, "}"), (2, "{}")]
    names = {index: "lookup" for index, _ in pieces}
    deltas = [CallDelta(index, names.pop(index, ""), text) for index, text in pieces]
    outcome = await stream(engine_of(ScriptedProvider(answer(deltas), answer(say("Ok."))), depot), ask(tools=[SERVER]))
    assert sorted(each.arguments for each in depot.calls) == ['{"n": 1}', '{"n": 2}', "{}"]
    assert [item.output for item in server_calls(outcome.response)] == ['found {"n": 1}', 'found {"n": 2}', "found {}"]


async def test_space_behind_a_call_that_has_begun_does_not_make_it_another() -> None:
    depot = Depot()
    script = answer(*lookups("{}", "{}"), depot.begun, [CallDelta(0, "", " \n")])
    outcome = await stream(engine_of(ScriptedProvider(script, answer(say("Ok."))), depot), ask(tools=[SERVER]))
    assert [item.output for item in server_calls(outcome.response)] == ["found {}", "found {}"]
    assert len(depot.calls) == 2


async def test_a_call_that_grows_after_it_has_begun_is_told_to_stop_and_answered_as_what_it_has_become() -> None:
    depot = Depot(is_open=False)
    script = answer(*lookups("{}"), depot.begun, [CallDelta(0, "", '{"n": 1}')])
    outcome = await stream(engine_of(ScriptedProvider(script, answer(say("Ok."))), depot), ask(tools=[SERVER]))
    (done,) = server_calls(outcome.response)
    assert (done.arguments, depot.stopped) == ('{}{"n": 1}', [done.call_id])
    assert "not valid JSON" in str(done.error)
    assert len(depot.calls) == 1


@pytest.mark.proves("RULING-3b")
async def test_a_call_that_grows_after_the_next_one_has_begun_fails_the_response_and_says_that_it_was_begun() -> None:
    depot = Depot(is_open=False)
    script = answer(*lookups("{}", "{"), depot.begun, [CallDelta(0, "", '{"n": 1}')])
    outcome = await stream(engine_of(ScriptedProvider(script), depot), ask(tools=[SERVER]))
    first, second = server_calls(outcome.response)
    assert outcome.response.status == "failed"
    assert (first.arguments, first.error_text, depot.stopped) == ("{}", INTERRUPTED, [first.call_id])
    assert (second.arguments, second.status) == ("{", "incomplete")


async def test_the_limit_of_calls_is_counted_in_the_order_of_the_calls() -> None:
    depot, gate = Depot(), asyncio.Event()
    # The second call is complete while the first is not: it is the first that the limit is for.
    deltas = [CallDelta(0, "lookup", '{"n":'), CallDelta(1, "lookup", "{}"), CallDelta(2, "lookup", "{}")]
    script = answer(deltas, gate, [CallDelta(0, "", " 1}")])
    engine = engine_of(ScriptedProvider(script, answer(say("Ok."))), depot)
    assert not await begun_before(gate, engine, depot, tools=[SERVER], max_tool_calls=1)
    assert [each.arguments for each in depot.calls] == ['{"n": 1}']


class Asked(ToolServerFake):
    """A server that counts how often it is asked whether it runs a tool."""

    questions = 0

    def can_execute(self, tool: ToolDefinition) -> bool:
        self.questions += 1
        return super().can_execute(tool)


@pytest.mark.parametrize("settings", [{}, OFF])
async def test_to_decide_about_a_call_takes_no_longer_the_more_there_are(settings: dict[str, Any]) -> None:
    async def questions(number: int) -> int:
        server = Asked("depot", lookup=replies("found"))
        provider = ScriptedProvider(answer(*lookups(*["{}"] * number)), answer(say("Ok.")))
        await engine_of(provider, server, **settings).create(ask(tools=[SERVER]))
        return server.questions

    few, more = await questions(10), await questions(20)
    assert await questions(40) - more == 2 * (more - few)


def written(plan: Plan, *names: str) -> Turn:
    """A turn that calls these tools, as somebody who starts them early sees it."""
    turn = Turn(0, partial(display_of, plan, run=Run(plan.response), checks=Checks()), is_eager=True)
    for at, name in enumerate(names):
        turn.feed(CallDelta(at, name, "{}"))
    return turn


async def test_no_call_begins_early_where_one_could_need_an_approval() -> None:
    plan = await plan_of(ask(tools=[SERVER]), ToolServerFake("depot", lookup=replies("a"), other=replies("b")))
    assert may_begin_early(plan)
    asks = replace(plan.toolbox.tools["other"], needs_approval=True)
    toolbox = replace(plan.toolbox, tools={**plan.toolbox.tools, "other": asks})
    assert not may_begin_early(replace(plan, toolbox=toolbox))


async def test_in_a_run_that_may_be_resumed_only_what_can_be_repeated_begins_early() -> None:
    names = ("reads", "repeats", "acts")
    depot = ToolServerFake("depot", reads=replies("1"), repeats=replies("2"), acts=replies("3"))
    plan = replace(await plan_of(ask(tools=[SERVER]), depot), is_durable=True)
    tools = dict(plan.toolbox.tools)
    tools["reads"] = replace(tools["reads"], read_only=True)
    tools["repeats"] = replace(tools["repeats"], idempotent=True)
    plan = replace(plan, toolbox=replace(plan.toolbox, tools=tools))
    begun = early_calls(written(plan, *names), 9, plan)
    assert [ready.call.name for ready in begun] == ["reads", "repeats"]
    once = replace(plan, is_durable=False)
    begun = early_calls(written(once, *names), 9, once)
    assert [ready.call.name for ready in begun] == list(names)


# ---- nothing else changes ----


@pytest.mark.parametrize(
    "arguments", [("{}", "{}"), ("{}", "no JSON", '{"n": 1}'), ("", '{"n": 1} ', "{}"), ("{ }{}", "{}", "[]")]
)
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
async def test_the_stream_and_the_items_are_the_same_as_without(arguments: Sequence[str], finish: str) -> None:
    outcomes = []
    for is_eager in (True, False):
        script = answer(say("So."), *lookups(*arguments), call("nobody", "{}"), finish=finish)
        provider = ScriptedProvider(script, answer(say("Ok.")))
        outcome = await stream(engine_of(provider, Depot(), eager=is_eager), ask(tools=[SERVER], max_tool_calls=2))
        messages = [message.get("content") for message in sent(provider.requests[1])["messages"]]
        outcomes.append((outcome.names, shape_of(outcome.response), messages))
    assert outcomes[0] == outcomes[1]


async def test_a_call_keeps_its_id_and_is_reported_once() -> None:
    depot, reports = Depot(), Reports()
    script = answer(*lookups("{}", "{}"), reports.first)
    engine = reports.engine(ScriptedProvider(script, answer(say("Ok."))), depot)
    outcome = await stream(engine, ask(tools=[SERVER]))
    ids = [item.call_id for item in server_calls(outcome.response)]
    assert [each.call_id for each in reports.called] == ids == [each.id for each in depot.calls]
    assert {each.end for each in reports.called} == {"ok"}


async def test_a_call_that_is_handed_to_the_client_after_all_is_the_clients() -> None:
    begun = asyncio.Event()

    class Handing(LocalExecutor):
        async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
            begun.set()
            raise ClientsTurn(call)

    script = answer(call("weather", city="a"), call("weather", city="b"), begun)
    response = await engine_of(ScriptedProvider(script), Handing(weather)).create(ask(tools=[WEATHER]))
    assert response.status == "requires_action"
    assert kinds(response) == ["function_call", "function_call"]


# ---- the turn does not come to its end ----


def broken(when: asyncio.Event, how: Exception | asyncio.Event) -> Answer:
    """An answer that breaks off in the second call."""
    return answer(*lookups('{"n": 1}'), [CallDelta(1, "lookup", '{"n"')], when, how)


def cut(when: asyncio.Event) -> Answer:
    """An answer that is cut in the second call."""
    return answer(*lookups('{"n": 1}'), [CallDelta(1, "lookup", '{"n"')], when, finish="length")


async def weather(city: str) -> str:
    return f"sunny in {city}"


async def test_a_result_that_is_there_when_the_inference_fails_stands_in_the_record() -> None:
    depot, reports = Depot(), Reports()
    provider = ScriptedProvider(broken(reports.first, BackendError("gone")), answer(say("Ok.")))
    engine = reports.engine(provider, depot)
    outcome = await stream(engine, ask(tools=[SERVER]))
    first, second = server_calls(outcome.response)
    assert outcome.response.status == "failed"
    assert (first.status, first.output, second.status) == ("completed", 'found {"n": 1}', "incomplete")
    assert await engine.retrieve(ANONYMOUS, outcome.response.id) == outcome.response
    await stream(engine, ask("Go on.", previous_response_id=outcome.response.id, tools=[SERVER]))
    assert len(depot.calls) == 1
    assert [message["content"] for message in sent(provider.requests[1])["messages"] if message["role"] == "tool"] == [
        'found {"n": 1}'
    ]


async def test_a_functions_result_stands_behind_what_was_broken_off() -> None:
    reports = Reports()
    script = answer(call("weather", city="Rome"), [CallDelta(1, "weather", "{")], reports.first, BackendError("gone"))
    engine = reports.engine(ScriptedProvider(script), LocalExecutor(weather))
    response = (await stream(engine, ask(tools=[WEATHER]))).response
    assert [item.status for item in function_calls(response)] == ["completed", "incomplete"]
    assert [item.output for item in outputs(response)] == ["sunny in Rome"]


async def test_a_call_that_is_at_work_when_the_inference_fails_is_told_to_stop_and_never_run_again() -> None:
    depot = Depot(is_open=False)
    provider = ScriptedProvider(broken(depot.begun, BackendError("gone")), answer(say("Ok.")))
    engine = engine_of(provider, depot)
    outcome = await stream(engine, ask(tools=[SERVER]))
    assert [item.status for item in server_calls(outcome.response)] == ["failed", "incomplete"]
    assert depot.stopped == [depot.calls[0].id]
    await stream(engine, ask("Go on.", previous_response_id=outcome.response.id, tools=[SERVER]))
    assert len(depot.calls) == 1
    told = [message["content"] for message in sent(provider.requests[1])["messages"] if message["role"] == "tool"]
    assert told == [INTERRUPTED]


async def test_a_function_that_is_at_work_when_the_inference_fails_says_that_it_was_begun() -> None:
    begun = asyncio.Event()

    async def weather(city: str) -> str:
        begun.set()
        await asyncio.Event().wait()
        return city

    script = answer(call("weather", city="Rome"), [CallDelta(1, "weather", "{")], begun, BackendError("gone"))
    outcome = await stream(engine_of(ScriptedProvider(script), LocalExecutor(weather)), ask(tools=[WEATHER]))
    assert [item.status for item in function_calls(outcome.response)] == ["completed", "incomplete"]
    assert [(item.output, item.is_error) for item in outputs(outcome.response)] == [(INTERRUPTED, True)]


@pytest.mark.proves("TR-021")
async def test_a_client_that_leaves_stops_a_call_that_began_early() -> None:
    depot = Depot(is_open=False)
    engine = engine_of(ScriptedProvider(broken(depot.begun, asyncio.Event())), depot)
    run = await engine.start(ask(stream=True, tools=[SERVER]))
    await depot.begun.wait()
    run.leave()
    response = await asyncio.wait_for(run.result(), 1)
    assert (response.status, depot.stopped) == ("cancelled", [depot.calls[0].id])
    assert [item.status for item in server_calls(response)] == ["failed", "incomplete"]
    await run.wait()
    assert isinstance(run, LiveSubscription)
    assert run.run.tools.has_acted


@pytest.mark.proves("EDGE-5")
async def test_a_call_complete_before_the_cut_keeps_its_result_and_the_one_that_was_cut_is_never_run() -> None:
    depot, reports = Depot(), Reports()
    outcome = await stream(reports.engine(ScriptedProvider(cut(reports.first)), depot), ask(tools=[SERVER]))
    first, second = server_calls(outcome.response)
    assert (first.status, first.output, second.status) == ("completed", 'found {"n": 1}', "incomplete")
    assert outcome.response.status == "incomplete"
    assert [each.id for each in depot.calls] == [first.call_id]


async def test_of_a_call_that_was_told_to_stop_because_of_a_cut_the_end_is_not_known_and_it_is_not_run_again() -> None:
    depot = Depot(is_open=False)
    provider = ScriptedProvider(cut(depot.begun), answer(say("Ok.")))
    engine = engine_of(provider, depot)
    outcome = await stream(engine, ask(tools=[SERVER]))
    first, second = server_calls(outcome.response)
    assert (first.status, second.status) == ("failed", "incomplete")
    assert first.error_text == INTERRUPTED
    await stream(engine, ask("Go on.", previous_response_id=outcome.response.id, tools=[SERVER]))
    assert len(depot.calls) == 1
    told = [message["content"] for message in sent(provider.requests[1])["messages"] if message["role"] == "tool"]
    assert told == [INTERRUPTED]


class Thread:
    """A function in a thread that cannot be told to stop, and ends when it may."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._may_end, self._has_ended = threading.Event(), threading.Event()
        self.begun = asyncio.Event()
        self.sent: list[str] = []

    def end(self) -> None:
        self._may_end.set()

    async def wait(self) -> None:
        assert await asyncio.to_thread(self._has_ended.wait, 5)

    def mail(self, to: str) -> str:
        self._loop.call_soon_threadsafe(self.begun.set)
        self._may_end.wait(30)
        self.sent.append(to)
        self._has_ended.set()
        return f"sent to {to}"


MAIL = {"type": "function", "name": "mail"}


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_of_a_thread_that_is_at_work_behind_a_cut_the_model_is_not_told_that_it_was_stopped_before_its_end(
    finish: str,
) -> None:
    thread = Thread()
    provider = ScriptedProvider(answer(call("mail", to="bob"), thread.begun, finish=finish), answer(say("Ok.")))
    engine = engine_of(provider, LocalExecutor(thread.mail), tool_grace=0.01)
    response = (await stream(engine, ask(tools=[MAIL]))).response
    assert (response.status, [item.output for item in outputs(response)]) == ("incomplete", [INTERRUPTED])
    thread.end()
    await thread.wait()
    await engine.create(ask("Go on.", previous_response_id=response.id, tools=[MAIL]))
    told = [message["content"] for message in sent(provider.requests[1])["messages"] if message["role"] == "tool"]
    assert (told, thread.sent) == ([INTERRUPTED], ["bob"])


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_a_thread_that_ends_soon_after_a_cut_has_its_result(finish: str) -> None:
    thread = Thread()
    script = answer(call("mail", to="bob"), thread.begun, finish=finish)
    engine = engine_of(ScriptedProvider(script), LocalExecutor(thread.mail), tool_grace=30, tool_limits=PATIENT)
    reading = asyncio.create_task(stream(engine, ask(tools=[MAIL])))
    await thread.begun.wait()
    await settle()  # the answer is cut by now, and the tool was told to stop
    thread.end()
    response = (await reading).response
    assert response.status == "incomplete"
    assert [(item.output, item.is_error) for item in outputs(response)] == [("sent to bob", UNSET)]


async def test_a_thread_that_ends_soon_after_its_run_is_cancelled_has_its_result() -> None:
    thread = Thread()
    script = answer(call("mail", to="bob"))
    engine = engine_of(ScriptedProvider(script), LocalExecutor(thread.mail), tool_grace=30, tool_limits=PATIENT)
    run = await engine.start(ask(stream=True, tools=[MAIL]))
    await thread.begun.wait()
    cancelling = asyncio.create_task(engine.cancel(ANONYMOUS, run.response_id))
    await settle()
    thread.end()
    response = await cancelling
    assert (response.status, [item.output for item in outputs(response)]) == ("cancelled", ["sent to bob"])


async def test_arguments_that_do_not_fit_are_told_of_also_where_the_turn_is_cut() -> None:
    reports = Reports()
    script = answer(call("weather", town="Rome"), [CallDelta(1, "weather", "{")], reports.first, finish="length")
    response = (
        await stream(reports.engine(ScriptedProvider(script), LocalExecutor(weather)), ask(tools=[WEATHER]))
    ).response
    assert ["do not fit" in str(item.output) for item in outputs(response)] == [True]


async def test_a_call_that_waits_for_a_slot_when_the_turn_is_cut_is_left_for_the_follow_up() -> None:
    """As without `eager`: it has not begun."""
    ran: list[str] = []
    begun, gate = asyncio.Event(), asyncio.Event()

    async def weather(city: str) -> str:
        ran.append(city)
        begun.set()
        await gate.wait()
        return f"sunny in {city}"

    calls = [call("weather", city="Rome"), call("weather", city="Oslo")]
    provider = ScriptedProvider(answer(*calls, say("And"), begun, finish="length"), answer(say("Ok.")))
    engine = engine_of(provider, LocalExecutor(weather), tool_limits=ToolLimits(concurrency=1))
    response = (await stream(engine, ask(tools=[WEATHER]))).response
    assert [item.output for item in outputs(response)] == [INTERRUPTED]
    assert [item.status for item in function_calls(response)] == ["completed", "completed"]
    assert ran == ["Rome"]


async def test_a_functions_result_stands_behind_a_call_that_was_cut() -> None:
    reports = Reports()
    script = answer(call("weather", city="Rome"), [CallDelta(1, "weather", "{")], reports.first, finish="length")
    engine = reports.engine(ScriptedProvider(script), LocalExecutor(weather))
    response = (await stream(engine, ask(tools=[WEATHER]))).response
    assert [(type(item), item.status) for item in response.output] == [
        (FunctionCall, "completed"),
        (FunctionCall, "incomplete"),
        (FunctionCallOutput, "completed"),
    ]


async def test_a_thread_learns_that_its_turn_broke_off() -> None:
    begun, seen = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    async def lookup(call: ToolCall, context: ToolContext) -> str:
        def look() -> None:
            loop.call_soon_threadsafe(begun.set)
            while not context.cancelled.is_set():
                pass
            seen.set()

        await asyncio.to_thread(look)
        return "done"

    depot = ToolServerFake("depot", lookup=lookup)
    script = answer(*lookups("{}"), [CallDelta(1, "lookup", "{")], begun, BackendError("gone"))
    outcome = await stream(engine_of(ScriptedProvider(script), depot), ask(tools=[SERVER]))
    assert outcome.response.status == "failed"
    assert await asyncio.to_thread(seen.wait, 5)


async def test_nothing_is_left_running_after_a_turn_that_broke_off() -> None:
    before = asyncio.all_tasks()
    depot = Depot(is_open=False)
    await stream(engine_of(ScriptedProvider(broken(depot.begun, BackendError("gone"))), depot), ask(tools=[SERVER]))
    await settle()
    assert asyncio.all_tasks() == before
