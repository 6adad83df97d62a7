"""What a stream sends while the run has nothing to say: comments, events where a client would give up, and how far
tools say that they are.
"""

from __future__ import annotations

import asyncio
import gc
import math
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, Literal

import pytest

from antwort.api.events import (
    ArgumentsDone,
    McpArgumentsDone,
    McpCallInProgress,
    McpCallProgress,
    ResponseCreated,
    ResponseInProgress,
    StreamEvent,
)
from antwort.api.items import McpCall
from antwort.api.wire import UNSET, encode
from antwort.engine.engine import Engine
from antwort.engine.runs.keepalive import PROGRESS_INCLUDE, in_progress_events, progress_events
from antwort.engine.runs.live import LiveRun
from antwort.engine.runs.subscription import Subscription
from antwort.providers.base import ChatRequest, Delta, Finished, TextDelta
from antwort.storage.memory import MemoryStore
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import Progress, ToolCall, ToolContext, ToolResult
from antwort.tools.local import LocalExecutor
from approval_kit import GUARDED, decision
from engine_kit import SERVER, WEATHER, ask, engine_of, name_of, stream
from jumping_time import jumping_time
from plan_kit import server_called
from takeover_kit import Log, check_log, engine_on, records_of

SILENCE, LATE = 40.0, 600.0
CALL_IN_PROGRESS = "response.mcp_call.in_progress"
IN_PROGRESS = "response.in_progress"


async def names(run: Subscription) -> list[str]:
    """What the next read brings; a comment brings nothing."""
    return [name_of(event) for batch in await run.read() for event in batch.events]


async def until(run: Subscription, kind: type[StreamEvent], times: int = 1) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while sum(isinstance(event, kind) for event in events) < times:
        for batch in await run.read():
            events += batch.events
    return events


async def next_event(run: Subscription) -> list[str]:
    """What the next read brings that is no comment."""
    while not (sent := await names(run)):
        pass
    return sent


def live(engine: Engine, run: Subscription) -> LiveRun:
    return engine.live_runs[run.response_id]


def waits_for(gate: asyncio.Event) -> Callable[[ToolCall, ToolContext], Awaitable[ToolResult | str]]:
    async def work(asked: ToolCall, context: ToolContext) -> str:
        await gate.wait()
        return "done"

    return work


# ---- while a tool works ----


@pytest.mark.proves("RULING-10", "FR-023")
@jumping_time
async def test_while_a_servers_tool_works_for_long_the_response_is_in_progress_in_numbered_events() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", dig=waits_for(gate)), progress_interval=10)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    before = await until(run, McpArgumentsDone)
    assert isinstance(before[0], ResponseCreated)
    number = len(before)
    for _ in range(3):
        (batch,) = await run.read()
        assert (batch.first, batch.events) == (number, [ResponseInProgress(response=before[0].response)])
        assert before[0].response.output == ()
        number += 1
    gate.set()
    assert (await run.result()).status == "completed"


@jumping_time
async def test_the_response_is_in_progress_as_long_as_one_of_the_calls_is_running() -> None:
    quick, slow = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider(answer(call("quick"), call("slow")), answer(say("Ok")))
    depot = ToolServerFake("depot", quick=waits_for(quick), slow=waits_for(slow))
    run = await engine_of(provider, depot).start(ask(tools=[SERVER], stream=True))
    await until(run, McpArgumentsDone, times=2)
    assert await next_event(run) == [IN_PROGRESS]
    quick.set()
    while "response.mcp_call.completed" not in await names(run):
        pass
    assert await next_event(run) == [IN_PROGRESS]
    slow.set()
    assert (await run.result()).status == "completed"


@jumping_time
async def test_while_an_approved_call_works_it_is_the_same() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(call("ship")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", ship=waits_for(gate)))
    paused = await engine.create(ask(tools=[GUARDED]))
    request = ask([decision(paused)], previous_response_id=paused.id, tools=[GUARDED], stream=True)
    run = await engine.start(request)
    await until(run, McpArgumentsDone)
    assert await next_event(run) == [IN_PROGRESS]
    gate.set()
    assert (await run.result()).status == "completed"


@pytest.mark.proves("RULING-10")
@jumping_time
async def test_while_a_declared_function_works_here_it_is_the_same() -> None:
    gate = asyncio.Event()

    async def weather(city: str) -> str:
        await gate.wait()
        return f"sunny in {city}"

    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny")))
    run = await engine_of(provider, LocalExecutor(weather)).start(ask(tools=[WEATHER], stream=True))
    await until(run, ArgumentsDone)
    while (sent := await next_event(run)) != [IN_PROGRESS]:
        assert IN_PROGRESS not in sent
    assert await next_event(run) == [IN_PROGRESS]
    gate.set()
    assert (await run.result()).status == "completed"


@jumping_time
async def test_keep_alives_are_for_those_that_read_and_are_no_part_of_the_response() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def dig(asked: ToolCall, context: ToolContext) -> str:
        begun.set()
        await gate.wait()
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", dig=dig), progress_interval=5)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    await begun.wait()
    log = live(engine, run).log
    sent = log.next
    await asyncio.sleep(30)
    assert log.next == sent, "nobody reads"
    before = run.response
    await until(run, ResponseInProgress, times=3)
    assert log.next > sent
    assert run.response is before
    gate.set()
    assert (await run.result()).status == "completed"


# ---- what a tool reports ----


def reporting(times: int, reported: asyncio.Event, gate: asyncio.Event) -> ToolServerFake:
    async def work(asked: ToolCall, context: ToolContext) -> str:
        await reported.wait()
        for _ in range(times):
            context.progress("on my way")
        await gate.wait()
        return "done"

    return ToolServerFake("depot", dig=work)


async def test_a_report_is_passed_on_at_once_but_not_each_one() -> None:
    reported, gate = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, reporting(1000, reported, gate), keepalive_interval=LATE, progress_interval=LATE)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    before = await until(run, McpArgumentsDone)
    reported.set()
    assert await names(run) == [CALL_IN_PROGRESS]
    assert live(engine, run).log.next == len(before) + 1
    gate.set()
    assert (await run.result()).status == "completed"


@jumping_time
async def test_reports_that_are_far_enough_apart_are_all_passed_on() -> None:
    steps = [asyncio.Event() for _ in range(3)]

    async def work(asked: ToolCall, context: ToolContext) -> str:
        for step in steps:
            await step.wait()
            context.progress("on my way")
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(
        provider, ToolServerFake("depot", dig=work), keepalive_interval=LATE, progress_interval=LATE, hold_back=0
    )
    run = await engine.start(ask(tools=[SERVER], stream=True))
    await until(run, McpArgumentsDone)
    for step in steps[:-1]:
        reading = asyncio.create_task(names(run))
        await asyncio.sleep(1)
        step.set()
        assert await reading == [CALL_IN_PROGRESS]
    steps[-1].set()
    assert (await run.result()).status == "completed"


async def test_a_report_of_a_tool_whose_call_has_ended_is_not_passed_on() -> None:
    contexts: list[ToolContext] = []
    gate = asyncio.Event()

    async def work(asked: ToolCall, context: ToolContext) -> str:
        contexts.append(context)
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("O"), gate, say("k")))
    engine = engine_of(provider, ToolServerFake("depot", dig=work))
    run = await engine.start(ask(tools=[SERVER], stream=True))
    while "response.output_text.delta" not in await names(run):
        pass
    reading = asyncio.create_task(names(run))
    await asyncio.sleep(0)
    sent = live(engine, run).log.next
    contexts[0].progress("still here")
    assert live(engine, run).log.next == sent
    gate.set()
    await reading
    assert (await run.result()).status == "completed"


# ---- while the model is silent ----


class Slow(ScriptedProvider):
    """Says a word after each of these seconds."""

    def __init__(self, *pauses: float) -> None:
        super().__init__()
        self._pauses = pauses

    async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
        yield []
        for seconds in self._pauses:
            await asyncio.sleep(seconds)
            yield [TextDelta("word ")]
        yield [Finished("stop")]


async def kept_alive(provider: ScriptedProvider, **settings: Any) -> list[list[str]]:
    """What each read brings while the provider answers, but for the words."""
    run = await engine_of(provider, **settings).start(ask(stream=True))
    await run.answered()
    reads: list[list[str]] = []
    while batches := await run.read():
        reads.append([name_of(event) for batch in batches for event in batch.events])
    return [read for read in reads[1:] if read in ([], [IN_PROGRESS])]


@pytest.mark.proves("RULING-10")
@pytest.mark.parametrize("words", [0, 1], ids=["before the first item", "inside an item"])
@jumping_time
async def test_a_long_silence_is_broken_by_an_event_though_comments_are_the_setting(words: int) -> None:
    kept = await kept_alive(Slow(*words * [0], 140), keepalive_interval=LATE, longest_silence=SILENCE)
    assert kept == 3 * [[IN_PROGRESS]]


@jumping_time
async def test_a_silence_is_one_without_events_and_comments_do_not_end_it() -> None:
    assert await kept_alive(Slow(0, 50), longest_silence=SILENCE) == [[], [], [IN_PROGRESS]]


@jumping_time
async def test_a_silence_that_is_broken_in_time_needs_no_event() -> None:
    settings = {"keepalive_interval": LATE, "longest_silence": SILENCE}
    assert await kept_alive(Slow(*5 * [30]), **settings) == []
    assert await kept_alive(Slow(*5 * [30], 50, 30), **settings) == [[IN_PROGRESS]]


@jumping_time
async def test_where_comments_are_not_wanted_each_keep_alive_is_an_event() -> None:
    assert await kept_alive(Slow(0, 65), keepalive="in_progress") == 3 * [[IN_PROGRESS]]


class SlowStore(MemoryStore):
    """Takes its time to commit an outcome."""

    async def finish(self, *args: Any) -> None:
        await asyncio.sleep(200)
        await super().finish(*args)


@jumping_time
async def test_while_the_outcome_is_recorded_keep_alives_are_comments() -> None:
    """The events are recorded with it: there can be no more of them."""
    store = SlowStore()
    engine = engine_of(ScriptedProvider(answer(say("Hello"))), store=store)
    outcome = await stream(engine, ask())
    assert outcome.names.count(IN_PROGRESS) == 1
    run = await engine_of(ScriptedProvider(answer(say("Hello"))), store=store).start(ask(stream=True))
    reads: list[list[str]] = []
    while not reads or reads[-1][-1:] != ["response.completed"]:
        reads.append(await names(run))
    assert reads.count([]) > 3


# ---- a run that another process can continue ----


@jumping_time
async def test_the_keep_alives_of_a_durable_run_are_recorded_with_numbers_of_their_own() -> None:
    log = Log()
    async with engine_on(log, Slow(0, 140), longest_silence=SILENCE) as engine:
        run = await engine.start(ask(stream=True), on_disconnect="continue")
        numbers = [(number, name_of(event)) async for number, event in run.events()]
        records = await records_of(log, run.response_id, follow=True)
        events = check_log(records, await engine.ended(run.response_id))
        await run.close()
    assert [number for number, _ in numbers] == list(range(len(numbers)))
    assert [name for _, name in numbers].count(IN_PROGRESS) == 1 + 3
    assert sum(isinstance(event, ResponseInProgress) for event in events) == 1 + 3


# ---- nothing is left behind ----


@jumping_time
async def test_no_timer_holds_a_run_that_has_ended() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hello"))), keepalive_interval=LATE, progress_interval=LATE)
    run = await engine.start(ask(stream=True))
    held = weakref.ref(live(engine, run))
    while await names(run):
        pass
    await run.wait()
    del run
    gc.collect()
    assert held() is None


@jumping_time
async def test_a_run_that_nobody_streams_has_no_keep_alives() -> None:
    engine = engine_of(Slow(0, 500), longest_silence=SILENCE)
    run = await engine.start(ask())
    await asyncio.sleep(10)
    log = live(engine, run).log
    sent = log.next
    await asyncio.sleep(400)
    assert log.next == sent
    assert (await run.result()).status == "completed"


async def test_a_stream_without_a_silence_has_no_keep_alives() -> None:
    outcome = await stream(engine_of(ScriptedProvider(answer(say("Hello")))), ask())
    assert outcome.names.count(IN_PROGRESS) == 1


def test_a_call_is_in_progress_while_it_is_open_and_running() -> None:
    def shown(call_id: str, status: Literal["in_progress", "completed"]) -> McpCall:
        return McpCall(
            id=f"mcp_{call_id}", server_label="depot", name="dig", arguments="", status=status, call_id=call_id
        )

    output = [shown("a", "in_progress"), shown("b", "completed"), shown("c", "in_progress")]
    assert in_progress_events(output, {"a", "b"}) == [McpCallInProgress(item_id="mcp_a", output_index=0)]


# ---- how far tools are, for requests that include it ----


class Digging(ToolServerFake):
    """A tool that reports so often, and then waits until it may end."""

    def __init__(self, *reports: str | Progress) -> None:
        super().__init__("depot", dig=self._dig)
        self.gate = asyncio.Event()
        self._reports = reports

    async def _dig(self, asked: ToolCall, context: ToolContext) -> str:
        for report in self._reports:
            context.progress(report)
        await self.gate.wait()
        return "done"


async def streamed(depot: Digging, times: int, *, include: Sequence[str] = (PROGRESS_INCLUDE,)) -> list[StreamEvent]:
    """All events. The tool ends when its progress was sent so often."""
    engine = engine_of(ScriptedProvider(answer(call("dig")), answer(say("Ok."))), depot)
    run = await engine.start(ask(tools=[SERVER], stream=True, include=list(include)))
    events: list[StreamEvent] = []
    while batches := await run.read():
        events += [event for batch in batches for event in batch.events]
        if len(progress_in(events)) >= times:
            depot.gate.set()
    return events


def progress_in(events: Sequence[StreamEvent]) -> list[McpCallProgress]:
    return [event for event in events if isinstance(event, McpCallProgress)]


async def test_a_request_that_includes_it_gets_how_far_a_tool_is() -> None:
    (event,) = progress_in(await streamed(Digging(Progress(done=1, total=4, message="a metre")), 1))
    assert (event.progress, event.total, event.message, event.output_index) == (1, 4, "a metre", 1)


async def test_a_report_of_words_alone_is_a_message() -> None:
    (event,) = progress_in(await streamed(Digging("half way"), 1))
    assert (event.progress, event.total, event.message) == (UNSET, UNSET, "half way")


async def test_a_request_that_does_not_include_it_gets_no_such_event() -> None:
    depot = Digging(Progress(done=1))
    depot.gate.set()
    assert progress_in(await streamed(depot, 1, include=[])) == []


@jumping_time
async def test_of_a_tool_that_reports_all_the_time_the_latest_is_sent_now_and_then() -> None:
    events = progress_in(await streamed(Digging(*(Progress(done=n, total=10_000) for n in range(10_000))), 2))
    assert [event.progress for event in events] == [0, 9_999]


async def test_progress_takes_the_place_of_events_that_the_call_is_in_progress() -> None:
    events = await streamed(Digging(Progress(done=1)), 1)
    assert sum(isinstance(event, McpCallInProgress) for event in events) == 1


async def test_a_function_that_the_request_declares_has_no_item_for_its_progress() -> None:
    async def weather(city: str, context: ToolContext) -> str:
        context.progress(Progress(done=1))
        return city

    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Ok.")))
    outcome = await stream(
        engine_of(provider, LocalExecutor(weather)), ask(tools=[WEATHER], include=[PROGRESS_INCLUDE])
    )
    assert progress_in(outcome.events) == []


async def test_what_is_reported_while_the_turn_is_being_written_is_not_sent() -> None:
    begun = asyncio.Event()

    async def look(asked: ToolCall, context: ToolContext) -> str:
        context.progress("early")
        begun.set()
        return "seen"

    server = ToolServerFake("depot", look=look)
    provider = ScriptedProvider(answer(call("look"), call("look"), begun), answer(say("Ok.")))
    outcome = await stream(engine_of(provider, server), ask(tools=[SERVER], include=[PROGRESS_INCLUDE]))
    places = [event.output_index for event in progress_in(outcome.events)]
    assert 1 not in places  # the first call; the list is before it


@jumping_time
async def test_a_reader_that_is_behind_gets_the_latest_when_it_has_read_the_rest() -> None:
    steps = [asyncio.Event() for _ in range(2)]

    async def dig(asked: ToolCall, context: ToolContext) -> str:
        context.progress(Progress(done=1))
        await steps[0].wait()
        context.progress(Progress(done=2))
        context.progress(Progress(done=3))
        await steps[1].wait()
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok.")))
    engine = engine_of(provider, ToolServerFake("depot", dig=dig))
    run = await engine.start(ask(tools=[SERVER], stream=True, include=[PROGRESS_INCLUDE]))
    await until(run, McpArgumentsDone)
    steps[0].set()
    await asyncio.sleep(10)
    events = await until(run, McpCallProgress)
    assert [event.progress for event in progress_in(events)] == [3]
    steps[1].set()
    assert (await run.result()).status == "completed"


def test_a_message_is_cut_and_what_is_no_number_is_left_out() -> None:
    (event,) = progress_events(
        [server_called(1)], {"call_1": Progress(message="x" * 10_000, done=math.nan, total=math.inf)}
    )
    assert isinstance(event, McpCallProgress)
    assert (event.message, event.progress, event.total) == ("x" * 500, UNSET, UNSET)


def test_a_call_that_has_ended_has_no_progress() -> None:
    assert progress_events([server_called(1, status="completed", output="done")], {"call_1": Progress(done=1)}) == []


@pytest.mark.parametrize(
    "report",
    [Progress(message=5), Progress(done="x"), Progress(total=True), Progress(done=10**400), 7, None],  # type: ignore[arg-type]  # what untyped tools report
)
async def test_a_call_goes_on_whose_tool_reports_what_is_no_report(report: str | Progress) -> None:
    (event,) = progress_in(await streamed(Digging(report), 1))
    assert (event.progress, event.total, event.message) == (UNSET, UNSET, UNSET)


async def test_half_a_surrogate_pair_in_a_message_does_not_break_the_stream() -> None:
    (event,) = progress_in(await streamed(Digging("a\ud800b"), 1))
    assert event.message == "a?b"
    assert b"a?b" in encode(event)


def test_a_number_that_is_too_long_to_be_exact_is_sent_as_one_that_all_can_read() -> None:
    (event,) = progress_events([server_called(1)], {"call_1": Progress(done=2**80, total=2**53 - 1)})
    assert isinstance(event, McpCallProgress)
    assert (event.progress, event.total) == (2.0**80, 2**53 - 1)
    assert encode(event)
