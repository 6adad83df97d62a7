"""The real application behind the real server, on a loopback port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from antwort.engine.engine import Engine
from antwort.testing import check_frames
from antwort.testing.stream_checks import may_repeat_progress
from antwort.transport.connection import Connection
from antwort.transport.exchange import Message, Receive, Scope, Send
from antwort.transport.http import Transport
from antwort.transport.server import MESSAGE_LIMIT, Ping, Server, listen
from raw_http import Body, Reply, ask


class Recorder:
    """Stands in front of an application and keeps the streams that it sends to their end."""

    def __init__(self, app: Transport) -> None:
        self._app = app
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not _may_stream(scope):  # and so may be answered by the shorter way, in which nobody stands
            await self._app(scope, receive, send)
            return
        chunks: list[bytes] = []
        is_stream = is_ended = False

        async def keep(message: Message) -> None:
            nonlocal is_stream, is_ended
            if message["type"] == "http.response.start":
                is_stream = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
            elif is_stream:
                chunks.append(message["body"])
                is_ended = not message["more_body"]
            await send(message)

        await self._app(scope, receive, keep)
        if is_ended and chunks[-1] and _is_whole(scope):  # the body of a client that left ends with nothing, or never
            self.bodies.append(b"".join(chunks))


def _may_stream(scope: Scope) -> bool:
    return scope["type"] == "http" and (scope["method"] == "POST" or b"stream" in scope["query_string"])


def _is_whole(scope: Scope) -> bool:
    """Not the rest of a stream, or only its head."""
    return scope["method"] != "HEAD" and b"starting_after=" not in scope["query_string"]


RESPONSES = "/v1/responses"
HELLO: dict[str, Any] = {"model": "scripted", "input": "Hello"}
STREAMED: dict[str, Any] = {**HELLO, "stream": True}


class Serving:
    """A server that answers."""

    def __init__(self, engine: Engine, server: Server, listening: socket.socket) -> None:
        self.engine, self.server, self.listening = engine, server, listening
        self.port: int = listening.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def ask(self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
        return await ask(self.port, method, path, body, headers)


@asynccontextmanager
async def serving(
    engine: Engine,
    app: Transport | None = None,
    *,
    drain: float = 0.5,
    head_limit: int = Connection.head_limit,
    request_time: float = Connection.request_time,
    ping: Ping = Ping(),  # noqa: B008 - a frozen value
    message_limit: int = MESSAGE_LIMIT,
    peers: socket.socket | None = None,
) -> AsyncIterator[Serving]:
    """`app` in front of `engine`, started and stopped as `antwort serve` does it, less the wait for a signal.

    Every stream that it sends is held against the grammar.
    """
    sock = listen("127.0.0.1", 0)
    app = app or Transport(engine)
    recorder = Recorder(app)
    server = Server(
        recorder,
        drain=engine.drain,
        drain_seconds=drain,
        head_limit=head_limit,
        request_time=request_time,
        on_refusal=app.refused,
        strict=engine.settings.strict,
        ping=ping,
        message_limit=message_limit,
        peers=peers,
    )
    server.config.load()
    server.lifespan = server.config.lifespan_class(server.config)
    await engine.open()
    await server.startup([sock])
    try:
        yield Serving(engine, server, sock)
    finally:
        await server.shutdown([sock])
        await engine.close()
    for body in recorder.bodies:
        check_frames(body, keepalive=may_repeat_progress(engine.settings), strict=engine.settings.strict)


async def until(claim: Callable[[], bool], within: float = 5.0) -> None:
    """Let the loop turn until the claim is true; a claim that does not come true fails the test."""
    async with asyncio.timeout(within):
        while not claim():  # noqa: ASYNC110 - what is waited for has no event of its own
            await asyncio.sleep(0)


async def until_quiet(count: Callable[[], int], turns: int = 2000) -> int:
    """The count once it has stayed the same for that many turns of the loop."""
    last, still = count(), 0
    async with asyncio.timeout(30):
        while still < turns:
            await asyncio.sleep(0)
            still = still + 1 if count() == last else 0
            last = count()
    return last
