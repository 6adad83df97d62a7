"""What the tests of sessions with MCP servers share: pools that must leave nothing, and a server that does as told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from antwort.net.ssrf import AddressPolicy
from antwort.testing.mcp import Served, TryServer, served
from antwort.tools.base import Progress
from antwort.tools.mcp.base import McpCallResult, ServerSpec, ServerTools
from antwort.tools.mcp.pool import SessionPool
from mcp_kit import STDIO

PATIENCE = 20.0
OURS = ("mcp session", "mcp list", "mcp closing")


def tasks_left() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(OURS)]


async def until(claim: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not claim():  # noqa: ASYNC110 - what is claimed sets no event
            await asyncio.sleep(0)


class Session:
    """A server, whose session is taken from the pool for each question, as the executor does."""

    def __init__(self, pool: SessionPool, spec: ServerSpec) -> None:
        self._pool, self._spec = pool, spec

    async def tools(self) -> ServerTools:
        return await self._pool.session(self._spec).tools()

    async def refresh(self) -> ServerTools:
        return await self._pool.session(self._spec).refresh()

    async def call(
        self, name: str, arguments: str, *, key: str, progress: Callable[[Progress], None] | None = None
    ) -> McpCallResult:
        return await self._pool.session(self._spec).call(name, arguments, key=key, progress=progress)


class KitPool(SessionPool):
    def get(self, spec: ServerSpec) -> Session:
        return Session(self, spec)


@asynccontextmanager
async def pooled(
    limit: int = 256, idle: float = 600.0, reach: AddressPolicy | None = None, patience: float = PATIENCE
) -> AsyncGenerator[KitPool, None]:
    pool = KitPool(limit=limit, idle=idle, reach=reach)
    try:
        async with asyncio.timeout(patience):
            yield pool
    finally:
        await pool.close()
        assert tasks_left() == []


@asynccontextmanager
async def session_with(spec: ServerSpec) -> AsyncGenerator[Session, None]:
    async with pooled() as pool:
        yield pool.get(spec)


WAYS = ("newest", "older", "older, in JSON", "sse", "stdio")


@asynccontextmanager
async def session_by(way: str) -> AsyncGenerator[tuple[Session, TryServer | None], None]:
    """With a real server, in each of the ways there are; over a pipe, its record is not at hand."""
    from antwort.testing.mcp import Faults

    if way == "stdio":
        async with session_with(ServerSpec(label="try", transport="stdio", command=STDIO, connect=PATIENCE)) as session:
            yield session, None
        return
    server = TryServer(faults=Faults(oldest="2025-06-18" if way.startswith("older") else None))
    async with served(server, json_answers=way.endswith("JSON")) as at, session_with(spec_of(at, way)) as session:
        yield session, server


def spec_of(at: Served, way: str = "newest") -> ServerSpec:
    if way == "sse":
        return ServerSpec(label="try", transport="sse", url=at.sse_url)
    return ServerSpec(label="try", url=at.url)


# ---- a server that does as told ----


class Asked:
    """A request that came over HTTP."""

    def __init__(self, verb: str, headers: Mapping[str, str], body: bytes) -> None:
        self.verb, self.headers = verb, headers
        self.is_form = "form" in headers.get("content-type", "")
        self.message: dict[str, Any] = json.loads(body) if body and not self.is_form else {}

    @property
    def method(self) -> str:
        if self.is_form:
            return "form"
        return str(self.message.get("method", "answer" if self.message else self.verb))

    @property
    def number(self) -> Any:
        return self.message.get("id")


Send: TypeAlias = Callable[[bytes], Awaitable[None]]
Act: TypeAlias = Callable[[Asked, Send], Awaitable[None]]


def whole(status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> bytes:
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status} x\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def result(asked: Asked, value: object, **headers: str) -> bytes:
    return whole(200, json.dumps({"jsonrpc": "2.0", "id": asked.number, "result": value}).encode(), **headers)


def says(value: object) -> Act:
    """The result of every such request."""

    async def act(asked: Asked, send: Send) -> None:
        await send(result(asked, value))

    return act


def sends(data: bytes) -> Act:
    async def act(asked: Asked, send: Send) -> None:
        await send(data)

    return act


STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def event(message: object) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


def streams(*messages: object, answer: object | None = None) -> Act:
    """A stream of events; those that are none of the answer first. It ends without one when there is none."""

    async def act(asked: Asked, send: Send) -> None:
        await send(STREAM + b"".join(map(event, messages)))
        if answer is not None:
            await send(event({"jsonrpc": "2.0", "id": asked.number, "result": answer}))
        raise ConnectionAbortedError

    return act


async def hangs(asked: Asked, send: Send) -> None:
    await asyncio.Event().wait()


async def cuts(asked: Asked, send: Send) -> None:
    raise ConnectionAbortedError


TEXT = {"content": [{"type": "text", "text": "done"}]}
TOOL = {"name": "do", "description": "Does it.", "inputSchema": {"type": "object"}}


class Puppet:
    """An MCP server of the older versions, written by hand: it does as told, and keeps what it was asked."""

    def __init__(self, **acts: Act) -> None:
        self.acts: dict[str, Act] = {
            "server/discover": sends(whole(400, b"{}")),
            "notifications/initialized": sends(whole(202)),
            "notifications/cancelled": sends(whole(202)),
            "answer": sends(whole(202)),
            "GET": sends(whole(405)),
            "DELETE": sends(whole(200)),
            "initialize": self._initialize,
            "tools/list": says({"tools": [TOOL]}),
            "tools/call": says(TEXT),
        }
        self.acts.update({_wire(name): act for name, act in acts.items()})
        self.asked: list[Asked] = []
        self.sessions = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def spec(self) -> ServerSpec:
        return ServerSpec(label="puppet", url=f"http://127.0.0.1:{self.port}/mcp", connect=5.0)

    def seen(self, method: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == method]

    async def until(self, method: str, times: int = 1) -> Asked:
        await until(lambda: len(self.seen(method)) >= times)
        return self.seen(method)[times - 1]

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """Let nobody else in."""
        assert self._server is not None
        self._server.close()

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.sleep(0)  # whoever has been let in already is served by a task
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0)  # lets the event loop close the sockets

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send(data: bytes) -> None:
            writer.write(data)
            await writer.drain()

        try:
            while True:
                asked = await _read(reader)
                self.asked.append(asked)
                await self.acts[asked.method](asked, send)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _initialize(self, asked: Asked, send: Send) -> None:
        self.sessions += 1
        value = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "puppet", "version": "1"},
        }
        await send(result(asked, value, Mcp_Session_Id=f"s{self.sessions}"))


def _wire(name: str) -> str:
    return name if name.isupper() else name.replace("_", "/", 1)


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    pairs = (line.partition(":") for line in head[1:] if line)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(head[0].split()[0], headers, body)


@asynccontextmanager
async def puppet(**acts: Act) -> AsyncGenerator[Puppet, None]:
    server = Puppet(**acts)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
