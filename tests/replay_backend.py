"""A backend that plays recordings, or any bytes, over a real socket, and remembers what it was asked.

`CASES` are the recorded answers of real engines; `serve` plays them:

    async with serve(CASES["vllm/text_stream_usage"]) as backend:
        provider = ChatProvider(backend.url)
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).parent / "providers" / "transcripts"


@dataclass(frozen=True)
class Case:
    """One recorded exchange. The body is that of the answer after HTTP de-chunking."""

    name: str
    request_path: Path
    response_path: Path
    meta_path: Path

    @cached_property
    def request(self) -> bytes:
        return self.request_path.read_bytes()

    @cached_property
    def body(self) -> bytes:
        return self.response_path.read_bytes()

    @cached_property
    def meta(self) -> dict[str, Any]:
        meta: dict[str, Any] = json.loads(self.meta_path.read_bytes())
        return meta

    @property
    def is_native(self) -> bool:
        """Recorded from the engine's own Responses API, not from Chat Completions."""
        return bool(self.meta["path"] == "/v1/responses")

    @property
    def is_streamed(self) -> bool:
        return self.response_path.suffix == ".sse"


def _case(meta: Path) -> Case:
    name = meta.name.removesuffix(".meta.json")
    response = next(meta.parent.glob(f"{name}.response.*"))
    return Case(f"{meta.parent.name}/{name}", meta.with_name(f"{name}.request.json"), response, meta)


CASES: Mapping[str, Case] = {case.name: case for case in map(_case, sorted(ROOT.glob("*/*.meta.json")))}


@dataclass(frozen=True)
class Answer:
    """What is sent for one request: the pieces, each in a write of its own, and then the ending.

    `hold`: the answer never ends; `cut`: the connection ends before the answer does; `silence`: nothing is sent at all.
    """

    pieces: tuple[bytes, ...] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    framing: Literal["chunked", "length", "eof", "raw"] = "chunked"
    ending: Literal["complete", "hold", "cut", "silence"] = "complete"
    early_hints: bool = False
    gate: asyncio.Event | None = None
    """What is waited for before the ending."""

    def split(self, size: int) -> Answer:
        """The same bytes in pieces of `size`."""
        body = b"".join(self.pieces)
        return replace(self, pieces=tuple(body[at : at + size] for at in range(0, len(body), size)))

    def head(self) -> bytes:
        fields = dict(self.headers)
        if self.framing == "chunked":
            fields["transfer-encoding"] = "chunked"
        elif self.framing == "length":
            fields["content-length"] = str(sum(map(len, self.pieces)))
        else:
            fields["connection"] = "close"
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        hints = "HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n" if self.early_hints else ""
        return f"{hints}HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}\r\n{lines}\r\n".encode()

    def framed(self, piece: bytes) -> bytes:
        return b"%x\r\n%s\r\n" % (len(piece), piece) if self.framing == "chunked" else piece


def sse(*pieces: bytes, ending: Literal["complete", "hold", "cut"] = "complete") -> Answer:
    return Answer(pieces, ending=ending)


def whole(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer((body,), status, {"content-type": "application/json", **(headers or {})}, "length")


def recorded(case: Case) -> Answer:
    """The answer of `case` with its own status and headers, in one piece."""
    own = {name: value for name, value in case.meta["headers"].items() if name not in _FRAMING}
    framing: Literal["chunked", "length"] = "chunked" if "transfer-encoding" in case.meta["headers"] else "length"
    return Answer((case.body,), case.meta["status"], own, framing)


_FRAMING = ("transfer-encoding", "content-length")


@dataclass(frozen=True)
class Seen:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Backend:
    """Plays its answers in turn, the last one for ever."""

    def __init__(self, answers: tuple[Answer, ...]) -> None:
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.requests: list[Seen] = []
        self.connections = 0
        self.open_connections = 0
        self.asked = asyncio.Event()
        """A request has come."""
        self.left = asyncio.Event()
        """A client went away, in mid-answer or while idle."""

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open_connections += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while await self._exchange(reader, writer):
                    pass
        finally:
            self.open_connections -= 1
            self.left.set()
            self._tasks.discard(task)
            self._writers.discard(writer)
            writer.transport.abort() if self._answers[-1].ending == "cut" else writer.close()

    def chosen(self) -> Answer:
        """The answer to the request that came last."""
        return self._answers[min(len(self.requests), len(self._answers)) - 1]

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Whether the connection can be used again."""
        self.requests.append(await _read_request(reader))
        answer = self.chosen()
        self.asked.set()
        if answer.ending != "silence":
            await self._play(answer, writer)
        if answer.ending in ("hold", "silence"):
            while await reader.read(1024):
                pass
        return answer.ending == "complete" and answer.framing not in ("eof", "raw")

    async def _play(self, answer: Answer, writer: asyncio.StreamWriter) -> None:
        if answer.framing != "raw":
            writer.write(answer.head())
        for piece in answer.pieces:
            writer.write(answer.framed(piece))
            await writer.drain()
        if answer.gate is not None:
            await answer.gate.wait()
        if answer.framing == "chunked" and answer.ending == "complete":
            writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.rstrip("\r\n").split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Seen(method, path, headers, body)


@asynccontextmanager
async def serve(
    *answers: Case | Answer | bytes, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncGenerator[Backend, None]:
    """A server that plays `answers`: recordings, made-up answers, or the raw bytes of one."""
    backend = Backend(tuple(map(_answer, answers)))
    server = await asyncio.start_server(backend.accept, host, 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    backend.url = f"{'https' if tls else 'http'}://{'localhost' if tls else host}:{port}/v1"
    try:
        yield backend
    finally:
        server.close()
        await backend.close()


def _answer(given: Case | Answer | bytes) -> Answer:
    if isinstance(given, Case):
        return recorded(given)
    return Answer((given,), framing="raw") if isinstance(given, bytes) else given
