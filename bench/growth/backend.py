"""A Chat Completions backend that makes answers of the size that the request names in its instructions.

python -m growth.backend PORT

`turns=N`: it calls the tool until there were N turns. `text=N`: it answers with N characters. Otherwise: with a word.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

MODEL, TOOL = "growing", "look"
_WANTED = re.compile(rb"(turns|text)=(\d+)")
_PIECE = "word " * 12 + "end. "
_HEAD = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": MODEL}

encode = msgspec.json.Encoder().encode


def pieces(body: bytes) -> Iterator[dict[str, Any]]:
    """Yield the deltas of the answer to a request."""
    found = _WANTED.search(body[:1000])
    kind, number = (found[1], int(found[2])) if found else (b"", 0)
    if kind == b"turns" and body.count(b'"role":"tool"') < number - 1:
        turn = body.count(b'"role":"tool"')
        function = {"name": TOOL, "arguments": f'{{"what": "thing {turn}"}}'}  # the same again would be a loop
        call_id = f"call_{turn}"
        yield {
            "role": "assistant",
            "tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": function}],
        }
    elif kind == b"text":
        for start in range(0, number, len(_PIECE)):
            yield {"content": _PIECE[: number - start]}
    else:
        yield {"content": "Done."}


async def app(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """Answer as an ASGI application."""
    if scope["path"].endswith("/models"):
        await answer(send, encode({"object": "list", "data": [{"id": MODEL, "object": "model"}]}))
        return
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    deltas = [*pieces(bytes(body))]
    finish = "tool_calls" if "tool_calls" in deltas[-1] else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    if b'"stream":true' not in body:
        said: dict[str, Any] = {"role": "assistant", "content": "".join(each.get("content", "") for each in deltas)}
        if finish == "tool_calls":
            said = {**deltas[-1], "content": None}
        choice = {"index": 0, "message": said, "finish_reason": finish}
        await answer(send, encode({**_HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}))
        return
    frames = [encode({**_HEAD, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    frames.append(encode({**_HEAD, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": usage}))
    stream = b"".join(b"data: %b\n\n" % frame for frame in [*frames, b"[DONE]"])
    await answer(send, stream, b"text/event-stream")


async def answer(send: Callable[[Any], Awaitable[None]], body: bytes, kind: bytes = b"application/json") -> None:
    headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    import uvicorn

    config = uvicorn.Config(app, port=int(sys.argv[1]), lifespan="off", log_level="warning")
    asyncio.run(uvicorn.Server(config).serve())
