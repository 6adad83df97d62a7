"""A Chat Completions backend that tells the stories of `story.py`, slowly enough to be killed in the middle of them.

PYTHONPATH=tests python -m chaos.model --pace 0.05
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from antwort.testing.backend import Message, Receive, Send
from chaos.story import Turn, answer, arguments_at

MODEL = "teller"


class Teller:
    """An ASGI application. `pace` are the seconds between two pieces of an answer."""

    def __init__(self, pace: float) -> None:
        self._pace = pace

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "chaos"}
            await _start(send, b"application/json")
            await _piece(send, {"object": "list", "data": [listed]}, is_last=True)
            return
        request = json.loads(await _body(receive))
        await _start(send, b"text/event-stream")
        for chunk in chunks(answer(request["messages"])):
            await _frame(send, json.dumps(chunk))
            await asyncio.sleep(self._pace)
        await _frame(send, "[DONE]", is_last=True)


def chunks(turn: Turn) -> Iterator[dict[str, Any]]:
    for word in turn.words:
        yield _chunk({"role": "assistant", "content": word})
    for at, call in enumerate(turn.calls):
        begun = {"name": call.kind, "arguments": ""}
        yield _chunk({"tool_calls": [{"index": at, "id": f"{call.place}", "type": "function", "function": begun}]})
        yield _chunk({"tool_calls": [{"index": at, "function": {"arguments": arguments_at(call.place)}}]})
    finish = "tool_calls" if turn.calls else "stop"
    usage = {"prompt_tokens": 10, "completion_tokens": len(turn.words), "total_tokens": 10 + len(turn.words)}
    yield {**_chunk({}, finish), "usage": usage}


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": MODEL, "choices": [choice]}


async def _body(receive: Receive) -> bytes:
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    return body + bytes(message.get("body", b""))


async def _start(send: Send, kind: bytes) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})


async def _piece(send: Send, content: dict[str, Any], *, is_last: bool) -> None:
    body = json.dumps(content).encode()
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def _frame(send: Send, data: str, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": not is_last})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description="A backend that tells stories.")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds between two pieces")
    chosen = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", flush=True)  # noqa: T201 - a program
        config = uvicorn.Config(Teller(chosen.pace), lifespan="off", log_level="critical")
        asyncio.run(uvicorn.Server(config).serve(sockets=[sock]))


if __name__ == "__main__":
    main()
