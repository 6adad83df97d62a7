"""The server to try things on, over HTTP: streamable, and the older way with server-sent events."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

import msgspec
import uvicorn
from mcp.server.sse import SseServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from antwort.testing.mcp.faults import METHODS, garbage_for
from antwort.testing.mcp.server import TryServer

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]

_VERSION = b"mcp-protocol-version"


class TryWeb:
    """An ASGI application: streamable HTTP at `/mcp`, its predecessor at `/sse`. It runs inside `running`."""

    def __init__(self, server: TryServer, *, json_answers: bool = False, is_stateless: bool = False) -> None:
        self._server = server
        self._streamable = StreamableHTTPSessionManager(
            server.made(), json_response=json_answers, stateless=is_stateless
        )
        self._sse = SseServerTransport("/messages/")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._streamable.run():
            yield

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not spoken here")
        headers = dict(scope["headers"])
        if (status := self._refusal(headers)) is not None:
            return await _answer(send, status, b'{"error": "refused"}')
        if scope["method"] == "POST" and self._server.faults.garbage:
            body = await _body(receive)
            if (nonsense := self._garbage(body)) is not None:
                return await _answer(send, 200, nonsense)
            receive = _again(body, receive)
        return await self._serve(scope, receive, send)

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        match scope["method"], scope["path"]:
            case _, "/mcp":
                await self._streamable.handle_request(scope, receive, send)
            case "GET", "/sse":
                server = self._server.made()
                async with self._sse.connect_sse(scope, receive, send) as (read, write):
                    await server.run(read, write, server.create_initialization_options())
            case "POST", "/messages/":
                await self._sse.handle_post_message(scope, receive, send)
            case _:
                await _answer(send, 404, b'{"error": "There is nothing here."}')

    def _refusal(self, headers: dict[bytes, bytes]) -> int | None:
        faults = self._server.faults
        if faults.status is not None:
            return faults.status
        if faults.token is not None and headers.get(b"authorization") != f"Bearer {faults.token}".encode():
            return 401
        if faults.oldest is not None and headers.get(_VERSION, b"").decode() not in ("", faults.oldest):
            return 400
        return None

    def _garbage(self, body: bytes) -> bytes | None:
        asked = msgspec.json.decode(body)
        faults = self._server.faults
        if METHODS.get(asked.get("method")) not in faults.garbage:
            return None
        return garbage_for(faults.garbage_as, asked.get("id"))


class Served:
    """A server that answers, on a port of this process."""

    def __init__(self, server: TryServer, port: int) -> None:
        self.server, self.port = server, port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    @property
    def sse_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/sse"


@asynccontextmanager
async def served(
    server: TryServer | None = None, *, port: int = 0, json_answers: bool = False, is_stateless: bool = False
) -> AsyncIterator[Served]:
    """The server behind uvicorn in this event loop, until the block is left: then it hangs up on all."""
    server = server or TryServer()
    web = TryWeb(server, json_answers=json_answers, is_stateless=is_stateless)
    sock = listening("127.0.0.1", port)
    host = uvicorn.Server(uvicorn.Config(web, lifespan="off", log_level="critical", ws="none"))
    quiet()
    host.config.load()
    host.lifespan = host.config.lifespan_class(host.config)
    await host.startup([sock])
    end = asyncio.Event()
    running = await _run(web, end)
    try:
        yield Served(server, sock.getsockname()[1])
    finally:
        end.set()
        await running
        await _hang_up(host)
        sock.close()


async def _run(web: TryWeb, end: asyncio.Event) -> asyncio.Task[None]:
    """In a task of its own: the SDK's sessions must be left in the task that they were entered in, and whoever serves
    may begin and end in different ones, as fixtures do.
    """
    ready = asyncio.Event()

    async def running() -> None:
        async with web.running():
            ready.set()
            await end.wait()

    task = asyncio.create_task(running())
    await ready.wait()
    return task


def listening(host: str, port: int) -> socket.socket:
    """A socket to serve on; a port that was left a moment ago is free again. What is written to it goes out at once:
    the event loop sees to that only for sockets that say which protocol they are of.
    """
    sock = socket.create_server((host, port), backlog=512)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def quiet() -> None:
    """The SDK reports each call that fails; here that is what was asked for."""
    logging.getLogger("mcp").setLevel(logging.CRITICAL)


async def _hang_up(host: uvicorn.Server) -> None:
    for server in host.servers:
        server.close()
    for connection in list(host.server_state.connections):
        connection.transport.abort()
    for task in list(host.server_state.tasks):
        task.cancel()
    await asyncio.gather(*host.server_state.tasks, return_exceptions=True)


# ---- HTTP ----


async def _body(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            return bytes(body)


def _again(body: bytes, receive: Receive) -> Receive:
    """What was received, to be received once more; then what comes after it."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def first_the_body() -> Message:
        return waiting.pop() if waiting else await receive()

    return first_the_body


async def _answer(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
