"""Trace requests through `antwort serve` in this process and print what they pass, as one JSON object.

The server runs in the main thread with a Chat Completions backend and an MCP server over loopback; responses are
stored in SQLite. Backend and client run in a thread that is not traced, the MCP server in another process. Each
request is sent twice to warm up and then nine times over one connection. The repeat with the fewest calls counts, so
that a periodic task of the server does not show in the figures. Two runs differ by two percent at most.

- `modules`: modules of antwort of which a function ran.
- `own_calls`, `calls`: calls of Python functions, those of antwort and those of any package. A coroutine or generator
  counts when it starts and not when it resumes; functions written in C do not count.
- `delta`: calls for one text delta: the difference between streams of `DELTAS` deltas and of twice as many, divided by
  `DELTAS`. The backend sends a delta when the client has received the one before.
- `async_generators`: those that ran at least once for each delta.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from dis import opmap
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeAlias

import antwort
from antwort import cli

PACKAGE = str(Path(antwort.__file__).parent)
WARM_UPS = 2
REPEATS = 9
DELTAS = 50
IDLE_SECONDS = 0.1
"""A request has ended when no function of antwort was called for this long after its answer."""
START_SECONDS = 30.0

Json: TypeAlias = dict[str, Any]
Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SHORT: Json = {"model": "traced", "input": "Hello"}
MCP_CALL: Json = {**SHORT, "tools": [{"type": "mcp", "server_label": "try", "allowed_tools": ["echo"]}]}
REQUESTS: dict[str, tuple[Json, int]] = {
    "short": (SHORT, 0),
    "call": (MCP_CALL, 0),
    "streamed_call": ({**MCP_CALL, "stream": True}, 0),
    "few_deltas": ({**SHORT, "stream": True}, DELTAS),
    "many_deltas": ({**SHORT, "stream": True}, 2 * DELTAS),
}
"""The body of each request, and how many deltas the backend sends one by one."""


class Trace:
    """The functions that were called, and the coroutines and generators that resumed, each with a count."""

    def __init__(self, events: list[tuple[CodeType, bool]]) -> None:
        self.calls = Counter(code for code, is_resumed in events if not is_resumed)
        self.entries = Counter(code for code, _ in events)
        self.own_calls = sum(count for code, count in self.calls.items() if is_own(code))

    def figures(self) -> dict[str, int]:
        modules = {code.co_filename for code in self.entries if is_own(code)}
        return {"modules": len(modules), "own_calls": self.own_calls, "calls": self.calls.total()}


def is_own(code: CodeType) -> bool:
    return code.co_filename.startswith(PACKAGE)


class Tracer:
    """A profile function that records which functions are entered while it is on."""

    def __init__(self) -> None:
        self._is_on = False
        self._events: list[tuple[CodeType, bool]] = []
        self._end = 0
        """How many events there were when a function of antwort was last called."""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if self._is_on and event == "call":
            code, at = frame.f_code, frame.f_lasti
            is_resumed = code.co_code[at] == opmap["RESUME"] and code.co_code[at + 1] & 3 != 0
            self._events.append((code, is_resumed))
            if not is_resumed and is_own(code):
                self._end = len(self._events)

    def start(self) -> None:
        self._events, self._end = [], 0
        self._is_on = True

    async def stop(self) -> Trace:
        """Wait until antwort is idle; return what ran up to its last call."""
        seen = -1
        while seen != self._end:
            seen = self._end
            await asyncio.sleep(IDLE_SECONDS)
        self._is_on = False
        return Trace(self._events[:seen])


# ---- backend and client ----


class Backend:
    """A Chat Completions backend: it calls the first tool of a request, and answers with text after a tool result."""

    def __init__(self) -> None:
        self.deltas = 0
        """How many more deltas of a streamed text are sent, each after the client has received the one before."""
        self.received = asyncio.Semaphore(0)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await read_message(reader)
                if head.startswith("get"):
                    writer.write(as_json({"object": "list", "data": [{"id": "traced", "object": "model"}]}))
                else:
                    await self._complete(json.loads(body), writer)
        writer.close()

    async def _complete(self, request: Json, writer: asyncio.StreamWriter) -> None:
        message: Json = {"role": "assistant", "content": "Hello."}
        reason = "stop"
        if "tools" in request and request["messages"][-1]["role"] != "tool":
            function = {"name": request["tools"][0]["function"]["name"], "arguments": '{"text": "Hello"}'}
            call = {"index": 0, "id": "call_1", "type": "function", "function": function}
            message, reason = {"role": "assistant", "content": None, "tool_calls": [call]}, "tool_calls"
        usage = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}
        if not request.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": reason}
            writer.write(as_json({"id": "chat", "object": "chat.completion", "choices": [choice], "usage": usage}))
            return
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
        for _ in range(self.deltas):
            writer.write(as_chunk({"index": 0, "delta": {"content": "Hello "}, "finish_reason": None}))
            await self.received.acquire()
        writer.write(
            as_chunk({"index": 0, "delta": message, "finish_reason": None})
            + as_chunk({"index": 0, "delta": {}, "finish_reason": reason}, usage=usage)
            + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
        )


def as_json(answer: Json) -> bytes:
    body = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


def as_chunk(choice: Json, **fields: Json) -> bytes:
    event = {"id": "chat", "object": "chat.completion.chunk", "choices": [choice], **fields}
    frame = b"data: %b\n\n" % json.dumps(event).encode()
    return b"%x\r\n%b\r\n" % (len(frame), frame)


async def read_message(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """Read an HTTP message; its body has no length unless a header gives it."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = re.search(r"^content-length: *(\d+)", head, re.MULTILINE)
    return head, await reader.readexactly(int(length[1])) if length else b""


async def connect(port: int) -> Connection:
    """Open a connection as soon as the server listens."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(IDLE_SECONDS)


async def send(request: Json, connection: Connection, backend: Backend) -> None:
    """Send a request, read its answer, and let the backend send the next delta after each one."""
    reader, writer = connection
    body = json.dumps(request).encode()
    head = b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json"
    writer.write(b"%b\r\ncontent-length: %d\r\n\r\n%b" % (head, len(body), body))
    if "stream" in request:
        answer = b""
        while (line := await reader.readline()) != b"0\r\n":
            answer += line
            if line.startswith(b"event: response.output_text.delta"):
                backend.received.release()
        await reader.readline()
    else:
        _, answer = await read_message(reader)
    if not re.search(rb'"status": ?"completed"', answer) or b"error" in answer.replace(b'"error":null', b""):
        raise RuntimeError(answer.decode())


# ---- measuring ----


async def measure(port: int, backend: Backend, tracer: Tracer) -> Json:
    connection = await connect(port)

    async def trace(request: Json, deltas: int) -> Trace:
        backend.deltas, backend.received = deltas, asyncio.Semaphore(0)
        tracer.start()
        await send(request, connection, backend)
        return await tracer.stop()

    for _ in range(WARM_UPS):
        for request, deltas in REQUESTS.values():
            await trace(request, deltas)
    traces = {
        name: min([await trace(*request) for _ in range(REPEATS)], key=lambda trace: trace.calls.total())
        for name, request in REQUESTS.items()
    }
    few, many = traces.pop("few_deltas"), traces.pop("many_deltas")
    figures: Json = {name: trace.figures() for name, trace in traces.items()}
    entries = many.entries - few.entries
    generators = [code for code in entries if code.co_flags & inspect.CO_ASYNC_GENERATOR and entries[code] >= DELTAS]
    figures["delta"] = {
        "own_calls": round((many.own_calls - few.own_calls) / DELTAS),
        "calls": round((many.calls.total() - few.calls.total()) / DELTAS),
        "async_generators": len(generators),
    }
    connection[1].close()
    return figures


@contextlib.contextmanager
def mcp_server() -> Iterator[str]:
    """Run the MCP server of `antwort.testing` in another process; yield its address."""
    command = [sys.executable, "-m", "antwort.testing.mcp", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[2]
        finally:
            process.terminate()


def main() -> None:
    tracer, figures = Tracer(), Json()
    listening = socket.create_server(("127.0.0.1", 0))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]

    async def run() -> None:
        backend = Backend()
        async with await asyncio.start_server(backend.serve, sock=listening):
            figures.update(await measure(port, backend, tracer))

    def run_untraced() -> None:
        sys.setprofile(None)
        try:
            asyncio.run(run())
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    for name in [name for name in os.environ if name.startswith("ANTWORT_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as folder, mcp_server() as mcp_url:
        settings = {
            "backends": [{"name": "traced", "url": f"http://127.0.0.1:{listening.getsockname()[1]}/v1"}],
            "mcp_servers": [{"label": "try", "url": mcp_url, "require_approval": "never"}],
        }
        file = Path(folder) / "antwort.yaml"
        file.write_text(json.dumps(settings), encoding="utf-8")
        threading.setprofile(tracer)
        sys.setprofile(tracer)
        threading.Thread(target=run_untraced, daemon=True).start()
        with contextlib.redirect_stdout(sys.stderr):
            cli.main(["serve", "--config", str(file), "--data", folder, "--port", str(port)])
        sys.setprofile(None)
    if not figures:
        raise SystemExit("No figures: see the error above.")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
