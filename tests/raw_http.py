"""An HTTP client that hides nothing: status, headers, and every chunk of the body as it was written."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any] | bytes | None


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    chunks: list[bytes]
    """The pieces of a chunked body; of another, the whole as one."""

    @property
    def body(self) -> bytes:
        return b"".join(self.chunks)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in the body, which has nothing beside it and exactly the four keys."""
        plain = self.json()
        assert list(plain) == ["error"]
        error: dict[str, Any] = plain["error"]
        assert sorted(error) == ["code", "message", "param", "type"]
        assert self.headers["content-type"] == "application/json"
        return error


class Wire:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._is_head = False

    def send(self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        fields = {"host": "test"}
        if body is not None:
            fields |= {"content-type": "application/json", "content-length": str(len(data))}
        fields |= headers or {}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items() if value)]
        self._is_head = method == "HEAD"
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    async def head(self) -> Reply:
        """The answer's status and headers, its body still to be read."""
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name: value.strip() for name, _, value in (line.partition(":") for line in lines[1:-2])}
        return Reply(int(lines[0].split(" ")[1]), headers, [])

    async def chunk(self) -> bytes:
        """The next chunk; empty when the body is over."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        data = await self.reader.readexactly(size + 2)
        return data[:-2]

    async def reply(self) -> Reply:
        return await self.rest(await self.head())

    async def rest(self, reply: Reply) -> Reply:
        """The answer whose head has been read, with its body."""
        if reply.headers.get("transfer-encoding") == "chunked":
            while chunk := await self.chunk():
                reply.chunks.append(chunk)
        elif not self._is_head and reply.status not in (204, 304):
            reply.chunks.append(await self.reader.readexactly(int(reply.headers["content-length"])))
        return reply

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()

    def vanish(self) -> None:
        """Hang up without a word."""
        self.writer.transport.abort()


@asynccontextmanager
async def connected(port: int, *, buffer: int | None = None) -> AsyncIterator[Wire]:
    """`buffer` is about how many bytes come in without being read."""
    sock = socket.socket()
    if buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    sock.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
    except BaseException:
        sock.close()
        raise
    reader, writer = await asyncio.open_connection(sock=sock, limit=buffer or 65536)
    wire = Wire(reader, writer)
    try:
        yield wire
    finally:
        if not writer.is_closing():
            writer.transport.abort()


async def ask(port: int, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None) -> Reply:
    """One request on a connection of its own."""
    async with connected(port) as wire:
        wire.send(method, path, body, headers)
        return await wire.reply()
