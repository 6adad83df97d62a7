"""The older transport over HTTP, with a server that does as told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec.structs import replace

from antwort.tools.mcp.base import ServerSpec, ServerUnavailable, Unauthorized
from jumping_time import jumping_time
from session_kit import STREAM, TEXT, TOOL, Act, Asked, Puppet, Send, cuts, event, hangs, puppet, session_with, whole

AGREED = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}}


class Older:
    """Answers by the stream that was opened last."""

    def __init__(self, endpoint: str = "/post") -> None:
        self.streams: list[Send] = []
        self.endpoint = endpoint

    async def open(self, asked: Asked, send: Send) -> None:
        await send(STREAM + f"event: endpoint\ndata: {self.endpoint}\n\n".encode())
        self.streams.append(send)
        await asyncio.Event().wait()

    async def say(self, asked: Asked, value: object) -> None:
        await self.streams[-1](event({"jsonrpc": "2.0", "id": asked.number, "result": value}))

    def says(self, value: object) -> Act:
        async def act(asked: Asked, send: Send) -> None:
            await send(whole(202))
            await self.say(asked, value)

        return act


@asynccontextmanager
async def older(**acts: Act) -> AsyncGenerator[tuple[Older, Puppet, ServerSpec], None]:
    own = Older()
    async with puppet(
        GET=own.open, initialize=own.says(AGREED), tools_list=own.says({"tools": [TOOL]}), tools_call=own.says(TEXT)
    ) as server:
        server.acts.update({name.replace("_", "/", 1): act for name, act in acts.items()})
        yield own, server, replace(server.spec, transport="sse")


async def test_a_message_may_be_as_large_as_the_settings_say() -> None:
    async with older() as (own, server, spec), session_with(replace(spec, largest=4_000_000)) as session:
        text = "x" * 2_000_000
        server.acts["tools/call"] = own.says({"content": [{"type": "text", "text": text}]})
        assert (await session.call("do", "{}", key="k")).content[0]["text"] == text


async def test_one_that_is_larger_is_not_waited_for() -> None:
    async with older() as (own, server, spec), session_with(replace(spec, largest=100_000)) as session:
        await session.tools()
        server.acts["tools/call"] = own.says({"content": [{"type": "text", "text": "x" * 2_000_000}]})
        with pytest.raises(ServerUnavailable):
            await session.call("do", "{}", key="k")


@pytest.mark.parametrize(
    ("refusal", "kind"), [(413, ServerUnavailable), (401, Unauthorized), (None, ServerUnavailable)]
)
async def test_a_message_that_is_refused_hurts_nobody_else(refusal: int | None, kind: type[Exception]) -> None:
    let_go = asyncio.Event()
    later: list[asyncio.Task[None]] = []

    async def act(asked: Asked, send: Send) -> None:
        if asked.message["params"]["name"] == "bad":
            await cuts(asked, send) if refusal is None else await send(whole(refusal))
            return
        await send(whole(202))
        later.append(asyncio.create_task(answer(asked, own.streams[-1])))

    async def answer(asked: Asked, stream: Send) -> None:
        await let_go.wait()
        await stream(event({"jsonrpc": "2.0", "id": asked.number, "result": TEXT}))

    async with older(tools_call=act) as (own, server, spec), session_with(spec) as session:
        slow = asyncio.create_task(session.call("slow", "{}", key="k"))
        await server.until("tools/call")
        with pytest.raises(kind):
            await session.call("bad", "{}", key="k")
        let_go.set()
        assert not (await slow).is_error
        assert len(server.seen("tools/call")) == 2
        assert not (await session.call("slow", "{}", key="k")).is_error
        assert len(server.seen("GET")) == 2  # whoever comes later has a fresh session


async def test_a_call_does_not_wait_until_another_was_taken() -> None:
    both = asyncio.Event()

    async def act(asked: Asked, send: Send) -> None:
        if len(server.seen("tools/call")) == 2:
            both.set()
        await both.wait()  # each is taken only when the other has come
        await send(whole(202))
        await own.say(asked, TEXT)

    async with older(tools_call=act) as (own, server, spec), session_with(spec) as session:
        await session.tools()
        await asyncio.gather(*(session.call("do", "{}", key=key) for key in "ab"))


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:1/post", "https://elsewhere.example/post", "http://[x/"])
async def test_messages_go_nowhere_else(endpoint: str) -> None:
    async with older() as (own, server, spec), session_with(spec) as session:
        own.endpoint = endpoint
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await session.tools()
        assert server.seen("initialize") == []


@jumping_time
async def test_whoever_waits_for_a_session_hears_of_its_end_before_it_is_closed() -> None:
    async def ends_the_stream(asked: Asked, send: Send) -> None:
        ended.set()
        await hangs(asked, send)  # closing it waits for this

    async def open_and_end(asked: Asked, send: Send) -> None:
        await send(STREAM + b"event: endpoint\ndata: /post\n\n")
        await ended.wait()
        raise ConnectionAbortedError

    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    async with older(GET=open_and_end, initialize=ends_the_stream) as (_, _, spec), session_with(spec) as session:
        began = loop.time()
        with pytest.raises(ServerUnavailable):
            await session.tools()
        assert loop.time() - began < 0.5


async def test_a_redirect_within_the_server_is_followed() -> None:
    async def moved(asked: Asked, send: Send) -> None:
        server.acts["GET"] = own.open
        await send(whole(307, Location="/moved"))

    async with older(GET=moved) as (own, server, spec), session_with(spec) as session:
        assert len((await session.tools()).tools) == 1


async def test_an_answer_that_is_none_ends_the_call_and_not_the_session() -> None:
    async def odd(asked: Asked, send: Send) -> None:
        await send(whole(202))
        await own.say(asked, "no object")

    async with older(tools_call=odd) as (own, server, spec), session_with(spec) as session:
        with pytest.raises(ServerUnavailable, match="did not answer as one"):
            await session.call("do", "{}", key="k")
        server.acts["tools/call"] = own.says(TEXT)
        assert not (await session.call("do", "{}", key="k")).is_error
        assert len(server.seen("GET")) == 1
