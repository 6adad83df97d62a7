"""A Chat Completions backend over real HTTP that plays a script and keeps what it saw."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

USAGE = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}


@dataclass
class Says:
    """Text, in pieces. With `hold`, nothing comes after the first piece until it is set. `thinks` comes first."""

    pieces: Sequence[str] = ("Hello", " there")
    finish: str = "stop"
    hold: asyncio.Event | None = None
    thinks: str = ""


@dataclass
class Calls:
    """Calls of functions, each a name and its arguments as JSON text, after what it `thinks`."""

    calls: Sequence[tuple[str, str]]
    thinks: str = ""


@dataclass
class Deltas:
    """A stream of these deltas, each in a chunk of its own, as a backend that is not like others writes it."""

    deltas: Sequence[dict[str, Any]]
    finish: str = "tool_calls"


@dataclass
class Refuses:
    """An error instead of an answer."""

    status: int
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    code: str | None = None


@dataclass
class Stalls:
    """Not even headers until `hold` is set."""

    hold: asyncio.Event


@dataclass
class Breaks:
    """Begins to stream and drops the connection."""

    pieces: Sequence[str] = ("Hel",)


Answer: TypeAlias = Says | Calls | Deltas | Refuses | Stalls | Breaks


class ChatBackend:
    """Use as a context. Answers are played in order; the last one is repeated."""

    def __init__(self, *answers: Answer, models: Iterable[str] = ("test-model",)) -> None:
        self.answers = list(answers) or [Says()]
        self.models = list(models)
        self.models_status = 200
        """Of the answer to who asks for them, which is also how its health is checked."""
        self.requests: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.keys: list[str | None] = []
        self.connections = 0
        self.open_requests = 0
        self.port = 0
        self._changed = asyncio.Event()
        self.tasks: set[asyncio.Task[None]] = set()
        """One for each connection."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port, backlog=512)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def until(self, claim: Callable[[], bool]) -> None:
        """Wait for something that a request, or its end, makes true."""
        while not claim():
            await self._changed.wait()

    def _note(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # ---- one connection ----

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._note()
        try:
            while await self._exchange(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self.connections -= 1
            self._note()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection can carry another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.paths.append(path)
        self.keys.append(headers.get("authorization"))
        if method == "GET":
            writer.write(_whole(self.models_status, {"object": "list", "data": [_model(name) for name in self.models]}))
            return True
        self.requests.append(json.loads(body))
        return await self._play(self.answer(self.requests[-1]), self.requests[-1], reader, writer)

    def answer(self, request: dict[str, Any]) -> Answer:
        """What the request is answered with."""
        return self.answers[0] if len(self.answers) == 1 else self.answers.pop(0)

    async def _play(
        self, answer: Answer, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Write the answer, and stop at once when the other side hangs up."""
        self.open_requests += 1
        self._note()
        writing = asyncio.create_task(_write(answer, request, writer))
        hanging_up = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait((writing, hanging_up), return_when=asyncio.FIRST_COMPLETED)
            return writing.done() and writing.result()
        finally:
            writing.cancel()
            hanging_up.cancel()
            await asyncio.wait((writing, hanging_up))
            self.open_requests -= 1
            self._note()


async def _write(answer: Answer, request: dict[str, Any], writer: asyncio.StreamWriter) -> bool:
    if isinstance(answer, Stalls):
        await answer.hold.wait()
        answer = Says()
    if isinstance(answer, Refuses):
        error = {"error": {"message": answer.message, "type": "error", "code": answer.code}}
        writer.write(_whole(answer.status, error, answer.headers))
    elif request.get("stream"):
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        async for chunk in _chunks(answer):
            data = f"data: {chunk}\n\n".encode()
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))
            await writer.drain()
        if isinstance(answer, Breaks):
            return False
        writer.write(b"0\r\n\r\n")
    elif isinstance(answer, Breaks):
        return False
    else:
        assert not isinstance(answer, Deltas), "there are no pieces in an answer that is not streamed"
        writer.write(_whole(200, await _completion(answer)))
    await writer.drain()
    return True


async def _chunks(answer: Says | Calls | Deltas | Breaks) -> AsyncIterator[str]:
    if isinstance(answer, Says | Calls) and answer.thinks:
        yield _chunk({"reasoning_content": answer.thinks})
    if isinstance(answer, Deltas):
        for delta in answer.deltas:
            yield _chunk(delta)
        yield _chunk({}, answer.finish)
    elif isinstance(answer, Calls):
        calls = [{"index": i, **_call(i, *call)} for i, call in enumerate(answer.calls)]
        yield _chunk({"role": "assistant", "tool_calls": calls})
        yield _chunk({}, "tool_calls")
    else:
        for i, piece in enumerate(answer.pieces):
            yield _chunk({"content": piece})
            if i == 0 and isinstance(answer, Says) and answer.hold is not None:
                await answer.hold.wait()
        if isinstance(answer, Breaks):
            return
        yield _chunk({}, answer.finish)
    yield json.dumps({**_BASE, "choices": [], "usage": USAGE})
    yield "[DONE]"


async def _completion(answer: Says | Calls) -> dict[str, Any]:
    if isinstance(answer, Calls):
        calls = [_call(i, *call) for i, call in enumerate(answer.calls)]
        message: dict[str, Any] = {"role": "assistant", "content": None, "tool_calls": calls}
        finish = "tool_calls"
    else:
        if answer.hold is not None:
            await answer.hold.wait()
        message, finish = {"role": "assistant", "content": "".join(answer.pieces)}, answer.finish
    if answer.thinks:
        message["reasoning_content"] = answer.thinks
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**_BASE, "object": "chat.completion", "choices": [choice], "usage": USAGE}


_BASE = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "test-model"}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    return json.dumps({**_BASE, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def _call(index: int, name: str, arguments: str) -> dict[str, Any]:
    return {"id": f"call_{index}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 1, "owned_by": "test"}


def _whole(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} Status", "content-type: application/json", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return "\r\n".join([*lines, "", ""]).encode() + data
