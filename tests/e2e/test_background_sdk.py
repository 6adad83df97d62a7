"""The official SDK and background responses: one server with SQLite, and two that share a PostgreSQL, each request
going to the next of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseStreamEvent

from chat_backend import ChatBackend, Says
from live_server import launched
from postgres import Postgres
from round_robin import RoundRobin, round_robin

# The servers are started once for all tests of a worker.
pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("background")]

MODEL = "test-model"
TEXT = "Hello out there in the dark"
PIECES = ("Hello", " out", " there", " in", " the", " dark")


@dataclass
class Site:
    """What a client sees, and who stands behind it."""

    url: str
    proxy: RoundRobin | None = None
    ports: list[int] = field(default_factory=list)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_backend() -> AsyncIterator[ChatBackend]:
    async with ChatBackend() as running:
        yield running


@pytest.fixture
def backend(one_backend: ChatBackend) -> ChatBackend:
    """As if nobody had asked it anything."""
    one_backend.answers = [Says()]
    one_backend.requests.clear()
    return one_backend


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=["one process, SQLite", "two processes, PostgreSQL"],
)
async def servers(
    request: pytest.FixtureRequest, one_backend: ChatBackend, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Site]:
    arguments = ("--backend", one_backend.url, "--log-level", "warning")  # nobody reads the lines of so many requests
    async with AsyncExitStack() as stack:
        if "SQLite" in request.param:
            data = str(tmp_path_factory.mktemp("data"))
            server = await stack.enter_async_context(launched(*arguments, "--data", data))
            yield Site(server.url)
            return
        postgres: Postgres = request.getfixturevalue("postgres")
        database = postgres.fresh_database()
        stack.callback(postgres.drop_database, database)
        environment = {"ANTWORT_DATABASE": database}
        both = [await stack.enter_async_context(launched(*arguments, environment=environment)) for _ in range(2)]
        ports = [server.port for server in both]
        proxy = await stack.enter_async_context(round_robin(*ports))
        yield Site(proxy.url, proxy, ports)


@pytest.fixture
def site(servers: Site, backend: ChatBackend) -> Site:
    if servers.proxy is not None:
        servers.proxy.given.clear()
    return servers


@pytest_asyncio.fixture(loop_scope="module")
async def client(site: Site) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=site.url, api_key="none", max_retries=0, timeout=60) as connected:
        yield connected


async def ended(client: AsyncOpenAI, response: Response) -> Response:
    """Polled as OpenAI's guide does it, without the pauses."""
    async with asyncio.timeout(60):
        while response.status in ("queued", "in_progress"):
            response = await client.responses.retrieve(response.id)
    return response


def was_shared(site: Site) -> bool:
    """Whether both servers have answered something."""
    return site.proxy is None or {*site.proxy.given} == {*site.ports}


async def test_create_poll_and_read_again(client: AsyncOpenAI, backend: ChatBackend, site: Site) -> None:
    backend.answers = [Says(PIECES)]
    queued = await client.responses.create(model=MODEL, input="Hello", background=True)
    assert (queued.status, queued.background, queued.output) == ("queued", True, [])
    done = await ended(client, queued)
    assert (done.status, done.output_text) == ("completed", TEXT)
    wholes = [[event async for event in await client.responses.retrieve(queued.id, stream=True)] for _ in range(2)]
    events = wholes[0]
    assert events == wholes[1], "each of the servers says the same"
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert [event.type for event in events][:3] == ["response.created", "response.queued", "response.in_progress"]
    for after in range(len(events)):
        assert await _rest(client, queued.id, after) == events[after + 1 :]
    assert len(backend.requests) == 1
    assert was_shared(site)


async def test_a_stream_that_breaks_off_is_picked_up_where_it_was(
    client: AsyncOpenAI, backend: ChatBackend, site: Site
) -> None:
    hold = asyncio.Event()
    backend.answers = [Says(PIECES, hold=hold)]
    seen: list[ResponseStreamEvent] = []
    async with await client.responses.create(model=MODEL, input="Hello", background=True, stream=True) as stream:
        async for event in stream:
            seen.append(event)
            if event.type == "response.output_text.delta":
                break
    assert seen[0].type == "response.created"
    response_id, last = seen[0].response.id, seen[-1].sequence_number
    following = [asyncio.create_task(_rest(client, response_id, last)) for _ in range(2)]
    assert (await client.responses.retrieve(response_id)).status == "in_progress"
    hold.set()
    for rest in await asyncio.gather(*following):
        whole = [*seen, *rest]
        assert [event.sequence_number for event in whole] == [*range(len(whole))]
        assert whole[-1].type == "response.completed"
        assert whole[-1].response.output_text == TEXT
    assert was_shared(site)


async def _rest(client: AsyncOpenAI, response_id: str, after: int) -> list[ResponseStreamEvent]:
    stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
    return [event async for event in stream]


async def test_the_stream_that_keeps_the_whole_is_resumed_by_its_id(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Says(PIECES)]
    async with client.responses.stream(model=MODEL, input="Hello", background=True) as stream:
        first = await anext(aiter(stream))
        assert first.type == "response.created"
    async with client.responses.stream(response_id=first.response.id, starting_after=3) as again:
        numbers = [event.sequence_number async for event in again]
        whole = await again.get_final_response()
    assert numbers == [*range(4, numbers[-1] + 1)]
    assert (whole.id, whole.output_text) == (first.response.id, TEXT)


async def test_cancelled_from_anywhere_it_ends_everywhere(
    client: AsyncOpenAI, backend: ChatBackend, site: Site
) -> None:
    backend.answers = [Says(PIECES, hold=asyncio.Event())]
    queued = await client.responses.create(model=MODEL, input="Hello", background=True)
    await backend.until(lambda: backend.open_requests == 1)
    cancelled = [await client.responses.cancel(queued.id) for _ in range(2)]
    assert [response.status for response in cancelled] == ["cancelled", "cancelled"]
    async with asyncio.timeout(20):
        await backend.until(lambda: backend.open_requests == 0)
    assert (await client.responses.retrieve(queued.id)).status == "cancelled"
    assert was_shared(site)


async def test_a_stream_in_the_foreground_is_cancelled_at_any_server(
    client: AsyncOpenAI, backend: ChatBackend, site: Site
) -> None:
    backend.answers = [Says(PIECES, hold=asyncio.Event())]
    stream = await client.responses.create(model=MODEL, input="Hello", stream=True)
    first = await anext(aiter(stream))
    assert first.type == "response.created"
    await backend.until(lambda: backend.open_requests == 1)
    asked = len(site.proxy.given) if site.proxy else 0
    cancelled = [await client.responses.cancel(first.response.id) for _ in range(2)]
    *_, last = [event async for event in stream]
    assert last.type == "response.incomplete"
    assert {response.status for response in (*cancelled, last.response)} == {"cancelled"}
    if site.proxy is not None:
        assert {*site.proxy.given[asked:]} == {*site.ports}


async def test_one_that_runs_elsewhere_is_cancelled_and_deleted(client: AsyncOpenAI, backend: ChatBackend) -> None:
    backend.answers = [Says(PIECES, hold=asyncio.Event())]
    queued = await client.responses.create(model=MODEL, input="Hello", background=True)
    await backend.until(lambda: backend.open_requests == 1)
    await client.responses.delete(queued.id)
    async with asyncio.timeout(20):
        await backend.until(lambda: backend.open_requests == 0)
    for _ in range(2):
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(queued.id)


async def test_the_same_key_is_the_same_response_on_every_server(client: AsyncOpenAI, backend: ChatBackend) -> None:
    hold = asyncio.Event()
    backend.answers = [Says(PIECES, hold=hold)]
    key = {"Idempotency-Key": "one-and-the-same"}
    asked = [
        await client.responses.create(model=MODEL, input="Hello", background=True, extra_headers=key) for _ in range(4)
    ]
    assert len({response.id for response in asked}) == 1
    hold.set()
    assert (await ended(client, asked[0])).output_text == TEXT
    assert len(backend.requests) == 1


async def test_it_is_continued_from_any_server(client: AsyncOpenAI, backend: ChatBackend) -> None:
    first = await ended(client, await client.responses.create(model=MODEL, input="Hello", background=True))
    then = await client.responses.create(model=MODEL, input="And?", previous_response_id=first.id)
    last = await ended(
        client, await client.responses.create(model=MODEL, input="So?", previous_response_id=then.id, background=True)
    )
    assert last.status == "completed"
    said = [message["content"] for message in backend.requests[-1]["messages"]]
    assert said == ["Hello", "Hello there", "And?", "Hello there", "So?"]


async def test_turns_of_a_conversation_are_made_in_order_on_all_servers(
    client: AsyncOpenAI, backend: ChatBackend
) -> None:
    hold = asyncio.Event()
    backend.answers = [Says(hold=hold), Says()]
    conversation = (await client.conversations.create()).id
    asked = [
        await client.responses.create(model=MODEL, input=text, conversation=conversation, background=True)
        for text in ("One", "Two", "Three")
    ]
    await backend.until(lambda: backend.open_requests == 1)
    foreground = asyncio.create_task(client.responses.create(model=MODEL, input="Four", conversation=conversation))
    hold.set()
    done = [await ended(client, response) for response in asked]
    assert (await foreground).status == "completed"
    assert [response.status for response in done] == ["completed"] * 3
    texts = [[message["content"] for message in request["messages"]][-1] for request in backend.requests]
    assert texts == ["One", "Two", "Three", "Four"]
    assert len(backend.requests[-1]["messages"]) == 7


async def test_the_same_with_the_plain_client(site: Site) -> None:
    await asyncio.to_thread(_use, site.url)


def _use(url: str) -> None:
    with OpenAI(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        response = client.responses.create(model=MODEL, input="Hello", background=True)
        while response.status in ("queued", "in_progress"):
            response = client.responses.retrieve(response.id)
        assert (response.status, response.output_text) == ("completed", "Hello there")
        events = [*client.responses.retrieve(response.id, stream=True)]
        rest = [*client.responses.retrieve(response.id, stream=True, starting_after=4)]
        assert rest == events[5:]
        with client.responses.stream(response_id=response.id, starting_after=4) as stream:
            assert [event.sequence_number for event in stream] == [event.sequence_number for event in rest]
            assert stream.get_final_response().output_text == "Hello there"
        assert client.responses.cancel(response.id).status == "completed"
