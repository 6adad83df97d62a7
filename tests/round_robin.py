"""A proxy that gives each request to the next of several servers: what a client sees of replicas."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count

_A_HEAD = b"\r\n\r\n"
_KEPT = re.compile(rb"\r\n(?:connection|keep-alive): [^\r]*", re.IGNORECASE)


class RoundRobin:
    """Each request comes on a connection of its own. A server that does not answer the door is passed over."""

    def __init__(self, ports: Sequence[int]) -> None:
        self.ports = list(ports)
        """Servers may come and go."""
        self.given: list[int] = []
        """Which server each request was given to."""
        self.port = 0
        self._turns = count()
        self._under_way: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            try:
                request = await _request(reader)
                await self._pass_on(request, reader, writer)
            finally:
                writer.close()

    async def _pass_on(self, request: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers, asking = await self._next()
        try:
            asking.write(request)
            passing, leaving = asyncio.create_task(_pass(answers, writer)), asyncio.create_task(reader.read(1))
            try:
                await asyncio.wait((passing, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in (passing, leaving):
                    task.cancel()
                await asyncio.wait((passing, leaving))
        finally:
            asking.transport.abort()

    async def _next(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self.ports:
            port = self.ports[next(self._turns) % len(self.ports)]
            with suppress(OSError):
                connected = await asyncio.open_connection("127.0.0.1", port)
                self.given.append(port)
                return connected
        raise ConnectionRefusedError

    async def close(self) -> None:
        for task in [*self._under_way]:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)


async def _request(reader: asyncio.StreamReader) -> bytes:
    """As it came, but that its connection ends with its answer."""
    head = await reader.readuntil(_A_HEAD)
    length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    body = await reader.readexactly(int(length[1])) if length else b""
    return _KEPT.sub(b"", head[: -len(_A_HEAD)]) + b"\r\nconnection: close" + _A_HEAD + body


async def _pass(answers: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await answers.read(65536):
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def round_robin(*ports: int) -> AsyncIterator[RoundRobin]:
    proxy = RoundRobin(ports)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
        await server.wait_closed()
