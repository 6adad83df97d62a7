"""Runs that are told to stop: cancelled, left, out of time, shut down; and readers who are slow."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import pytest

from antwort.api.events import (
    McpCallCompleted,
    OutputTextDelta,
    ResponseFailed,
    ResponseIncomplete,
    StreamEvent,
)
from antwort.api.items import FunctionCall, McpCall, McpListTools, Message
from antwort.api.responses import IncompleteDetails, Model
from antwort.api.tools import McpTool
from antwort.engine.engine import Engine
from antwort.engine.history.refusals import NOT_BEGUN
from antwort.engine.loop.result_events import INTERRUPTED
from antwort.engine.runs.subscription import Subscription
from antwort.engine.settings import EngineSettings
from antwort.errors import (
    BackendError,
    BackendTimeout,
    BackendUnavailable,
    ConversationLocked,
    DeadlinePassed,
    RateLimited,
    ResponseNotFound,
    ShuttingDown,
)
from antwort.identity import ANONYMOUS, Identity
from antwort.providers.base import ChatRequest, Delta, TextDelta
from antwort.storage.base import NewResponse
from antwort.storage.memory import MemoryStore
from antwort.testing import Answer, ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import ToolCall, ToolContext, ToolDefinition
from antwort.tools.limits import ToolBounds, ToolLimits
from antwort.tools.local import LocalExecutor
from engine_kit import (
    CLOCK,
    SERVER,
    WEATHER,
    ask,
    engine_of,
    function_calls,
    kinds,
    name_of,
    only,
    outputs,
    sent_messages,
    server_calls,
    stream,
    text_of,
    weather_tool,
)


def hanging(words: str) -> Answer:
    """An answer that says some words and then nothing, for ever."""
    return answer(say(words), asyncio.Event())


async def read_until_text(run: Subscription) -> list[StreamEvent]:
    return await read_until(run, OutputTextDelta)


async def read_until(run: Subscription, kind: type[StreamEvent]) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while not any(isinstance(event, kind) for event in events):
        for batch in await run.read():
            events += batch.events
    return events


async def rest_of(run: Subscription) -> list[StreamEvent]:
    events: list[StreamEvent] = []
    while batches := await run.read():
        for batch in batches:
            events += batch.events
    return events


async def test_a_run_that_is_left_stops_the_backend_and_leaves_a_true_record() -> None:
    provider = ScriptedProvider(hanging("It is"))
    engine = engine_of(provider)
    run = await engine.start(ask(stream=True))
    await read_until_text(run)
    run.leave()
    response = await asyncio.wait_for(run.result(), 1)
    assert response.status == "cancelled"
    assert provider.under_way == 0
    stored = await engine.retrieve(ANONYMOUS, run.response_id)
    assert stored == response
    await run.wait()
    assert engine.live == 0


@pytest.mark.proves("EN-040", "RULING-9", "RULING-7", "MISTAKE-06", "FR-014")
async def test_cancelling_in_mid_stream_ends_with_incomplete_and_the_status_cancelled() -> None:
    provider = ScriptedProvider(hanging("It is"))
    engine = engine_of(provider)
    run = await engine.start(ask(stream=True))
    await read_until_text(run)
    response = await engine.cancel(ANONYMOUS, run.response_id)
    last = (await rest_of(run))[-1]
    assert isinstance(last, ResponseIncomplete)
    assert last.response == response
    assert response.status == "cancelled"
    assert [(item.status, text_of(response)) for item in response.output] == [("incomplete", "It is")]
    assert await engine.retrieve(ANONYMOUS, run.response_id) == response


@pytest.mark.proves("RULING-7")
async def test_cancelling_a_finished_response_returns_it_unchanged() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))))
    response = await engine.create(ask())
    assert await engine.cancel(ANONYMOUS, response.id) == response


@pytest.mark.proves("MISTAKE-28")
async def test_nobody_cancels_or_sees_another_owners_running_response() -> None:
    provider = ScriptedProvider(hanging("secret"))
    engine = engine_of(provider)
    run = await engine.start(ask(stream=True), Identity("default", "alice"))
    await read_until_text(run)
    for stranger in (Identity("default", "bob"), Identity("other", "alice")):
        with pytest.raises(ResponseNotFound):
            await engine.cancel(stranger, run.response_id)
        with pytest.raises(ResponseNotFound):
            await engine.retrieve(stranger, run.response_id)
        with pytest.raises(ResponseNotFound):
            await engine.delete(stranger, run.response_id)
    assert engine.live == 1
    run.leave()
    await run.result()


async def test_a_running_response_shows_as_it_stands() -> None:
    provider = ScriptedProvider(answer(call("weather", city="Paris")), hanging("It is"))
    engine = engine_of(provider, weather_tool())
    run = await engine.start(ask(tools=[WEATHER], stream=True))
    await read_until_text(run)
    seen = await engine.retrieve(ANONYMOUS, run.response_id)
    assert seen.status == "in_progress"
    assert kinds(seen) == ["function_call", "function_call_output", "message"]
    run.leave()
    await run.result()


async def test_deleting_a_running_response_ends_it_and_it_is_gone() -> None:
    provider = ScriptedProvider(hanging("It is"))
    engine = engine_of(provider)
    run = await engine.start(ask(stream=True))
    await read_until_text(run)
    await engine.delete(ANONYMOUS, run.response_id)
    with pytest.raises(ResponseNotFound):
        await engine.retrieve(ANONYMOUS, run.response_id)
    assert provider.under_way == 0


@pytest.mark.proves("FR-014", "TR-021")
async def test_leaving_stops_the_tools_too_and_closes_their_items() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def wait_for_ever(asked: ToolCall, context: ToolContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
            assert context.cancelled.is_set()
        return "never"

    provider = ScriptedProvider(answer(call("hang"), call("quick")))
    depot = ToolServerFake("depot", hang=wait_for_ever, quick=_quick)
    engine = engine_of(provider, depot)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    await started.wait()
    await read_until(run, McpCallCompleted)
    run.leave()
    response = await asyncio.wait_for(run.result(), 1)
    assert stopped.is_set()
    assert response.status == "cancelled"
    assert [item.status for item in server_calls(response)] == ["failed", "completed"]


async def _quick(asked: ToolCall, context: ToolContext) -> str:
    return "quick"


async def test_a_tool_that_will_not_stop_is_left_behind_within_a_second() -> None:
    release, started = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def clock() -> str:
        loop.call_soon_threadsafe(started.set)
        release.wait()
        return "too late"

    engine = engine_of(ScriptedProvider(answer(call("clock"))), LocalExecutor(clock))
    run = await engine.start(ask(tools=[CLOCK], stream=True))
    await started.wait()
    run.leave()
    response = await asyncio.wait_for(run.result(), 1.5)
    release.set()
    assert response.status == "cancelled"
    assert [item.output for item in outputs(response)] == [INTERRUPTED]


@pytest.mark.proves("TR-021")
@pytest.mark.parametrize("eager", [True, False])
async def test_a_tools_own_grace_does_not_hold_up_a_run_that_is_told_to_stop(eager: bool) -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def clock() -> str:
        started.set()
        while not release.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await release.wait()
        return "too late"

    limits = ToolLimits(grace=600)
    engine = engine_of(
        ScriptedProvider(answer(call("clock"))), LocalExecutor(clock), eager=eager, tool_limits=limits, tool_grace=0.01
    )
    run = await engine.start(ask(tools=[CLOCK], stream=True))
    await started.wait()
    run.leave()
    response = await asyncio.wait_for(run.result(), 5)
    assert (response.status, [item.output for item in outputs(response)]) == ("cancelled", [INTERRUPTED])
    release.set()
    await run.wait()


class Stopping:
    """How a run is told to stop while a tool works."""

    @staticmethod
    async def by_deadline(engine: Engine, run: Subscription) -> None:
        run.stop(DeadlinePassed())

    @staticmethod
    async def by_cancel(engine: Engine, run: Subscription) -> None:
        await engine.cancel(ANONYMOUS, run.response_id)

    @staticmethod
    async def by_leaving(engine: Engine, run: Subscription) -> None:
        run.leave()


@pytest.mark.parametrize("stop", [Stopping.by_deadline, Stopping.by_cancel, Stopping.by_leaving])
@pytest.mark.parametrize("parallel", [True, False])
async def test_a_function_that_has_begun_is_not_run_again_after_a_stop(
    stop: Callable[[Engine, Subscription], Awaitable[None]], parallel: bool
) -> None:
    begun = asyncio.Event()
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        if len(ran) == (2 if parallel else 1):
            begun.set()
            await asyncio.Event().wait()
        return "sunny"

    calls = [call("weather", city="Rome"), call("weather", city="Oslo")]
    provider = ScriptedProvider(answer(*calls), answer(say("Done.")))
    engine = engine_of(provider, LocalExecutor(weather))
    run = await engine.start(ask(tools=[WEATHER], stream=True, parallel_tool_calls=parallel))
    await begun.wait()
    await stop(engine, run)
    first = await run.result()
    results = [item.output for item in outputs(first)]
    assert results == (["sunny", INTERRUPTED] if parallel else [INTERRUPTED, NOT_BEGUN])
    assert outputs(first)[-1].is_error is True
    second = await engine.create(ask("Go on.", previous_response_id=first.id, tools=[WEATHER]))
    assert second.status == "completed"
    assert sorted(ran) == (["Oslo", "Rome"] if parallel else ["Rome"])  # what had not begun never runs
    told = [content for role, content in sent_messages(provider.requests[-1]) if role == "tool"]
    assert told == results


@pytest.mark.parametrize("stop", [Stopping.by_deadline, Stopping.by_cancel, Stopping.by_leaving])
@pytest.mark.parametrize(
    "limits", [ToolLimits(concurrency=2), ToolLimits(tools={"weather": ToolBounds(parallel=False)})]
)
async def test_a_call_that_waits_for_a_slot_when_the_run_stops_was_not_run(
    stop: Callable[[Engine, Subscription], Awaitable[None]], limits: ToolLimits
) -> None:
    at_once = 1 if limits.tools else 2
    full = asyncio.Event()
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        if len(ran) == at_once:
            full.set()
        await asyncio.Event().wait()
        return "sunny"

    calls = [call("weather", city=city) for city in ("Rome", "Oslo", "Bonn", "Graz")]
    provider = ScriptedProvider(answer(*calls), answer(say("Done.")))
    engine = engine_of(provider, LocalExecutor(weather), tool_limits=limits)
    run = await engine.start(ask(tools=[WEATHER], stream=True))
    await full.wait()
    await stop(engine, run)
    stopped = await run.result()
    told = [INTERRUPTED] * at_once + [NOT_BEGUN] * (4 - at_once)
    assert ([item.output for item in outputs(stopped)], len(ran)) == (told, at_once)
    await engine.create(ask("Go on.", previous_response_id=stopped.id, tools=[WEATHER]))
    heard = [content for role, content in sent_messages(provider.requests[-1]) if role == "tool"]
    assert (heard, len(ran)) == (told, at_once)


async def test_a_servers_call_that_waits_for_a_slot_when_the_run_stops_was_not_run() -> None:
    full = asyncio.Event()

    async def lookup(asked: ToolCall, context: ToolContext) -> str:
        full.set()
        await asyncio.Event().wait()
        return "found"

    depot = ToolServerFake("depot", lookup=lookup)
    provider = ScriptedProvider(answer(call("lookup", n=1), call("lookup", n=2)))
    engine = engine_of(provider, depot, tool_limits=ToolLimits(concurrency=1))
    run = await engine.start(ask(tools=[SERVER], stream=True))
    await full.wait()
    run.leave()
    stopped = await run.result()
    assert [item.error_text for item in server_calls(stopped)] == [INTERRUPTED, NOT_BEGUN]
    assert len(depot.calls) == 1


async def test_a_leftover_function_that_has_begun_is_not_run_again_after_a_stop() -> None:
    begun = asyncio.Event()
    ran: list[str] = []

    async def weather(city: str) -> str:
        ran.append(city)
        begun.set()
        await asyncio.Event().wait()
        return "sunny"

    provider = ScriptedProvider(answer(call("weather", city="Rome"), call("clock")), answer(say("Done.")))
    engine = engine_of(provider, LocalExecutor(weather))
    paused = await engine.create(ask(tools=[WEATHER, CLOCK]))
    clocked = next(item for item in function_calls(paused) if item.name == "clock")
    noon = {"type": "function_call_output", "call_id": clocked.call_id, "output": "noon"}
    run = await engine.start(ask([noon], previous_response_id=paused.id, tools=[WEATHER, CLOCK], stream=True))
    await begun.wait()
    run.leave()
    stopped = await run.result()
    assert [item.output for item in outputs(stopped)] == [INTERRUPTED]
    last = await engine.create(ask("Go on.", previous_response_id=stopped.id, tools=[WEATHER, CLOCK]))
    assert (last.status, ran) == ("completed", ["Rome"])


@pytest.mark.proves("FR-014")
async def test_a_response_that_takes_too_long_is_incomplete_with_the_reason_deadline() -> None:
    provider = ScriptedProvider(hanging("It is"))
    outcome = await stream(engine_of(provider, deadline=0.05), ask())
    assert outcome.response.status == "incomplete"
    assert outcome.response.incomplete_details is not None
    assert outcome.response.incomplete_details.reason == "deadline"
    assert only(outcome.response, Message).status == "incomplete"
    assert provider.under_way == 0
    assert EngineSettings().deadline == 600


async def test_a_cancelled_caller_of_create_ends_the_run() -> None:
    provider = ScriptedProvider(hanging("It is"))
    engine = engine_of(provider)
    task = asyncio.create_task(engine.create(ask()))
    for _ in range(20):
        await asyncio.sleep(0)
    assert provider.under_way == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.drain(1)
    assert (engine.live, provider.under_way) == (0, 0)


async def test_a_caller_cancelled_while_the_row_is_written_leaves_no_running_row() -> None:
    begun = asyncio.Event()

    class Slow(MemoryStore):
        async def begin(self, new: NewResponse) -> None:
            await super().begin(new)
            rows.append(new.response.id)
            begun.set()
            await asyncio.Event().wait()

    rows: list[str] = []
    store = Slow()
    provider = ScriptedProvider()
    engine = engine_of(provider, store=store)
    task = asyncio.create_task(engine.create(ask()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await engine.close()
    stored = await store.get(ANONYMOUS, rows[0])
    assert stored is not None
    assert (stored.status, provider.requests) == ("cancelled", [])


async def test_closing_the_events_early_ends_the_run() -> None:
    provider = ScriptedProvider(hanging("It is"))
    engine = engine_of(provider)
    events = engine.respond(ask())
    async for event in events:
        if isinstance(event, OutputTextDelta):
            break
    await events.aclose()
    await engine.drain(1)
    assert (engine.live, provider.under_way) == (0, 0)


# ---- failures before and after the first word ----


@pytest.mark.proves("RULING-8", "TR-015")
@pytest.mark.parametrize("streams", [True, False])
async def test_a_failure_before_the_backends_headers_is_raised_in_both_modes(streams: bool) -> None:
    engine = engine_of(ScriptedProvider(answer(RateLimited("Slow down.", retry_after=7))))
    run = await engine.start(ask(stream=streams))
    with pytest.raises(RateLimited) as caught:
        await run.answered()
    assert caught.value.retry_after == 7
    stored = await engine.retrieve(ANONYMOUS, run.response_id)
    assert stored.status == "failed"


@pytest.mark.proves("RULING-8", "TR-016", "EN-036")
@pytest.mark.parametrize("streams", [True, False])
async def test_a_failure_after_the_headers_is_a_failed_response(streams: bool) -> None:
    engine = engine_of(ScriptedProvider(answer([], say("It"), BackendError("Gone."))))
    run = await engine.start(ask(stream=streams))
    await run.answered()
    response = await run.result()
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.message == "Gone."


@pytest.mark.proves("RULING-8")
async def test_the_answer_is_held_back_no_longer_than_set() -> None:
    gate = asyncio.Event()

    class Silent(ScriptedProvider):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            await gate.wait()
            async for deltas in super().infer(request):
                yield deltas

    engine = engine_of(Silent(answer(BackendUnavailable("The backend cannot be reached."))), hold_back=0.01)
    run = await engine.start(ask(stream=True))
    await run.answered()
    gate.set()
    events = await rest_of(run)
    assert [name_of(event) for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert EngineSettings().hold_back == 2


async def test_a_backend_that_ends_without_a_word_about_why_has_been_cut() -> None:
    class Cut(ScriptedProvider):
        async def infer(self, request: ChatRequest) -> AsyncGenerator[list[Delta], None]:
            yield []
            yield [TextDelta("Half an")]

    response = await engine_of(Cut()).create(ask())
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.code == "backend_stream_cut"


@pytest.mark.proves("TR-025")
async def test_an_exception_nobody_expected_ends_the_run_and_is_logged_but_not_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    engine = engine_of(ScriptedProvider(answer([], say("It"), ZeroDivisionError("secret detail"))))
    outcome = await stream(engine, ask())
    assert isinstance(outcome.events[-1], ResponseFailed)
    assert outcome.response.error is not None
    assert "secret" not in outcome.response.error.message
    assert "secret detail" in caplog.text


# ---- readers ----


@pytest.mark.proves("MISTAKE-18")
async def test_a_slow_reader_holds_the_run_back_and_loses_nothing() -> None:
    words = " ".join(f"w{i}" for i in range(50))
    provider = ScriptedProvider(answer(say(words)))
    engine = engine_of(provider, buffer_events=4)
    run = await engine.start(ask(stream=True))
    for _ in range(200):
        await asyncio.sleep(0)
    assert provider.under_way == 1, "the backend waits for the reader"
    events = await rest_of(run)
    assert "".join(event.delta for event in events if isinstance(event, OutputTextDelta)) == words


async def test_a_run_held_back_by_its_reader_can_be_cancelled() -> None:
    provider = ScriptedProvider(answer(say(" ".join("x" * 50))))
    engine = engine_of(provider, buffer_events=2)
    run = await engine.start(ask(stream=True))
    for _ in range(50):
        await asyncio.sleep(0)
    response = await asyncio.wait_for(engine.cancel(ANONYMOUS, run.response_id), 1)
    events = await rest_of(run)
    assert isinstance(events[-1], ResponseIncomplete)
    assert response.status == "cancelled"


@pytest.mark.proves("RULING-10")
async def test_a_reader_with_nothing_to_read_gets_a_sign_of_life() -> None:
    provider = ScriptedProvider(hanging("It"))
    run = await engine_of(provider, keepalive_interval=0.01).start(ask(stream=True))
    await read_until_text(run)
    (tick,) = await run.read()
    assert tick.events == []
    run.leave()
    await run.result()


@pytest.mark.proves("RULING-10", "FR-023")
async def test_a_setting_repeats_in_progress_as_a_numbered_event() -> None:
    provider = ScriptedProvider(hanging("It"))
    run = await engine_of(provider, keepalive_interval=0.01, keepalive="in_progress").start(ask(stream=True))
    before = await read_until_text(run)
    (batch,) = await run.read()
    assert [name_of(event) for event in batch.events] == ["response.in_progress"]
    assert batch.first == len(before)
    run.leave()
    await run.result()


# ---- the end of the engine ----


@pytest.mark.proves("TR-022")
async def test_draining_takes_no_new_work_and_lets_what_runs_finish() -> None:
    gate = asyncio.Event()
    engine = engine_of(ScriptedProvider(answer(say("Al"), gate, say("most"))))
    run = await engine.start(ask(stream=True))
    await read_until_text(run)
    draining = asyncio.create_task(engine.drain(5))
    await asyncio.sleep(0)
    with pytest.raises(ShuttingDown):
        await engine.start(ask())
    gate.set()
    await draining
    assert (await run.result()).status == "completed"


@pytest.mark.proves("TR-022")
async def test_what_does_not_finish_in_time_ends_with_a_terminal_event() -> None:
    engine = engine_of(ScriptedProvider(hanging("It")))
    run = await engine.start(ask(stream=True))
    await read_until_text(run)
    await engine.drain(0.01)
    last = (await rest_of(run))[-1]
    assert isinstance(last, ResponseFailed)
    assert last.response.error is not None
    assert last.response.error.code == "server_shutting_down"
    assert (await engine.retrieve(ANONYMOUS, run.response_id)).status == "failed"


async def test_closing_the_engine_closes_its_parts() -> None:
    provider = ScriptedProvider()
    engine: Engine = engine_of(provider)
    await engine.close()
    assert provider.is_closed


@pytest.mark.proves("EN-040")
async def test_a_cancel_between_two_waits_is_not_lost() -> None:
    engine: Engine

    async def last_word(asked: ToolCall, context: ToolContext) -> str:
        asyncio.get_running_loop().call_soon(lambda: asyncio.ensure_future(cancel()))
        return "done"

    async def cancel() -> None:
        await engine.cancel(ANONYMOUS, run.response_id)

    depot = ToolServerFake("depot", last=last_word)
    engine = engine_of(ScriptedProvider(answer(call("last"))), depot, max_turns=1)
    run = await engine.start(ask(tools=[SERVER], stream=True))
    response = await run.result()
    assert response.status == "cancelled"
    assert only(response, McpCall).output == "done"


@pytest.mark.proves("RULING-8")
async def test_the_answer_is_held_back_over_listings_and_leftovers_too() -> None:
    depot = ToolServerFake("depot", lookup=_quick)
    provider = ScriptedProvider(answer(call("lookup"), call("clock")), answer(RateLimited("Slow down.")))
    engine = engine_of(provider, depot)
    first = await engine.create(ask(tools=[SERVER, CLOCK]))
    (asked,) = [item for item in first.output if isinstance(item, FunctionCall)]
    noon = {"type": "function_call_output", "call_id": asked.call_id, "output": "noon"}
    run = await engine.start(ask([noon], previous_response_id=first.id, tools=[SERVER], stream=True))
    with pytest.raises(RateLimited):
        await run.answered()
    assert len(depot.calls) == 1


async def test_planning_that_never_ends_is_ended_by_the_deadline() -> None:
    class Lost(ScriptedProvider):
        async def models(self) -> Sequence[Model]:
            await asyncio.Event().wait()
            return []

    with pytest.raises(BackendTimeout):
        await engine_of(Lost(), deadline=0.01).create(ask(model=None))


class Mute(ToolServerFake):
    """A server that never says what it offers; it may stand in all requests."""

    is_standing = False

    async def discover(self, declared: McpTool, identity: Identity) -> Sequence[ToolDefinition] | None:
        await asyncio.Event().wait()
        return None

    def standing(self, model: str, identity: Identity) -> Sequence[McpTool]:
        return [McpTool(server_label="depot")] if self.is_standing else []


@pytest.mark.parametrize("is_standing", [True, False])
async def test_a_tool_server_that_never_lists_its_tools_leaves_time_to_say_so(is_standing: bool) -> None:
    provider = ScriptedProvider(hanging("It is"))
    server = Mute("depot", lookup=_quick)
    server.is_standing = is_standing
    tools = [] if is_standing else [SERVER]
    async with asyncio.timeout(5):  # and not as long as a server may take to list its tools
        response = (await stream(engine_of(provider, server), ask(tools=tools, deadline=0.2))).response
    assert (response.status, response.incomplete_details) == ("incomplete", IncompleteDetails("deadline"))
    assert only(response, McpListTools).error == "The tool server 'depot' did not list its tools in time."


async def test_the_deadline_is_from_the_start_whatever_is_waited_for() -> None:
    async def weather(city: str, context: ToolContext) -> str:
        deadlines.append(context.deadline)
        return city

    deadlines: list[float | None] = []
    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Ok.")))
    engine = engine_of(provider, LocalExecutor(weather), deadline=5)
    before = asyncio.get_running_loop().time()
    run = await engine.start(ask(tools=[WEATHER]))
    after = asyncio.get_running_loop().time()
    await run.result()
    assert deadlines[0] is not None
    assert before + 5 <= deadlines[0] <= after + 5


async def test_a_turn_of_a_conversation_waits_for_the_one_before_it_no_longer_than_it_has_time() -> None:
    engine = engine_of(ScriptedProvider(hanging("It is")), conversation_wait=600)
    conversation = (await engine.conversations.create()).id
    first = await engine.start(ask(conversation=conversation, stream=True))
    with pytest.raises(ConversationLocked):
        await asyncio.wait_for(engine.plan(ask(conversation=conversation, deadline=0.05)), 5)
    first.leave()
    await first.wait()


@pytest.mark.proves("TR-022")
async def test_a_response_whose_row_was_begun_while_the_engine_drained_is_ended_properly() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(MemoryStore):
        async def begin(self, new: NewResponse) -> None:
            begun.set()
            await go_on.wait()
            await super().begin(new)

    engine = engine_of(ScriptedProvider(answer(say("Hi"))), store=Slow())
    starting = asyncio.create_task(engine.start(ask()))
    await begun.wait()
    await engine.drain(0)
    go_on.set()
    run = await starting
    with pytest.raises(ShuttingDown):
        await run.result()
    response = await engine.retrieve(ANONYMOUS, run.response_id)
    assert response.error is not None
    assert response.error.code == "server_shutting_down"


async def test_deleting_a_running_response_that_is_not_stored_leaves_it_alone() -> None:
    engine = engine_of(ScriptedProvider(hanging("It")))
    run = await engine.start(ask(stream=True, store=False))
    await read_until_text(run)
    with pytest.raises(ResponseNotFound):
        await engine.delete(ANONYMOUS, run.response_id)
    assert engine.live == 1
    run.leave()
    await run.result()


async def test_a_run_that_has_ended_leaves_no_timer_behind() -> None:
    engine = engine_of(ScriptedProvider(answer(say("Hi"))))
    run = await engine.start(ask(stream=True))
    held = weakref.ref(engine.live_runs[run.response_id])
    await run.result()
    await run.wait()
    del run
    gc.collect()
    assert held() is None
