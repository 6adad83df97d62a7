"""Calls that must come (`tool_choice: required`, or a named function) and do not, through the whole server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import msgspec
import pytest

from antwort.api.events import OutputTextDelta, StreamEvent
from antwort.api.responses import Response
from antwort.backends import make_fleet
from antwort.config import Settings
from antwort.config.settings import BackendSettings
from antwort.engine.engine import Engine
from antwort.testing import check_frames
from chat_backend import USAGE, Answer, Breaks, Calls, ChatBackend, Refuses, Says
from engine_kit import WEATHER, ask, function_calls, kinds, text_of
from serving import RESPONSES, Serving, serving

MODEL = "test-model"
WORDS = Says(pieces=("Which", " city?"))
NO_CALLS = Says(pieces=('{"calls"', ": []}"))
CALLS = Says(pieces=('{"calls": [{"name": "weather", "arguments": {"city": "Paris"}}]}',))
COST = USAGE["total_tokens"]

must_call = pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "name": "weather"}], ids=["required", "forced"]
)
both_ways = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


def engine_for(backend: ChatBackend, tool_calling: Literal["auto", "native"] = "auto") -> Engine:
    settings = BackendSettings(name="b", url=backend.url, tool_calling=tool_calling)
    return Engine(make_fleet(Settings(backends=(settings,))))


@asynccontextmanager
async def in_front_of(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[Serving, ChatBackend]]:
    async with ChatBackend(*answers, models=[MODEL]) as backend, serving(engine_for(backend, **settings)) as server:
        yield server, backend


async def asked(server: Serving, choice: Any, *, is_streamed: bool) -> Response:
    body = {"model": MODEL, "input": "Weather?", "tools": [WEATHER], "tool_choice": choice, "stream": is_streamed}
    reply = await server.ask("POST", RESPONSES, body)
    assert reply.status == 200
    return check_frames(reply.body) if is_streamed else msgspec.json.decode(reply.body, type=Response)


def ways(backend: ChatBackend) -> list[str]:
    return ["native" if "tools" in request else "constrained" for request in backend.requests]


def cost_of(response: Response) -> int:
    assert response.usage is not None
    return response.usage.total_tokens


@pytest.mark.proves("RULING-17", "FR-005", "FR-028")
@must_call
@both_ways
@pytest.mark.parametrize(
    "second",
    [
        NO_CALLS,
        Says(pieces=("Really, which one?",)),
        Says(pieces=('{"answer": "Which one?"}',)),
        Says(pieces=('{"calls": [',), finish="length"),
        Says(pieces=("Not that.",), finish="content_filter"),
        Says(pieces=()),
    ],
    ids=["no calls", "other words", "an answer", "cut off", "filtered", "nothing"],
)
async def test_the_words_of_the_first_answer_stand_where_the_second_has_no_call_either(
    second: Says, choice: Any, is_streamed: bool
) -> None:
    async with in_front_of(WORDS, second) as (server, backend):
        response = await asked(server, choice, is_streamed=is_streamed)
    assert ways(backend) == ["native", "constrained"]
    assert (response.status, kinds(response), text_of(response)) == ("completed", ["message"], "Which city?")
    assert cost_of(response) == 2 * COST


@pytest.mark.proves("RULING-17")
@both_ways
@pytest.mark.parametrize("second", [Refuses(500), Refuses(400, "no json_schema here"), Breaks(pieces=('{"calls"',))])
async def test_they_stand_where_the_second_answer_fails(second: Answer, is_streamed: bool) -> None:
    async with in_front_of(WORDS, second) as (server, _):
        response = await asked(server, "required", is_streamed=is_streamed)
    assert (response.status, text_of(response), cost_of(response)) == ("completed", "Which city?", COST)


@pytest.mark.proves("RULING-17", "FR-005", "FR-028")
@must_call
@both_ways
async def test_a_call_in_the_second_answer_takes_the_place_of_the_words(choice: Any, is_streamed: bool) -> None:
    async with in_front_of(WORDS, CALLS) as (server, backend):
        response = await asked(server, choice, is_streamed=is_streamed)
    assert ways(backend) == ["native", "constrained"]
    assert (kinds(response), cost_of(response)) == (["function_call"], 2 * COST)
    assert [call.arguments for call in function_calls(response)] == ['{"city": "Paris"}']


@pytest.mark.proves("FR-005")
@must_call
async def test_the_first_answer_is_held_back_until_the_second_has_answered(choice: Any) -> None:
    hold = asyncio.Event()
    second = Says(pieces=NO_CALLS.pieces, hold=hold)
    events: list[StreamEvent] = []

    async def read(engine: Engine) -> None:
        request = ask("Weather?", model=MODEL, tools=[WEATHER], tool_choice=choice, stream=True)
        async for event in engine.respond(request):
            events.append(event)  # noqa: PERF401 - they are looked at on the way

    def told() -> str:
        return "".join(event.delta for event in events if isinstance(event, OutputTextDelta))

    async with ChatBackend(WORDS, second, models=[MODEL]) as backend, engine_for(backend) as engine:
        reading = asyncio.create_task(read(engine))
        await backend.until(lambda: len(backend.requests) == 2)
        assert told() == ""
        hold.set()
        await reading
    assert told() == "Which city?"


@pytest.mark.proves("RULING-17")
@both_ways
async def test_natively_only_it_is_asked_once(is_streamed: bool) -> None:
    async with in_front_of(WORDS, CALLS, tool_calling="native") as (server, backend):
        response = await asked(server, "required", is_streamed=is_streamed)
    assert ways(backend) == ["native"]
    assert (text_of(response), cost_of(response)) == ("Which city?", COST)


@pytest.mark.proves("RULING-17")
async def test_every_miss_is_asked_for_again_also_after_calls_came_natively_and_where_none_came_at_all() -> None:
    native = Calls([("weather", '{"city": "Oslo"}')])
    async with in_front_of(native, WORDS, NO_CALLS, WORDS, CALLS) as (server, backend):
        responses = [await asked(server, "required", is_streamed=False) for _ in range(3)]
    assert [kinds(response) for response in responses] == [["function_call"], ["message"], ["function_call"]]
    assert ways(backend) == ["native", "native", "constrained", "native", "constrained"]


@pytest.mark.proves("RULING-17")
@must_call
@both_ways
async def test_where_constrained_asking_has_worked_before_a_miss_is_asked_for_natively(
    choice: Any, is_streamed: bool
) -> None:
    async with in_front_of(WORDS, CALLS, NO_CALLS, WORDS) as (server, backend):
        await asked(server, choice, is_streamed=is_streamed)
        response = await asked(server, choice, is_streamed=is_streamed)
    assert ways(backend) == ["native", "constrained", "constrained", "native"]
    assert (response.status, text_of(response), cost_of(response)) == ("completed", "Which city?", 2 * COST)


@both_ways
async def test_the_thoughts_of_a_second_answer_without_a_call_go_with_it(is_streamed: bool) -> None:
    first, second = Says(pieces=WORDS.pieces, thinks="First."), Says(pieces=NO_CALLS.pieces, thinks="Second.")
    async with in_front_of(first, second) as (server, _):
        response = await asked(server, "required", is_streamed=is_streamed)
    assert kinds(response) == ["reasoning", "message"]
    assert "Second." not in str(response.output)
