"""Running calls: each ends in exactly one result, and results become events in the right order."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from antwort import Engine, EngineSettings, Identity, Response, StreamEvent
from antwort.api.events import OutputItemAdded, OutputItemDone
from antwort.api.items import FunctionCall, FunctionCallOutput, InputImage, InputText, McpCall, OutputItem
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.loop.tool_runner import CallEnd, CallRecord
from antwort.engine.runs.subscription import Subscription
from antwort.identity import ANONYMOUS
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import Output, ToolCall, ToolContext, ToolDefinition, ToolExecutor, ToolKind, ToolResult
from antwort.tools.limits import ToolLimits
from engine_kit import CLOCK, SERVER, WEATHER, ask, function_calls, kinds, name_of, only, replies
from jumping_time import jumping_time
from serving import until
from takeover_kit import DEPOT, Depot, Log, Story, engine_on, events_of, records_of

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
    """Tools that answer when they are told to, each call with its number."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self._open: dict[int, asyncio.Event] = {}

    async def __call__(self, call: ToolCall, context: ToolContext) -> str:
        self.begun.append(n := number_in(call.arguments))
        await self._gate(n).wait()
        return f"result of {n}"

    def open(self, n: int) -> None:
        self._gate(n).set()

    def _gate(self, n: int) -> asyncio.Event:
        return self._open.setdefault(n, asyncio.Event())


def number_in(arguments: str) -> int:
    n: int = json.loads(arguments)["n"]
    return n


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


class Dispatch:
    """A run whose model calls these tools, the n-th call with the argument `n`, and then has no more to say."""

    def __init__(self, engine: Engine, run: Subscription, ends: list[CallRecord]) -> None:
        self.run = run
        self.events: list[StreamEvent] = []
        self._engine, self._ends = engine, ends
        self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for _, event in self.run.events():
            self.events.append(event)

    async def ended(self) -> Response:
        await self._reading
        return await self.run.result()

    async def cancelled(self) -> Response:
        await self._engine.cancel(ANONYMOUS, self.run.response_id)
        return await self.ended()

    @property
    def done(self) -> list[OutputItem]:
        """The items that are closed."""
        return [event.item for event in self.events if isinstance(event, OutputItemDone)]

    @property
    def results(self) -> list[tuple[int, Output]]:
        """Those of the calls, as they came."""
        numbers = {item.call_id: number_in(item.arguments) for item in self.done if isinstance(item, FunctionCall)}
        found: list[tuple[int, Output]] = []
        for item in self.done:
            if isinstance(item, FunctionCallOutput):
                found.append((numbers[item.call_id], item.output))
            elif isinstance(item, McpCall) and item.output is not None:
                found.append((number_in(item.arguments), item.output))
        return found

    @property
    def ends(self) -> list[tuple[str, CallEnd]]:
        return [(record.tool, record.end) for record in self._ends]


async def dispatch_of(*calls: str, executors: Sequence[ToolExecutor], **fields: Any) -> Dispatch:
    """The calls come in one turn, and none begins before it has ended."""
    provider = ScriptedProvider(
        answer(*[call(name, n=n) for n, name in enumerate(calls, 1)]), answer(say("That is all."))
    )
    ends: list[CallRecord] = []
    engine = Engine(provider, executors=executors, settings=EngineSettings(eager=False), on_call=[ends.append])
    server = [SERVER] if any(isinstance(each, ToolServerFake) for each in executors) else []
    run = await engine.start(ask(tools=[WEATHER, CLOCK, *server], stream=True, **fields))
    return Dispatch(engine, run, ends)


# ---- order ----


@pytest.mark.proves("FR-016", "FR-017", "MISTAKE-12")
async def test_functions_run_together_and_their_results_come_in_the_order_of_the_calls() -> None:
    gates = Gates()
    dispatch = await dispatch_of("weather", "weather", "weather", executors=[Bare(weather=gates)])
    await settle()
    assert gates.begun == [1, 2, 3]
    gates.open(3)
    await settle()
    assert dispatch.results == []
    gates.open(1)
    await settle()
    assert dispatch.results == [(1, "result of 1")]
    gates.open(2)
    await dispatch.ended()
    assert dispatch.results == [(1, "result of 1"), (2, "result of 2"), (3, "result of 3")]


async def test_a_servers_call_holds_up_no_function_behind_it() -> None:
    gates = Gates()
    executors: list[ToolExecutor] = [Bare(weather=gates), ToolServerFake("depot", stock=gates)]
    dispatch = await dispatch_of("stock", "weather", executors=executors)
    await settle()
    gates.open(2)
    await settle()
    assert dispatch.results == [(2, "result of 2")]
    gates.open(1)
    await dispatch.ended()


@pytest.mark.proves("FR-009")
async def test_what_is_refused_is_told_at_once_beside_the_others() -> None:
    gates = Gates()
    dispatch = await dispatch_of("clock", "weather", executors=[Bare(weather=gates)], allowed_tools=["weather"])
    await settle()
    (item,) = (item for item in dispatch.done if isinstance(item, McpCall))
    assert (item.status, item.error_text) == ("failed", "The tool 'clock' is not allowed in this request.")
    gates.open(2)
    await dispatch.ended()
    assert dispatch.ends == [("clock", "refused"), ("weather", "ok")]


# ---- exactly one result ----


async def _result_of(tool: Tool) -> FunctionCallOutput:
    dispatch = await dispatch_of("weather", executors=[Bare(weather=tool)])
    return only(await dispatch.ended(), FunctionCallOutput)


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
    dispatch = await dispatch_of("stock", executors=[ToolServerFake("depot", stock=draw)])
    await dispatch.ended()
    assert dispatch.results == [(1, "A map:\n[input_image]")]


async def test_the_result_of_another_call_is_none_of_this_one() -> None:
    async def mixed_up(call: ToolCall, context: ToolContext) -> ToolResult:
        return ToolResult("somebody else's", "3 left")

    dispatch = await dispatch_of("stock", executors=[ToolServerFake("depot", stock=mixed_up)])
    item = only(await dispatch.ended(), McpCall)
    assert item.error_text == "The tool 'stock' did not answer with a result of this call."
    assert dispatch.ends == [("stock", "error")]


async def test_a_result_is_an_item_of_its_own_with_an_index_and_an_id() -> None:
    dispatch = await dispatch_of("weather", "weather", executors=[Bare(weather=replies("sunny"))])
    response = await dispatch.ended()
    items = [event for event in dispatch.events if isinstance(event, OutputItemAdded | OutputItemDone)]
    events = [event for event in items if isinstance(event.item, FunctionCallOutput)]
    assert [name_of(event) for event in events] == 2 * ["response.output_item.added", "response.output_item.done"]
    assert [event.output_index for event in events] == [2, 2, 3, 3]
    assert kinds(response) == ["function_call"] * 2 + ["function_call_output"] * 2 + ["message"]
    assert len({item.id for item in response.output}) == 5


# ---- what a tool is told ----


@pytest.mark.proves("FR-001")
async def test_a_call_knows_its_definition_and_whom_it_is_for() -> None:
    bare, now = Bare(weather=(gates := Gates())), asyncio.get_running_loop().time()
    dispatch = await dispatch_of("weather", executors=[bare], deadline=600)
    await settle()
    (item,) = (item for item in dispatch.done if isinstance(item, FunctionCall))
    (call,), (context,) = bare.calls, bare.contexts
    assert (call.id, call.name, call.arguments) == (item.call_id, "weather", '{"n":1}')
    assert (call.definition.name, call.definition.parameters) == ("weather", WEATHER["parameters"])
    assert (context.response_id, context.idempotency_key) == (dispatch.run.response_id, call.id)
    assert context.deadline is not None
    assert 599 < context.deadline - now < 602
    assert context.identity == Identity()
    assert not context.cancelled.is_set()
    await dispatch.cancelled()
    assert context.cancelled.is_set()
    assert gates.begun == [1]


# ---- stopping ----


@pytest.mark.proves("FR-014", "TR-021")
async def test_a_run_that_stops_keeps_the_results_it_has_also_behind_one_that_will_not_come() -> None:
    """The tool has run; a follow-up must not run it again."""
    gates = Gates()
    dispatch = await dispatch_of("weather", "weather", "weather", executors=[Bare(weather=gates)])
    await settle()
    gates.open(2)
    await settle()
    assert dispatch.results == []
    assert (await dispatch.cancelled()).status == "cancelled"
    assert dispatch.results == [(1, INTERRUPTED), (2, "result of 2"), (3, INTERRUPTED)]


async def test_a_result_that_comes_while_stopping_still_counts() -> None:
    async def tidy(call: ToolCall, context: ToolContext) -> str:
        if number_in(call.arguments) == 1:
            await asyncio.Event().wait()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "just in time"
        raise AssertionError("not reached")

    dispatch = await dispatch_of("weather", "weather", executors=[Bare(weather=tidy)])
    await settle()
    await dispatch.cancelled()
    assert dispatch.results == [(1, INTERRUPTED), (2, "just in time")]


@jumping_time
async def test_a_run_that_is_broken_off_stops_its_tools() -> None:
    """One that others continue is, when the time to end its step is over."""
    gates, closed = Gates(), asyncio.Event()

    async def hold(call: ToolCall, context: ToolContext) -> str:
        try:
            return await gates(call, context)
        finally:
            if number_in(call.arguments) == 2:
                closed.set()

    story = Story(answer(call("sell", n=1), call("sell", n=2)))
    async with engine_on(log := Log(), story, Depot(sell=hold), eager=False) as engine:
        run = await engine.start(ask(tools=[DEPOT], stream=True), on_disconnect="continue")
        await until(lambda: gates.begun == [1, 2])
        gates.open(1)
        await asyncio.sleep(1)
        assert not closed.is_set()
        await engine.drain(5)
        assert closed.is_set()
        records = await records_of(log, run.response_id, follow=False)
    done = [event.item for event in events_of(records) if isinstance(event, OutputItemDone)]
    assert [item.output for item in done if isinstance(item, McpCall)] == ["result of 1"]


# ---- what an earlier response left open ----


@pytest.mark.proves("MIXED-2")
async def test_a_function_left_open_gets_its_result_and_a_servers_call_is_shown_again() -> None:
    depot = ToolServerFake("depot", "depot_", stock=replies("3 left"))
    provider = ScriptedProvider(
        answer(call("weather", n=1), call("depot_stock", n=2), call("clock")), answer(say("That is all."))
    )
    engine = Engine(provider, executors=[Bare(weather=replies("sunny")), depot])
    first = await engine.create(ask(tools=[WEATHER, CLOCK, SERVER]))
    old, (open_call, clock) = only(first, McpCall), function_calls(first)
    noon = {"type": "function_call_output", "call_id": clock.call_id, "output": "noon"}
    response = await engine.create(ask([noon], previous_response_id=first.id))
    again, result = only(response, McpCall), only(response, FunctionCallOutput)
    assert again.id != old.id
    assert (again.name, again.arguments) == ("stock", '{"n":2}')
    assert (again.status, again.output, again.error) == ("completed", "3 left", None)
    assert (result.call_id, result.output) == (open_call.call_id, "sunny")
