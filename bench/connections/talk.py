"""The light end of many connections: one turn after the other, over a WebSocket or as SSE."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple, Protocol

from connections.frames import CLOSE, PING, PONG, TEXT, Frames, upgrade, written

_PATH = "/v1/responses"
_CREATED = b'"response.created"'
_DELTA = b'"response.output_text.delta"'
_TERMINAL = (b'"response.completed"', b'"response.failed"', b'"response.incomplete"', b'"error"')
_HEAD = 64
"""The type of an event stands in so many of its first bytes."""


class Trouble(Exception):
    """A turn that did not end as it should, or a connection that was lost."""


class Ended(NamedTuple):
    """A turn that was completed."""

    id: str
    text: str
    deltas: int


class Crowd:
    """How many turns are under way at the same time, at most."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    def begin(self) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)

    def end(self) -> None:
        self.now -= 1


class Line(Protocol):
    """A connection that carries turns."""

    async def turn(self, body: dict[str, Any]) -> Ended: ...

    def close(self) -> None: ...


class _Talk(asyncio.Protocol):
    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._loop = asyncio.get_running_loop()
        self._lost = False
        self._waiting: asyncio.Future[Ended] | None = None
        self._started = False
        self._deltas = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._fail(Trouble(f"the connection was lost: {exc}"))

    async def turn(self, body: dict[str, Any]) -> Ended:
        if self._lost:
            raise Trouble("the connection is gone")
        self._waiting = self._loop.create_future()
        self._started, self._deltas = False, 0
        self._ask(body)
        try:
            return await self._waiting
        finally:
            self._waiting = None
            if self._started:
                self._crowd.end()

    def _ask(self, body: dict[str, Any]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.transport.close()

    def _hear(self, event: bytes) -> None:
        """One event, as JSON."""
        head = event[:_HEAD]
        if _DELTA in head:
            self._deltas += 1
        elif _CREATED in head:
            self._started = True
            self._crowd.begin()
        elif any(kind in head for kind in _TERMINAL):
            self._finish(json.loads(event))

    def _finish(self, event: dict[str, Any]) -> None:
        if event["type"] != "response.completed":
            self._fail(Trouble(json.dumps(event)[:500]))
        elif self._waiting is not None and not self._waiting.done():
            response = event["response"]
            texts = [part["text"] for item in response["output"] for part in item["content"]]
            self._waiting.set_result(Ended(response["id"], "".join(texts), self._deltas))

    def _fail(self, trouble: Trouble) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(trouble)


class Socket(_Talk):
    """A WebSocket."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(crowd)
        self._opened: asyncio.Future[None] = self._loop.create_future()
        self._reply = b""
        self._frames = Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(upgrade("bench", _PATH))

    def data_received(self, data: bytes) -> None:
        if not self._opened.done():
            self._reply += data
            head, end, data = self._reply.partition(b"\r\n\r\n")
            if not end:
                return
            if not head.startswith(b"HTTP/1.1 101 "):
                self._opened.set_exception(Trouble(self._reply[:500].decode("latin-1")))
                return
            self._opened.set_result(None)
        for opcode, payload in self._frames.feed(data):
            if opcode == TEXT:
                self._hear(payload)
            elif opcode == PING:
                self.transport.write(written(PONG, payload))
            elif opcode == CLOSE:
                self._fail(Trouble(f"closed: {payload[:200]!r}"))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if not self._opened.done():
            self._opened.set_exception(Trouble("the connection was lost while it was opened"))

    async def opened(self) -> None:
        await self._opened

    def _ask(self, body: dict[str, Any]) -> None:
        self.transport.write(written(TEXT, json.dumps({"type": "response.create", **body}).encode()))

    def close(self) -> None:
        self.transport.write(written(CLOSE, (1000).to_bytes(2, "big")))
        self.transport.close()


class Stream(_Talk):
    """HTTP with a streamed answer, on a connection that is kept."""

    def __init__(self, crowd: Crowd) -> None:
        super().__init__(crowd)
        self._bytes = bytearray()

    def data_received(self, data: bytes) -> None:
        """Frames are looked for as they stand: the server writes a frame as one, and sizes of chunks are no `data:`."""
        self._bytes += data
        *frames, rest = bytes(self._bytes).split(b"\n\n")
        self._bytes = bytearray(rest)
        for frame in frames:
            _, _, event = frame.partition(b"data: ")
            if event and event != b"[DONE]":
                self._hear(event)
            elif not event:
                self._fail(Trouble(frame[:300].decode("latin-1")))

    def _ask(self, body: dict[str, Any]) -> None:
        data = json.dumps({**body, "stream": True}).encode()
        head = (
            f"POST {_PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n"
        )
        self.transport.write(head.encode() + b"\r\n" + data)


async def socket_to(port: int, crowd: Crowd) -> Socket:
    _, made = await asyncio.get_running_loop().create_connection(lambda: Socket(crowd), "127.0.0.1", port)
    await made.opened()
    return made


async def stream_to(port: int, crowd: Crowd) -> Stream:
    _, made = await asyncio.get_running_loop().create_connection(lambda: Stream(crowd), "127.0.0.1", port)
    return made
