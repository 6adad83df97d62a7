"""A Chat Completions backend and MCP servers that misbehave, each by its name, over plain sockets.

PYTHONPATH=bench python -m attacks.hostile --port 0

Models: `good` answers at once, `broken` with a 500, `cut` breaks its stream off, `silent` never answers, `flood` and
`arguments` write 300 MB, `trailer` ends its body and writes trailers for ever, `wide` writes 40 MB in 200 events,
`page` 2 MB in 200, and `book` has its tool called until 40 MB of results are there. MCP servers: `/mcp/book` (a tool
that answers 250 kB), `/mcp/trailer`, `/mcp/chatty`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

MODELS = ("good", "broken", "cut", "silent", "flood", "arguments", "trailer", "wide", "page", "book")
FLOOD_BYTES = 300_000_000
_EVENT_BYTES = 200_000
_BOOK_TURNS, _BOOK_CALLS, _BOOK_BYTES = 9, 18, 250_000
_JSON = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nTransfer-Encoding: chunked\r\n\r\n"
_EVENTS = _CHUNKED % b"text/event-stream"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection, until it breaks."""
    with suppress(OSError, asyncio.IncompleteReadError, ValueError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, path, _ = head.split("\r\n", 1)[0].split(" ")
            lengths = [line.split(":")[1] for line in head.split("\r\n") if line.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            async for piece in _answer(method, path, body):
                writer.write(piece)
                await writer.drain()
    writer.close()


async def _answer(method: str, path: str, body: bytes) -> AsyncIterator[bytes]:
    if path.startswith("/mcp/"):
        async for piece in _mcp(method, path.removeprefix("/mcp/"), body):
            yield piece
    elif path.endswith("/models"):
        yield _whole({"object": "list", "data": [{"id": name, "object": "model"} for name in MODELS]})
    elif path.endswith("/chat/completions"):
        async for piece in _chat(json.loads(body)):
            yield piece
    else:
        yield b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"


def _whole(value: object) -> bytes:
    written = json.dumps(value).encode()
    return _JSON % (len(written), written)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _event(delta: dict[str, Any], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    told = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    return _chunk(b"data: %b\n\n" % json.dumps(told).encode())


_DONE = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


def _message(message: dict[str, Any], finish: str = "stop") -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    usage = {"prompt_tokens": 5, "completion_tokens": 7, "total_tokens": 12}
    return _whole(
        {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}
    )


async def _chat(asked: dict[str, Any]) -> AsyncIterator[bytes]:
    model, is_streamed = asked["model"], asked.get("stream")
    match model:
        case "broken":
            yield b"HTTP/1.1 500 Internal Server Error\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        case "cut":
            yield _EVENTS + _event({"role": "assistant", "content": "Hel"})
            raise OSError
        case "silent":
            await asyncio.sleep(3600)
        case "trailer":
            yield _EVENTS + _event({"role": "assistant", "content": "Hi"}) + b"0\r\nX: "
            while True:
                yield b"a" * 65_536
        case "flood" | "wide" | "page":
            size, total = {
                "flood": (16_000, FLOOD_BYTES),
                "wide": (_EVENT_BYTES, 200 * _EVENT_BYTES),
                "page": (10_000, 2_000_000),
            }[model]
            yield _EVENTS + _event({"role": "assistant", "content": ""})
            piece = _event({"content": "a" * size})
            for _ in range(total // size):
                yield piece
            yield _event({}, "stop") + _DONE
        case "arguments":
            called = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": "'}}
            yield _EVENTS + _event({"role": "assistant", "tool_calls": [called]})
            piece = _event({"tool_calls": [{"index": 0, "function": {"arguments": "a" * 16_000}}]})
            for _ in range(FLOOD_BYTES // 16_000):
                yield piece
            yield (
                _event({"tool_calls": [{"index": 0, "function": {"arguments": '"}'}}]})
                + _event({}, "tool_calls")
                + _DONE
            )
        case "book" if sum(message["role"] == "tool" for message in asked["messages"]) < _BOOK_TURNS * _BOOK_CALLS:
            name = asked["tools"][0]["function"]["name"]
            calls = [
                {
                    "index": at,
                    "id": f"c{at}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps({"n": at})},
                }
                for at in range(_BOOK_CALLS)
            ]
            if is_streamed:
                yield _EVENTS + _event({"role": "assistant", "tool_calls": calls}) + _event({}, "tool_calls") + _DONE
            else:
                yield _message({"content": None, "tool_calls": calls}, "tool_calls")
        case _ if is_streamed:
            yield _EVENTS + _event({"role": "assistant", "content": "Hello"}) + _event({}, "stop") + _DONE
        case _:
            yield _message({"content": "Hello"})


async def _mcp(method: str, kind: str, body: bytes) -> AsyncIterator[bytes]:
    if method == "GET" and kind == "chatty":
        yield _EVENTS
        told = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 100}}
        piece = _chunk(b"event: message\ndata: %b\n\n" % json.dumps(told).encode() * 100)
        while True:
            yield piece
    if method != "POST":
        yield b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n"
        return
    asked = json.loads(body)
    if kind == "trailer":
        yield _CHUNKED % b"application/json" + _chunk(b"{}") + b"0\r\nX: "
        while True:
            yield b"a" * 65_536
    answer: dict[str, Any]
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            answer = {
                "protocolVersion": version,
                "capabilities": {"tools": {}, "logging": {}},
                "serverInfo": {"name": kind, "version": "1"},
            }
        case "tools/list":
            schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
            answer = {"tools": [{"name": "page", "description": "Read a page.", "inputSchema": schema}]}
        case "tools/call":
            answer = {"content": [{"type": "text", "text": "b" * _BOOK_BYTES}]}
        case _ if "id" not in asked:
            yield b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
            return
        case _:
            error = {"code": -32601, "message": "Method not found"}
            yield _whole({"jsonrpc": "2.0", "id": asked["id"], "error": error})
            return
    yield _whole({"jsonrpc": "2.0", "id": asked["id"], "result": answer})


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m attacks.hostile", description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    server = await asyncio.start_server(serve, "127.0.0.1", parser.parse_args().port, limit=2**20)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
