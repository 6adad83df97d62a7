"""Running calls: each ends in exactly one result, and results become events in the right order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from antwort.api.events import CallEnded, OutputItemAdded, OutputItemDone
from antwort.api.items import FunctionCallOutput, InputImage, InputText, McpCall
from antwort.engine.history.calls import PendingCall
from antwort.engine.history.refusals import NOT_BEGUN
from antwort.engine.loop.fold import Run, fold
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.plan import Leftover, Plan
from antwort.errors import Cancelled
from antwort.identity import Identity
from antwort.testing import ToolServerFake
from antwort.tools.base import Output, ToolCall, ToolContext, ToolDefinition, ToolKind, ToolResult
from antwort.tools.limits import ToolLimits
from antwort.tools.routing import Toolbox
from engine_kit import CLOCK, SERVER, WEATHER, ask, name_of, replies
from live_kit import Collector, live_run
from plan_kit import called, ended, plan_of, run_of, server_called

Tool = Callable[[ToolCall, ToolContext], Awaitable[Any]]


class Bare:
    """An executor of functions that take any arguments."""

    kind = ToolKind.LOCAL

    def __init__(self, **tools: Tool) -> None:
        self.calls: list[ToolCall] = []
        self.contexts: list[ToolContext] = []
        self._tools = tools

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name in self._tools

    def limits_of(self, tool: ToolDefinition) -> ToolLimits:
        return ToolLimits(timeout=86400, check_arguments=False)

    async def execute(self, call: ToolCall, context: ToolContext) -> ToolResult:
        self.calls.append(call)
        self.contexts.append(context)
        return ToolResult(call.id, await self._tools[call.name](call, context))


class Gates:
    """Tools that answer when they are told to, with their call's id."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self._open: dict[str, asyncio.Event] = {}

    async def __call__(self, call: ToolCall, context: ToolContext) -> str:
        self.begun.append(call.id)
        await self._gate(call.id).wait()
        return f"result of {call.id}"

    def open(self, n: int) -> None:
        self._gate(f"call_{n}").set()

    def _gate(self, call_id: str) -> asyncio.Event:
        return self._open.setdefault(call_id, asyncio.Event())


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


class Dispatch:
    """A run that answers its open calls, and is left to another process when it would ask the model."""

    def __init__(self, plan: Plan, *happened: Any) -> None:
        self.run = run_of(plan, *happened)
        recorder = Collector(stops_at_inference=True)
        self.batches = recorder.batches
        self.live = live_run(replace(plan, listings=()), recorder=recorder, run=self.run)

    async def ended(self) -> Dispatch:
        await self.live.wait()
        return self

    @property
    def after(self) -> Run:
        return fold(self.run, [event for batch in self.batches for event in batch])

    @property
    def results(self) -> list[tuple[str, Output]]:
        functions = [(item.call_id, item.output) for item in self.after.output if isinstance(item, FunctionCallOutput)]
        servers = [
            (item.call_id, item.output)
            for item in self.after.output
            if isinstance(item, McpCall) and isinstance(item.output, str) and isinstance(item.call_id, str)
        ]
        return [*functions, *servers]


async def plan_with(*executors: Any, **fields: Any) -> Plan:
    server = [SERVER] if any(isinstance(each, ToolServerFake) for each in executors) else []
    return await plan_of(ask(tools=[WEATHER, CLOCK, *server], **fields), *executors)


# ---- order ----


@pytest.mark.proves("FR-016", "FR-017", "MISTAKE-12")
async def test_functions_run_together_and_their_results_come_in_the_order_of_the_calls() -> None:
    gates = Gates()
    dispatch = Dispatch(await plan_with(Bare(weather=gates)), called(1), called(2), called(3), ended())
    await settle()
    assert gates.begun == ["call_1", "call_2", "call_3"]
    gates.open(3)
    await settle()
    assert dispatch.batches == []
    gates.open(1)
    await settle()
    assert dispatch.results == [("call_1", "result of call_1")]
    gates.open(2)
    await dispatch.ended()
    assert [call_id for call_id, _ in dispatch.results] == ["call_1", "call_2", "call_3"]


@pytest.mark.proves("FR-016")
async def test_a_servers_results_come_as_they_are_ready() -> None:
    gates = Gates()
    plan = await plan_with(ToolServerFake("depot", stock=gates))
    dispatch = Dispatch(plan, server_called(1), server_called(2), ended())
    await settle()
    gates.open(2)
    await settle()
    assert dispatch.results == [("call_2", "result of call_2")]
    gates.open(1)
    await dispatch.ended()
    assert [call_id for call_id, _ in dispatch.results] == ["call_1", "call_2"]


async def test_a_servers_call_holds_up_no_function_behind_it() -> None:
    gates = Gates()
    plan = await plan_with(Bare(weather=gates), ToolServerFake("depot", stock=gates))
    dispatch = Dispatch(plan, server_called(1), called(2), ended())
    await settle()
    gates.open(2)
    await settle()
    assert dispatch.results == [("call_2", "result of call_2")]
    gates.open(1)
    await dispatch.ended()


@pytest.mark.proves("FR-016")
async def test_without_parallel_calls_they_run_one_by_one() -> None:
    gates = Gates()
    plan = await plan_with(Bare(weather=gates), parallel_tool_calls=False)
    dispatch = Dispatch(plan, called(1), called(2), ended())
    await settle()
    assert gates.begun == ["call_1"]
    gates.open(1)
    await settle()
    assert gates.begun == ["call_1", "call_2"]
    gates.open(2)
    assert [call_id for call_id, _ in (await dispatch.ended()).results] == ["call_1", "call_2"]


@pytest.mark.proves("FR-009")
async def test_what_is_refused_is_told_at_once_beside_the_others() -> None:
    gates = Gates()
    plan = await plan_with(Bare(weather=gates), allowed_tools=["weather"])
    refused = server_called(1, "clock", label="antwort")
    dispatch = Dispatch(plan, refused, called(2), ended())
    await settle()
    (item, _) = dispatch.after.output
    assert isinstance(item, McpCall)
    assert (item.status, item.error_text) == ("failed", "The tool 'clock' is not allowed in this request.")
    gates.open(2)
    await dispatch.ended()
    marks = [mark for _, mark in dispatch.after.marks if isinstance(mark, CallEnded)]
    assert marks == [CallEnded(call_id="call_1", outcome="refused"), CallEnded(call_id="call_2", outcome="ran")]


# ---- exactly one result ----


async def _result_of(tool: Tool) -> FunctionCallOutput:
    dispatch = await Dispatch(await plan_with(Bare(weather=tool)), called(1), ended()).ended()
    (_, result) = dispatch.after.output
    assert isinstance(result, FunctionCallOutput)
    return result


@pytest.mark.proves("FR-029", "FR-031")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (LookupError("There is no such city."), "There is no such city."),
        (LookupError(), "LookupError"),
        (asyncio.CancelledError("It gave up."), "It gave up."),
        (asyncio.CancelledError(), "CancelledError"),
    ],
)
async def test_what_a_tool_raises_is_its_result(
    error: BaseException, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(call: ToolCall, context: ToolContext) -> str:
        raise error

    with caplog.at_level(logging.WARNING, "antwort.tools"):
        result = await asyncio.wait_for(_result_of(fail), 5)
    assert (result.output, result.is_error, result.status) == (told, True, "completed")
    assert "The tool 'weather' failed" in caplog.text


async def test_parts_of_a_result_are_kept_for_a_function_and_named_for_a_server() -> None:
    parts = (InputText(text="A map:"), InputImage(image_url="data:image/png;base64,AA=="))

    async def draw(call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult(call.id, parts)

    async def drawn(call: ToolCall, context: ToolContext) -> tuple[Any, ...]:
        return parts

    assert (await _result_of(drawn)).output == parts
    plan = await plan_with(ToolServerFake("depot", stock=draw))
    dispatch = await Dispatch(plan, server_called(1), ended()).ended()
    assert dispatch.results == [("call_1", "A map:\n[input_image]")]


async def test_the_result_of_another_call_is_none_of_this_one() -> None:
    async def mixed_up(call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult("somebody else's", "3 left")

    plan = await plan_with(ToolServerFake("depot", stock=mixed_up))
    dispatch = await Dispatch(plan, server_called(1), ended()).ended()
    (item,) = dispatch.after.output
    assert isinstance(item, McpCall)
    assert item.error_text == "The tool 'stock' did not answer with a result of this call."
    marks = [mark for _, mark in dispatch.after.marks if isinstance(mark, CallEnded)]
    assert marks == [CallEnded(call_id="call_1", outcome="ran")]


async def test_a_result_is_an_item_of_its_own_with_an_index_and_an_id() -> None:
    dispatch = await Dispatch(await plan_with(Bare(weather=replies("sunny"))), called(1), called(2), ended()).ended()
    events = [event for batch in dispatch.batches for event in batch]
    assert [name_of(event) for event in events] == 2 * [
        "response.output_item.added",
        "response.output_item.done",
        "antwort.call_ended",
    ]
    places = [event.output_index for event in events if isinstance(event, OutputItemAdded | OutputItemDone)]
    assert places == [2, 2, 3, 3]
    ids = [item.id for item in dispatch.after.output]
    assert len(set(ids)) == 4


# ---- what a tool is told ----


@pytest.mark.proves("FR-001")
async def test_a_call_knows_its_definition_and_whom_it_is_for() -> None:
    bare, deadline = Bare(weather=replies("sunny")), asyncio.get_running_loop().time() + 600
    plan = replace(await plan_with(bare), deadline=deadline)
    dispatch = await Dispatch(plan, called(1, arguments=""), ended()).ended()
    (call,), (context,) = bare.calls, bare.contexts
    assert (call.id, call.name, call.arguments) == ("call_1", "weather", "{}")
    assert call.definition is plan.toolbox.tools["weather"]
    assert (context.response_id, context.idempotency_key) == (plan.response.id, "call_1")
    assert (context.deadline, context.identity) == (deadline, Identity())
    assert not context.cancelled.is_set()
    dispatch.live.stop(Cancelled())
    assert context.cancelled.is_set()


# ---- stopping ----


@pytest.mark.proves("FR-014", "TR-021")
async def test_a_run_that_stops_keeps_the_results_it_has_also_behind_one_that_will_not_come() -> None:
    """The tool has run; a follow-up must not run it again."""
    gates = Gates()
    dispatch = Dispatch(await plan_with(Bare(weather=gates)), called(1), called(2), called(3), ended())
    await settle()
    gates.open(2)
    await settle()
    assert dispatch.results == []
    dispatch.live.stop(Cancelled())
    await dispatch.ended()
    assert dispatch.after.response.status == "cancelled"
    assert dispatch.results == [("call_1", INTERRUPTED), ("call_2", "result of call_2"), ("call_3", INTERRUPTED)]


@pytest.mark.proves("TR-021")
async def test_a_run_that_was_told_to_stop_starts_no_tool_and_can_be_made_anew() -> None:
    gates = Gates()
    dispatch = Dispatch(await plan_with(Bare(weather=gates)), called(1), ended())
    dispatch.live.stop(Cancelled())
    await dispatch.ended()
    await settle()
    assert gates.begun == []
    assert not dispatch.live.tools.has_acted
    assert dispatch.results == [("call_1", NOT_BEGUN)]


async def test_a_result_that_comes_while_stopping_still_counts() -> None:
    async def tidy(call: ToolCall, context: ToolContext) -> str:
        if call.id == "call_1":
            await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"
        raise AssertionError("not reached")

    dispatch = Dispatch(await plan_with(Bare(weather=tidy)), called(1), called(2), ended())
    await settle()
    dispatch.live.stop(Cancelled())
    await dispatch.ended()
    assert sorted(dispatch.results) == [("call_1", INTERRUPTED), ("call_2", "just in time")]


async def test_a_tool_that_will_not_stop_is_left_behind(caplog: pytest.LogCaptureFixture) -> None:
    freed = asyncio.Event()

    async def stubborn(call: ToolCall, context: ToolContext) -> str:
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    plan = await plan_of(ask(tools=[WEATHER]), Bare(weather=stubborn), tool_grace=0.01)
    dispatch = Dispatch(plan, called(1), ended())
    await settle()
    dispatch.live.stop(Cancelled())
    with caplog.at_level(logging.WARNING, "antwort.engine"):
        await dispatch.ended()
    assert "left behind" in caplog.text
    assert dispatch.results == [("call_1", INTERRUPTED)]
    freed.set()
    await settle()


async def test_a_run_that_is_aborted_stops_its_tools() -> None:
    gates, closed = Gates(), asyncio.Event()

    async def hold(call: ToolCall, context: ToolContext) -> str:
        try:
            return await gates(call, context)
        finally:
            if call.id == "call_2":
                closed.set()

    dispatch = Dispatch(await plan_with(Bare(weather=hold)), called(1), called(2), ended())
    await settle()
    gates.open(1)
    await settle()
    assert not closed.is_set()
    dispatch.live.abort()
    await dispatch.ended()
    assert closed.is_set()
    assert dispatch.results == [("call_1", "result of call_1")]


# ---- what an earlier response left open ----


@pytest.mark.proves("MIXED-2")
async def test_a_function_left_open_gets_its_result_and_a_servers_call_is_shown_again() -> None:
    executors = (Bare(weather=replies("sunny")), ToolServerFake("depot", "depot_", stock=replies("3 left")))
    parent = await plan_with(*executors)
    old = server_called(2, arguments='{"n":1}', status="completed")
    leftovers = (
        Leftover(PendingCall("call_1", "weather", "{}", None, called(1)), parent.toolbox),
        Leftover(PendingCall("call_2", "depot_stock", '{"n":1}', None, old), parent.toolbox),
    )
    dispatch = await Dispatch(await plan_of(ask(), leftovers=leftovers)).ended()
    (again, result) = dispatch.after.output
    assert isinstance(again, McpCall)
    assert again.id != old.id
    assert (again.call_id, again.name, again.arguments) == ("call_2", "stock", '{"n":1}')
    assert (again.status, again.output, again.error) == ("completed", "3 left", None)
    assert isinstance(result, FunctionCallOutput)
    assert (result.call_id, result.output) == ("call_1", "sunny")


async def test_a_tool_whose_executor_has_gone_is_an_error_and_not_the_end() -> None:
    parent = await plan_with(ToolServerFake("depot", stock=replies("3 left")))
    gone = Toolbox(tools=parent.toolbox.tools, executors=(), may_run=True)
    leftover = Leftover(PendingCall("call_1", "stock", "{}", None, server_called(1, status="completed")), gone)
    dispatch = await Dispatch(await plan_of(ask(), leftovers=(leftover,))).ended()
    (again,) = dispatch.after.output
    assert isinstance(again, McpCall)
    assert (again.status, again.error_text) == ("failed", "The tool 'stock' is not available any more.")
