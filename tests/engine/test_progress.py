"""How far tools say they are: told to those who ask, and not too often."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

import pytest
from antwort.engine.progress import WANTED, told

from antwort.api.events import McpCallInProgress, McpCallProgress, StreamEvent
from antwort.api.items import McpCall
from antwort.api.wire import UNSET, encode
from antwort.testing import ScriptedProvider, ToolServerFake, answer, call, say
from antwort.tools.base import Progress, ToolCall, ToolContext
from antwort.tools.local import LocalExecutor
from engine_kit import SERVER, WEATHER, ask, engine_of, stream
from jumping_time import jumping_time
from plan_kit import server_called


class Digging(ToolServerFake):
    """A tool that reports so often, and then waits until it may end."""

    def __init__(self, *news: str | Progress) -> None:
        super().__init__("depot", dig=self._dig)
        self.gate = asyncio.Event()
        self._news = news

    async def _dig(self, asked: ToolCall, context: ToolContext) -> str:
        for news in self._news:
            context.progress(news)
        await self.gate.wait()
        return "done"


async def heard(depot: Digging, times: int, *, include: Sequence[str] = (WANTED,)) -> list[StreamEvent]:
    """What a reader is sent until the tool ends, which it does when it was heard so often."""
    engine = engine_of(ScriptedProvider(answer(call("dig")), answer(say("Ok."))), depot)
    run = await engine.start(ask(tools=[SERVER], stream=True, include=list(include)))
    events: list[StreamEvent] = []
    while batches := await run.read():
        events += [event for batch in batches for event in batch.events]
        if sum(isinstance(event, McpCallProgress) for event in events) >= times:
            depot.gate.set()
    return events


def reports(events: Sequence[StreamEvent]) -> list[McpCallProgress]:
    return [event for event in events if isinstance(event, McpCallProgress)]


async def test_a_request_that_asks_for_it_is_told_how_far_a_tool_is() -> None:
    (event,) = reports(await heard(Digging(Progress(done=1, total=4, message="a metre")), 1))
    assert (event.progress, event.total, event.message, event.output_index) == (1, 4, "a metre", 1)


async def test_words_alone_are_told_as_a_message() -> None:
    (event,) = reports(await heard(Digging("half way"), 1))
    assert (event.progress, event.total, event.message) == (UNSET, UNSET, "half way")


async def test_a_request_that_does_not_ask_gets_no_such_event() -> None:
    depot = Digging(Progress(done=1))
    depot.gate.set()
    assert reports(await heard(depot, 1, include=[])) == []


@jumping_time
async def test_a_tool_that_reports_all_the_time_is_told_now_and_then_with_the_latest() -> None:
    events = reports(await heard(Digging(*(Progress(done=n, total=10_000) for n in range(10_000))), 2))
    assert [event.progress for event in events] == [0, 9_999]


async def test_reports_take_the_place_of_signs_that_the_call_goes_on() -> None:
    events = await heard(Digging(Progress(done=1)), 1)
    assert sum(isinstance(event, McpCallInProgress) for event in events) == 1


async def test_a_function_that_the_request_declares_has_no_item_to_tell_it_of() -> None:
    async def weather(city: str, context: ToolContext) -> str:
        context.progress(Progress(done=1))
        return city

    provider = ScriptedProvider(answer(call("weather", city="Rome")), answer(say("Ok.")))
    outcome = await stream(engine_of(provider, LocalExecutor(weather)), ask(tools=[WEATHER], include=[WANTED]))
    assert reports(outcome.events) == []


async def test_what_is_reported_while_the_turn_is_being_written_is_not_told() -> None:
    begun = asyncio.Event()

    async def look(asked: ToolCall, context: ToolContext) -> str:
        context.progress("early")
        begun.set()
        return "seen"

    server = ToolServerFake("depot", look=look)
    provider = ScriptedProvider(answer(call("look"), call("look"), begun), answer(say("Ok.")))
    outcome = await stream(engine_of(provider, server), ask(tools=[SERVER], include=[WANTED]))
    assert 1 not in [event.output_index for event in reports(outcome.events)]  # the first call; the list is before it


def test_a_message_has_its_length_and_a_number_is_one() -> None:
    item: McpCall = server_called(1)
    (event,) = told([item], {"call_1": Progress(message="x" * 10_000, done=math.nan, total=math.inf)})
    assert isinstance(event, McpCallProgress)
    assert (event.message, event.progress, event.total) == ("x" * 500, UNSET, UNSET)
    assert told([server_called(1, status="completed", output="done")], {"call_1": Progress(done=1)}) == []


@pytest.mark.parametrize(
    "news",
    [Progress(message=5), Progress(done="x"), Progress(total=True), Progress(done=10**400), 7, None],  # type: ignore[arg-type]  # what untyped tools say
)
async def test_a_tool_that_reports_what_is_no_report_goes_on(news: str | Progress) -> None:
    (event,) = reports(await heard(Digging(news), 1))
    assert (event.progress, event.total, event.message) == (UNSET, UNSET, UNSET)


async def test_half_a_surrogate_pair_in_a_message_does_not_break_the_stream() -> None:
    (event,) = reports(await heard(Digging("a\ud800b"), 1))
    assert event.message == "a?b"
    assert b"a?b" in encode(event)


def test_a_number_that_is_too_long_to_be_exact_is_told_as_one_that_all_can_read() -> None:
    (event,) = told([server_called(1)], {"call_1": Progress(done=2**80, total=2**53 - 1)})
    assert isinstance(event, McpCallProgress)
    assert (event.progress, event.total) == (2.0**80, 2**53 - 1)
    assert encode(event)
