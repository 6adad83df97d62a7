"""Our own server and an application that is not ours alone: it keeps to what ASGI allows one to leave out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from antwort.engine.engine import Engine
from antwort.server.exchange import Receive, Scope, Send
from antwort.server.http import Transport
from antwort.server.server import Server, listen
from antwort.testing import demo_provider
from raw_http import Wire, connected
from serving import until

App = Callable[[Scope, Receive, Send], Awaitable[None]]


@asynccontextmanager
async def served(app: App, *, request_time: float = 60.0) -> AsyncIterator[Wire]:
    async def drain(_: float) -> None:
        """There is nothing to wait for."""

    listening = listen("127.0.0.1", 0)
    server = Server(app, drain=drain, drain_seconds=0, request_time=request_time)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        await until(lambda: server.started)
        async with connected(listening.getsockname()[1]) as wire:
            yield wire
    finally:
        server.told_to_stop()
        await task


async def test_an_answer_may_have_no_headers_and_no_body() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200})
        await send({"type": "http.response.body"})

    async with served(app) as wire:
        for method in ("GET", "HEAD", "GET"):
            wire.send(method, "/")
            reply = await wire.head()
            assert (reply.status, "transfer-encoding" in reply.headers) == (200, method == "GET")
            assert (await wire.rest(reply)).body == b"" if method == "GET" else True


async def test_an_answer_that_says_itself_that_it_is_chunked_says_it_once() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"Transfer-Encoding", b"Chunked")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ab", "more_body": True})
        await send({"type": "http.response.body", "body": b"c"})

    async with served(app) as wire:
        wire.send("GET", "/")
        head = await wire.reader.readuntil(b"\r\n\r\n")
        assert head.lower().count(b"transfer-encoding") == 1
        assert [await wire.chunk() for _ in range(3)] == [b"ab", b"c", b""]
        wire.send("HEAD", "/")
        await wire.head()
        wire.send("GET", "/")
        assert (await wire.head()).status == 200


async def test_an_answer_shorter_than_it_says_is_sent_as_far_as_it_goes() -> None:
    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
        await send({"type": "http.response.body", "body": b"abc"})

    async with served(app) as wire:
        wire.send("GET", "/")
        await wire.head()
        assert await wire.reader.read() == b"abc"


async def test_what_an_application_has_left_out_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/begun":
            await send({"type": "http.response.start", "status": 200, "headers": []})

    caplog.set_level(logging.ERROR, "antwort.connection")
    async with served(app) as wire:
        wire.send("GET", "/")
        assert (await wire.reply()).status == 500
    async with served(app) as wire:
        wire.send("GET", "/begun")
        await wire.head()
        assert await wire.reader.read() == b""
    assert [line.split()[4] for line in caplog.messages] == ["starting", "completing"]


async def test_an_application_is_not_left_waiting_for_a_body_that_does_not_come(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(_scope: Scope, receive: Receive, _send: Send) -> None:
        while (await receive()).get("more_body"):
            pass

    caplog.set_level(logging.ERROR)
    async with served(app, request_time=0.05) as wire:
        wire.send("POST", "/", b"{", {"content-length": "100"})
        assert (await wire.reply()).status == 500
        assert await wire.reader.read() == b""
    assert caplog.messages == []


async def test_nobody_is_told_to_go_on_behind_an_answer() -> None:
    """Where somebody asks for the rest of the request when it has been answered."""
    async with Engine(demo_provider()) as engine:
        transport = Transport(engine)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await transport(scope, receive, send)
            assert (await receive())["type"] == "http.disconnect"

        async with served(app) as wire:
            wire.send("GET", "/healthz", b"{}", {"expect": "100-continue"})
            assert (await wire.reply()).status == 200
            wire.send("GET", "/healthz")
            assert (await wire.reply()).status == 200
