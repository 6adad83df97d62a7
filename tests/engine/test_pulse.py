"""Signs of life on a stream that has nothing to say: comments, and events where a client would give up."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

import pytest
from antwort.engine.pulse import at_work

from antwort.api.events import (
    ArgumentsDone,
    McpArgumentsDone,
    McpCallInProgress,
    ResponseCreated,
    ResponseInProgress,
    StreamEvent,
)
from antwort.api.items import McpCall
from antwort.engine.runs.subscription import Subscription
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolResult
from antwort.tools.local import LocalExecutor
from approval_kit import GUARDED, decision
from engine_kit import SERVER, WEATHER, ask, engine_of, name_of, stream
from jumping_time import jumping_time

SOON = 0.01
LATE = 600.0
AT_WORK = "response.mcp_call.in_progress"
GOES_ON = "response.in_progress"


async def names(run: Subscription) -> list[str]:
    """What the next read brings; a comment brings nothing."""
    return [name_of(event) for batch in await run.read() for event in batch.events]


async def until(run: Subscription, kind: type[StreamEvent], times: int = 1) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while sum(isinstance(event, kind) for event in events) < times:
        for batch in await run.read():
            events += batch.events
    return events


def waits_for(gate: asyncio.Event) -> Callable[[ToolCall, ToolContext], Awaitable[ToolResult | str]]:
    async def work(asked: ToolCall, context: ToolContext) -> str:
        await gate.wait()
        return "done"

    return work


# ---- while a tool works ----


@pytest.mark.proves("RULING-10", "FR-023")
async def test_while_a_server_tool_works_for_long_the_response_goes_on_in_numbered_events() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", dig=waits_for(gate)), progress_interval=SOON)
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


async def test_the_response_goes_on_as_long_as_one_of_the_calls_is_running() -> None:
    quick, slow = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider(answer(call("quick"), call("slow")), answer(say("Ok")))
    depot = ToolServerFake("depot", quick=waits_for(quick), slow=waits_for(slow))
    run = await engine_of(provider, depot, progress_interval=SOON).start(ask(tools=[SERVER], stream=True))
    await until(run, McpArgumentsDone, times=2)
    assert await names(run) == [GOES_ON]
    quick.set()
    while "response.mcp_call.completed" not in await names(run):
        pass
    assert await names(run) == [GOES_ON]
    slow.set()
    assert (await run.result()).status == "completed"


async def test_while_an_approved_call_works_it_is_the_same() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(call("ship")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", ship=waits_for(gate)), progress_interval=SOON)
    paused = await engine.create(ask(tools=[GUARDED]))
    request = ask([decision(paused)], previous_response_id=paused.id, tools=[GUARDED], stream=True)
    run = await engine.start(request)
    await until(run, McpArgumentsDone)
    assert await names(run) == [GOES_ON]
    gate.set()
    assert (await run.result()).status == "completed"


@pytest.mark.proves("RULING-10")
async def test_while_a_declared_function_works_here_it_is_the_same() -> None:
    gate = asyncio.Event()

    async def weather(city: str) -> str:
        await gate.wait()
        return f"sunny in {city}"

    provider = ScriptedProvider(answer(call("weather", city="Paris")), answer(say("Sunny")))
    engine = engine_of(provider, LocalExecutor(weather), progress_interval=SOON)
    run = await engine.start(ask(tools=[WEATHER], stream=True))
    await until(run, ArgumentsDone)
    while (sent := await names(run)) != [GOES_ON]:
        assert GOES_ON not in sent
    assert await names(run) == [GOES_ON]
    gate.set()
    assert (await run.result()).status == "completed"


async def test_progress_is_for_those_who_read_and_is_no_part_of_the_response() -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def dig(asked: ToolCall, context: ToolContext) -> str:
        begun.set()
        await gate.wait()
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, ToolServerFake("depot", dig=dig), progress_interval=SOON)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    await begun.wait()
    sent = run._outlet.sent
    await _let_looks_pass(20)
    assert run._outlet.sent == sent, "nobody reads"
    before = run.response
    await until(run, ResponseInProgress, times=3)
    assert run.response is before
    gate.set()
    assert (await run.result()).status == "completed"


async def _let_looks_pass(looks: int) -> None:
    passed = asyncio.Event()
    asyncio.get_running_loop().call_later(looks * SOON / 4, passed.set)
    await passed.wait()


# ---- what a tool says itself ----


def reporting(times: int, reported: asyncio.Event, gate: asyncio.Event) -> ToolServerFake:
    async def work(asked: ToolCall, context: ToolContext) -> str:
        await reported.wait()
        for _ in range(times):
            context.progress("on my way")
        await gate.wait()
        return "done"

    return ToolServerFake("depot", dig=work)


async def test_what_a_tool_reports_is_passed_on_at_once_but_not_each_time() -> None:
    reported, gate = asyncio.Event(), asyncio.Event()
    provider = ScriptedProvider(answer(call("dig")), answer(say("Ok")))
    engine = engine_of(provider, reporting(1000, reported, gate), keepalive_interval=LATE, progress_interval=LATE)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    before = await until(run, McpArgumentsDone)
    reported.set()
    assert await names(run) == [AT_WORK]
    assert run._outlet.sent == len(before) + 1
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
        assert await reading == [AT_WORK]
    steps[-1].set()
    assert (await run.result()).status == "completed"


async def test_a_tool_that_reports_after_its_call_has_ended_is_not_heard() -> None:
    contexts: list[ToolContext] = []
    gate = asyncio.Event()

    async def work(asked: ToolCall, context: ToolContext) -> str:
        contexts.append(context)
        return "done"

    provider = ScriptedProvider(answer(call("dig")), answer(say("O"), gate, say("k")))
    run = await engine_of(provider, ToolServerFake("depot", dig=work)).start(ask(tools=[SERVER], stream=True))
    while "response.output_text.delta" not in await names(run):
        pass
    reading = asyncio.create_task(names(run))
    await asyncio.sleep(0)
    sent = run._outlet.sent
    contexts[0].progress("still here")
    assert run._outlet.sent == sent
    gate.set()
    await reading
    assert (await run.result()).status == "completed"


# ---- while the model is silent ----


@pytest.mark.proves("RULING-10")
@pytest.mark.parametrize("said", ["", "It"], ids=["before the first item", "inside an item"])
async def test_a_long_silence_is_broken_by_an_event_though_comments_are_the_setting(said: str) -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(say(said) if said else [], gate, say("is")))
    run = await engine_of(provider, longest_silence=SOON, hold_back=0).start(ask(stream=True))
    await run.answered()
    for _ in range(3):
        while await names(run) != [GOES_ON]:
            pass
    gate.set()
    assert (await run.result()).status == "completed"


async def test_a_silence_is_one_without_events_and_comments_do_not_end_it() -> None:
    gate = asyncio.Event()
    provider = ScriptedProvider(answer(say("It"), gate))
    run = await engine_of(provider, longest_silence=4 * SOON, keepalive_interval=SOON).start(ask(stream=True))
    while "response.output_text.delta" not in await names(run):
        pass
    seen = [await names(run) for _ in range(8)]
    assert [] in seen, "comments"
    assert [GOES_ON] in seen, "and an event after some of them"
    run.leave()
    await run.result()


async def test_a_silence_that_is_broken_in_time_needs_no_event() -> None:
    reader: list[asyncio.Task[None]] = []
    run, reading = await _silent(reader)
    assert run._pulse is not None
    looks = round(run._pulse._longest / run._pulse._step)
    for _ in range(3):
        for _ in range(looks - 1):
            run._pulse._look()
        assert await _came(reading) == []
        run._outlet.publish([ResponseInProgress(response=run.response)])
        run._pulse._look()
        assert await _came(reading) == [GOES_ON]
    for _ in range(looks):
        run._pulse._look()
    assert await _came(reading) == [GOES_ON]
    run.leave()
    await run.result()
    await reader[0]


async def _silent(reader: list[asyncio.Task[None]]) -> tuple[Subscription, list[list[str]]]:
    """A run with nothing to say, and what its reader gets, which is never any comment."""
    engine = engine_of(ScriptedProvider(answer(asyncio.Event())), keepalive_interval=60, longest_silence=40)
    run = await engine.start(ask(stream=True))
    reading: list[list[str]] = []

    async def read() -> None:
        while new := await names(run):
            reading.append(new)

    reader.append(asyncio.create_task(read()))
    await run.answered()
    await _came(reading)
    return run, reading


async def _came(reading: list[list[str]]) -> list[str]:
    for _ in range(3):
        await asyncio.sleep(0)
    new = [name for names in reading for name in names]
    reading.clear()
    return new


# ---- nothing is left behind ----


async def test_no_timer_holds_a_run_that_has_ended() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hello"))), keepalive_interval=LATE, progress_interval=LATE)
    run = await engine.start(ask(stream=True))
    while await names(run):
        pass
    await run.wait()
    assert run._pulse is not None
    assert run._pulse._timer.cancelled()


async def test_a_run_that_nobody_streams_has_no_pulse() -> None:
    run = await engine_of(ScriptedProvider(answer(say("Hello")))).start(ask())
    assert run._pulse is None
    assert (await run.result()).status == "completed"


async def test_a_stream_without_a_silence_is_the_same_as_ever() -> None:
    outcome = await stream(engine_of(ScriptedProvider(answer(say("Hello")))), ask())
    assert outcome.names.count(GOES_ON) == 1


def test_a_call_is_at_work_while_it_is_open_and_running() -> None:
    def shown(call_id: str, status: Literal["in_progress", "completed"]) -> McpCall:
        return McpCall(
            id=f"mcp_{call_id}", server_label="depot", name="dig", arguments="", status=status, call_id=call_id
        )

    output = [shown("a", "in_progress"), shown("b", "completed"), shown("c", "in_progress")]
    assert at_work(output, {"a", "b"}) == [McpCallInProgress(item_id="mcp_a", output_index=0)]
