"""Streams in the foreground with two servers that share a PostgreSQL: read at the one, made by the other, and gone on
with when that one is gone.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseStreamEvent

from chat_backend import ChatBackend, Says
from live_server import LiveServer, launched

MODEL = "test-model"
PIECES = ("Hello", " out", " there", " in", " the", " dark")
TEXT = "".join(PIECES)
CONTINUE = {"Antwort-On-Disconnect": "continue"}


@pytest.fixture
async def servers(backend: ChatBackend, postgres_database: str) -> AsyncIterator[list[LiveServer]]:
    environment = {
        "ANTWORT_DATABASE": postgres_database,
        "ANTWORT_BACKGROUND_LEASE": "2",
        "ANTWORT_SERVER_DRAIN": "1",
    }
    arguments = ("--backend", backend.url, "--log-level", "warning")
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(launched(*arguments, environment=environment)) for _ in range(2)]


@pytest.fixture
async def clients(servers: list[LiveServer]) -> AsyncIterator[list[AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(AsyncOpenAI(base_url=each.url, api_key="none", max_retries=0, timeout=30))
            for each in servers
        ]


async def rest(client: AsyncOpenAI, response_id: str, after: int) -> list[ResponseStreamEvent]:
    stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
    return [event async for event in stream]


async def begin(
    client: AsyncOpenAI, headers: dict[str, str] | None = None
) -> tuple[str, list[ResponseStreamEvent], AsyncIterator[ResponseStreamEvent]]:
    """The id of a stream that has said its first word, what was seen of it, and the rest of it."""
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True, extra_headers=headers)
    events, seen = aiter(stream), list[ResponseStreamEvent]()
    while not seen or seen[-1].type != "response.output_text.delta":
        seen.append(await anext(events))
    assert seen[0].type == "response.created"
    return seen[0].response.id, seen, events


def whole(seen: list[ResponseStreamEvent]) -> Response:
    """As it ended, when it was seen without gaps."""
    assert [event.sequence_number for event in seen] == [*range(len(seen))]
    assert seen[-1].type == "response.completed"
    return seen[-1].response


async def until_ended(client: AsyncOpenAI, response_id: str) -> Response:
    async with asyncio.timeout(30):
        while (response := await client.responses.retrieve(response_id)).status == "in_progress":
            pass
    return response


async def until_cut(events: AsyncIterator[ResponseStreamEvent]) -> list[ResponseStreamEvent]:
    """What comes of a stream that breaks off, as its client notices."""
    seen: list[ResponseStreamEvent] = []
    try:
        async for event in events:
            seen.append(event)  # noqa: PERF401 - what has come counts when the rest does not
    except (openai.APIError, httpx.HTTPError):
        return seen
    raise AssertionError("it ended as if all had been said")


async def test_a_stream_is_read_from_the_server_that_does_not_make_it(
    clients: list[AsyncOpenAI], backend: ChatBackend
) -> None:
    hold = asyncio.Event()
    backend.answers = [Says(PIECES, hold=hold)]
    response_id, seen, events = await begin(clients[0])
    shown = await clients[1].responses.retrieve(response_id)
    following = [asyncio.create_task(rest(client, response_id, 1)) for client in clients]
    hold.set()
    seen += [event async for event in events]
    assert whole(seen).output_text == TEXT
    assert [await each for each in following] == [seen[2:], seen[2:]]
    assert (shown.status, shown.output[0].type) == ("in_progress", "message")
    for client in clients:  # what is on record by now says the same
        assert await rest(client, response_id, 3) == seen[4:]


@pytest.mark.parametrize("has_left", [True, False], ids=["left", "still there"])
async def test_one_that_is_to_go_on_is_read_anywhere_and_taken_over(
    servers: list[LiveServer], clients: list[AsyncOpenAI], backend: ChatBackend, has_left: bool
) -> None:
    hold = asyncio.Event()
    backend.answers = [Says(PIECES, hold=hold), Says(PIECES)]
    response_id, seen, events = await begin(clients[0], CONTINUE)
    if has_left:
        await clients[0].close()
    following = asyncio.create_task(rest(clients[1], response_id, seen[-1].sequence_number))
    shown = await clients[1].responses.retrieve(response_id)
    await servers[0].stop(signal.SIGKILL)
    if not has_left:
        await until_cut(events)
    later = await following
    response = whole([*seen, *later])
    assert (shown.status, shown.output[0].type) == ("in_progress", "message")
    assert response.output_text.endswith(TEXT)
    assert (await until_ended(clients[1], response_id)).status == "completed"


async def test_one_that_is_to_go_on_is_handed_over_when_its_server_stops(
    servers: list[LiveServer], clients: list[AsyncOpenAI], backend: ChatBackend
) -> None:
    backend.answers = [Says(PIECES, hold=asyncio.Event()), Says(PIECES)]
    response_id, seen, events = await begin(clients[0], CONTINUE)
    stopping = asyncio.create_task(servers[0].stop())
    seen += await until_cut(events)
    assert seen[-1].type != "response.completed"
    code, _ = await stopping
    seen += await rest(clients[1], response_id, seen[-1].sequence_number)
    assert code == 0
    assert whole(seen).output_text.endswith(TEXT)


async def test_one_whose_server_is_gone_is_told_its_end_and_until_then_to_come_again(
    servers: list[LiveServer], clients: list[AsyncOpenAI], backend: ChatBackend
) -> None:
    backend.answers = [Says(PIECES, hold=asyncio.Event())]
    response_id, seen, _ = await begin(clients[0])
    relayed = await clients[1].responses.retrieve(response_id, stream=True, starting_after=1)
    await anext(aiter(relayed))
    await servers[0].stop(signal.SIGKILL)
    await until_cut(aiter(relayed))
    last, told = seen[-1].sequence_number, set[str]()
    async with asyncio.timeout(30):
        while True:
            try:
                rest_of_it = await rest(clients[1], response_id, last)
                break
            except openai.InternalServerError as error:
                told.add(f"{error.status_code} {error.code} {error.response.headers['retry-after']}")
    assert told == {"503 maker_unreachable 1"}
    assert [(event.sequence_number, event.type) for event in rest_of_it] == [(last + 1, "response.failed")]
