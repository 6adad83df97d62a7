"""Requests one after the other on a connection: their heads, their dates, and how long the connection is kept."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

import pytest

from antwort.engine.engine import Engine
from antwort.server.exchange import Message, Receive, Scope, Send
from antwort.server.http import Transport
from antwort.server.protocol import HttpProtocol
from antwort.server.server import Server, listen
from antwort.testing import demo_provider
from jumping_time import jumping_time
from raw_http import connected
from serving import HELLO, RESPONSES, serving, until

LIMIT = 500


class InBetween:
    """Stands in front of an application, as a middleware does."""

    def __init__(self, app: Transport) -> None:
        self._app = app
        self.seen: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def hear() -> Message:
            message = await receive()
            self.seen.append(message["type"])
            return message

        async def tell(message: Message) -> None:
            self.seen.append(message["type"])
            await send(message)

        await self._app(scope, hear, tell)


async def answered(engine: Engine, app: Transport | InBetween) -> list[bytes]:
    """The head of an answer, less the time of day."""
    listening = listen("127.0.0.1", 0)
    server = Server(app, drain=engine.drain, drain_seconds=0)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started)
        async with connected(listening.getsockname()[1]) as wire:
            wire.send("GET", "/healthz", headers={"x-request-id": "r1"})
            head = await wire.reader.readuntil(b"\r\n\r\n")
            assert await wire.reader.readexactly(15) == b'{"status":"ok"}'
            wire.send("POST", RESPONSES, HELLO)
            assert (await wire.reply()).status == 200
    finally:
        server.told_to_stop()
        await task
    return [line for line in head.split(b"\r\n") if not line.startswith(b"date: ")]


async def test_the_answer_is_to_the_byte_what_asgi_makes_of_it() -> None:
    async with Engine(demo_provider()) as engine:
        shortly = await answered(engine, Transport(engine))
    async with Engine(demo_provider()) as engine:
        between = InBetween(Transport(engine))
        assert await answered(engine, between) == shortly
    assert between.seen[:3] == ["http.response.start", "http.response.body", "http.request"]


async def test_an_answer_tells_the_time_of_day_as_it_is_and_not_as_it_was_at_the_start() -> None:
    async with Engine(demo_provider()) as engine:
        listening = listen("127.0.0.1", 0)
        server = Server(Transport(engine), drain=engine.drain, drain_seconds=0)
        task = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await until(lambda: server.started)
            async with connected(listening.getsockname()[1]) as wire:
                dates: list[datetime] = []
                for _ in range(2):
                    await asyncio.sleep(1.2)
                    wire.send("GET", "/healthz")
                    dates.append(parsedate_to_datetime((await wire.reply()).headers["date"]))
        finally:
            server.told_to_stop()
            await task
    assert dates[0] < dates[1]
    assert abs(datetime.now(UTC) - dates[1]) < timedelta(seconds=4)


async def test_a_connection_that_was_closed_is_freed_and_not_by_a_later_garbage_collection() -> None:
    def connections() -> int:
        return sum(issubclass(type(each), HttpProtocol) for each in gc.get_objects())

    async with serving(Engine(demo_provider())) as server:
        gc.collect()
        before = connections()
        gc.disable()
        try:
            async with AsyncExitStack() as stack:
                wires = [await stack.enter_async_context(connected(server.port)) for _ in range(10)]
                for wire in wires:
                    wire.send("POST", RESPONSES, HELLO)
                    assert (await wire.reply()).status == 200
                assert connections() == before + 10
            await until(lambda: connections() == before)
        finally:
            gc.enable()


@pytest.mark.parametrize("size", [LIMIT - 100, LIMIT * 2])
async def test_a_head_that_comes_in_pieces_behind_another_request_has_the_same_limit(size: int) -> None:
    first = b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n"
    second = b"GET /healthz HTTP/1.1\r\nhost: a\r\nx: " + b"y" * size
    async with serving(Engine(demo_provider()), head_limit=LIMIT) as server, connected(server.port) as wire:
        wire.writer.write(first + second)
        assert (await wire.reply()).status == 200
        await asyncio.sleep(0.02)
        wire.writer.write(b"\r\n\r\n")
        assert (await wire.reply()).status == (200 if size < LIMIT else 431)


@jumping_time
async def test_a_connection_on_which_the_rest_of_a_body_came_after_its_answer_is_idle_too() -> None:
    async with serving(Engine(demo_provider())) as server, connected(server.port) as wire:
        wire.send("POST", "/healthz", b"", {"content-length": "2"})
        assert (await wire.reply()).status == 405
        wire.writer.write(b"{}")
        assert await asyncio.wait_for(wire.reader.read(), 80) == b""


@jumping_time
async def test_a_connection_that_is_used_is_kept_and_one_that_is_idle_is_not() -> None:
    async with serving(Engine(demo_provider())) as server, connected(server.port) as wire:
        began = asyncio.get_running_loop().time()
        for _ in range(5):
            wire.send("GET", "/healthz")
            assert (await wire.reply()).status == 200
            await asyncio.sleep(40)
        assert asyncio.get_running_loop().time() - began >= 200
        assert await asyncio.wait_for(wire.reader.read(), 80) == b""
        assert 234 < asyncio.get_running_loop().time() - began < 237, "75 seconds after the last answer"


# ---- answers that nobody reads, and bodies that do not come ----


@pytest.mark.parametrize("path", [RESPONSES, "/nothing"], ids=["accepted", "denied"])
async def test_a_websocket_that_is_asked_for_behind_an_unread_answer_is_hung_up_on(path: str) -> None:
    engine = Engine(demo_provider())
    app = Transport(engine, linger=0.2)
    upgrade = (
        f"GET {path} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    async with serving(engine, app, request_time=0.3) as server, connected(server.port, buffer=4096) as wire:
        wire.writer.write(b"GET /docs/swagger-ui-bundle.js HTTP/1.1\r\nhost: a\r\n\r\n" + upgrade.encode())
        await until(lambda: len(server.server.server_state.connections) == 1)
        await until(lambda: not server.server.server_state.connections, within=10)


async def test_a_connection_ends_with_an_answer_for_which_the_body_was_not_asked() -> None:
    """The client has not sent it: what comes next could be the body or a request."""
    async with serving(Engine(demo_provider())) as server, connected(server.port) as wire:
        head = "POST /nothing HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 41\r\n\r\n"
        wire.writer.write(head.encode())
        reply = await wire.reply()
        assert (reply.status, reply.headers["connection"]) == (404, "close")
        assert await wire.reader.read() == b""
