"""A Chat Completions backend that tells the stories of `story.py`, slowly enough to be killed in the middle of them.

PYTHONPATH=tests python -m chaos.model --pace 0.05 --ledger FILE
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from antwort.testing.backend import Message, Receive, Send
from chaos.ledger import Inference, Ledger
from chaos.story import Heard, Turn, answer, arguments_at, heard

MODEL = "teller"
REFUSALS = 2
"""How often each fourth paused turn is refused when it goes on, so that its client tries again."""


class Teller:
    """An ASGI application. `pace` are the seconds between two pieces of an answer. Each request is written down."""

    def __init__(self, pace: float, ledger: Ledger) -> None:
        self._pace, self._ledger = pace, ledger
        self._refused = Counter[int]()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            listed = {"id": MODEL, "object": "model", "created": 0, "owned_by": "chaos"}
            await _start(send, b"application/json")
            await _piece(send, {"object": "list", "data": [listed]}, is_last=True)
            return
        known = heard(json.loads(await _body(receive))["messages"])
        self._ledger.write(Inference(known.number, known.results, time.time()))
        if self._refuses(known):
            await _start(send, b"application/json", 429, (b"retry-after", b"120"))
            await _piece(send, {"error": {"message": "Too many requests.", "code": "rate_limit"}}, is_last=True)
            return
        await _start(send, b"text/event-stream")
        for chunk in chunks(answer(known)):
            await _frame(send, json.dumps(chunk))
            await asyncio.sleep(self._pace)
        await _frame(send, "[DONE]", is_last=True)

    def _refuses(self, known: Heard) -> bool:
        """A busy backend says nothing about others: no server stops asking it."""
        is_due = known.scene == "pause" and known.number % 4 == 0 and bool(known.results)
        self._refused[known.number] += is_due
        return is_due and self._refused[known.number] <= REFUSALS


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


async def _start(send: Send, kind: bytes, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind), *headers]})


async def _piece(send: Send, content: dict[str, Any], *, is_last: bool) -> None:
    body = json.dumps(content).encode()
    await send({"type": "http.response.body", "body": body, "more_body": not is_last})


async def _frame(send: Send, data: str, *, is_last: bool = False) -> None:
    await send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": not is_last})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos.model", description="A backend that tells stories.")
    parser.add_argument("--pace", type=float, default=0.05, help="seconds between two pieces")
    parser.add_argument("--ledger", type=Path, required=True, metavar="FILE", help="where each request is written down")
    chosen = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"http://127.0.0.1:{sock.getsockname()[1]}/v1", flush=True)  # noqa: T201 - a program
        config = uvicorn.Config(Teller(chosen.pace, Ledger(chosen.ledger)), lifespan="off", log_level="critical")
        asyncio.run(uvicorn.Server(config).serve(sockets=[sock]))


if __name__ == "__main__":
    main()
