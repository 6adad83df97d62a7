"""What is said to the server, and what is made of its answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

import pytest

from antwort.chat.answer import ChatAnswer
from antwort.chat.client import ChatError, RequestRefused, ServerClient, ServerGone
from antwort.chat.conversation import ChatConversation, receive
from antwort.chat.server import ChatServer, server_at
from antwort.engine.engine import Engine
from antwort.testing import Answer as Played
from antwort.testing import ScriptedProvider, answer, say
from antwort.tools.toolset import Toolset
from serving import Serving, serving, until


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@asynccontextmanager
async def opened(url: str, key: str | None = None) -> AsyncIterator[ServerClient]:
    client = ServerClient(url, key)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def server(*script: Played) -> AsyncIterator[tuple[Serving, ServerClient]]:
    engine = Engine(ScriptedProvider(*script), executors=[Toolset("calc", add)])
    async with serving(engine) as there, opened(there.url) as client:
        yield there, client


@asynccontextmanager
async def saying(reply: bytes) -> AsyncIterator[str]:
    """A server of another kind: it says the same whatever it is asked."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    there = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with there:
        yield f"http://127.0.0.1:{there.sockets[0].getsockname()[1]}"


def http(body: bytes, status: str = "200 OK") -> bytes:
    return b"HTTP/1.1 %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (status.encode(), len(body), body)


@pytest.mark.parametrize("ending", ["", "/", "/v1", "/v1/"])
async def test_the_address_may_end_with_the_version_or_not(ending: str) -> None:
    async with server() as (there, _), opened(there.url.removesuffix("/v1") + ending) as client:
        assert client.url == there.url.removesuffix("/v1")
        assert await client.models() == ["scripted"]


async def test_models_and_tools_are_listed() -> None:
    async with server() as (_, client):
        assert await client.is_antwort()
        assert await client.models() == ["scripted"]
        assert [(toolset.label, toolset.names) for toolset in await client.toolsets()] == [("calc", ("add",))]


async def test_a_turn_is_received_to_its_end() -> None:
    async with server(answer(say("Hello there"))) as (_, client):
        received, conversation = ChatAnswer(0.0), ChatConversation()
        await receive(ChatServer(client), conversation, "Hi", received)
        conversation.add("Hi", received)
        assert (received.status, received.text, received.model) == ("completed", "Hello there", "scripted")
        assert conversation.request("More")["previous_response_id"] == received.response_id


async def test_whoever_stops_reading_ends_the_run() -> None:
    hold = asyncio.Event()
    async with server(answer(say("Hello"), hold, say(" there"))) as (there, client):
        async with aclosing(client.events(ChatConversation().request("Hi"))) as events:
            async for event in events:
                if event.delta:
                    break
        await until(lambda: there.engine.live == 0)


async def test_a_run_can_be_cancelled_by_its_id_and_a_wrong_one_harms_nobody() -> None:
    async with server() as (_, client):
        await client.cancel("resp_none/../x")
    await client.cancel("resp_none")


async def test_an_error_carries_the_servers_own_words() -> None:
    async with server() as (_, client):
        with pytest.raises(RequestRefused, match="no tool server is offered here under the label 'nope'") as caught:
            await receive(ChatServer(client), ChatConversation(labels=["nope"]), "Hi", ChatAnswer(0.0))
        assert (caught.value.status, caught.value.code) == (400, "unknown_tool_server")


async def test_a_response_that_is_gone_makes_all_of_the_conversation_go_again() -> None:
    async with server(answer(say("One")), answer(say("Two"))) as (there, client):
        conversation = ChatConversation()
        first, second = ChatAnswer(0.0), ChatAnswer(0.0)
        await receive(ChatServer(client), conversation, "Hi", first)
        conversation.add("Hi", first)
        await there.ask("DELETE", f"/v1/responses/{first.response_id}")
        await receive(ChatServer(client), conversation, "More", second)
        assert (second.status, second.text) == ("completed", "Two")


async def test_a_server_that_is_not_there_is_told() -> None:
    async with opened("http://127.0.0.1:1") as client:
        assert not await client.is_antwort()
        with pytest.raises(ServerGone, match="cannot be reached"):
            await client.models()


async def test_a_server_that_hangs_up_is_told() -> None:
    async with saying(b"") as url, opened(url) as client:
        assert not await client.is_antwort()
        with pytest.raises(ServerGone, match="was lost"):
            await client.models()


@pytest.mark.parametrize("body", [b"<html>", b"[]", b'{"data": 7}', b"\xff"])
async def test_a_server_of_another_kind_is_told(body: bytes) -> None:
    async with saying(http(body)) as url, opened(url) as client:
        assert not await client.is_antwort()
        with pytest.raises(RequestRefused, match="is not a server of the Responses API"):
            await client.models()


async def test_a_model_server_on_the_usual_port_is_not_taken_for_ours() -> None:
    async with saying(http(b'{"object":"list","data":[{"id":"m"}],"status":"ok"}')) as url, opened(url) as client:
        assert await client.models() == ["m"]
        assert not await client.is_antwort()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"No.","code":"c","param":"p"}}', "No."),
        (b'{"error":"No."}', "No."),
        (b"<html>", "The server answered with the status 500."),
        (b'{"error":{"message":7}}', "The server answered with the status 500."),
    ],
)
async def test_an_error_in_any_shape_is_one_sentence(body: bytes, said: str) -> None:
    async with saying(http(body, "500 Oh")) as url, opened(url) as client:
        with pytest.raises(RequestRefused) as caught:
            await client.models()
        assert str(caught.value) == said


async def test_a_server_that_tells_nothing_of_tools_has_none_that_are_known() -> None:
    async with saying(http(b"{}", "404 No")) as url, opened(url) as client:
        assert await client.toolsets() == []


async def test_an_answer_that_is_no_stream_has_broken_off() -> None:
    async with saying(http(b'{"id":"resp_1"}')) as url, opened(url) as client:
        received = ChatAnswer(0.0)
        await receive(ChatServer(client), ChatConversation(), "Hi", received)
        assert (received.status, received.problem) == ("failed", "The answer broke off.")


@pytest.mark.parametrize("url", ["", "localhost:8080", "ftp://x", "http://", "http://[::1", "http://x:port"])
async def test_what_is_no_address_is_told(url: str) -> None:
    with pytest.raises(ChatError, match="is not the address of a server"):
        server_at(url, None)
